"""Benchmarks: the numbers Strata promises, measured and set beside their targets.

Each module here is one benchmark, found by its name: `ABOUT` says how long it takes and what it needs, and `run()`
gives its tables. Timings live here and never in tests. `python -m benchmarks [NAME ...] [--list] [--json FILE]`,
`make bench BENCH=NAME`, or `make bench-list`.
"""

import shutil
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import msgspec

Made = TypeVar("Made")

PROGRAMS = {
    "cc": "a C compiler",
    "h2load": "Debian: nghttp2-client",
    "taskset": "Debian: util-linux",
}
"""Where to get what benchmarks need beyond Python packages."""


class Missing(Exception):
    """A table cannot be measured on this machine; the message names what is missing."""


class About(msgspec.Struct, frozen=True):
    """How long a benchmark takes on two cores, the programs that it needs, and what else."""

    takes: str
    programs: tuple[str, ...] = ()
    besides: str = ""


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


def program(name: str) -> str:
    """Where this program is; Missing if it is not installed."""
    found = shutil.which(name)
    if found is None:
        raise Missing(f"{name} is missing ({PROGRAMS[name]})")
    return found


def measured(*parts: Callable[[], Table | Iterable[Table]]) -> Iterator[Table]:
    """The tables of each part. What is Missing for a part costs that part alone: an empty table says so."""
    for part in parts:
        try:
            found = part()
            yield from [found] if isinstance(found, Table) else found
        except Missing as missing:
            yield Table(f"left out, {part.__module__.removeprefix('benchmarks.')}: {missing}", [])


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
