"""Waiting for other ranks, which is told: a job that stands still for a quarter of an hour without a word looks dead.
First after half a minute, and then rarer and rarer, with the names of those who are waited for.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

from strata.errors import StrataError
from strata.logs import get_logger

logger = get_logger("strata.checkpoint")

T = TypeVar("T")
FIRST_SECONDS = 30.0
RARER = 2.0
SHOWN = 8


def named(ranks: Collection[int]) -> str:
    """For people: `rank 1`, or `ranks 1, 3`."""
    first = ", ".join(map(str, sorted(ranks)[:SHOWN]))
    more = f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else ""
    return f"rank{'s' * (len(ranks) != 1)} {first}{more}"


class Wait:
    """One that has begun now, on the loop's clock."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or asyncio.get_running_loop().time
        self._since, self.next_seconds = self._clock(), FIRST_SECONDS

    @property
    def seconds(self) -> float:
        return self._clock() - self._since

    def is_due(self) -> bool:
        """Whether it is time to tell of it."""
        is_due = self.seconds >= self.next_seconds
        if is_due:
            self.next_seconds *= RARER
        return is_due

    async def until_due(self) -> None:
        await asyncio.sleep(max(0.0, self.next_seconds - self.seconds))
        self.next_seconds *= RARER  # by the loop's own count: its clock may be a rounding short of it


async def told(work: Awaitable[T], step: int, who: Callable[[], Awaitable[Collection[int]]], to: str) -> T:
    """Do this work, which waits for other ranks. `who` finds out which, when it is to be told; `to`: do what."""
    telling = asyncio.ensure_future(_tell(step, who, to))
    try:
        return await work
    finally:
        telling.cancel()


async def _tell(step: int, who: Callable[[], Awaitable[Collection[int]]], to: str) -> None:
    wait = Wait()
    while True:
        await wait.until_due()
        try:
            ranks = await who()
        except StrataError as error:
            logger.info("which ranks are waited for cannot be told: %s", error)
            ranks = ()
        whom = named(ranks) if ranks else "other ranks"
        logger.warning("step %d is not saved yet: waiting for %s for %.0f s, %s", step, whom, wait.seconds, to)
