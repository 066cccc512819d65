"""Waiting at barriers: arrivals are numbered, and one keeps its number until its wait is over, however often it is
asked for. A coordinator that is away is waited for: it knows the arrival when it is back."""

import asyncio
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from strata.errors import BarrierFailed, InvalidInput, StrataError
from strata.session import Session, is_silence

ASK_SECONDS = 25.0
"""One call waits so long at most, and is then made again: what is between may have forgotten it."""
GRACE_SECONDS = 5.0
"""After the timeout, for the coordinator to say who was missing."""
PAUSE_SECONDS = 0.2
WAITS_KEPT = 1000


class Released(NamedTuple):
    """All have come."""

    barrier_id: str
    round: int
    reason: str


_known: WeakKeyDictionary[Session, "Barriers"] = WeakKeyDictionary()


def barriers_of(session: Session) -> "Barriers":
    """Numbers are a worker's, whoever of its process waits, or has waited before: so there is one for each session."""
    return _known.setdefault(session, Barriers(session))


class Barriers:
    """Of one process as one worker: see `barriers_of`."""

    def __init__(self, session: Session) -> None:
        self._session: Session = weakref.proxy(session)
        self._last = 0
        self.waited: deque[float] = deque(maxlen=WAITS_KEPT)
        """Seconds of the last waits that are over, for whoever gives account of time. From any thread."""
        self._waiting: set[int] = set()

    async def wait(self, barrier_id: str, timeout: float | None, participants: int) -> Released:
        if timeout is not None and not timeout > 0:
            raise InvalidInput(f"timeout is {timeout}: say a number of seconds above 0, or None")
        began = time.monotonic()
        ends = None if timeout is None else began + timeout + GRACE_SECONDS
        with self._arrival() as arrival:
            fields: dict[str, Any] = {"barrier_id": barrier_id, "arrival": arrival}
            fields |= {"expected_participants": participants, "timeout_seconds": timeout}
            while True:
                within = ASK_SECONDS if ends is None else max(0.1, min(ASK_SECONDS, ends - time.monotonic()))
                try:
                    answer = await self._session.call("WaitBarrier", within=within, settled=self._settled, **fields)
                    return Released(answer.barrier_id, answer.round, answer.reason)
                except StrataError as error:
                    if not is_silence(error):
                        raise
                    if ends is not None and time.monotonic() >= ends:
                        waited = f"{time.monotonic() - began:.0f} s at barrier {barrier_id!r}"
                        told = f"waited {waited}, and the coordinator does not answer: {error}"
                        raise BarrierFailed(told, missing=()) from error
                await asyncio.sleep(PAUSE_SECONDS)

    @contextmanager
    def _arrival(self) -> Iterator[int]:
        began = time.monotonic()
        self._last += 1
        arrival = self._last
        self._waiting.add(arrival)
        try:
            yield arrival
        finally:
            self._waiting.discard(arrival)
            self.waited.append(time.monotonic() - began)

    @property
    def _settled(self) -> int:
        """All up to this one are over."""
        return min(self._waiting, default=self._last + 1) - 1
