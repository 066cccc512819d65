"""Durable before seen: nothing leaves the hub before the journal holds what it rests on."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from strata.coordinator.hub import Hub
from strata.coordinator.journal import Journal, JournalError
from strata.coordinator.replay import Entry, replayed
from strata.coordinator.streams import Watcher
from strata.core.events import BarrierArrived, DeregisterRequested, HeartbeatReceived, RegisterRequested
from strata.core.records import Record, TermStarted
from strata.errors import NotRegistered
from strata.rpc import Later, RpcError
from tests.unit.coordinator.hubs import SlowJournal, register, run, told
from tests.until import until_async


async def a_moment() -> None:
    await asyncio.sleep(0.02)


def test_an_answer_waits_for_the_disk_and_one_that_rests_on_nothing_new_does_not(tmp_path: Path) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        journal.may_write.clear()
        answer = register(hub, "a")
        waiting = hub.answer(answer)
        assert isinstance(waiting, Later)
        heard: list[Any] = []
        waiting.then(lambda response, error: heard.append(response))
        await a_moment()
        assert not heard
        journal.may_write.set()
        await until_async(lambda: heard)
        assert heard == [answer]
        hub.ask(HeartbeatReceived("job", "a", answer.incarnation))
        assert hub.answer("alive") == "alive"

    run(tmp_path, work)


def test_even_a_heartbeat_and_a_refusal_wait_for_what_they_may_tell(tmp_path: Path) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        first = register(hub, "a")
        await hub.settled()
        journal.may_write.clear()
        register(hub, "b")
        hub.ask(HeartbeatReceived("job", "a", first.incarnation))
        beat = hub.answer("generation 2")
        with pytest.raises(NotRegistered) as error:
            hub.ask(HeartbeatReceived("job", "c", 9))
        refusal = hub.refuse(error.value)
        assert isinstance(beat, Later)
        await a_moment()
        journal.may_write.set()
        assert await beat == "generation 2"
        with pytest.raises(NotRegistered):
            await refusal
        with pytest.raises(NotRegistered):
            hub.refuse(error.value)

    run(tmp_path, work)


def test_what_is_decided_while_the_disk_is_busy_is_written_at_once_together(tmp_path: Path) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        journal.may_write.clear()
        for number in range(50):
            register(hub, f"w{number}")
            if number % 10 == 0:
                await a_moment()
        journal.may_write.set()
        await hub.settled()
        assert len(journal.batches_written) <= 3, journal.batches_written  # the term, the first, the rest
        assert sum(journal.batches_written) == hub.machine.index

    run(tmp_path, work)


def test_a_barrier_is_released_to_all_of_its_tries_once_that_is_durable(tmp_path: Path) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        who = [register(hub, name) for name in ("a", "b")]
        await hub.settled()
        hub.ask(BarrierArrived("job", "a", who[0].incarnation, "sync", 1, 0, 2))
        tries = [hub.wait_at_barrier("job", "a", 1)]
        tries[0].given_up = True
        tries += [hub.wait_at_barrier("job", "a", 1) for _ in range(2)]
        journal.may_write.clear()
        hub.ask(BarrierArrived("job", "b", who[1].incarnation, "sync", 1, 0, 2))
        heard: list[Any] = []
        for one in tries:
            one.then(lambda response, error: heard.append(response))
        await a_moment()
        assert not heard
        journal.may_write.set()
        await hub.settled()
        assert heard == ["round 1"] * 2, "the try that was given up is forgotten"

    run(tmp_path, work)


def test_events_are_shown_once_they_are_durable(tmp_path: Path) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        seen: list[Any] = []
        hub.watchers.add(lambda entries: seen.extend(entry.record for entry in entries))
        journal.may_write.clear()
        register(hub, "a")
        await a_moment()
        assert not seen
        journal.may_write.set()
        await hub.settled()
        await a_moment()
        assert [type(record).__name__ for record in seen] == [
            "JobOpened",
            "WorldDeclared",
            "WorkerJoined",
            "ViewChanged",
        ]

    run(tmp_path, work)


def test_when_the_journal_fails_everybody_who_waits_is_told_and_nobody_is_served(tmp_path: Path) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        who = register(hub, "a")
        await hub.settled()
        hub.ask(BarrierArrived("job", "a", who.incarnation, "sync", 1, 0, 2))
        at_barrier = hub.wait_at_barrier("job", "a", 1)
        journal.may_write.clear()
        journal.broken = True
        register(hub, "b")
        owed = hub.answer("b is there")
        told_before: list[RpcError | None] = []
        hub.when_durable(told_before.append)
        assert not told_before
        journal.may_write.set()
        error = await asyncio.wait_for(hub.failure, 5)
        told_after: list[RpcError | None] = []
        hub.when_durable(told_after.append)
        assert ["cannot be written" in str(each) for each in (*told_before, *told_after)] == [True, True]
        assert "no room" in str(error)
        for waiting in (owed, at_barrier):
            with pytest.raises(RpcError, match="journal cannot be written"):
                await waiting
        with pytest.raises(RpcError, match="UNAVAILABLE"):
            register(hub, "c")

    run(tmp_path, work)


def fails(*about: object) -> None:
    raise ZeroDivisionError("a defect")


def test_a_callback_that_raises_is_logged_and_costs_nobody_else_anything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        seen: list[Entry] = []
        verdicts: list[object] = []
        hub.watchers |= {fails, seen.extend, lambda entries: fails()}
        hub.verdict_watchers |= {fails, lambda verdict, seconds: verdicts.append(verdict), lambda *about: fails()}
        who = [register(hub, name) for name in ("a", "b")]
        hub.when_durable(fails)
        await asyncio.wait_for(hub.settled(), 5)
        hub.ask(BarrierArrived("job", "a", who[0].incarnation, "sync", 1, 0, 2))
        tries = [hub.wait_at_barrier("job", "a", 1) for _ in range(2)]
        tries[0].then(fails)
        hub.ask(BarrierArrived("job", "b", who[1].incarnation, "sync", 1, 0, 2))
        assert await asyncio.wait_for(_awaited(tries[1]), 5) == "round 1"
        await asyncio.wait_for(hub.settled(), 5)
        assert [entry.index for entry in seen] == list(range(1, hub.machine.index))
        assert len(verdicts) == 1
        journal.broken = True
        register(hub, "c")
        hub.when_durable(fails)
        owed = hub.answer("c is there")
        with pytest.raises(RpcError, match="journal cannot be written"):
            await asyncio.wait_for(_awaited(owed), 5)

    run(tmp_path, work)
    assert caplog.text.count("ZeroDivisionError: a defect") >= 8


def test_those_who_wait_hear_of_a_verdict_that_cannot_be_put_in_words(tmp_path: Path) -> None:
    async def main() -> None:
        hub = Hub(Journal(tmp_path), tell_verdict=fails)
        await hub.start()
        who = register(hub, "a")
        hub.ask(BarrierArrived("job", "a", who.incarnation, "sync", 1, 0, 1))
        waiting = hub.wait_at_barrier("job", "a", 1)
        with pytest.raises(RpcError, match="see its log"):
            await asyncio.wait_for(_awaited(waiting), 5)
        await hub.stop()

    asyncio.run(main())


def test_a_journal_that_fails_at_the_start_ends_the_start(tmp_path: Path) -> None:
    async def main() -> None:
        journal = SlowJournal(tmp_path)
        journal.broken = True
        hub = Hub(journal, tell_verdict=str)
        with pytest.raises(JournalError, match="no room"):
            await asyncio.wait_for(hub.start(), 5)
        journal.close()

    asyncio.run(main())


def test_what_was_acknowledged_is_there_after_a_restart_and_the_term_is_another(tmp_path: Path) -> None:
    async def first(hub: Hub, journal: SlowJournal) -> None:
        register(hub, "a")
        await hub.settled()

    async def second(hub: Hub, journal: SlowJournal) -> None:
        assert hub.machine.state.jobs["job"].world.by_rank == {0: "a"}
        assert hub.machine.state.term == 2
        assert [type(entry.record).__name__ for entry in hub.history][-1] == "TermStarted"

    run(tmp_path, first)
    run(tmp_path, second)


def test_snapshots_are_taken_as_the_journal_grows(tmp_path: Path) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        for number in range(200):
            register(hub, f"w{number}")
            await hub.settled()
        digest = hub.machine.digest()
        (tmp_path / "digest").write_text(digest)

    run(tmp_path, work, snapshot_after_bytes=2000)
    journal = Journal(tmp_path)
    found = list(journal.snapshots())
    assert len(found) == 2
    machine = replayed(journal).machine
    journal.close()
    assert machine.digest() == (tmp_path / "digest").read_text("utf-8")


def test_restarts_do_not_put_off_the_next_snapshot(tmp_path: Path) -> None:
    """What the journal held before counts: or it would grow for ever under a coordinator that often restarts."""

    async def work(hub: Hub, journal: SlowJournal) -> None:
        register(hub, f"w{hub.machine.index}", metadata={"about": "x" * 1000})
        await hub.settled()

    for _ in range(12):
        run(tmp_path, work, snapshot_after_bytes=5000)
    journal = Journal(tmp_path)
    assert list(journal.snapshots())
    assert replayed(journal).fed_bytes < 12_000
    journal.close()


@pytest.mark.parametrize("cause", ["superseded", "left", "died", "given_up"])
def test_a_waiter_that_gets_no_verdict_is_told_and_forgotten(tmp_path: Path, cause: str) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        who = register(hub, "a")
        register(hub, "b")
        arrive = BarrierArrived("job", "a", who.incarnation, "sync", 1, 0, 2)
        hub.ask(arrive)
        waiting = hub.wait_at_barrier("job", "a", 1)
        if cause == "superseded":
            hub.ask(RegisterRequested("job", "a", "another"))
        elif cause in ("left", "died"):
            hub.ask(DeregisterRequested("job", "a", who.incarnation, died=cause == "died"))
        else:
            hub.ask(BarrierArrived("job", "a", who.incarnation, "sync", 2, 1, 2))
        with pytest.raises(RpcError, match=cause):
            await asyncio.wait_for(_awaited(waiting), 5)
        assert not hub.waiting

    run(tmp_path, work)


async def _awaited(waiting: Later) -> Any:
    return await waiting


def test_a_rule_that_fails_in_the_middle_ends_it_and_nothing_of_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        register(hub, "a")
        await hub.settled()

        def decides_and_fails(event: object, now: float) -> object:
            hub.machine.apply(TermStarted(99))
            raise RuntimeError("a defect")

        monkeypatch.setattr(hub.machine, "handle", decides_and_fails)
        with pytest.raises(RpcError, match="UNAVAILABLE"):
            register(hub, "b")
        assert "a defect" in str(hub.failure.result())
        with pytest.raises(RpcError):
            hub.answer("what rests on it")
        with pytest.raises(RpcError):
            await hub.settled()

    run(tmp_path, work)
    journal = Journal(tmp_path)
    assert replayed(journal).machine.state.term == 1
    journal.close()


def test_whatever_ends_the_journals_thread_is_told(tmp_path: Path) -> None:
    class Odd(SlowJournal):
        def append(self, first_index: int, term: int, records: Sequence[Record]) -> int:
            if first_index:
                raise OverflowError("a number too large")
            return super().append(first_index, term, records)

    async def main() -> None:
        hub = Hub(Odd(tmp_path), tell_verdict=told)
        await hub.start()
        register(hub, "a")
        owed = hub.answer("a is there")
        assert "too large" in str(await asyncio.wait_for(hub.failure, 5))
        with pytest.raises(RpcError):
            await owed
        await asyncio.wait_for(hub.stop(), 5)

    asyncio.run(main())


def test_a_reader_that_does_not_read_costs_no_more_than_it_may(tmp_path: Path) -> None:
    async def work(hub: Hub, journal: SlowJournal) -> None:
        watcher, other = Watcher(hub, hub.durable - 1), Watcher(hub, hub.durable - 1)
        entry = Entry(10**6, 1, 0.0, TermStarted(1))
        for _ in range(3):
            for each in list(hub.watchers):
                each([entry] * 5000)
            assert len(await other.some()) == 5000
        assert watcher.unheard == 0
        with pytest.raises(RpcError, match="fell behind"):
            await watcher.some()
        assert len(hub.watchers) == 1, "nothing more is told to it"
        other.close()
        assert not hub.watchers

    run(tmp_path, work)


def test_those_who_wait_are_let_go_when_the_coordinator_stops(tmp_path: Path) -> None:
    waiting: list[Later] = []

    async def work(hub: Hub, journal: SlowJournal) -> None:
        who = register(hub, "a")
        hub.ask(BarrierArrived("job", "a", who.incarnation, "sync", 1, 0, 2))
        waiting.append(hub.wait_at_barrier("job", "a", 1))

    run(tmp_path, work)
    outcome: list[Any] = []
    waiting[0].then(lambda response, error: outcome.append(error))
    assert "shutting down" in str(outcome[0])
