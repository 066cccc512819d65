"""A rank of several dies at each call that it makes to the storage, or is not heard of for a while."""

import threading
from contextlib import suppress
from functools import partial
from itertools import chain, count

import pytest

from strata import background
from strata.checkpoint import CheckpointManager, CheckpointManagerConfig, CheckpointReader
from strata.errors import Conflict, RankFailed, StorageUnavailable, Superseded
from strata.storage import MemoryStorage, StorageBackend
from strata.testing.manager_seam import ManagerSeam
from tests.unit.checkpoint.crews import Crew, bare, state_of
from tests.unit.checkpoint.dying import DyingStorage, Outrun, Paused
from tests.unit.checkpoint.states import assert_same
from tests.unit.checkpoint.test_crashes import files_in, let_marks_run_out

pytestmark = pytest.mark.slow

PATIENCE = 0.25
CONFIG = CheckpointManagerConfig(ranks_seconds=PATIENCE)
BRISK = CheckpointManagerConfig(ranks_seconds=3)
SLOW = CheckpointManagerConfig(ranks_seconds=30)


def before(size: int) -> MemoryStorage:
    storage = MemoryStorage()
    with Crew(storage, size, run="first", keep_count=2, config=SLOW) as crew:
        for step in (1, 2):
            crew.save([state_of(rank, step) for rank in range(size)], step)
    return storage


def save_as(storages: list[StorageBackend], step: int) -> None:
    """A second run goes on. Those who are left are told, and end."""
    for thread in started(storages, step):
        thread.join()


def started(storages: list[StorageBackend], step: int) -> list[threading.Thread]:
    size = len(storages)
    managers = [
        CheckpointManager(each, rank=rank, world_size=size, run_id="second", keep_count=2, config=CONFIG)
        for rank, each in enumerate(storages)
    ]

    def run(rank: int) -> None:
        for act in (managers[rank].load, lambda: managers[rank].save(state_of(rank, step), step), managers[rank].close):
            with suppress(StorageUnavailable, RankFailed, Superseded, Conflict):
                act()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    return threads


def check_recovery(inner: MemoryStorage, size: int) -> int:
    """Every rank finds the same step, whole, and goes on from it; nothing is left of the rest. Gives that step."""
    let_marks_run_out(inner)
    with Crew(inner, size, run="third", keep_count=2, config=SLOW) as crew:
        latest = crew.managers[0].latest_step()
        assert latest in (2, 3)
        for rank, found in enumerate(crew.each(lambda rank, manager: manager.load())):
            assert_same(found, bare(rank, latest))
        crew.save([state_of(rank, 4) for rank in range(size)], 4)
        crew.each(lambda rank, manager: manager.wait())
        assert crew.managers[0].list_checkpoints() == [latest, 4]
        needed = background.run(ManagerSeam(crew.managers[0]).checkpoints.files_needed())
    for step in (latest, 4):
        CheckpointReader(inner).verify(step)
    left = {path for path in files_in(inner) if not path.startswith("runs/third/")}
    assert left - {"lineage.json"} == needed
    return latest


def crash_everywhere(size: int, who: int, after: bool) -> set[int]:
    outcomes = set()
    for at in count(1):
        inner = before(size)
        dying = DyingStorage(inner, at, after=after)
        save_as([dying if rank == who else inner for rank in range(size)], 3)
        if not dying.dead:
            break
        outcomes.add(check_recovery(inner, size))
    assert at > 12
    return outcomes


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("who", [1, pytest.param(0, marks=pytest.mark.long)])
def test_one_of_two_dies_at_any_call(who: int, after: bool) -> None:
    assert crash_everywhere(2, who, after) == {2, 3}


@pytest.mark.long
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("size", "who"), [(3, 0), (3, 1), (3, 2), (4, 0), (4, 3)])
def test_one_of_several_dies_at_any_call(size: int, who: int, after: bool) -> None:
    assert crash_everywhere(size, who, after) == {2, 3}


