"""Those who wait for what becomes of a save. An answer is held until there is something to say, or it is time to ask
again: a job of a thousand ranks asks a few times for each checkpoint, and not a few times a second.
"""

import asyncio
from collections.abc import Callable
from math import isfinite
from typing import Any

from strata.coordinator import translate
from strata.coordinator.hub import Hub
from strata.coordinator.replay import Entry
from strata.coordinator.streams import check_welcome
from strata.core import records
from strata.core.commits import ABANDONED, saving
from strata.core.state import Attempt, Job
from strata.errors import InvalidInput, StrataError
from strata.rpc import Call
from strata.v1 import coordinator_pb2 as pb
from strata.wire.errors import to_rpc

AWAIT_SECONDS = 30.0
AWAIT_SECONDS_MOST = 60.0

_NEWS = (
    records.AttemptRecord,
    records.CheckpointBegun,
    records.CheckpointSkipped,
    records.LineageStarted,
    records.PartAcknowledged,
    records.RecoveryPointSet,
    records.WorkerJoined,
    records.WorkerLost,
)


class _Waiting:
    """One call that is held."""

    def __init__(self, request: pb.AwaitCheckpointRequest) -> None:
        self.counts_parts = request.but_mine
        self.news = asyncio.Event()


class Awaiting:
    """Wakes whoever waits when something of its job has become durable that may be what it waits for. Of parts only
    those are told who count them: in a job of a thousand ranks a thousand come, and a thousand wait."""

    def __init__(self, hub: Hub, still_welcome: Callable[[Call], bool]) -> None:
        self._hub, self._still_welcome = hub, still_welcome
        self._by_job: dict[str, set[_Waiting]] = {}
        hub.watchers.add(self._on_entries)

    def _on_entries(self, entries: list[Entry]) -> None:
        """None at all: somebody should look up, or the hub is closing."""
        for job in self._by_job if not entries else {_job_of(entry) for entry in entries}:
            own = [entry.record for entry in entries if _job_of(entry) == job]
            counted = all(isinstance(record, records.PartAcknowledged) for record in own) and own
            for waiting in self._by_job.get(job, ()):
                if waiting.counts_parts or not counted:
                    waiting.news.set()

    async def serve(self, request: pb.AwaitCheckpointRequest, call: Call) -> Any:
        own = _Waiting(request)
        others = self._by_job.setdefault(request.job_id, set())
        others.add(own)
        try:
            check_welcome(self._hub, self._still_welcome, call)
            async with asyncio.timeout(_patience(request)):
                while (told := await self._told(request)) is None:
                    own.news.clear()
                    await own.news.wait()
                    check_welcome(self._hub, self._still_welcome, call)
            return told
        except TimeoutError:
            return pb.AwaitCheckpointResponse()
        finally:
            others.discard(own)
            if not others:
                self._by_job.pop(request.job_id, None)

    async def _told(self, request: pb.AwaitCheckpointRequest) -> pb.AwaitCheckpointResponse | None:
        """What there is to say, once it is durable."""
        try:
            job = self._hub.machine.state.job(request.job_id)
            member = job.member(request.worker_id, request.incarnation)
            told = news_of(job, request, member.rank)
        except StrataError as error:
            await self._hub.settled()
            raise to_rpc(error) from error
        if told is not None:
            await self._hub.settled()
        return told


def _job_of(entry: Entry) -> str:
    """Empty for what may change a wait in no way, such as a barrier that is passed at each step."""
    return getattr(entry.record, "job", "") if isinstance(entry.record, _NEWS) else ""


def news_of(job: Job, request: pb.AwaitCheckpointRequest, rank: int) -> pb.AwaitCheckpointResponse | None:
    """What the caller does not know yet; None if there is nothing."""
    attempt = job.attempts.get(request.attempt) if request.attempt else saving(job, request.step)
    if attempt is None:
        return _over(job, request)
    made = pb.AwaitCheckpointResponse(checkpoint=translate.checkpoint(attempt), but_mine=_is_last(attempt, rank))
    is_new = made.checkpoint.status != request.known
    return made if is_new or (request.but_mine and made.but_mine) else None


def _over(job: Job, request: pb.AwaitCheckpointRequest) -> pb.AwaitCheckpointResponse | None:
    reason = job.skipped.get(request.step)
    if request.attempt:
        if request.attempt >= job.next_attempt:
            raise InvalidInput(f"there is no attempt {request.attempt} of job {job.job!r} to wait for")
        begins = ABANDONED.format(request.attempt)
        why = reason if reason is not None and reason.startswith(begins) else f"attempt {request.attempt} is over"
        return pb.AwaitCheckpointResponse(abandoned=True, reason=why.removeprefix(begins))
    if reason is None:
        return None
    is_abandoned = reason.startswith(ABANDONED.partition("{}")[0])
    return pb.AwaitCheckpointResponse(skipped=not is_abandoned, abandoned=is_abandoned, reason=reason)


def _is_last(attempt: Attempt, rank: int) -> bool:
    return attempt.status == "open" and len(attempt.participants) - len(attempt.parts) == 1 and rank in attempt.absent()


def _patience(request: pb.AwaitCheckpointRequest) -> float:
    seconds = request.timeout_seconds or AWAIT_SECONDS
    if not isfinite(seconds) or not 0 < seconds <= AWAIT_SECONDS_MOST:
        raise to_rpc(InvalidInput(f"timeout_seconds must be above 0 and at most {AWAIT_SECONDS_MOST:g}, not {seconds}"))
    return seconds
