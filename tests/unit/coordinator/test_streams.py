"""What is sent unasked: who is woken by which record, and what one who watches is told."""

import asyncio
import itertools
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from strata.coordinator import streams, translate
from strata.coordinator.api import Live
from strata.coordinator.awaiting import Awaiting
from strata.coordinator.hub import Hub
from strata.coordinator.stats import BarrierStats, JournalStats, RequestStats
from strata.coordinator.streams import PUSHED_AT_ONCE, QUIET, Pushes, Watcher, watch_events
from strata.coordinator.views import PULSE_SECONDS, Views
from strata.core import records
from strata.core.effects import Errand
from strata.core.errands import errands_for
from strata.core.events import BarrierArrived, HeartbeatReceived, RegisterRequested
from strata.core.machine import Machine
from strata.core.volatile import JobVolatile
from strata.errors import StrataError
from strata.rpc import Later, RpcError
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
    kinds: list[type] = [*NEWS, *QUIET]
    assert sorted(kinds, key=lambda kind: kind.__name__) == list(records.every_record())


def test_after_a_quiet_record_nobody_has_more_to_do() -> None:
    machine, before = Machine(), dict[Any, Any]()
    for record in scenario().records:
        machine.apply(record)
        after = _told(machine)
        if isinstance(record, QUIET):
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


class _Line:
    """Where one worker is told things."""

    def __init__(self) -> None:
        self.said: list[bytes] = []
        self.ended: list[RpcError | None] = []

    def say(self, response: bytes) -> None:
        self.said.append(response)

    def end(self, error: RpcError | None = None) -> None:
        self.ended.append(error)

    def generations(self) -> list[int]:
        return [pb.HeartbeatResponse.FromString(told).generation for told in self.said]


class _Streams:
    """Of workers that each beat once."""

    def __init__(self, hub: Hub, who: dict[str, int], still_welcome: Callable[[Any], bool] = lambda call: True) -> None:
        def beat(request: pb.HeartbeatRequest) -> bytes:
            event = HeartbeatReceived("job", request.worker_id, request.incarnation, step=request.step)
            return translate.alive(cast(Any, hub.ask(event))).SerializeToString()

        self.pushes = Pushes(hub, beat, still_welcome)
        self.lines = {name: _Line() for name in who}
        self.talks = {name: self.pushes.open(line, cast(Any, name)) for name, line in self.lines.items()}
        for name, incarnation in who.items():
            self.beat(name, incarnation)

    def beat(self, name: str, incarnation: int) -> Any:
        request = pb.HeartbeatRequest(job_id="job", worker_id=name, incarnation=incarnation, step=1)
        return self.talks[name].heard(request)


async def _opened(
    hub: Hub, *names: str, still_welcome: Callable[[Any], bool] = lambda call: True
) -> tuple[dict[str, int], _Streams]:
    """The incarnations of these workers, and their streams."""
    who = {name: register(hub, name).incarnation for name in names}
    await hub.settled()
    return who, _Streams(hub, who, still_welcome)


async def _joined(hub: Hub, newcomer: str) -> None:
    register(hub, newcomer)
    await hub.settled()


async def _turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_barrier_wakes_no_stream_and_a_newcomer_wakes_all(tmp_path: Path) -> None:
    looked: list[str] = []

    def still_welcome(call: Any) -> bool:
        looked.append(call)
        return True

    async def work(hub: Hub, journal: SlowJournal) -> None:
        who, streams = await _opened(hub, "a", "b", "c", still_welcome=still_welcome)
        await _turns()
        looked.clear()
        for arrival in range(1, 4):
            for name in ("a", "b"):
                hub.ask(BarrierArrived("job", name, who[name], "sync", arrival, arrival - 1, 2))
            await hub.settled()
        await _joined(hub, "d")
        await _turns()
        generation = hub.machine.state.jobs["job"].world.generation
        assert [line.generations() for line in streams.lines.values()] == [[generation]] * 3
        assert sorted(looked) == ["a", "b", "c"], "once each, for the newcomer"

    run(tmp_path, work)


