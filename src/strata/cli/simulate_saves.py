"""`strata simulate saves`: checkpoints of many ranks on virtual time, from a seed, or from a thousand of them."""

from collections import Counter
from time import perf_counter
from typing import Annotated

import msgspec
import typer

from strata.cli.drawing import Terminal, Text, simulation_progress, tell_rows
from strata.cli.output import say_json
from strata.testing.saves.plan import MOST_RANKS, SavesPlan
from strata.testing.saves.run import SavesResult, run_plan
from strata.testing.simulation.many import spread
from strata.testing.simulation.run import Failure

HISTORY_SHOWN = 40


def saves(
    seed: Annotated[int, typer.Option(help="The seed, or the first of several.")] = 0,
    seeds: Annotated[int, typer.Option(help="How many seeds to run.", min=1)] = 1,
    ranks: Annotated[int, typer.Option(help="Ranks of the job.", min=2, max=MOST_RANKS)] = 4,
    coordinator: Annotated[bool, typer.Option(help="Whether the job has a coordinator.")] = True,
    seconds: Annotated[float, typer.Option(help="Virtual seconds in which faults strike.", min=1)] = 90.0,
    faults: Annotated[int | None, typer.Option(help="How many faults strike [default: 2 to 8].", min=0)] = None,
    processes: Annotated[int | None, typer.Option(help="Processes to use [default: one per core].", min=1)] = None,
    history: Annotated[int, typer.Option(help="Lines of history to show of a failure.", min=0)] = HISTORY_SHOWN,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Run a job whose ranks save together: ranks that die, freeze and are left over, a storage that fails, and a
    coordinator that crashes.

    The real protocol saves; what a job may rely on is checked as it goes. The same seed always gives the same run.
    """
    console = Terminal(stderr=as_json)
    plans = [
        SavesPlan.of(seed + number, ranks, coordinator=coordinator, seconds=seconds, faults=faults)
        for number in range(seeds)
    ]
    began = perf_counter()
    results = _run_all(plans, processes, console)
    if as_json:
        say_json(msgspec.to_builtins(results))
    else:
        _summarise(results, perf_counter() - began, console)
    failed = [result for result in results if result.failure is not None]
    if failed:
        _explain(failed, history, console)
        raise typer.Exit(1)


def _run_all(plans: list[SavesPlan], processes: int | None, console: Terminal) -> list[SavesResult]:
    results: list[SavesResult] = []
    with simulation_progress(console) as progress:
        task = progress.add_task("seeds", total=len(plans), note="")
        for result in spread(plans, run_plan, processes):
            results.append(result)
            failed = sum(each.failure is not None for each in results)
            progress.update(task, advance=1, note=f"{failed} failed" if failed else "all hold")
    return sorted(results, key=lambda result: result.plan.seed)


def _summarise(results: list[SavesResult], wall: float, console: Terminal) -> None:
    faults: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    messages: Counter[str] = Counter()
    for result in results:
        faults.update(result.faults)
        outcomes.update(result.outcomes)
        messages.update(result.messages)
    struck = sum(result.plan.seconds for result in results)
    rows = {
        "runs": f"{len(results):,} x {results[0].plan.ranks:,} ranks, {struck:,.0f} virtual seconds of faults in "
        f"{wall:.1f} s",
        "faults": ", ".join(f"{kind} {count:,}" for kind, count in sorted(faults.items())) or "none",
        "worlds": f"{sum(result.worlds for result in results):,} starts of all ranks",
        "saves": ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items())) + ", of each rank",
        "checkpoints": f"{sum(result.commits for result in results):,} committed",
        "storage": f"{sum(result.storage_calls for result in results):,} calls, "
        f"{sum(result.storage_faults for result in results):,} of them failed on purpose",
    }
    if results[0].plan.coordinator:
        rows["messages"] = ", ".join(f"{messages[kind]:,} {kind}" for kind in ("sent", "lost", "late", "doubled"))
        rows["coordinator"] = (
            f"{sum(result.coordinator_calls for result in results):,} calls, "
            f"{sum(result.coordinator_restarts for result in results):,} restarts"
        )
    if len(results) == 1:
        rows["digest"] = results[0].digest
    tell_rows(console, rows)
    tell_verdict(console, sum(result.failure is not None for result in results), len(results))


def tell_verdict(console: Terminal, failed: int, runs: int) -> None:
    verdict = Text(f"{failed} of {runs} failed", "bold red") if failed else Text("every promise held", "bold green")
    console.print(verdict)


def tell_failure(console: Terminal, failure: Failure, history: int, *notes: str) -> None:
    """What did not hold, and the last of what happened before."""
    console.print()
    console.print(
        Text(failure.message, "bold red").append(f" at {failure.at:.3f} s", "not bold default"), soft_wrap=True
    )
    for note in notes:
        console.print(note, soft_wrap=True)
        console.print()
    for line in failure.history[-history:] if history else []:
        console.print(line, soft_wrap=True)


def _explain(failed: list[SavesResult], history: int, console: Terminal) -> None:
    more = f" and {len(failed) - 20} more" if len(failed) > 20 else ""
    console.print()
    console.print(f"failing seeds: {', '.join(str(result.plan.seed) for result in failed[:20])}{more}")
    first = failed[0]
    assert first.failure is not None
    plan = first.plan
    how = "--coordinator" if plan.coordinator else "--no-coordinator"
    again = f"--seed {plan.seed} --ranks {plan.ranks} --seconds {plan.seconds:g} {how}"
    if SavesPlan.of(plan.seed, plan.ranks, coordinator=plan.coordinator, seconds=plan.seconds) != plan:
        again += f" --faults {len(plan.faults)}"
    console.print(f"replay the first: strata simulate saves {again}", soft_wrap=True)
    tell_failure(console, first.failure, history)
