"""What one rank takes for the point, while the first rank says that there is a later checkpoint."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from strata.checkpoint.joining import agreed_point
from strata.checkpoint.recovering import Point
from strata.checkpoint.store import Folder

KNOWN, LATER = Point(1, 1, 6, 6, Folder(6), "the latest known"), Point(2, 2, 7, 7, Folder(7), "rank 0 found it")


class _Recovery:
    """Answers with each of these points in turn, and then with the last one."""

    def __init__(self, points: list[Point]) -> None:
        self._points, self._last = iter(points), points[-1]

    async def recover(self, *_: Any, **__: Any) -> Point:
        return next(self._points, self._last)

    async def is_known(self, *_: Any) -> bool:
        return True


def agreed(points: list[Point], latest: Iterator[int]) -> Point:
    async def look() -> Any:
        return Folder(next(latest)), None

    council: Any = SimpleNamespace(recovery=_Recovery(points), generation=0, rank=1)
    return asyncio.run(agreed_point(council, look, 10.0))


@pytest.mark.parametrize("points", [[KNOWN, LATER], [KNOWN, LATER, LATER, LATER]])
def test_a_point_that_was_answered_before_the_first_rank_said_more_is_asked_for_again(points: list[Point]) -> None:
    assert agreed(points, iter([7] * 9)) == LATER


def test_an_older_point_that_stays_the_point_is_taken() -> None:
    """Everybody was sent back to it."""
    assert agreed([KNOWN], iter([7] * 9)) == KNOWN
