"""Ranks that save through a real coordinator: what they agree on, and what becomes of it when one of them is gone."""

import asyncio
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from strata import background
from strata.checkpoint import CheckpointManager, CheckpointManagerConfig, CheckpointReader, asking, crewsaver
from strata.checkpoint.committing import commit
from strata.checkpoint.manifest import PartRef
from strata.checkpoint.marks import Replicated
from strata.errors import (
    CheckpointDamaged,
    InvalidInput,
    NotFound,
    RankFailed,
    Refused,
    SaveReplaced,
    SaveSkipped,
    StorageFull,
    Superseded,
    Unstorable,
)
from strata.rpc import RpcError, Status
from strata.storage import LocalStorage
from strata.testing.faulty import FaultyStorage
from strata.testing.manager_seam import ManagerSeam, Point
from strata.v1 import coordinator_pb2 as pb
from tests.integration.council.scenes import (
    CONFIG,
    HASTY,
    a_crew,
    bare,
    is_back,
    listed,
    load,
    save,
    state_of,
    stored,
)
from tests.servers.coordinator import Client, CoordinatorProcess
from tests.unit.checkpoint.crews import Crew
from tests.unit.checkpoint.states import assert_same
from tests.until import until

pytestmark = pytest.mark.usefixtures("job")


def test_ranks_save_and_load_and_the_coordinator_knows(tmp_path: Path, running: CoordinatorProcess) -> None:
    with a_crew(tmp_path / "ck", running, 3) as crew:
        save(crew, 10, epoch=1, metrics={"loss": 0.25})
        save(crew, 20, epoch=2, metrics={"loss": float("nan")})
        for rank, found in enumerate(load(crew)):
            assert_same(found, bare(rank, 20, 3))
        assert crew.managers[0].describe(10).metrics == {"loss": 0.25}
        assert crew.managers[0].describe(20).epoch == 2
    assert [step for step, _ in listed(running)] == [10, 20]
    assert listed(running) == stored(tmp_path / "ck")
    with Client(running.address) as client:
        latest = client.call("LatestCheckpoint").checkpoint
        parts = client.call("GetCheckpoint", attempt=latest.attempt).checkpoint.parts
    assert (latest.step, latest.epoch, latest.participants) == (20, 2, 3)
    assert parts[0].metrics == {"loss": "nan"}
    with CheckpointReader(tmp_path / "ck") as reader:
        reader.verify(10)
        reader.verify(20)


def test_one_process_alone_is_a_job_too(tmp_path: Path, running: CoordinatorProcess) -> None:
    with CheckpointManager(tmp_path, coordinator_url=f"http://{running.address}", keep_count=2) as manager:
        for step in (1, 2, 3):
            manager.save(b"state %d" % step, step=step)
        assert manager.load() == b"state 3"
    assert [step for step, _ in listed(running)] == [2, 3]


