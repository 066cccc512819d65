"""`strata simulate saves`: checkpoints of many ranks on virtual time, from a seed, or from a thousand of them."""

from collections import Counter
from time import perf_counter
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from strata.testing.saves.plan import MOST_RANKS, SavesPlan
from strata.testing.saves.run import SavesResult, run_plan
from strata.testing.simulation.many import spread

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
    console = Console(stderr=as_json)
    plans = [
        SavesPlan.of(seed + number, ranks, coordinator=coordinator, seconds=seconds, faults=faults)
        for number in range(seeds)
    ]
    began = perf_counter()
    results = _run_all(plans, processes, console)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(results)).decode())
    else:
        _summarise(results, perf_counter() - began, console)
    failed = [result for result in results if result.failure is not None]
    if failed:
        _explain(failed, history, console)
        raise typer.Exit(1)


def progress_on(console: Console) -> Progress:
    """How far a simulation is."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=console)


def _run_all(plans: list[SavesPlan], processes: int | None, console: Console) -> list[SavesResult]:
    results: list[SavesResult] = []
    with progress_on(console) as progress:
        task = progress.add_task("seeds", total=len(plans), note="")
        for result in spread(plans, run_plan, processes):
            results.append(result)
            failed = sum(each.failure is not None for each in results)
            progress.update(task, advance=1, note=f"[red]{failed} failed" if failed else "[green]all hold")
    return sorted(results, key=lambda result: result.plan.seed)


def _summarise(results: list[SavesResult], wall: float, console: Console) -> None:
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
    table = Table(show_header=False, box=None, padding=(0, 2))
    for name, value in rows.items():
        table.add_row(f"[bold]{name}", value)
    console.print(table)
    failed = sum(result.failure is not None for result in results)
    console.print(f"[bold red]{failed} of {len(results)} failed" if failed else "[bold green]every promise held")


def _explain(failed: list[SavesResult], history: int, console: Console) -> None:
    more = f" and {len(failed) - 20} more" if len(failed) > 20 else ""
    console.print(f"\nfailing seeds: {', '.join(str(result.plan.seed) for result in failed[:20])}{more}")
    first = failed[0]
    assert first.failure is not None
    plan = first.plan
    how = "--coordinator" if plan.coordinator else "--no-coordinator"
    again = f"--seed {plan.seed} --ranks {plan.ranks} --seconds {plan.seconds:g} {how}"
    if SavesPlan.of(plan.seed, plan.ranks, coordinator=plan.coordinator, seconds=plan.seconds) != plan:
        again += f" --faults {len(plan.faults)}"
    console.print(f"replay the first: strata simulate saves {again}", soft_wrap=True)
    console.print(f"\n[bold red]{escape(first.failure.message)}[/] at {first.failure.at:.3f} s", soft_wrap=True)
    for line in first.failure.history[-history:] if history else []:
        console.print(escape(line), highlight=False, soft_wrap=True)
