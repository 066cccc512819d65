"""`strata demo`: a cluster in trouble, live in the terminal. Until workers train for real, a simulated one."""

from collections import Counter
from time import monotonic, sleep
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from strata.cli.simulate import summarise
from strata.core.records import (
    BarrierReleased,
    PartAcknowledged,
    ProgressMade,
    Record,
    ShardsReleased,
    ShardsRevoked,
    ViewChanged,
)
from strata.core.state import Job
from strata.testing.simulation.plan import Plan
from strata.testing.simulation.process import Process
from strata.testing.simulation.run import Result, Simulation
from strata.testing.simulation.story import tell

FRAME_LINES = 19
"""What a frame takes besides the feed."""
FRAMES_PER_SECOND = 10
QUIET = (BarrierReleased, PartAcknowledged, ProgressMade, ShardsReleased, ShardsRevoked, ViewChanged)
LOOKS = {
    "training": ("█", "green"),
    "waiting": ("▓", "cyan"),
    "checkpointing": ("▲", "blue"),
    "recovering": ("▒", "yellow"),
    "initializing": ("░", "yellow"),
    "hung": ("!", "magenta"),
    "cut off": ("?", "magenta"),
    "left": ("-", "bright_black"),
    "dead": ("x", "red"),
}


def demo(
    seed: Annotated[int, typer.Option(help="Which cluster to show.")] = 26,
    workers: Annotated[int, typer.Option(help="Workers in it.", min=2, max=2000)] = 48,
    faults: Annotated[int, typer.Option(help="How many faults strike.", min=0)] = 14,
    speed: Annotated[float, typer.Option(help="Virtual seconds per second.", min=0.1)] = 3.0,
) -> None:
    """Show a simulated cluster live: workers die, hang and come back, and nothing is lost."""
    simulation = Simulation(Plan.of(seed, workers, faults=faults))
    console = Console()
    result = _show(simulation, console, speed) if console.is_terminal else simulation.run()
    summarise([result], None, console)
    if result.failure is not None:
        console.print(f"[red]{result.failure.message}")
        raise typer.Exit(1)
    console.print("\nThis was a simulation from seed", str(seed), "on virtual time: strata simulate --help for more.")


def _show(simulation: Simulation, console: Console, speed: float) -> Result:
    began = monotonic()
    with Live(console=console, refresh_per_second=FRAMES_PER_SECOND, transient=True) as live:

        def watch(sim: Simulation) -> None:
            live.update(_frame(sim, max(3, console.height - FRAME_LINES)))
            sleep(max(0.0, began + sim.loop.now / speed - monotonic()))

        return simulation.run(watch, every=speed / FRAMES_PER_SECOND)


def _frame(sim: Simulation, lines: int) -> Group:
    return Group(
        Text(f" strata · seed {sim.plan.seed} · {sim.loop.now:5.1f} of {sim.plan.seconds:.0f} virtual seconds", "bold"),
        Panel(_cluster(sim), title="workers", title_align="left", border_style="bright_black"),
        Panel(_jobs(sim), title="jobs", title_align="left", border_style="bright_black"),
        Panel(_feed(sim, lines), title="what happens, and why", title_align="left", border_style="bright_black"),
    )


def _cluster(sim: Simulation) -> Group:
    looks: Counter[str] = Counter()
    rows = []
    for job, names in (("lockstep", sim.lockstep), ("freerun ", sim.freerun)):
        row = Text(f"{job}  ", "bright_black")
        for name in names:
            state = _state(sim, sim.processes.get(name, []))
            looks[state] += 1
            row.append(*LOOKS[state])
        rows.append(row)
    legend = Text("\n")
    for state, count in looks.most_common():
        legend.append(f"{LOOKS[state][0]} {state} {count}   ", LOOKS[state][1])
    coordinator = "down" if not sim.host.up else "paused" if sim.host.paused else "serving"
    legend.append(f"   coordinator {coordinator}", "green" if coordinator == "serving" else "bold red")
    about = Text(
        "lockstep has collectives and rolls back together; freerun reads its own shards and carries on\n", "dim"
    )
    return Group(about, *rows, legend)


def _state(sim: Simulation, processes: list[Process]) -> str:
    if not processes or not processes[-1].alive:
        return "dead"
    process = processes[-1]
    if process.hung:
        return "hung"
    if process.worker in sim.network.cut_off:
        return "cut off"
    return process.phase if process.phase in LOOKS else "training"


def _jobs(sim: Simulation) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("job", "generation", "live", "epoch", "", "checkpoint", "barriers", "lost"):
        table.add_column(title, justify="left", no_wrap=True)
    for name, job in sorted(sim.checker.standby.state.jobs.items()):
        for dataset in job.datasets.values():
            through = _through(sim, job, dataset.consumed.count, dataset.order == "elastic")
            bar = ProgressBar(total=dataset.total_samples, completed=through, width=20)
            table.add_row(
                name,
                str(job.world.generation),
                str(len(job.world.by_rank)),
                str(dataset.epoch),
                bar,
                _latest(job),
                str(sim.checker.of(name, "BarrierReleased")),
                str(sim.checker.of(name, "WorkerLost")),
            )
    return table


def _through(sim: Simulation, job: Job, consumed: int, elastic: bool) -> int:
    """How far the epoch is: by the ledger, or by the latest committed step where only checkpoints tell."""
    if not elastic:
        return consumed
    committed = [a for a in job.attempts.values() if a.usable and a.lineage == job.lineage]
    latest = max(committed, key=lambda attempt: attempt.step, default=None)
    flat = [] if latest is None else next(iter(latest.positions.values())).consumed
    return flat[-1] if flat else 0


def _latest(job: Job) -> str:
    usable = [attempt for attempt in job.attempts.values() if attempt.usable]
    if not usable:
        return "none yet"
    latest = max(usable, key=lambda attempt: attempt.attempt)
    return f"step {latest.step}"


def _feed(sim: Simulation, count: int) -> Text:
    """The newest entries that fit."""
    lines: list[tuple[float, str, str | Record]] = []
    for entry in reversed(sim.history):
        if not isinstance(entry[2], QUIET):
            lines.append(entry)
        if len(lines) == count:
            break
    text = Text(no_wrap=True, overflow="ellipsis")
    for at, who, what in reversed(lines):
        text.append(f"{at:7.2f} ", "bright_black")
        text.append(f"{who:<12}", "red" if who == "fault" else "cyan")
        text.append(f"{what if isinstance(what, str) else tell(what)}\n")
    return text
