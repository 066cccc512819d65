"""The process dies at each call that it makes to its storage, all of them, before the call is done and after."""

import time
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch

from strata import background
from strata.checkpoint import CheckpointManager, CheckpointReader, saving
from strata.errors import CheckpointDamaged, Conflict, NotFound, StorageUnavailable, Superseded
from strata.storage import BlockingStorage, MemoryStorage
from strata.testing.faulty import FaultyStorage
from strata.testing.manager_seam import ManagerSeam
from tests.unit.checkpoint.dying import DyingStorage, Outrun, Paused, asleep, save_in_its_place
from tests.unit.checkpoint.states import assert_same

OLD = {"w": torch.zeros(50), "n": 1}
NEW = {"w": torch.ones(60), "n": 2}
LONG = b"a long state of bytes"
PARTLY_NEW = {"w": torch.zeros(50), "v": torch.ones(3), "n": 2}


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is as long as that goes up in parts."""
    monkeypatch.setattr(saving, "PUT_BYTES", len(LONG) - 1)


def before() -> MemoryStorage:
    """Two checkpoints, the second the latest."""
    storage = MemoryStorage()
    with CheckpointManager(storage, keep_count=2) as manager:
        manager.save({"oldest": True}, step=1)
        manager.save(OLD, step=2)
    return storage


def save(storage: Any, state: Any) -> None:
    """Saves the third, and deletes the first."""
    manager = CheckpointManager(storage, keep_count=2, incremental=state is PARTLY_NEW)
    with suppress(StorageUnavailable):
        manager.save(state, step=3)
    with suppress(StorageUnavailable):
        manager.close()


def calls_of(state: Any) -> int:
    storage = DyingStorage(before(), 10_000)
    save(storage, state)
    return len(storage.calls)


def files_in(storage: MemoryStorage) -> set[str]:
    return {entry.path.removeprefix("default/checkpoints/") for entry in BlockingStorage(storage).list_all()}


def let_marks_run_out(storage: MemoryStorage) -> None:
    """Those of the dead."""
    BlockingStorage(storage).delete_many(
        [f"default/checkpoints/{path}" for path in files_in(storage) if "readers/" in path or "/stake-" in path]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "state", [NEW, b"new bytes", LONG, PARTLY_NEW], ids=["tree", "bytes", "bytes-in-parts", "incremental"]
)
@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_leaves_the_one_before_or_the_new_one(state: Any, after: bool) -> None:
    count = calls_of(state)
    assert count > 10
    outcomes = set()
    for at in range(1, count + 1):
        inner = before()
        dying = DyingStorage(inner, at, after=after)
        save(dying, state)
        assert dying.dead
        with CheckpointReader(inner) as reader:
            latest = reader.latest_step()
            outcomes.add(latest)
            assert latest in (2, 3)
            assert_same(reader.load(), OLD if latest == 2 else state)
            for step in reader.list_checkpoints():
                reader.verify(step)
        let_marks_run_out(inner)
        with CheckpointManager(inner, keep_count=2) as manager:
            manager.load()
            manager.save({"next": at}, step=4)
            manager.wait()
            assert manager.list_checkpoints() == [latest, 4]
            needed = _needed(manager)
        assert files_in(inner) - {"lineage.json"} == needed
    assert outcomes == {2, 3}


def _needed(manager: CheckpointManager) -> set[str]:
    return background.run(ManagerSeam(manager).checkpoints.files_needed())


def test_a_crash_while_deleting_leaves_nothing_half_there() -> None:
    full = DyingStorage(before(), 10_000)
    manager = CheckpointManager(full)
    manager.delete(1)
    count = len(full.calls)
    manager.close()
    for at in range(1, count + 1):
        for after in (False, True):
            inner = before()
            dying = CheckpointManager(DyingStorage(inner, at, after=after))
            with suppress(StorageUnavailable):
                dying.delete(1)
            with CheckpointReader(inner) as reader:
                steps = reader.list_checkpoints()
                assert steps in ([1, 2], [2])
                for step in steps:
                    reader.verify(step)
            with CheckpointManager(inner) as again:
                again.save({}, step=3)
                assert files_in(inner) - {"lineage.json"} == _needed(again)


@pytest.mark.slow
@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("state", [NEW, b"first.", LONG], ids=["tree", "bytes", "bytes-in-parts"])
def test_a_process_that_is_paused_changes_nothing_when_it_wakes_up(state: Any) -> None:
    """At any of its calls, another saves the same step in its place, and the next."""
    theirs = state[::-1] if isinstance(state, bytes) else OLD
    owners = set()
    for at in count(1):
        inner = before()
        paused = Paused(inner, at)
        with CheckpointManager(inner, keep_count=2) as second:
            is_second = save_in_its_place(paused, partial(_save_as_first, paused, state), second, theirs)
            owners.add(is_second)
        with CheckpointReader(inner) as reader:
            steps = reader.list_checkpoints()
            assert steps == ([3, 4] if is_second else [3])  # it went on from 2, which retention has deleted since
            for step in steps:
                reader.verify(step)
                assert_same(reader.load(step), theirs if is_second else state)
        if not paused.reached.is_set():
            break
    assert owners == {True, False}


@pytest.mark.parametrize("state", [NEW, b"first."], ids=["tree", "bytes"])
def test_a_manifest_that_comes_while_another_saves_that_step_is_in_nobodys_way(state: Any) -> None:
    """It had looked whether it may before the other took over."""
    inner = before()
    paused = Paused(inner, "/step_3/metadata.json")
    with asleep(paused, partial(_save_as_first, paused, state)) as wake:
        outrun = Outrun(inner, "/step_3/metadata.json", wake)
        with CheckpointManager(outrun, keep_count=2) as second:
            second.load(2)
            second.save(OLD, step=3)
            assert outrun.is_outrun
            assert_same(second.load(3), OLD)
            assert second.list_checkpoints() == [2, 3]
    assert "step_3/metadata.json" not in files_in(inner)
    with CheckpointReader(inner) as reader:
        reader.verify(3)


def test_a_manifest_that_comes_when_its_files_are_swept_is_no_checkpoint() -> None:
    inner = before()
    paused = Paused(inner, "/step_3/metadata.json")
    with asleep(paused, partial(_save_as_first, paused, NEW)) as wake, CheckpointManager(inner) as second:
        second.load(2)
        second.save(OLD, step=4)
        wake()
        assert "step_3/metadata.json" in files_in(inner)
        assert second.list_checkpoints() == [1, 2, 4]
        with pytest.raises(NotFound, match="no committed checkpoint of step 3"):
            second.load(3)
    with CheckpointManager(inner) as third:
        third.save(OLD, step=5)
    assert not [path for path in files_in(inner) if path.startswith("step_3")]


def test_one_on_the_line_that_lost_its_files_is_damaged() -> None:
    storage = before()
    gone = [path for path in files_in(storage) if path.startswith("step_2/part-")]
    background.run(storage.delete_many([f"default/checkpoints/{path}" for path in gone]))
    with CheckpointManager(storage) as manager:
        manager.save(NEW, step=3)
        with pytest.raises(CheckpointDamaged):
            manager.load(2)


def _save_as_first(storage: Paused, state: Any) -> None:
    manager = CheckpointManager(storage, keep_count=2)
    for use in (lambda: manager.save(state, step=3), manager.close):
        with suppress(Superseded, Conflict):
            use()


def test_what_is_being_written_is_not_swept_away_by_what_the_save_before_left_to_do() -> None:
    """A step that is saved again while its earlier checkpoint is being deleted takes the same folder."""
    inner = MemoryStorage()
    slow = FaultyStorage(inner)
    with CheckpointManager(slow, keep_count=1) as manager:
        manager.save(OLD, step=1)
        manager.wait()
        slow.fail("delete", slow.made["delete"] + 2, "stuck")  # after the first one's manifest is looked for
        manager.save(OLD, step=2)
        while not slow.stuck:
            time.sleep(0.001)
        again = manager.save_async(NEW, step=1)
        with pytest.raises(TimeoutError):
            again.result(0.05)
        slow.release()
        again.result()
        manager.wait()
        assert_same(manager.load(1), NEW)
        manager.verify(1)