def test_the_environment_says_where_the_coordinator_is_and_who_this_is(
    tmp_path: Path, running: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDINATOR_URL", running.address)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("WORKER_ID", "the-only-one")
    with CheckpointManager(tmp_path) as manager:
        manager.save({"w": np.arange(3)}, step=1)
    assert [step for step, _ in listed(running)] == [1]
    with CheckpointManager(tmp_path, coordinator_url="") as alone:
        alone.load()
        alone.save({"w": np.arange(3)}, step=2)
    assert [step for step, _ in listed(running)] == [1]


def test_what_is_deleted_is_told(tmp_path: Path, running: CoordinatorProcess) -> None:
    with a_crew(tmp_path / "ck", running, keep_count=2) as crew:
        for step in (1, 2, 3, 4):
            save(crew, step)
        crew.each(lambda rank, manager: manager.wait())
    assert [step for step, _ in listed(running)] == [3, 4]
    with a_crew(tmp_path / "ck", running, keep_count=2) as crew:
        load(crew)
        save(crew, 5)
        crew.each(lambda rank, manager: manager.wait())
    assert listed(running) == stored(tmp_path / "ck")


def test_checkpoints_that_were_saved_without_the_coordinator_are_gone_on_from(
    tmp_path: Path, running: CoordinatorProcess
) -> None:
    with Crew(tmp_path / "ck", 2, run="before", config=CONFIG, coordinator_url="") as crew:
        save(crew, 10)
    with a_crew(tmp_path / "ck", running) as crew:
        for rank, found in enumerate(load(crew)):
            assert_same(found, bare(rank, 10))
        save(crew, 20)
    assert listed(running) == stored(tmp_path / "ck")


def test_all_ranks_go_on_from_one_point(tmp_path: Path, running: CoordinatorProcess) -> None:
    """Also from one that was the latest when the first of them asked, and is not when the last does."""
    with a_crew(tmp_path / "ck", running) as crew:
        save(crew, 10)
    with a_crew(tmp_path / "ck", running, config=HASTY) as crew:
        first, second = crew.managers
        assert_same(first.load(), bare(0, 10))
        with CheckpointManager(tmp_path / "ck", coordinator_url="") as alone:  # somebody who should not
            alone.load()
            alone.save({"w": np.zeros(1)}, step=15)
        assert_same(second.load(), bare(1, 10))


def test_a_world_that_is_not_complete_is_waited_for(tmp_path: Path, running: CoordinatorProcess) -> None:
    with a_crew(tmp_path / "ck", running) as crew:
        save(crew, 10)
    first = CheckpointManager(tmp_path / "ck", rank=0, world_size=2, coordinator_url=running.address, config=CONFIG)
    found: list[Any] = []
    has_asked_again = ManagerSeam(first).when_called("Recover", 2)
    thread = threading.Thread(target=lambda: found.append(first.load()))
    thread.start()
    assert has_asked_again.wait(20)
    assert not found
    with CheckpointManager(tmp_path / "ck", rank=1, world_size=2, coordinator_url=running.address, config=CONFIG):
        thread.join()
        assert_same(found[0], bare(0, 10))
        first.close()


def test_whoever_is_missing_is_named(tmp_path: Path, running: CoordinatorProcess) -> None:
    hasty = CheckpointManagerConfig(ranks_seconds=0.5)
    with CheckpointManager(tmp_path, rank=0, world_size=3, coordinator_url=running.address, config=hasty) as first:
        with pytest.raises(Refused, match="nobody is registered for ranks 1, 2"):
            first.save({"w": np.zeros(3)}, step=1)
        with pytest.raises(Refused, match="nobody is registered for ranks 1, 2"):
            first.load()


@pytest.mark.parametrize(
    ("failing", "words"),
    [(1, "rank-1 could not save its part"), (0, "rank 0 gave up the save of step 20")],
)
def test_a_rank_that_fails_fails_the_save_for_all_and_the_next_one_is_well(
    tmp_path: Path, running: CoordinatorProcess, failing: int, words: str
) -> None:
    with a_crew(tmp_path / "ck", running) as crew:
        save(crew, 10)

        def act(rank: int, manager: CheckpointManager) -> str:
            state = state_of(rank, 20) | ({"bad": object()} if rank == failing else {})
            with pytest.raises((RankFailed, Unstorable)) as error:
                manager.save(state, step=20)
            return str(error.value)

        told = crew.each(act)
        assert "cannot be stored" in told[failing]
        assert words in told[1 - failing]
        assert "object" in told[1 - failing]
        save(crew, 30)
        for rank, found in enumerate(load(crew)):
            assert_same(found, bare(rank, 30))
    assert [step for step, _ in listed(running)] == [10, 30]
    assert not list((tmp_path / "ck").rglob("step_20/*"))


def test_values_that_differ_where_they_must_not_are_refused_before_anything_is_decided(
    tmp_path: Path, running: CoordinatorProcess
) -> None:
    with (
        a_crew(tmp_path / "ck", running) as crew,
        pytest.raises(RankFailed, match="other values than rank 0 for w"),
    ):
        crew.save([{"w": Replicated(np.full(3, rank))} for rank in range(2)], 1)
    assert listed(running) == []


def test_a_rank_that_dies_is_named_and_the_save_is_given_up_at_once(
    tmp_path: Path, running: CoordinatorProcess
) -> None:
    """Long before those who wait for it would lose their patience."""
    patient = CheckpointManagerConfig(ranks_seconds=600)
    with a_crew(tmp_path / "ck", running, config=patient) as crew:
        save(crew, 10)
        handle = crew.managers[0].save_async(state_of(0, 20), step=20)
        with Client(running.address) as client:
            until(lambda: client.call("ListCheckpoints").checkpoints[0].step == 20)
        ManagerSeam(crew.managers[1]).leave_job()
        with pytest.raises(RankFailed, match="rank-1 was lost before its part was durable"):
            handle.result()
        with pytest.raises(RankFailed, match="step 30 cannot be saved without rank 1: it has left"):
            crew.managers[0].save(state_of(0, 30), step=30)


def test_the_manifest_of_what_is_decided_is_put_by_whoever_is_left(
    tmp_path: Path, running: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 dies between the decision and the commit."""
    with a_crew(tmp_path / "ck", running) as crew:
        save(crew, 10)

        leader = crew.managers[0]
        with monkeypatch.context() as patched, ManagerSeam(leader).instead(Point.TELL_FAILURE, _nothing):
            patched.setattr("strata.checkpoint.crewsaver.commit", _never)
            threads = [
                threading.Thread(target=_ignoring(lambda: leader.save(state_of(0, 20), step=20))),
                threading.Thread(target=_ignoring(lambda: crew.managers[1].save(state_of(1, 20), step=20))),
            ]
            for thread in threads:
                thread.start()
            threads[0].join()
            ManagerSeam(leader).leave_job()
            threads[1].join()
        assert crew.managers[1].saves[-1].done()
        assert crew.managers[1].latest_step() == 20
    assert listed(running) == stored(tmp_path / "ck")


async def _nothing(*_: Any) -> None:
    pass


def _ignoring(act: Any) -> Any:
    def run() -> None:
        try:
            act()
        except BaseException:  # noqa: BLE001  what becomes of it is looked at afterwards
            return

    return run


def test_recovery_finishes_what_was_decided(
    tmp_path: Path, running: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks die between the decision and the commit."""
    with a_crew(tmp_path / "ck", running) as crew:
        save(crew, 10)
        with monkeypatch.context() as patched:
            patched.setattr("strata.checkpoint.crewsaver.commit", _never)
            patched.setattr("strata.checkpoint.recovering.Recovery.put_manifest", _never)
            patched.setattr("strata.checkpoint.council.Council.outcome", _fails)
            ManagerSeam(crew.managers[0]).instead(Point.TELL_FAILURE, _nothing)
            crew.each(lambda rank, manager: _ignoring(lambda: manager.save(state_of(rank, 20), step=20))())
            assert crew.managers[0].latest_step() == 10
            crew.each(lambda rank, manager: _ignoring(manager.close)())
    with a_crew(tmp_path / "ck", running) as crew:
        for rank, found in enumerate(load(crew)):
            assert_same(found, bare(rank, 20))
        save(crew, 30)
    assert listed(running) == stored(tmp_path / "ck")


def test_a_manifest_that_a_manager_was_asked_for_as_it_closed_is_no_failure(
    tmp_path: Path, running: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_crew(tmp_path / "ck", running) as crew:
        save(crew, 10)
        seat = ManagerSeam(crew.managers[0]).seat
        decision = background.run(seat.asking.decision(1))
    late = pb.Command(kind=pb.Command.KIND_PUT_MANIFEST, attempt=1)
    background.run(seat.put_manifest(late))  # the job is left

    async def known(_: int) -> Any:
        return decision

    monkeypatch.setattr(seat.asking, "decision", known)
    background.run(seat.put_manifest(late))  # and the storage closed


class Dead(BaseException):
    """What a process that is killed raises: nobody gets to see it."""


async def _never(*_: Any, **__: Any) -> None:
    raise Dead


async def _fails(*_: Any, **__: Any) -> None:
    raise RankFailed("this process is dead")


@pytest.mark.parametrize("busy", ["skip", "replace"])
def test_a_save_that_comes_too_soon_ends_alike_on_all_ranks(
    tmp_path: Path, running: CoordinatorProcess, busy: Any
) -> None:
    config = CheckpointManagerConfig(when_busy=busy, ranks_seconds=20)
    with a_crew(tmp_path / "ck", running, config=config) as crew:
        save(crew, 1)

        def act(rank: int, manager: CheckpointManager) -> list[str]:
            handles = [manager.save_async(state_of(rank, step), step=step) for step in (2, 3, 4)]
            ends = []
            for handle in handles:
                try:
                    handle.result()
                    ends.append("skipped" if handle.skipped else "committed")
                except SaveReplaced:
                    ends.append("replaced")
                except SaveSkipped:
                    ends.append("skipped")
            return ends

        first, second = crew.each(act)
        assert first == second
        assert "committed" in first
        save(crew, 5)
    assert listed(running) == stored(tmp_path / "ck")


def test_going_back_is_a_lineage_of_its_own_on_both_sides(tmp_path: Path, own_coordinator: CoordinatorProcess) -> None:
    with a_crew(tmp_path / "ck", own_coordinator) as crew:
        for step in (10, 20, 30):
            save(crew, step)
        load(crew, step=10)
        save(crew, 15)
        assert crew.managers[1].list_checkpoints() == [10, 15]
    own_coordinator.kill()
    own_coordinator.start()
    with a_crew(tmp_path / "ck", own_coordinator) as crew:
        for rank, found in enumerate(load(crew)):
            assert_same(found, bare(rank, 15))
        save(crew, 20)
        assert crew.managers[0].list_checkpoints() == [10, 15, 20]
        assert_same(crew.managers[0].load(20), bare(0, 20))
    with Client(own_coordinator.address) as client:
        latest = client.call("LatestCheckpoint").checkpoint
    assert (latest.step, latest.lineage) == (20, 1)


def test_starting_anew_without_loading_leaves_everything_behind(tmp_path: Path, running: CoordinatorProcess) -> None:
    with a_crew(tmp_path / "ck", running) as crew:
        save(crew, 10)
        save(crew, 20)
    with a_crew(tmp_path / "ck", running) as crew:
        save(crew, 5)
        save(crew, 10)
        assert crew.managers[0].list_checkpoints() == [5, 10]
        for rank, found in enumerate(load(crew)):
            assert_same(found, bare(rank, 10))


def test_a_coordinator_that_lost_everything_learns_it_from_the_storage(
    tmp_path: Path, own_coordinator: CoordinatorProcess
) -> None:
    with a_crew(tmp_path / "ck", own_coordinator) as crew:
        for step in (10, 20):
            save(crew, step)
    own_coordinator.stop()
    for file in own_coordinator.state_dir.iterdir():
        file.unlink()
    own_coordinator.start()
    with a_crew(tmp_path / "ck", own_coordinator) as crew:
        for rank, found in enumerate(load(crew)):
            assert_same(found, bare(rank, 20))
        save(crew, 30)
        assert crew.managers[0].list_checkpoints() == [10, 20, 30]
    assert [step for step, _ in listed(own_coordinator)] == [20, 30]


def test_a_coordinator_that_is_down_is_waited_for_where_ranks_have_no_other_name_for_their_run(
    tmp_path: Path, own_coordinator: CoordinatorProcess
) -> None:
    with a_crew(tmp_path / "ck", own_coordinator, config=HASTY) as crew:
        own_coordinator.kill()
        threading.Timer(1.0, own_coordinator.start).start()
        save(crew, 20)
        for rank, found in enumerate(load(crew)):
            assert_same(found, bare(rank, 20))
    assert listed(own_coordinator) == stored(tmp_path / "ck")


def test_a_save_that_is_under_way_when_the_coordinator_goes_down_goes_on_without_it(
    tmp_path: Path, own_coordinator: CoordinatorProcess
) -> None:
    patient = CheckpointManagerConfig(ranks_seconds=600, coordinator_seconds=600)
    with a_crew(tmp_path / "ck", own_coordinator, config=patient) as crew:
        save(crew, 10)
        late = threading.Event()

        def save_late(rank: int, manager: CheckpointManager) -> None:
            if rank == 1:
                until(lambda: [step for step, _ in listed(own_coordinator)] == [10, 20])
                own_coordinator.kill()
                late.set()
            manager.save(state_of(rank, 20), 20)

        crew.each(save_late)
        assert late.is_set()
        assert crew.managers[0].list_checkpoints() == [10, 20]
        own_coordinator.start()
        until(lambda: is_back(crew))
        save(crew, 30)
    assert listed(own_coordinator) == stored(tmp_path / "ck")


def test_saving_goes_on_while_the_coordinator_is_down_and_it_learns_of_it_afterwards(
    tmp_path: Path, own_coordinator: CoordinatorProcess
) -> None:
    with a_crew(tmp_path / "ck", own_coordinator, config=HASTY) as crew:
        save(crew, 10)
        own_coordinator.kill()
        for step in (20, 30):
            save(crew, step)
        for rank, found in enumerate(load(crew)):
            assert_same(found, bare(rank, 30))
        assert crew.managers[0].list_checkpoints() == [10, 20, 30]
        own_coordinator.start()
        until(lambda: is_back(crew))
        save(crew, 40)
        assert crew.managers[0].list_checkpoints() == [10, 20, 30, 40]
    assert [step for step, _ in listed(own_coordinator)] == [10, 30, 40], "30 is what all ranks went on from"


@pytest.mark.parametrize("keep", [None, 2])
def test_the_coordinator_learns_all_that_was_saved_while_it_was_down_and_of_its_removal(
    tmp_path: Path, own_coordinator: CoordinatorProcess, keep: int | None
) -> None:
    with a_crew(tmp_path / "ck", own_coordinator, config=HASTY, keep_count=keep) as crew:
        save(crew, 10)
        own_coordinator.kill()
        for step in (20, 30, 40):
            save(crew, step)
        own_coordinator.start()
        until(lambda: is_back(crew))
        save(crew, 50)
        until(lambda: listed(own_coordinator) == stored(tmp_path / "ck"))  # what is not kept is removed after the save
        for step in (60, 70):
            save(crew, step)
    assert [step for step, _ in listed(own_coordinator)] == [10, 20, 30, 40, 50, 60, 70][-(keep or 7) :]
    assert listed(own_coordinator) == stored(tmp_path / "ck")


def test_a_return_to_an_older_step_while_the_coordinator_is_down_counts(
    tmp_path: Path, own_coordinator: CoordinatorProcess
) -> None:
    with a_crew(tmp_path / "ck", own_coordinator, config=HASTY) as crew:
        for step in (10, 20):
            save(crew, step)
        own_coordinator.kill()
        load(crew, step=10)
        save(crew, 15)
        own_coordinator.start()
        until(lambda: is_back(crew))
        save(crew, 18)
    with a_crew(tmp_path / "ck", own_coordinator) as crew:
        for rank, found in enumerate(load(crew)):
            assert_same(found, bare(rank, 18))
        assert crew.managers[0].list_checkpoints() == [10, 15, 18]


def test_ranks_that_have_a_name_for_their_run_begin_without_a_coordinator(
    tmp_path: Path, own_coordinator: CoordinatorProcess
) -> None:
    own_coordinator.kill()
    with Crew(tmp_path / "ck", 2, run="named", coordinator_url=own_coordinator.address, config=HASTY) as crew:
        save(crew, 10)
        own_coordinator.start()
        until(lambda: all(manager.session is not None and manager.session.registered for manager in crew.managers))
        save(crew, 20)
    assert listed(own_coordinator) == stored(tmp_path / "ck")


def test_without_a_coordinator_that_answers_the_latest_is_loaded_all_the_same(
    tmp_path: Path, own_coordinator: CoordinatorProcess
) -> None:
    with a_crew(tmp_path / "ck", own_coordinator) as crew:
        save(crew, 10)
    own_coordinator.kill()
    with CheckpointManager(tmp_path / "ck", coordinator_url=own_coordinator.address, config=HASTY) as manager:
        assert_same(manager.load(), bare(0, 10))


def test_damage_that_one_rank_finds_is_told_and_nobody_is_sent_there_again(
    tmp_path: Path, running: CoordinatorProcess
) -> None:
    with a_crew(tmp_path / "ck", running) as crew:
        for step in (10, 20):
            save(crew, step)
    for file in (tmp_path / "ck").rglob("step_20/part-1-*.safetensors"):
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    with a_crew(tmp_path / "ck", running) as crew, pytest.raises(CheckpointDamaged):
        load(crew)
    with a_crew(tmp_path / "ck", running) as crew:
        for rank, found in enumerate(load(crew)):
            assert_same(found, bare(rank, 10))
        save(crew, 15)
        assert crew.managers[0].list_checkpoints()[-1] == 15


def test_a_root_that_is_not_shared_is_told_by_the_name_of_the_machine(
    tmp_path: Path, running: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank writes to a disk of its own that has the same name on both."""
    managers = []
    for rank, node in enumerate(["node-a", "node-b"]):
        monkeypatch.setattr("socket.gethostname", lambda node=node: node)
        where = {"rank": rank, "world_size": 2, "coordinator_url": running.address, "config": CONFIG}
        managers.append(CheckpointManager(tmp_path / node, **where))  # type: ignore[arg-type]
    crew = Crew.__new__(Crew)
    crew.managers = managers
    with crew, pytest.raises(RankFailed, match="rank 1 on node-b does not see what rank 0 writes"):
        save(crew, 1)


def test_a_part_that_is_on_another_disk_is_told_by_the_name_of_the_machine(
    tmp_path: Path, running: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lineage was copied to both, and what comes after it is not."""
    with a_crew(tmp_path / "node-a", running) as crew:
        save(crew, 1)
        shutil.copytree(tmp_path / "node-a", tmp_path / "node-b")
        second = ManagerSeam(crew.managers[1])
        second.wrap_storage(lambda _: LocalStorage(tmp_path / "node-b"))
        monkeypatch.setattr(second.seat.asking, "node", "node-b")
        with pytest.raises(InvalidInput, match="does not find the part of rank 1 on node-b"):
            save(crew, 2)


def test_one_save_while_the_coordinator_is_down_does_no_harm_to_those_after(
    tmp_path: Path, own_coordinator: CoordinatorProcess
) -> None:
    with a_crew(tmp_path / "ck", own_coordinator, config=HASTY) as crew:
        save(crew, 10)
        own_coordinator.kill()
        save(crew, 20)
        own_coordinator.start()
        until(lambda: is_back(crew))
        for step in (30, 40):
            save(crew, step)
    assert [step for step, _ in listed(own_coordinator)] == [10, 20, 30, 40]


def test_a_second_manager_of_the_job_does_not_speak_for_the_first(
    tmp_path: Path, running: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hears the command, and the attempt is none of its storage."""
    with (
        CheckpointManager(tmp_path / "ck", coordinator_url=running.address, config=CONFIG) as manager,
        CheckpointManager(tmp_path / "best", coordinator_url=running.address, config=CONFIG) as other,
    ):
        manager.save(b"10", step=10)
        with pytest.raises(NotFound):
            other.load()

        is_commanded = asyncio.Event()

        async def put(real: Any, attempt: int) -> None:
            await real(attempt)
            is_commanded.set()

        async def late(*given: Any, **how: Any) -> Any:
            await is_commanded.wait()
            return await commit(*given, **how)

        ManagerSeam(other).instead(Point.PUT_MANIFEST, put)
        monkeypatch.setattr(crewsaver, "commit", late)
        manager.save(b"20", step=20)
    with CheckpointManager(tmp_path / "ck", coordinator_url=running.address) as manager:
        assert manager.load() == b"20"


def test_a_rank_that_went_on_from_another_step_is_told_before_anything_is_saved(
    tmp_path: Path, running: CoordinatorProcess
) -> None:
    with a_crew(tmp_path / "ck", running) as crew:
        for step in (10, 20):
            save(crew, step)
        crew.managers[0].load(20)
        crew.managers[1].load(10)
        with pytest.raises(RankFailed, match="rank 1 went on from step 10, and rank 0 from step 20"):
            save(crew, 30)
        crew.managers[1].load(20)
        save(crew, 40)
        assert crew.managers[0].list_checkpoints() == [10, 20, 40]


def test_a_step_that_failed_may_be_tried_again(tmp_path: Path, running: CoordinatorProcess) -> None:
    with a_crew(tmp_path / "ck", running) as crew:
        save(crew, 10)
        for bad in (0, 1):

            def act(rank: int, manager: CheckpointManager, bad: int = bad) -> None:
                with pytest.raises((RankFailed, Unstorable)):
                    manager.save(state_of(rank, 20) | ({"bad": object()} if rank == bad else {}), step=20)

            crew.each(act)
        save(crew, 20)
        assert crew.managers[0].list_checkpoints() == [10, 20]
    assert listed(running) == stored(tmp_path / "ck")


def test_what_was_gone_on_from_may_be_deleted_meanwhile(tmp_path: Path, running: CoordinatorProcess) -> None:
    with a_crew(tmp_path / "ck", running, keep_count=2) as crew:
        save(crew, 10)
    with a_crew(tmp_path / "ck", running, keep_count=2) as crew:
        load(crew)
        for step in (20, 30, 40):
            save(crew, step)
        crew.each(lambda rank, manager: manager.wait())
        for rank, found in enumerate(load(crew)):
            assert_same(found, bare(rank, 40))


def test_who_looks_at_a_part_of_a_checkpoint_waits_for_nobody(tmp_path: Path, running: CoordinatorProcess) -> None:
    with a_crew(tmp_path / "ck", running) as crew:
        save(crew, 10)
    hasty = CheckpointManagerConfig(ranks_seconds=0.5)
    with CheckpointManager(tmp_path / "ck", rank=0, world_size=2, coordinator_url=running.address, config=hasty) as one:
        assert_same(one.load(keys=["w"]), {"w": np.full(50, 10)})


def test_names_are_told_again_after_a_return(tmp_path: Path, running: CoordinatorProcess) -> None:
    with a_crew(tmp_path / "ck", running) as crew:
        for step in (10, 20):
            save(crew, step)
        load(crew, step=10)
        save(crew, 15)

        def act(rank: int, manager: CheckpointManager) -> None:
            with pytest.raises((RankFailed, Unstorable)):
                manager.save(state_of(rank, 16) | ({"bad": object()} if rank == 1 else {}), step=16)

        crew.each(act)
        save(crew, 17)
        for rank, found in enumerate(load(crew)):
            assert_same(found, bare(rank, 17))


def test_who_only_looks_does_not_take_the_name_of_a_job_that_runs(tmp_path: Path, running: CoordinatorProcess) -> None:
    with CheckpointManager(tmp_path, coordinator_url=running.address, config=CONFIG) as manager:
        manager.save(b"1", step=1)
        program = (
            "from strata import CheckpointManager; import sys\n"
            "with CheckpointManager(sys.argv[1], coordinator_url=sys.argv[2]) as looks: print(looks.latest_step())"
        )
        told = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path), running.address], capture_output=True, check=True
        )
        assert told.stdout.strip() == b"1"
        manager.save(b"2", step=2)


@pytest.mark.parametrize("place", ["step_20 7-abcd01", ""])
def test_what_is_decided_in_another_storage_is_told_and_not_waited_for_for_ever(
    tmp_path: Path, running: CoordinatorProcess, place: str
) -> None:
    """By another manager, or by a client that says no places."""
    with Client(running.address) as client:
        who = client.register("rank-0", rank=0, world_size=1)
        own = {"worker_id": who.worker_id, "incarnation": who.incarnation}
        attempt = client.call("BeginCheckpoint", **own, step=20, place=place).attempt
        part = PartRef(0, "step_20/part-0-7-abcd01.json", 1, "xxh3-128:0", 1, 1)
        said = msgspec.json.encode({"node": "elsewhere", "part": part}).decode() if place else ""
        client.call("AckCheckpoint", **own, attempt=attempt, digest=part.digest, part_bytes=1, place=said)
        client.call("Deregister", **own)
    hasty = CheckpointManagerConfig(ranks_seconds=1)
    with (
        CheckpointManager(tmp_path, coordinator_url=running.address, config=hasty) as manager,
        pytest.raises(RankFailed, match="step 20 of this job is decided and has no manifest"),
    ):
        manager.load()


def test_there_is_nothing_to_load_at_first(tmp_path: Path, running: CoordinatorProcess) -> None:
    with a_crew(tmp_path / "ck", running) as crew, pytest.raises(NotFound):
        load(crew)


def test_ranks_of_two_starts_save_nothing_together(tmp_path: Path, running: CoordinatorProcess) -> None:
    """Rank 0 was left over from an earlier start, and has the name of the one that came after."""
    given: dict[str, Any] = {"world_size": 2, "coordinator_url": running.address, "config": CONFIG}
    crew = Crew(tmp_path / "ck", 0)
    crew.managers = [
        CheckpointManager(tmp_path / "ck", rank=rank, run_id=run, **given)
        for rank, run in enumerate(("the first start", "the second"))
    ]
    with crew:
        with pytest.raises((RankFailed, Superseded), match=r"the-first-start.*the-second"):
            save(crew, 10)
        with pytest.raises(Superseded, match="left over from an earlier start"):
            crew.managers[1].save(state_of(1, 20), 20)
    assert stored(tmp_path / "ck") == []


def test_a_rank_that_fails_before_rank_0_has_begun_and_goes_on_keeps_nobody_waiting(
    tmp_path: Path, running: CoordinatorProcess
) -> None:
    with a_crew(tmp_path, running) as crew:
        save(crew, 1)
        with pytest.raises(InvalidInput):
            crew.managers[1].save(state_of(1, 2), 2, metrics={"loss": "none"})  # type: ignore[dict-item]
        with ThreadPoolExecutor() as threads:
            is_asked_for = ManagerSeam(crew.managers[1]).when_called("AwaitCheckpoint")
            ahead = threads.submit(crew.managers[1].save, state_of(1, 3), 3)
            assert is_asked_for.wait(20)
            with pytest.raises(RankFailed, match="the metric 'loss' must be"):
                crew.managers[0].save(state_of(0, 2), 2)
            crew.managers[0].save(state_of(0, 3), 3)
            ahead.result()


def test_a_rank_that_fails_when_the_coordinator_is_gone_tells_rank_0_all_the_same(
    tmp_path: Path, own_coordinator: CoordinatorProcess
) -> None:
    """Rank 0 has begun, did not hear so, and goes the other way; rank 1 did hear it."""
    config = CheckpointManagerConfig(ranks_seconds=60, coordinator_seconds=3)
    with a_crew(tmp_path, own_coordinator, config=config) as crew:
        save(crew, 1)
        is_writing, is_gone = asyncio.Event(), threading.Event()

        async def begin_and_hear_nothing(real: Any, method: str, **given: Any) -> Any:
            answer = await real(method, **given)
            if method == "BeginCheckpoint":
                await is_writing.wait()  # rank 1 has heard it
                own_coordinator.kill()
                is_gone.set()
                raise RpcError(Status.UNAVAILABLE, "no answer came")
            return answer

        class Broken(FaultyStorage):
            @asynccontextmanager
            async def open_writer(self, path: str, **given: Any) -> AsyncIterator[Any]:
                is_writing.set()
                await asyncio.to_thread(is_gone.wait)
                raise StorageFull("the disk is full", storage="here")
                yield

        ManagerSeam(crew.managers[0]).instead(Point.CALL_COORDINATOR, begin_and_hear_nothing)
        ManagerSeam(crew.managers[1]).wrap_storage(Broken)
        with pytest.raises(RankFailed, match="could not save its part: the disk is full"):
            save(crew, 2)


def test_what_rank_0_cannot_commit_and_another_does_is_whole(tmp_path: Path, hasty: CoordinatorProcess) -> None:
    """Rank 1 is asked to, since rank 0 takes so long; and its manifest lands when rank 0 has seen none."""
    with a_crew(tmp_path, hasty) as crew:
        save(crew, 1)
        is_asked, is_looked_for, is_there = asyncio.Event(), asyncio.Event(), threading.Event()

        class Refusing(FaultyStorage):
            async def put_if_absent(self, path: str, data: Any) -> None:
                if path.endswith("metadata.json"):
                    await is_asked.wait()
                    raise StorageFull("there is no room", storage=self.url, key=path)
                await super().put_if_absent(path, data)

            async def delete_many(self, paths: Iterable[str]) -> None:
                is_looked_for.set()
                await super().delete_many(paths)

        class Late(FaultyStorage):
            async def put_if_absent(self, path: str, data: Any) -> None:
                if path.endswith("metadata.json"):
                    is_asked.set()
                    with suppress(TimeoutError):
                        await asyncio.wait_for(is_looked_for.wait(), 2)
                await super().put_if_absent(path, data)
                if path.endswith("metadata.json"):
                    is_there.set()

        for manager, kind in zip(crew.managers, (Refusing, Late), strict=True):
            ManagerSeam(manager).wrap_storage(kind)
        with suppress(StorageFull):
            save(crew, 2)
        assert is_there.wait(20)
        with CheckpointReader(tmp_path) as reader:
            reader.verify(2)


def test_what_is_replaced_before_the_coordinator_has_answered_is_not_begun_later(
    tmp_path: Path, running: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CheckpointManagerConfig(ranks_seconds=20, when_busy="replace")
    monkeypatch.setattr(asking, "PAUSE_SECONDS", 0.001)
    with CheckpointManager(tmp_path, coordinator_url=running.address, config=config) as manager:
        manager.save(b"1", step=1)
        tries, is_asked = [0], threading.Event()

        async def unheard(real: Any, method: str, **given: Any) -> Any:
            if method == "BeginCheckpoint" and given.get("place") and given["step"] == 2:
                tries[0] += 1
                is_asked.set()
                raise RpcError(Status.UNAVAILABLE, "no answer came")
            return await real(method, **given)

        ManagerSeam(manager).instead(Point.CALL_COORDINATOR, unheard)
        manager.save_async(b"2", step=2)
        assert is_asked.wait(10)
        manager.save(b"3", step=3)
        before = tries[0]
        background.run(asyncio.sleep(0.05))  # some more tries
        assert tries[0] == before
    assert [step for step, _ in listed(running)] == [1, 3]


def test_what_must_be_the_same_is_compared_though_one_rank_has_tried_more_often(
    tmp_path: Path, running: CoordinatorProcess
) -> None:
    with a_crew(tmp_path, running) as crew:
        with pytest.raises(InvalidInput):
            crew.managers[1].save(state_of(1, 1), 1, metrics={"loss": "none"})  # type: ignore[dict-item]
        with pytest.raises(RankFailed, match="not the same on all ranks"):
            crew.save([{"same": Replicated(np.arange(6) + rank)} for rank in range(2)], 1)
        assert crew.managers[0].list_checkpoints() == []


def test_what_appears_after_the_first_save_is_written_once_and_compared(
    tmp_path: Path, running: CoordinatorProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with a_crew(tmp_path, running) as crew:
        crew.save([{"w": np.ones(500)}] * 2, 1)
        for step in (2, 3):
            crew.save([{"w": np.ones(500), "m": np.full(1000, rank)} for rank in range(2)], step)
            assert [part.written_bytes for part in crew.managers[0].describe().parts] == [12_000, 0]
        with pytest.raises(RankFailed, match="not the same on all ranks"):
            crew.save([{"w": np.ones(500), "same": Replicated(np.arange(6) + rank)} for rank in range(2)], 4)
    told = [record.getMessage() for record in caplog.records if "mark them PerRank" in record.getMessage()]
    assert [each.partition(": rank 0's")[0] for each in told] == ["step 2: rank 1 has other values than rank 0 for m"]


class Kept:
    """An object that is a state."""

    def __init__(self) -> None:
        self.tree = {"w": np.arange(1000)}

    def strata_state(self) -> dict[str, Any]:
        return self.tree

    def load_strata_state(self, tree: dict[str, Any]) -> None:
        self.tree = tree


def test_damage_of_a_step_that_was_asked_for_is_none_of_the_point(tmp_path: Path, running: CoordinatorProcess) -> None:
    with CheckpointManager(tmp_path, coordinator_url=running.address, config=CONFIG) as manager:
        for step in (10, 20):
            manager.save(Kept(), step=step)
    for file in tmp_path.rglob("step_10/part-0-*.safetensors"):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    with CheckpointManager(tmp_path, coordinator_url=running.address, config=CONFIG) as manager:
        manager.load(into=Kept())
        with pytest.raises(CheckpointDamaged):
            manager.load(10, into=Kept())
        for file in tmp_path.rglob("step_20/part-0-*.safetensors"):
            file.write_bytes(file.read_bytes()[:-1] + b"?")
        with Client(running.address) as client:
            assert client.call("LatestCheckpoint").checkpoint.step == 20
            with pytest.raises(CheckpointDamaged):
                manager.load(20, into=Kept())
            assert client.call("LatestCheckpoint").checkpoint.step == 10


def test_a_rank_that_does_not_see_what_all_go_on_from_is_told_by_the_name_of_its_machine(
    tmp_path: Path, running: CoordinatorProcess
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    with a_crew(here, running) as crew:
        save(crew, 10)
        shutil.copytree(here, elsewhere)
        save(crew, 20)
    world: dict[str, Any] = {"world_size": 2, "coordinator_url": running.address, "config": CONFIG}
    with (
        CheckpointManager(here, rank=0, **world) as first,
        CheckpointManager(elsewhere, rank=1, **world) as second,
        ThreadPoolExecutor() as threads,
    ):
        loading = threads.submit(first.load)
        for _ in range(2):  # and takes no other, however often it asks
            with pytest.raises(InvalidInput, match=f"rank 1 on {socket.gethostname()} does not see it in"):
                second.load()
        assert_same(loading.result(), bare(0, 20))
    with Client(running.address) as client:
        assert client.call("LatestCheckpoint").checkpoint.step == 20


def test_what_was_committed_without_the_coordinator_is_so_on_all_ranks_whatever_it_says_of_it(
    tmp_path: Path, running: CoordinatorProcess
) -> None:
    """Rank 0 did not hear that it has begun, and commits in the other way; its next save gives up what it had begun,
    before rank 1 has seen the commit."""
    with a_crew(tmp_path, running, config=HASTY) as crew:
        save(crew, 1)
        is_cut, has_begun_again = threading.Event(), threading.Event()

        async def cut_off(real: Any, method: str, **given: Any) -> Any:
            answer = None if is_cut.is_set() else await real(method, **given)
            if method == "BeginCheckpoint" and given["step"] == 3:
                has_begun_again.set()
            elif method == "BeginCheckpoint" and "skip" not in given:
                is_cut.set()
            if is_cut.is_set():
                raise RpcError(Status.UNAVAILABLE, "no answer came")
            return answer

        class Slow(FaultyStorage):
            async def read(self, path: str, **given: Any) -> bytes:
                try:
                    return await super().read(path, **given)
                finally:
                    if path.endswith(("step_2/metadata.json", "-over.json")):
                        assert await asyncio.to_thread(has_begun_again.wait, 20)

        ManagerSeam(crew.managers[0]).instead(Point.CALL_COORDINATOR, cut_off)
        ManagerSeam(crew.managers[1]).wrap_storage(Slow)

        def both(rank: int, manager: CheckpointManager) -> None:
            manager.save(state_of(rank, 2), 2)
            is_cut.clear()
            manager.save(state_of(rank, 3), 3)

        crew.each(both)
        assert crew.managers[0].list_checkpoints() == [1, 2, 3]