def test_thousands_are_told_a_share_at_a_time_and_each_once(tmp_path: Path) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        who = {f"w{number}": register(hub, f"w{number}").incarnation for number in range(PUSHED_AT_ONCE * 2 + 1)}
        await hub.settled()
        streams = _Streams(hub, who)
        await _joined(hub, "d")
        counts = []
        for _ in range(6):
            counts.append(sum(len(line.said) for line in streams.lines.values()))
            await asyncio.sleep(0)
        assert counts[-1] == len(who)
        assert all(after - before <= PUSHED_AT_ONCE for before, after in itertools.pairwise(counts))
        await _joined(hub, "e")
        streams.talks["w0"].over()
        await _turns()
        assert {name: len(line.said) for name, line in streams.lines.items()} == {
            name: 1 if name == "w0" else 2 for name in who
        }

    run(tmp_path, work)


def test_nothing_is_pushed_that_is_not_durable(tmp_path: Path) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        who, streams = await _opened(hub, "a", "b")
        await _joined(hub, "c")
        journal.may_write.clear()
        register(hub, "d")
        await _turns()
        assert [line.said for line in streams.lines.values()] == [[], []], "it would tell of the one who is not durable"
        assert isinstance(streams.beat("a", who["a"]), Later)
        journal.may_write.set()
        await hub.settled()
        await _turns()
        assert streams.lines["b"].generations() == [hub.machine.state.jobs["job"].world.generation]

    run(tmp_path, work)


def test_a_process_is_told_that_it_is_replaced_once_that_is_durable(tmp_path: Path) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        _who, streams = await _opened(hub, "a", "b")
        await _joined(hub, "c")
        journal.may_write.clear()
        hub.ask(RegisterRequested("job", "a", "another"))
        await _turns()
        assert streams.lines["a"].ended == []
        journal.may_write.set()
        await hub.settled()
        await _turns()
        assert "superseded" in str(streams.lines["a"].ended[0])
        assert streams.lines["b"].ended == []

    run(tmp_path, work)


def test_what_breaks_for_one_breaks_for_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken: set[str] = set()

    def still_welcome(call: Any) -> bool:
        if call in broken:
            raise ValueError("a defect")
        return True

    async def work(hub: Hub, journal: SlowJournal) -> None:
        _, streams = await _opened(hub, "a", "b", "c", still_welcome=still_welcome)
        broken.add("b")
        for count, newcomer in enumerate(("d", "e"), 1):
            await _joined(hub, newcomer)
            await _turns()
            assert [len(streams.lines[name].said) for name in ("a", "c")] == [count, count]
            streams.talks["b"].over()
        assert "see its log" in str(streams.lines["b"].ended[0])

    run(tmp_path, work)


def test_a_stream_belongs_to_one_job_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        _who, streams = await _opened(hub, "a", "b")
        assert streams.pushes.jobs == {"job"}
        for talk in streams.talks.values():
            talk.over()
        assert not streams.pushes.jobs

    run(tmp_path, work)


def test_a_stream_renews_nothing_for_another_process(tmp_path: Path) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        who, streams = await _opened(hub, "a", "b")
        leases = hub.machine.volatile.job("job").leases
        before = leases["b"]
        request = pb.HeartbeatRequest(job_id="job", worker_id="b", incarnation=who["b"], step=7)
        with pytest.raises(RpcError, match="one process"):
            streams.talks["a"].heard(request)
        assert leases["b"] == before

    run(tmp_path, work)


def test_what_begins_when_the_hub_has_closed_is_told_so(tmp_path: Path) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        who, streams = await _opened(hub, "a")
        hub.release_waits()
        with pytest.raises(RpcError, match="shutting down"):
            streams.pushes.open(_Line(), cast(Any, "late"))
        events = watch_events(hub, pb.WatchEventsRequest(), cast(Any, None), lambda call: True)
        with pytest.raises(RpcError, match="shutting down"):
            await asyncio.wait_for(anext(events), 5)
        waiting = Awaiting(hub, lambda call: True).serve(
            pb.AwaitCheckpointRequest(job_id="job", worker_id="a", incarnation=who["a"], step=1), cast(Any, None)
        )
        with pytest.raises(RpcError, match="shutting down"):
            await asyncio.wait_for(waiting, 5)

    run(tmp_path, work)


