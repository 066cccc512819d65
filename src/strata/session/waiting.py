"""Waiting for what others have to do first: it is asked for again and again, told of now and then, and not for ever."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from strata.errors import RankFailed, StrataError
from strata.logs import get_logger
from strata.session.session import Session, will_pass

logger = get_logger("strata.session")

PAUSE_SECONDS = 0.2, 1.0
"""Between questions: at first, and at most."""
SHOW_SECONDS = 30.0


def passes(error: StrataError) -> bool:
    """Whether it may be well if it is asked again: also what is refused for as long as others are not there."""
    return error.retry or will_pass(error)


async def wait_for(question: Callable[[], Awaitable[str]], who: str, ends: float) -> None:
    """Asks until nothing is waited for: `question` tells what is. RankFailed if that takes longer than until `ends`, on
    the monotonic clock."""
    shown, pause = time.monotonic(), PAUSE_SECONDS[0]
    while True:
        try:
            why = await question()
            if not why:
                return
        except StrataError as error:
            if not passes(error):
                raise
            why = str(error)
        now = time.monotonic()
        if now > ends:
            raise RankFailed(f"{who} has waited for others in vain: {why}")
        if now - shown >= SHOW_SECONDS:
            shown = now
            logger.warning("%s waits for all ranks: %s", who, why)
        await asyncio.sleep(pause)
        pause = min(2 * pause, PAUSE_SECONDS[1])


async def recovery_point(
    session: Session,
    least: int,
    who: str,
    ends: float,
    *,
    generation: int | None = None,
    finish: Callable[[int], Awaitable[None]] | None = None,
) -> Any:
    """Where everybody goes on from, once at least so many are there: one that was lost may be started again later than
    others. `generation`: of the point that this process has, if everybody is to go back, though nobody is lost.
    `finish` commits an attempt that is decided, if there is a way."""
    answers: list[Any] = []

    async def ask() -> str:
        answer = await session.call("Recover", generation=generation)
        answers[:] = [answer]
        if not answer.HasField("point"):
            if finish is not None:
                await finish(answer.finish_first.attempt)
            return f"step {answer.finish_first.step} is decided, and a checkpoint manager has to commit it"
        there = len(answer.point.ranks)
        return f"{there} of {least} ranks are there" if there < least and not answer.point.carries_on else ""

    await wait_for(ask, who, ends)
    return answers[0].point
