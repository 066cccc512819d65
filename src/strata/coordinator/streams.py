"""What is sent without being asked for each time: commands to workers on a stream, and the log to those who watch."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from strata.coordinator import translate
from strata.coordinator.events import EventView, event_of, index_of
from strata.coordinator.hub import Hub
from strata.coordinator.replay import Entry
from strata.core import records
from strata.core.effects import Alive
from strata.core.errands import errands_for
from strata.errors import InvalidInput, StrataError
from strata.rpc import RpcError, Status
from strata.v1 import coordinator_pb2 as pb
from strata.wire.errors import to_rpc

UNHEARD_MOST = 10_000
"""Events that wait for one who watches. A reader that is further behind than that has to begin again."""

_QUIET = (records.ProgressMade, records.PartAcknowledged, records.SituationChanged)


class _Worker:
    """One open stream: who it is for, and that something may be new."""

    def __init__(self) -> None:
        self.job = self.worker = ""
        self.incarnation = 0
        self.told = b""
        self.news = asyncio.Event()


class Pushes:
    """Heartbeats on streams. When something about a job changes, its workers are told what they have to do now."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._by_job: dict[str, set[_Worker]] = {}
        hub.watchers.add(self._on_entries)

    def _on_entries(self, entries: list[Entry]) -> None:
        jobs = {getattr(entry.record, "job", "") for entry in entries if not isinstance(entry.record, _QUIET)}
        for job in jobs & self._by_job.keys():
            for worker in self._by_job[job]:
                worker.news.set()

    async def serve(
        self, requests: AsyncIterator[pb.HeartbeatRequest], beat: Callable[[pb.HeartbeatRequest], bytes]
    ) -> AsyncIterator[bytes]:
        """Answers to heartbeats, and commands in between."""
        worker = _Worker()
        asked: asyncio.Task[Any] | None = None
        news: asyncio.Task[Any] | None = None
        try:
            while True:
                asked = asked or asyncio.ensure_future(anext(requests, None))
                news = news or asyncio.ensure_future(worker.news.wait())
                await asyncio.wait({asked, news}, return_when=asyncio.FIRST_COMPLETED)
                if asked.done():
                    request, asked = asked.result(), None
                    if request is None:
                        return
                    yield await self._answer(worker, request, beat)
                elif news.done():
                    news = None
                    worker.news.clear()
                    told = await self._pushed(worker)
                    if told:
                        yield told
        finally:
            for task in (asked, news):
                if task is not None:
                    task.cancel()
            self._by_job.get(worker.job, set()).discard(worker)

    async def _answer(
        self, worker: _Worker, request: pb.HeartbeatRequest, beat: Callable[[pb.HeartbeatRequest], bytes]
    ) -> bytes:
        try:
            worker.told = beat(request)
        except RpcError:
            raise
        except StrataError as error:
            await self._hub.settled()
            raise to_rpc(error) from error
        if not worker.job:
            worker.job, worker.worker, worker.incarnation = request.job_id, request.worker_id, request.incarnation
            self._by_job.setdefault(worker.job, set()).add(worker)
        elif (worker.job, worker.worker, worker.incarnation) != (
            request.job_id,
            request.worker_id,
            request.incarnation,
        ):
            raise to_rpc(InvalidInput("a stream is for one process: open another for another"))
        told = worker.told
        await self._hub.settled()
        return told

    async def _pushed(self, worker: _Worker) -> bytes:
        """What the worker has to do now, if that is not what it was told last; it is heard no better for it."""
        job = self._hub.machine.state.jobs.get(worker.job)
        try:
            if job is None:
                return b""
            member = job.member(worker.worker, worker.incarnation)
        except StrataError as error:
            await self._hub.settled()
            raise to_rpc(error) from error
        errands = errands_for(job, self._hub.machine.volatile.job(worker.job), member, self._hub.clock())
        told = translate.alive(Alive(job.world.generation, errands)).SerializeToString()
        if told == worker.told:
            return b""
        worker.told = told
        await self._hub.settled()
        return told


async def events(hub: Hub, after: str, job: str = "") -> AsyncGenerator[EventView, None]:
    """Those after the one with this id that are still kept, then those that happen. "" begins with what comes next."""
    unheard: deque[EventView] = deque()
    news = asyncio.Event()

    def hear(entries: list[Entry]) -> None:
        for entry in entries:
            event = event_of(entry)
            if event is not None and job in ("", event.job_id):
                unheard.append(event)
        news.set()

    if after:
        last = index_of(after)
        hear([entry for entry in hub.history if last is None or entry.index > last])
    hub.watchers.add(hear)
    try:
        while True:
            while unheard:
                if len(unheard) > UNHEARD_MOST:
                    raise RpcError(
                        Status.RESOURCE_EXHAUSTED, "this reader fell behind: begin again from the last event"
                    )
                yield unheard.popleft()
            news.clear()
            await news.wait()
    finally:
        hub.watchers.discard(hear)


async def watch_events(hub: Hub, request: pb.WatchEventsRequest) -> AsyncIterator[pb.WatchEventsResponse]:
    async for event in events(hub, request.after, request.job_id):
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