def test_one_who_watches_looks_up_once_for_each_call(tmp_path: Path) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        watcher = Watcher(hub, hub.durable - 1)
        hub.wake_watchers()
        assert await asyncio.wait_for(watcher.some(), 5) == [], "called while it did something else"
        waiting = asyncio.ensure_future(watcher.some())
        await _turns()
        assert not waiting.done()
        waiting.cancel()
        watcher.close()

    run(tmp_path, work)


def test_streams_end_in_words_when_the_token_is_taken_away_or_the_coordinator_goes(tmp_path: Path) -> None:
    refused: set[str] = set()

    async def work(hub: Hub, journal: SlowJournal) -> None:
        who, streams = await _opened(hub, "a", "b", still_welcome=lambda call: call not in refused)
        silent = _Line()
        streams.pushes.open(silent, cast(Any, "silent"))
        refused.add("a")
        with pytest.raises(RpcError, match="token"):
            streams.beat("a", who["a"])
        hub.wake_watchers()
        await _turns()
        ended = {name: [str(error) for error in line.ended] for name, line in streams.lines.items()}
        assert (ended["b"], len(ended["a"]), silent.ended) == ([], 1, [])
        assert "token" in ended["a"][0]
        streams.talks["a"].over()
        hub.release_waits()
        await _turns()
        for line in (streams.lines["b"], silent):
            assert "shutting down" in str(line.ended[0])
        with pytest.raises(RpcError, match="shutting down"):
            streams.beat("b", who["b"])

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
        await _turns()
        assert not waiting.done()
        hub.wake_watchers()
        assert await waiting == []
        watcher.close()

    run(tmp_path, work)


def test_a_pulse_comes_when_it_is_due_however_much_happens(tmp_path: Path) -> None:
    now = [1000.0]

    async def work(hub: Hub, journal: SlowJournal) -> None:
        live = Live(_views(hub), None, "", lambda: True)
        sent = aiter(cast(AsyncIterator[bytes], live.body_iterator))
        heard = [await anext(sent)]
        for number in range(20):
            register(hub, f"w{number}")
            await hub.settled()
            heard += [await anext(sent) for _ in range(3 if number == 0 else 1)]
        assert _kinds(heard) == ["snapshot", *["event"] * 22]
        now[0] += PULSE_SECONDS
        assert _kinds([await anext(sent)]) == ["pulse"]

    run(tmp_path, work, clock=lambda: now[0])


def test_a_snapshot_is_not_followed_by_what_it_holds(tmp_path: Path) -> None:
    """Whatever was on its way to the disk when it was made."""

    async def work(hub: Hub, journal: SlowJournal) -> None:
        for number in range(20):
            register(hub, f"w{number}")
        await hub.settled()
        journal.may_write.clear()
        register(hub, "late")
        live = Live(_views(hub), None, "", lambda: True)
        journal.may_write.set()
        sent = aiter(cast(AsyncIterator[bytes], live.body_iterator))
        assert b"late" in (first := await anext(sent))
        assert _kinds([first]) == ["snapshot"]
        register(hub, "next")
        told = await anext(sent)
        assert _kinds([told]) == ["event"]
        assert b'"worker_id":"next"' in told

    run(tmp_path, work)


def test_one_too_many_is_refused_at_once_and_one_that_falls_behind_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        monkeypatch.setattr(streams, "WATCHERS_MOST", len(hub.watchers) + 1)
        monkeypatch.setattr(streams, "UNHEARD_MOST", 2)
        live = Live(_views(hub), None, "", lambda: True)
        sent = aiter(cast(AsyncIterator[bytes], live.body_iterator))
        assert _kinds([await anext(sent)]) == ["snapshot"]
        with pytest.raises(RpcError, match="watch already"):
            Live(_views(hub), None, "", lambda: True)
        register(hub, "a")
        await hub.settled()
        assert [each async for each in sent] == []
        assert Live(_views(hub), None, "", lambda: True) is not None, "there is room again"

    run(tmp_path, work)
