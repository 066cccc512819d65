"""Benchmarks: the numbers Strata promises, measured and set beside their targets.

Each module here is one benchmark, found by its name, with a `run() -> list[Table]`. Timings live here and never in
tests. `python -m benchmarks [NAME ...] [--json FILE]`, or `make bench BENCH=NAME`.
"""

import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import TypeVar

import msgspec

Made = TypeVar("Made")


class Row(msgspec.Struct, frozen=True):
    """One number. `target` is the most it may be (the least if `at_least`); the median is held to it, not the best."""

    what: str
    median: float
    best: float
    unit: str
    target: float | None = None
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.median >= self.target if self.at_least else self.median <= self.target


class Table(msgspec.Struct, frozen=True):
    """Numbers that belong together."""

    title: str
    rows: list[Row]


def milliseconds(
    what: str, make: Callable[[], Made], use: Callable[[Made], object], *, target: float | None = None, runs: int = 15
) -> Row:
    """How long `use` takes on what `make` makes anew for each run; making it is not counted, nor the first run."""
    taken = []
    for _ in range(runs + 1):
        made = make()
        start = time.perf_counter()
        result = use(made)
        taken.append((time.perf_counter() - start) * 1000)
        del result
    return Row(what, statistics.median(taken[1:]), min(taken[1:]), "ms", target)


def megabytes(
    what: str, make: Callable[[], Made], use: Callable[[Made], object], *, target: float | None = None
) -> Row:
    """The most memory `use` holds at once beyond what there was, result included, in a run that is not timed."""
    made = make()
    tracemalloc.start()
    try:
        result = use(made)
        peak = tracemalloc.get_traced_memory()[1] / 1e6
        del result
    finally:
        tracemalloc.stop()
    return Row(what, peak, peak, "MB", target)
