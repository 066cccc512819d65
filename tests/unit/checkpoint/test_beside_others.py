"""What others do to a job's checkpoints while a manager or a reader is at work on them."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager, CheckpointManagerConfig, CheckpointReader, readers
from strata.errors import NotFound, StorageUnavailable, Superseded
from strata.storage import BlockingStorage, MemoryStorage
from strata.testing.faulty import Faults, FaultyStorage
from strata.testing.manager_seam import ManagerSeam, Point
from tests.unit.checkpoint.states import assert_same
from tests.unit.checkpoint.tiered import Pair, where
from tests.until import until


class Interrupted(FaultyStorage):
    """Something else happens just before one call, the first to such a path."""

    def __init__(self, inner: MemoryStorage, operation: str, path: str, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._before, self._act = (operation, path), act
        self.happened = False
        self.takes_marks = True

    async def write(self, path: str, data: Any, *, progress: Any = None) -> None:
        if "/readers/" in path and not self.takes_marks:
            raise StorageUnavailable("no marks here", storage=self.url, key=path)
        await self._interrupt("write", path)
        await super().write(path, data, progress=progress)

    async def put_if_absent(self, path: str, data: Any) -> None:
        await self._interrupt("put_if_absent", path)
        await super().put_if_absent(path, data)

    async def read_into(self, path: str, start: int, targets: Any) -> None:
        await self._interrupt("read_into", path)
        await super().read_into(path, start, targets)

    async def _interrupt(self, operation: str, path: str) -> None:
        if not self.happened and operation == self._before[0] and self._before[1] in path:
            self.happened = True
            thread = threading.Thread(target=self._act)
            thread.start()
            await asyncio.to_thread(thread.join)


@pytest.mark.parametrize("keep_count", [None, 1])
def test_a_step_that_another_removed_and_that_is_saved_again_is_the_new_one(keep_count: int | None) -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage, keep_count=keep_count) as manager, CheckpointReader(storage) as reader:
        manager.save({"a": 1}, step=10)
        manager.pin(10)
        manager.save({"a": 2}, step=20)
        assert reader.load(20) == {"a": 2}
        with CheckpointManager(storage) as other:
            other.delete(20)
        manager.load(10)
        manager.save({"a": 3}, step=20)
        manager.wait()
        for each in (manager, reader, CheckpointReader(storage)):
            assert each.list_checkpoints() == [10, 20]
            assert each.load() == each.load(20) == {"a": 3}


def saved(storage: MemoryStorage, step: int) -> None:
    with CheckpointManager(storage, keep_count=1) as manager:
        if step > 1:
            manager.load()
        manager.save({"a": np.full(1000, step)}, step=step)


def test_the_latest_is_looked_for_again_if_it_is_deleted_the_moment_before() -> None:
    inner = MemoryStorage()
    saved(inner, 1)
    storage = Interrupted(inner, "write", "/readers/", lambda: saved(inner, 2))
    assert CheckpointReader(storage).load()["a"][0] == 2
    assert storage.happened


def test_one_that_is_named_is_gone_then() -> None:
    inner = MemoryStorage()
    saved(inner, 1)
    storage = Interrupted(inner, "write", "/readers/", lambda: saved(inner, 2))
    with pytest.raises(NotFound, match="there is no committed checkpoint of step 1"):
        CheckpointReader(storage).load(1)


def test_who_may_not_make_a_mark_is_told_and_never_hears_of_damage(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "told_places", set())  # it is told once for each place, by whichever test
    inner = MemoryStorage()
    saved(inner, 1)
    storage = Interrupted(inner, "read_into", "step_1/", lambda: saved(inner, 2))
    storage.takes_marks = False
    with caplog.at_level(logging.WARNING):
        assert CheckpointReader(storage).load()["a"][0] == 2
        CheckpointReader(storage).load()
    assert caplog.text.count("without a mark") == 1


def test_nothing_is_referred_to_without_a_mark(caplog: pytest.LogCaptureFixture) -> None:
    inner = MemoryStorage()
    large = np.ones(9 << 20, np.uint8)

    def delete() -> None:
        with CheckpointManager(inner) as other:
            other.delete(10)

    storage = Interrupted(inner, "put_if_absent", "step_20/part", delete)
    with CheckpointManager(storage, incremental=True) as manager:
        manager.save({"x": large, "y": np.ones(3)}, step=10)
        storage.takes_marks = False
        manager.save({"x": large, "y": np.zeros(3)}, step=20)
    assert storage.happened
    assert "step 20 is written whole" in caplog.text
    CheckpointReader(inner).verify(20)


def test_a_name_that_is_not_there_is_no_damage_of_the_local_copy() -> None:
    pair = Pair()
    with pair.manager() as manager:
        manager.save({"w": np.ones(3)}, step=1)
        manager.wait()
        with pytest.raises(NotFound, match="no tensor 'W'"):
            manager.load_slice("W")
        assert where(manager) == {1: "both"}


def test_a_part_of_a_checkpoint_is_nothing_to_go_on_from(caplog: pytest.LogCaptureFixture) -> None:
    with CheckpointManager(MemoryStorage()) as manager:
        for step in (100, 200, 300):
            manager.save({"w": np.ones(3), "o": 1}, step=step)
        manager.load(100, keys="w")
        manager.save({}, step=400)
        assert manager.list_checkpoints() == [100, 200, 300, 400]
        assert "left behind" not in caplog.text
        manager.load(200)
        manager.save({}, step=201)
        assert manager.list_checkpoints() == [100, 200, 201]
        assert "the job goes on from step 200, and leaves steps 300, 400 behind" in caplog.text


def test_two_runs_of_one_number_are_told_apart() -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage) as manager:
        manager.save({}, step=1)
    first = CheckpointManager(storage)
    first.load()
    first.save({}, step=2)
    first.delete(2)
    BlockingStorage(storage).delete("default/checkpoints/lineage.json")
    with CheckpointManager(storage) as second:
        second.load()
        second.save({"second": True}, step=2)
        assert ManagerSeam(second).term.term == ManagerSeam(first).term.term
        with pytest.raises(Superseded):
            first.save({}, step=3)
        assert second.list_checkpoints() == [1, 2]
    first.close()


@pytest.mark.parametrize("how", ["after a look at an older one", "of an earlier step"])
def test_who_was_superseded_does_not_come_back_by(how: str) -> None:
    storage = MemoryStorage()
    first = CheckpointManager(storage)
    first.save({}, step=1)
    first.save({}, step=5)
    with CheckpointManager(storage) as second:
        second.save({"second": True}, step=10)
        if how == "after a look at an older one":
            first.load(1)
        with pytest.raises(Superseded):
            first.save({}, step=4)
        second.save({"second": True}, step=20)
        assert second.list_checkpoints() == [1, 5, 10, 20]
    first.close()


def test_a_save_that_is_replaced_is_over_before_the_next_one_begins() -> None:
    storage = FaultyStorage(MemoryStorage())
    storage.faults = Faults(stuck=1.0, only=frozenset({"write"}))
    config = CheckpointManagerConfig(when_busy="replace")
    with CheckpointManager(storage, config=config) as manager:
        first = manager.save_async({"w": np.ones(10)}, step=1)
        running = ManagerSeam(manager).running
        until(lambda: storage.stuck)
        storage.faults = Faults()
        second = manager.save_async({"w": np.zeros(10)}, step=2)
        assert running.over.done()
        assert ManagerSeam(manager).checkpoints.taken <= {"step_2", "step_2-1"}
        assert first.status == "replaced"
        second.result()
        assert manager.list_checkpoints() == [2]
        storage.release()


def test_who_waits_for_the_commit_is_not_skipped() -> None:
    storage = FaultyStorage(MemoryStorage(), faults=Faults(latency_seconds=0.02))
    with CheckpointManager(storage, config=CheckpointManagerConfig(when_busy="skip")) as manager:
        manager.save_async({"w": np.ones(10)}, step=1)
        report = manager.save({"w": np.ones(10)}, step=2)
        assert report.notes == ["waited for step 1"]
        assert manager.list_checkpoints() == [1, 2]


def test_a_failure_of_retention_fails_no_save(caplog: pytest.LogCaptureFixture) -> None:
    with CheckpointManager(MemoryStorage(), keep_count=1) as manager:
        ManagerSeam(manager).fail(Point.RETAIN, ZeroDivisionError())
        manager.save({}, step=1)
        manager.wait()
        assert "could not be deleted" in caplog.text
        assert_same(manager.load(), {})


def test_what_is_kept_is_looked_at_once() -> None:
    storage = FaultyStorage(MemoryStorage())
    with CheckpointManager(storage, keep_count=3) as manager:
        for step in range(10):
            manager.save({"w": np.ones(3)}, step=step)
        manager.wait()
        parts = [call.path for call in storage.calls if call.operation == "read" and "part-0" in (call.path or "")]
    assert len(parts) == len(set(parts))
