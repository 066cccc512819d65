"""What is sent without being asked for each time: commands to workers on a stream, and the log to those who watch."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from itertools import islice

from strata.coordinator import translate
from strata.coordinator.events import EventView, event_id, event_of, index_of
from strata.coordinator.hub import Hub
from strata.coordinator.replay import Entry
from strata.core import records
from strata.core.effects import Alive
from strata.core.errands import errands_for
from strata.core.ids import check_id
from strata.errors import InvalidInput, StrataError
from strata.logs import get_logger
from strata.rpc import Call, Later, Line, RpcError, Status, Talk
from strata.v1 import coordinator_pb2 as pb
from strata.wire.errors import to_rpc

logger = get_logger("strata.coordinator")

WATCHERS_MOST = 1000
UNHEARD_MOST = 12_000
"""Events that wait for one who watches. A reader that is further behind than that has to begin again."""
PUSHED_AT_ONCE = 64
"""Workers told before others have their turn."""

QUIET: tuple[type[records.Record], ...] = (
    records.BarrierBroken,
    records.BarrierReleased,
    records.CheckpointAdopted,
    records.CheckpointPinned,
    records.DatasetRegistered,
    records.DatasetRemoved,
    records.EpochAdvanced,
    records.EpochProven,
    records.JobConfigured,
    records.JobOpened,
    records.LineageStarted,
    records.PartAcknowledged,
    records.ProgressMade,
    records.ShardsReissued,
    records.ShardsReleased,
    records.ShardsRevoked,
    records.SituationChanged,
    records.TermStarted,
    records.ViewChanged,
    records.WorkerDescribed,
)
"""After these nobody has more to do, and the generation is the same. A barrier is passed at each step, by all."""


class _Worker(Talk):
    """One open stream: who it is for, and what it was told last."""

    __slots__ = ("_pushes", "call", "incarnation", "job", "line", "told", "worker")

    def __init__(self, pushes: "Pushes", line: Line, call: Call) -> None:
        self._pushes, self.line, self.call = pushes, line, call
        self.job = self.worker = ""
        self.incarnation = 0
        self.told = b""

    def heard(self, request: pb.HeartbeatRequest) -> bytes | Later:
        return self._pushes.answer(self, request)

    def over(self) -> None:
        self._pushes.leave(self)


class Pushes:
    """Heartbeats on streams. When something about a job changes, its workers are told what they have to do now.

    `beat` answers a heartbeat, and `still_welcome` says whether a call that was let in would be let in again.
    """

    def __init__(
        self, hub: Hub, beat: Callable[[pb.HeartbeatRequest], bytes], still_welcome: Callable[[Call], bool]
    ) -> None:
        self._hub, self._beat = hub, beat
        self._still_welcome = still_welcome
        self._by_job: dict[str, set[_Worker]] = {}
        self._due: dict[_Worker, None] = {}
        """Those for whom there may be news, in order."""
        self._pushes_soon = False
        hub.watchers.add(self._on_entries)

    @property
    def jobs(self) -> set[str]:
        """Those with open streams; "" as well where one has said nothing yet."""
        return set(self._by_job)

    def open(self, line: Line, call: Call) -> _Worker:
        check_welcome(self._hub, self._still_welcome, call)
        worker = _Worker(self, line, call)
        self._by_job.setdefault(worker.job, set()).add(worker)  # whose it is is heard with the first heartbeat
        return worker

    def leave(self, worker: _Worker) -> None:
        self._due.pop(worker, None)
        others = self._by_job.get(worker.job, set())
        others.discard(worker)
        if not others:
            self._by_job.pop(worker.job, None)

    def answer(self, worker: _Worker, request: pb.HeartbeatRequest) -> bytes | Later:
        check_welcome(self._hub, self._still_welcome, worker.call)
        who = (request.job_id, request.worker_id, request.incarnation)
        if worker.job and who != (worker.job, worker.worker, worker.incarnation):
            raise to_rpc(InvalidInput("a stream serves one process: open another stream for another process"))
        try:
            told = worker.told = self._beat(request)
        except RpcError:
            raise
        except StrataError as error:
            return self._hub.refuse(to_rpc(error))
        if not worker.job:
            self.leave(worker)
            worker.job, worker.worker, worker.incarnation = who
            self._by_job.setdefault(worker.job, set()).add(worker)
        answer: bytes | Later = self._hub.answer(told)
        return answer

    # -- what nobody asked for ---------------------------------------------------------------------------------------

    def _on_entries(self, entries: list[Entry]) -> None:
        """None at all: everybody should look up."""
        jobs = {getattr(entry.record, "job", "") for entry in entries if not isinstance(entry.record, QUIET)}
        for job in jobs & self._by_job.keys() if entries else self._by_job.keys():
            self._due.update(dict.fromkeys(self._by_job[job]))
        self._push_soon()

    def _push_soon(self) -> None:
        if self._due and not self._pushes_soon:
            self._pushes_soon = True
            asyncio.get_running_loop().call_soon(self._push_some)

    def _push_some(self) -> None:
        """A job has thousands of workers, and others wait for this thread too. What breaks for one, breaks for one."""
        self._pushes_soon = False
        for worker in list(islice(self._due, PUSHED_AT_ONCE)):
            self._due.pop(worker, None)
            try:
                self._push(worker)
            except Exception:
                logger.exception("worker %s of job %s cannot be told what to do", worker.worker, worker.job)
                worker.line.end(RpcError(Status.INTERNAL, "the coordinator failed to tell what there is: see its log"))
        self._push_soon()

    def _push(self, worker: _Worker) -> None:
        """What the worker has to do now, if that is not what it was told last; it is heard no better for it."""
        try:
            check_welcome(self._hub, self._still_welcome, worker.call)
            told = self._news_for(worker)
        except RpcError as error:
            worker.line.end(error)
            return
        except StrataError as error:
            refused = to_rpc(error)
            self._hub.when_durable(lambda failure: worker.line.end(failure or refused))
            return
        if told and told != worker.told:
            worker.told = told
            self._hub.when_durable(lambda failure: worker.line.end(failure) if failure else worker.line.say(told))

    def _news_for(self, worker: _Worker) -> bytes:
        job = self._hub.machine.state.jobs.get(worker.job)
        if job is None:
            return b""
        member = job.member(worker.worker, worker.incarnation)
        errands = errands_for(job, self._hub.machine.volatile.job(worker.job), member, self._hub.clock())
        return translate.alive(Alive(job.world.generation, errands)).SerializeToString()


def check_welcome(hub: Hub, still_welcome: Callable[[Call], bool], call: Call) -> None:
    """Streams end when the coordinator goes, or when the token that let them in is taken away."""
    if hub.is_closed:
        raise RpcError(Status.UNAVAILABLE, "the coordinator is shutting down; ask again when it is back")
    if not still_welcome(call):
        raise RpcError(Status.UNAUTHENTICATED, "the token of this stream is not taken any more")


class Watcher:
    """Events for one who watches: those kept that come after this index of the journal, then those that happen.

    A reader that falls too far behind is told so, and costs nothing more.
    """

    def __init__(self, hub: Hub, after: int, job: str = "") -> None:
        if len(hub.watchers) >= WATCHERS_MOST:
            raise RpcError(Status.RESOURCE_EXHAUSTED, f"{WATCHERS_MOST:,} watch already: try again when one has left")
        self._hub, self._after, self._job = hub, after, job
        self._unheard: deque[EventView] = deque()
        self._news = asyncio.Event()
        self._behind = False
        self._hear(list(hub.history))
        hub.watchers.add(self._hear)

    def close(self) -> None:
        self._hub.watchers.discard(self._hear)

    @property
    def unheard(self) -> int:
        """How many events wait for the reader."""
        return len(self._unheard)

    def _hear(self, entries: list[Entry]) -> None:
        """None at all: somebody should look up. What is not for this one wakes nobody."""
        for entry in entries:
            event = event_of(entry) if entry.index > self._after else None
            if event is not None and self._job in ("", event.job_id):
                self._unheard.append(event)
        if len(self._unheard) > UNHEARD_MOST:
            self._behind = True
            self._unheard.clear()
            self.close()
        if self._unheard or self._behind or not entries:
            self._news.set()

    async def some(self, seconds: float | None = None) -> list[EventView]:
        """What there is, as soon as there is any; nothing when so long has passed, or somebody should look up."""
        if not self._unheard and not self._behind:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()
        self._news.clear()
        if self._behind:
            raise RpcError(Status.RESOURCE_EXHAUSTED, "this reader fell behind: begin again from the last event")
        found = list(self._unheard)
        self._unheard.clear()
        return found


def index_after(hub: Hub, event: str) -> int:
    """Where one goes on who was last told of this event: from the first that is kept, if it is not known any more.
    "" is what comes next."""
    if not event:
        return hub.durable - 1
    index = index_of(event)
    return -1 if index is None or not is_known(hub, event) else index


def is_known(hub: Hub, event: str) -> bool:
    """Whether all that came after this event is still kept. One with another term is of another history."""
    index = index_of(event)
    if index is None or not hub.history:
        return False
    first, last = hub.history[0], hub.history[-1]
    if not first.index <= index <= last.index:
        return index == first.index - 1
    return event_id(hub.history[index - first.index].term, index) == event


async def watch_events(
    hub: Hub, request: pb.WatchEventsRequest, call: Call, still_welcome: Callable[[Call], bool]
) -> AsyncIterator[pb.WatchEventsResponse]:
    if request.job_id:
        try:
            check_id(request.job_id, "job_id")
        except StrataError as error:
            raise to_rpc(error) from error
    check_welcome(hub, still_welcome, call)
    watcher = Watcher(hub, index_after(hub, request.after), request.job_id)
    try:
        while True:
            found = await watcher.some()
            check_welcome(hub, still_welcome, call)
            for event in found:
                yield pb.WatchEventsResponse(
                    id=event.id,
                    unix_seconds=event.unix_seconds,
                    job_id=event.job_id,
                    kind=event.kind,
                    message=event.message,
                    severity=event.severity,
                    worker_id=event.worker_id,
                    step=event.step,
                )
    finally:
        watcher.close()