@pytest.mark.long
@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_wakes_up_after_others_took_over_changes_nothing(who: int) -> None:
    """At any of its calls it stands still; all ranks are started anew, save the same step and the next; it wakes up.

    Rank 0 of the first run may not have begun when it stood still: then it begins now, and the others are told.
    """
    owners = set()
    for at in count(1):
        inner = before(2)
        paused = Paused(inner, at)
        threads = started([paused if rank == who else inner for rank in range(2)], 3)
        sleeping = threads[who]
        while sleeping.is_alive() and not paused.reached.wait(0.01):
            pass
        threads[1 - who].join()
        if not paused.reached.is_set():
            break
        with Crew(inner, 2, run="third", keep_count=2, config=SLOW) as crew:
            crew.each(lambda rank, manager: manager.load(2))
            for step in (3, 4):
                crew.save([{**state_of(rank, step), "by": "third"} for rank in range(2)], step)
            crew.each(lambda rank, manager: manager.wait())
            paused.release()
            sleeping.join()
            leader = crew.managers[0]
            is_third = ManagerSeam(leader).is_newest_writer
            owners.add(is_third)
            for step in leader.list_checkpoints():
                leader.verify(step)
            if is_third:
                for rank, found in enumerate(crew.each(lambda rank, manager: manager.load())):
                    assert_same(found, {**bare(rank, 4), "by": "third"})
                crew.save([state_of(rank, 5) for rank in range(2)], 5)
            else:
                with pytest.raises(Superseded):
                    crew.save([state_of(rank, 5) for rank in range(2)], 5)
    assert at > 12
    assert owners == ({True, False} if who == 0 else {True})


@pytest.mark.parametrize(
    ("who", "where"),
    [
        pytest.param(0, "/step_3/metadata.json", marks=pytest.mark.long),
        pytest.param(0, "/step_3/part-0-", marks=pytest.mark.long),
        pytest.param(1, "/step_3/metadata.json", marks=pytest.mark.long),
        pytest.param(1, "/step_3/part-0-", marks=pytest.mark.long),
    ],
)
def test_a_rank_that_wakes_up_while_others_save_that_step_changes_nothing(who: int, where: str) -> None:
    """At any of its calls it stands still; all ranks are started anew, and it wakes up when rank 0 is about to put the
    manifest of its part, or that of the checkpoint."""
    owners = set()
    calls = 0
    files: list[int | str] = ["/step_3/metadata.json"] if who == 0 else []
    for at in chain(files, count(1)):  # that call has another number each time
        calls += 1
        inner = before(2)
        paused = Paused(inner, at)
        threads = started([paused if rank == who else inner for rank in range(2)], 3)
        sleeping = threads[who]
        while sleeping.is_alive() and not paused.reached.wait(0.01):
            pass
        threads[1 - who].join()
        if not paused.reached.is_set():
            break
        outrun = Outrun(inner, where, partial(wake, paused, sleeping))
        with Crew(outrun, 2, run="third", keep_count=2, config=BRISK) as crew:
            crew.each(lambda rank, manager: manager.load(2))
            leader, seam = crew.managers[0], ManagerSeam(crew.managers[0])
            try:
                for step in (3, 4):
                    crew.save([{**state_of(rank, step), "by": "third"} for rank in range(2)], step)
            except (Superseded, RankFailed):  # it takes what the others of a run say that it follows for rubbish
                assert not seam.is_newest_writer
            finally:
                wake(paused, sleeping)
            owners.add(seam.is_newest_writer)
            if not seam.is_newest_writer:
                continue
            for step in (3, 4):
                for rank, found in enumerate(crew.each(partial(load, step))):
                    assert_same(found, {**bare(rank, step), "by": "third"})
            assert leader.list_checkpoints() == [3, 4]
            background.run(seam.checkpoints.sweep())
            left = {path for path in files_in(inner) if path.startswith("step_")}
            assert left == background.run(seam.checkpoints.files_needed())
            assert len([path for path in left if path.endswith("metadata.json")]) == 2
    assert calls > 12
    assert owners == ({True, False} if who == 0 else {True})


def wake(paused: Paused, sleeping: threading.Thread) -> None:
    paused.release()
    sleeping.join()


def load(step: int, rank: int, manager: CheckpointManager) -> object:
    return manager.load(step)
