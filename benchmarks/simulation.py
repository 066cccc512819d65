"""The simulation: how long a thousand clusters and one large one take, and what a decision of the core costs."""

import time
from collections.abc import Callable

from benchmarks import About, Row, Table
from strata.core.events import (
    BarrierArrived,
    CoordinatorStarted,
    Event,
    HeartbeatReceived,
    RegisterRequested,
)
from strata.core.machine import Machine
from strata.testing.simulation.many import collect_rarely, run_many
from strata.testing.simulation.plan import Plan
from strata.testing.simulation.run import Result, Simulation

ABOUT = About("5 minutes")

SEEDS, WORKERS = 1_000, 50
LARGE, LARGE_SECONDS, FAILURES = 10_000, 90.0, 1_000
RUNS = 5


def run() -> list[Table]:
    return [_core(), _seeds(), _large()]


def _seeds() -> Table:
    began = time.perf_counter()
    results = list(run_many([Plan.of(seed, WORKERS) for seed in range(SEEDS)]))
    seconds = time.perf_counter() - began
    _check(results)
    events = sum(result.events for result in results)
    return Table(
        f"{SEEDS:,} seeds of a {WORKERS}-worker cluster, over all cores",
        [
            Row("time", seconds, seconds, "s", target=120),
            Row("events handled", events, events, ""),
            Row("events per second", events / seconds, events / seconds, ""),
        ],
    )


def _large() -> Table:
    collect_rarely()
    result = Simulation(Plan.of(1, LARGE, LARGE_SECONDS, FAILURES)).run()
    _check([result])
    rate = result.events_per_second
    return Table(
        f"one cluster of {LARGE:,} workers with {FAILURES:,} failures, on one core",
        [
            Row("time", result.wall_seconds, result.wall_seconds, "s", target=240),
            Row("events handled", result.events, result.events, ""),
            Row("events per second", rate, rate, ""),
        ],
    )


def _check(results: list[Result]) -> None:
    for result in results:
        if result.failure is not None:
            raise RuntimeError(f"seed {result.plan.seed}: {result.failure.message}")


def _core() -> Table:
    """The machine alone, with no network and no disk: microseconds for each event."""
    return Table(
        "one decision of the core, in a job of 1,000 workers",
        [
            _each("registration", lambda machine: [], _registrations),
            _each("heartbeat", _registrations, _heartbeats),
            _each("arrival at a barrier", _registrations, _arrivals),
        ],
    )


def _each(what: str, before: Callable[[Machine], list[Event]], events: Callable[[Machine], list[Event]]) -> Row:
    taken = []
    for _ in range(RUNS):
        machine = Machine()
        machine.handle(CoordinatorStarted(), 0.0)
        for event in before(machine):
            machine.handle(event, 0.0)
        wanted = events(machine)
        began = time.perf_counter()
        for event in wanted:
            machine.handle(event, 1.0)
        taken.append((time.perf_counter() - began) / len(wanted) * 1e6)
    return Row(what, sorted(taken)[RUNS // 2], min(taken), "µs")


def _registrations(_: Machine) -> list[Event]:
    return [RegisterRequested("job", f"worker-{rank}", f"n{rank}", rank, 1_000) for rank in range(1_000)]


def _heartbeats(machine: Machine) -> list[Event]:
    return [HeartbeatReceived("job", f"worker-{rank}", rank + 1, "training", 7) for rank in range(1_000)]


def _arrivals(machine: Machine) -> list[Event]:
    return [BarrierArrived("job", f"worker-{rank}", rank + 1, "epoch_0", 1, 0, 1_000, 30.0) for rank in range(1_000)]
