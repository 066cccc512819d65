"""What is sent unasked: who is woken by which record, and what one who watches is told."""

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from strata.coordinator import streams, translate
from strata.coordinator.api import _Live
from strata.coordinator.hub import Hub
from strata.coordinator.stats import BarrierStats, JournalStats, RequestStats
from strata.coordinator.streams import _QUIET, Pushes, Watcher
from strata.coordinator.views import PULSE_SECONDS, Views
from strata.core import records
from strata.core.effects import Errand
from strata.core.errands import errands_for
from strata.core.events import BarrierArrived, HeartbeatReceived
from strata.core.machine import Machine
from strata.core.volatile import JobVolatile
from strata.errors import StrataError
from strata.rpc import RpcError
from strata.v1 import coordinator_pb2 as pb
from tests.unit.coordinator.hubs import SlowJournal, register, run
from tests.unit.core.test_replay_hashseed import scenario

NEWS = (
    records.CheckpointAbandoned,
    records.CheckpointBegun,
    records.CheckpointCommitted,
    records.CheckpointDamaged,
    records.CheckpointDecided,
    records.CheckpointDeleted,
    records.CheckpointDoomed,
    records.CheckpointSkipped,
    records.CheckpointUnlinked,
    records.GenerationAdvanced,
    records.HistoryLost,
    records.JobStopping,
    records.RecoveryPointSet,
    records.SaveAgreed,
    records.SaveDropped,
    records.SaveReopened,
    records.SaveWanted,
    records.WorkerDraining,
    records.WorkerJoined,
    records.WorkerLost,
    records.WorkersForgotten,
    records.WorldDeclared,
)
"""What may change what a worker has to do, the generation, or whether it is one at all."""


def test_every_kind_of_record_wakes_the_streams_of_its_job_or_is_quiet_on_purpose() -> None:
    assert sorted((*NEWS, *_QUIET), key=lambda kind: kind.__name__) == list(records.every_record())


def test_after_a_quiet_record_nobody_has_more_to_do() -> None:
    machine, before = Machine(), dict[Any, Any]()
    for record in scenario().records:
        machine.apply(record)
        after = _told(machine)
        if isinstance(record, _QUIET):
            for who in before:
                assert (after[who][0], after[who][1] - before[who][1]) == (before[who][0], set()), record
        before = after


def _told(machine: Machine) -> dict[tuple[str, str, int], tuple[int, set[Errand]]]:
    """What each worker would hear, were all that takes time over."""
    volatile = JobVolatile(unlinked_until=defaultdict(float))
    told = {}
    for name, job in machine.state.jobs.items():
        for worker, member in job.world.members.items():
            who = (name, worker, member.incarnation)
            try:
                own = job.member(worker, member.incarnation)
            except StrataError:
                told[who] = (-1, set[Errand]())
                continue
            told[who] = (job.world.generation, set(errands_for(job, volatile, own, 1e9)))
    return told


class _Stream:
    """The heartbeats of one worker, which beats once."""

    def __init__(self, pushes: Pushes, hub: Hub, worker: str, incarnation: int) -> None:
        self._hub = hub
        self._request = pb.HeartbeatRequest(job_id="job", worker_id=worker, incarnation=incarnation, step=1)
        self.answers = pushes.serve(self._requests(), self._beat, cast(Any, None))

    async def _requests(self) -> AsyncIterator[pb.HeartbeatRequest]:
        yield self._request
        await asyncio.Event().wait()

    def _beat(self, request: pb.HeartbeatRequest) -> bytes:
        event = HeartbeatReceived("job", request.worker_id, request.incarnation, step=request.step)
        return translate.alive(cast(Any, self._hub.ask(event))).SerializeToString()


