"""`strata simulate`: a cluster on virtual time from a seed, or a thousand of them."""

from pathlib import Path
from time import perf_counter
from typing import Annotated

import msgspec
import typer

from strata.cli import simulate_saves
from strata.cli.drawing import Terminal, Text, simulation_progress, tell_rows
from strata.cli.output import say_json
from strata.cli.simulate_saves import HISTORY_SHOWN, tell_failure, tell_verdict
from strata.errors import InvalidInput
from strata.testing.simulation.many import collect_rarely, run_many
from strata.testing.simulation.plan import Plan
from strata.testing.simulation.run import Result, Simulation
from strata.testing.simulation.shrink import shrink

app = typer.Typer(invoke_without_command=True)
app.command("saves")(simulate_saves.saves)


@app.callback()
def simulate(
    context: typer.Context,
    seed: Annotated[int, typer.Option(help="The seed, or the first of several.")] = 0,
    seeds: Annotated[int, typer.Option(help="How many seeds to run.", min=1)] = 1,
    workers: Annotated[int, typer.Option(help="Workers in the cluster.", min=2)] = 50,
    seconds: Annotated[float, typer.Option(help="Virtual seconds per run.", min=45)] = 50.0,
    faults: Annotated[
        int | None, typer.Option(help="About how many workers faults strike [default: half of them].", min=0)
    ] = None,
    processes: Annotated[int | None, typer.Option(help="Processes to use [default: one per core].", min=1)] = None,
    replay: Annotated[Path | None, typer.Option(help="Run the plan in this file instead of a seed's.")] = None,
    shrink_seconds: Annotated[
        float, typer.Option(help="How long to try to make a failing run smaller; 0 does not try.", min=0)
    ] = 60.0,
    history: Annotated[int, typer.Option(help="Lines of history to show of a failure.", min=0)] = HISTORY_SHOWN,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Run a simulated cluster: crashes, hangs, partitions, lost and doubled messages, a coordinator that dies.

    The real state machine decides; its promises are checked as it goes. The same seed always gives the same run.
    """
    if context.invoked_subcommand is not None:
        return
    console = Terminal(stderr=as_json)
    plans = [_load(replay)] if replay else [Plan.of(seed + n, workers, seconds, faults) for n in range(seeds)]
    began = perf_counter()
    results = _run_one(plans[0], console) if len(plans) == 1 else _run_all(plans, processes, console)
    wall = perf_counter() - began
    failed = sorted((r for r in results if r.failure is not None), key=lambda result: result.plan.seed)
    if as_json:
        say_json([_brief(result) for result in results])
    else:
        _summarise(results, wall, console)
    if failed:
        _explain(failed, shrink_seconds, history, replay, console)
        raise typer.Exit(1)


def _load(path: Path) -> Plan:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Plan)
    except (OSError, msgspec.DecodeError, InvalidInput) as error:
        raise InvalidInput(f"cannot read a plan from {path}: {error}") from None


def _run_one(plan: Plan, console: Terminal) -> list[Result]:
    collect_rarely()
    simulation = Simulation(plan)
    with simulation_progress(console) as progress:
        task = progress.add_task(f"{plan.workers:,} workers", total=round(plan.seconds), note="virtual seconds")
        began = perf_counter()

        def show(sim: Simulation) -> None:
            rate = sim.host.handled / (perf_counter() - began)
            progress.update(task, completed=round(sim.loop.now), note=f"virtual seconds, {rate:,.0f} events/s")

        return [simulation.run(show)]


def _run_all(plans: list[Plan], processes: int | None, console: Terminal) -> list[Result]:
    results: list[Result] = []
    with simulation_progress(console) as progress:
        task = progress.add_task("seeds", total=len(plans), note="")
        for result in run_many(plans, processes):
            results.append(result)
            failed = sum(r.failure is not None for r in results)
            progress.update(task, advance=1, note=f"{failed} failed" if failed else "all hold")
    return sorted(results, key=lambda result: result.plan.seed)


def _brief(result: Result) -> dict[str, object]:
    brief: dict[str, object] = msgspec.to_builtins(result)
    brief["plan"] = {"seed": result.plan.seed, "workers": result.plan.workers, "faults": len(result.plan.faults)}
    brief["events_per_second"] = round(result.events_per_second)
    return brief


def _summarise(results: list[Result], wall: float, console: Terminal) -> None:
    """A table of what happened."""

    def total(name: str) -> int:
        return sum(result.records.get(name, 0) for result in results)

    def sent(name: str) -> int:
        return sum(result.messages[name] for result in results)

    faults: dict[str, int] = {}
    for result in results:
        for kind, count in result.faults.items():
            faults[kind] = faults.get(kind, 0) + count
    events = sum(result.events for result in results)
    restarts = sum(result.coordinator_restarts for result in results)
    rows = {
        "runs": f"{len(results):,} x {results[0].plan.workers:,} workers, "
        f"{sum(r.virtual_seconds for r in results):,.0f} virtual seconds in {wall:.1f} s",
        "events": f"{events:,} handled, {events / wall:,.0f} per second",
        "messages": f"{sent('sent'):,} sent, {sent('lost'):,} lost, {sent('late'):,} late, {sent('doubled'):,} doubled",
        "faults": ", ".join(f"{kind.replace('_', ' ')} {count:,}" for kind, count in sorted(faults.items())) or "none",
        "workers": f"{total('WorkerJoined'):,} joined, {total('WorkerLost'):,} lost",
        "barriers": f"{total('BarrierReleased'):,} released, {total('BarrierBroken'):,} broken",
        "checkpoints": f"{total('CheckpointCommitted'):,} committed, {total('CheckpointAbandoned'):,} abandoned, "
        f"{total('RecoveryPointSet'):,} recovery points",
        "epochs": f"{sum(r.epochs_proven for r in results):,} proven read exactly once",
        "coordinator": f"{restarts:,} restart{'s' * (restarts != 1)}, each replayed to the same state",
    }
    if len(results) == 1:
        rows["digest"] = results[0].digest
    tell_rows(console, rows)
    tell_verdict(console, sum(result.failure is not None for result in results), len(results))


def _explain(
    failed: list[Result], shrink_seconds: float, history: int, replayed: Path | None, console: Terminal
) -> None:
    more = f" and {len(failed) - 20} more" if len(failed) > 20 else ""
    console.print()
    console.print(f"failing seeds: {', '.join(str(result.plan.seed) for result in failed[:20])}{more}")
    first = failed[0]
    plan = first.plan
    again = f"--seed {plan.seed} --workers {plan.workers} --seconds {plan.seconds:g} --faults {_asked_for(plan)}"
    again = again if replayed is None else f"--replay {replayed}"
    console.print(f"replay the first: strata simulate {again}", soft_wrap=True)
    smallest = first
    if shrink_seconds > 0:
        with console.status(Text("making it smaller …")) as status:

            def show(plan: Plan) -> None:
                status.update(Text(f"making it smaller … {plan.workers} workers, {len(plan.faults)} faults"))

            smallest = shrink(first, shrink_seconds, show)
    assert smallest.failure is not None
    size = f"with {smallest.plan.workers} workers, faults: {len(smallest.plan.faults)}"
    tell_failure(console, smallest.failure, history, f"{size}{_keep(smallest.plan)}")


def _keep(plan: Plan) -> str:
    """Write the plan to a new file in this folder, and say how to run it; or why it could not be written."""
    number = 0
    while (path := Path(f"strata-failure-{plan.seed}{f'-{number}' * bool(number)}.json")).exists():
        number += 1
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(plan)))
    except OSError as error:
        return f" (not written to {path}: {error.strerror})"
    return f"; run it again with: strata simulate --replay {path}"


def _asked_for(plan: Plan) -> int:
    """How many faults to ask for to be given this plan: racks count for more than one."""
    for count in range(len(plan.faults), len(plan.faults) * plan.workers + 1):
        if Plan.of(plan.seed, plan.workers, plan.seconds, count).faults == plan.faults:
            return count
    return len(plan.faults)
