"""Many seeds at once, over the machine's cores."""

import gc
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

from strata.testing.simulation.plan import Plan
from strata.testing.simulation.run import Result, Simulation

P = TypeVar("P")
R = TypeVar("R")
SEEDS_A_TASK = 4


def collect_rarely() -> None:
    """For a process that does nothing but simulate: a fifth of its time would go to looking for cycles that are few."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def run_many(plans: list[Plan], processes: int | None = None) -> Iterator[Result]:
    """The results as they come, in no particular order."""
    return spread(plans, _run, processes)


def spread(plans: list[P], run: Callable[[P], R], processes: int | None = None) -> Iterator[R]:
    """What `run`, a function of a module, gives for each of them, as it comes."""
    count = min(processes or os.cpu_count() or 1, len(plans))
    if count <= 1:
        yield from map(run, plans)
        return
    size = max(1, min(SEEDS_A_TASK, len(plans) // count))
    tasks = [plans[start : start + size] for start in range(0, len(plans), size)]
    # Not fork: whoever shows progress meanwhile does so from a thread, and a fork beside threads may hang.
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=collect_rarely) as pool:
        futures = [pool.submit(_run_each, run, task) for task in tasks]
        try:
            for future in as_completed(futures):
                yield from future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _run_each(run: Callable[[P], R], plans: list[P]) -> list[R]:
    return [run(plan) for plan in plans]


def _run(plan: Plan) -> Result:
    return Simulation(plan).run()