def test_a_barrier_wakes_no_stream_and_a_newcomer_wakes_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    looks = Pushes._pushed

    async def pushed(pushes: Pushes, worker: Any) -> bytes:
        looked.append(worker.worker)
        return await looks(pushes, worker)

    async def work(hub: Hub, journal: SlowJournal) -> None:
        who = {name: register(hub, name).incarnation for name in ("a", "b", "c")}
        await hub.settled()
        pushes = Pushes(hub, lambda call: True)
        opened = [_Stream(pushes, hub, name, incarnation) for name, incarnation in who.items()]
        for stream in opened:
            await anext(stream.answers)
        following = [asyncio.ensure_future(anext(stream.answers)) for stream in opened]
        for arrival in range(1, 4):
            for name in ("a", "b"):
                hub.ask(BarrierArrived("job", name, who[name], "sync", arrival, arrival - 1, 2))
            await hub.settled()
        register(hub, "d")
        generations = [pb.HeartbeatResponse.FromString(told).generation for told in await asyncio.gather(*following)]
        assert generations == [hub.machine.state.jobs["job"].world.generation] * 3
        assert sorted(looked) == ["a", "b", "c"], "once each, for the newcomer"
        for stream in opened:
            await stream.answers.aclose()

    monkeypatch.setattr(Pushes, "_pushed", pushed)
    run(tmp_path, work)


def _views(hub: Hub) -> Views:
    return Views(hub, RequestStats(), BarrierStats(), JournalStats(), version="0")


def _kinds(sent: list[bytes]) -> list[str]:
    return re.findall(r"^event: (.+)$", b"".join(sent).decode(), re.MULTILINE)


def test_one_who_watches_a_job_is_not_woken_by_another(tmp_path: Path) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        watcher = Watcher(hub, hub.durable - 1, "another")
        waiting = asyncio.ensure_future(watcher.some())
        for name in ("a", "b", "c"):
            register(hub, name)
            await hub.settled()
        assert not watcher._news.is_set()
        hub.wake_watchers()
        assert await waiting == []
        watcher.close()

    run(tmp_path, work)


def test_a_pulse_comes_when_it_is_due_however_much_happens(tmp_path: Path) -> None:
    now = [1000.0]

    async def work(hub: Hub, journal: SlowJournal) -> None:
        live = _Live(_views(hub), None, "", lambda: True)
        sent = aiter(cast(AsyncIterator[bytes], live.body_iterator))
        heard = [await anext(sent)]
        for number in range(20):
            register(hub, f"w{number}")
            await hub.settled()
            heard += [await anext(sent) for _ in range(3 if number == 0 else 1)]
        assert _kinds(heard) == ["snapshot", *["event"] * 22]
        now[0] += PULSE_SECONDS
        assert _kinds([await anext(sent)]) == ["pulse"]
        live._watcher.close()

    run(tmp_path, work, clock=lambda: now[0])


def test_a_snapshot_is_not_followed_by_what_it_holds(tmp_path: Path) -> None:
    """Whatever was on its way to the disk when it was made."""

    async def work(hub: Hub, journal: SlowJournal) -> None:
        for number in range(20):
            register(hub, f"w{number}")
        await hub.settled()
        journal.may_write.clear()
        register(hub, "late")
        live = _Live(_views(hub), None, "", lambda: True)
        journal.may_write.set()
        sent = aiter(cast(AsyncIterator[bytes], live.body_iterator))
        assert b"late" in (first := await anext(sent))
        assert _kinds([first]) == ["snapshot"]
        register(hub, "next")
        told = await anext(sent)
        assert _kinds([told]) == ["event"]
        assert b'"worker_id":"next"' in told
        live._watcher.close()

    run(tmp_path, work)


def test_one_too_many_is_refused_at_once_and_one_that_falls_behind_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        monkeypatch.setattr(streams, "WATCHERS_MOST", len(hub.watchers) + 1)
        monkeypatch.setattr(streams, "UNHEARD_MOST", 2)
        live = _Live(_views(hub), None, "", lambda: True)
        sent = aiter(cast(AsyncIterator[bytes], live.body_iterator))
        assert _kinds([await anext(sent)]) == ["snapshot"]
        with pytest.raises(RpcError, match="watch already"):
            _Live(_views(hub), None, "", lambda: True)
        register(hub, "a")
        await hub.settled()
        assert [each async for each in sent] == []
        assert _Live(_views(hub), None, "", lambda: True), "there is room again"

    run(tmp_path, work)
