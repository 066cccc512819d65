"""Contenders that take turns, and the rows that compare them."""

import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeAlias

from benchmarks import Row

Contenders: TypeAlias = Mapping[str, Callable[[], object]]


class Turn(NamedTuple):
    """One go of one contender: how long it took, and what this process spent on it, all threads together."""

    seconds: float
    cpu_seconds: float


Turns: TypeAlias = dict[str, list[Turn]]


def nothing() -> None:
    """Is to be done."""


def take_turns(contenders: Contenders, rounds: int, between: Callable[[], object] = nothing) -> Turns:
    """Each once in every round, in an order that moves on, so that nobody always follows the same one.

    The first round only warms up: connections, threads and memory are made in it. What must be done `between` turns,
    such as to wait for what goes on behind, is counted for nobody.
    """
    names = list(contenders)
    turns: Turns = {name: [] for name in names}
    for number in range(rounds + 1):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            turn = timed(contenders[name])
            between()
            if number:
                turns[name].append(turn)
    return turns


def timed(act: Callable[[], object]) -> Turn:
    cpu, began = _cpu_seconds(), time.perf_counter()
    result = act()
    turn = Turn(time.perf_counter() - began, _cpu_seconds() - cpu)
    del result
    return turn


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def rate(what: str, turns: list[Turn], size: int, *, target: float | None = None) -> Row:
    """Megabytes per second, of which there should be at least so many."""
    rates = [size / 1e6 / turn.seconds for turn in turns]
    return Row(what, statistics.median(rates), max(rates), "MB/s", target, at_least=True)


def ratio(what: str, turns: list[Turn], beside: list[Turn], *, target: float | None = None) -> Row:
    """How many times as fast, round by round: what slows the machine down slows both."""
    ratios = [other.seconds / own.seconds for own, other in zip(turns, beside, strict=True)]
    return Row(what, statistics.median(ratios), max(ratios), "", target, at_least=True)


def times(what: str, turns: list[Turn], beside: list[Turn], *, target: float | None = None) -> Row:
    """How many times as long, round by round, of which there should be at most so many."""
    ratios = [own.seconds / other.seconds for own, other in zip(turns, beside, strict=True)]
    return Row(what, statistics.median(ratios), min(ratios), "", target)


def taken(what: str, turns: list[Turn], *, target: float | None = None) -> Row:
    """In milliseconds."""
    each = [turn.seconds * 1000 for turn in turns]
    return Row(what, statistics.median(each), min(each), "ms", target)


def cpu(what: str, turns: list[Turn], size: int, *, target: float | None = None) -> Row:
    """CPU seconds of this process for each gigabyte."""
    each = [turn.cpu_seconds / (size / 1e9) for turn in turns]
    return Row(what, statistics.median(each), min(each), "CPU s/GB", target)


def median_seconds(turns: list[Turn]) -> float:
    return statistics.median(turn.seconds for turn in turns)


async def dropped(awaitable: Awaitable[object]) -> None:
    """Without the result: asyncio.run spells out what its coroutine returns, which takes longer than to read it."""
    await awaitable
