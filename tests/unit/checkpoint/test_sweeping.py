"""What is removed as nobody's, and what is not; and which checkpoint is the latest where some cannot be read."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest

from strata import background
from strata.checkpoint import CheckpointManager
from strata.checkpoint.checkpoints import Checkpoints
from strata.checkpoint.store import Store
from strata.errors import CheckpointDamaged, Superseded
from strata.storage import BlockingStorage, MemoryStorage, ObjectInfo
from strata.storage.backend import Data
from strata.testing.faulty import FaultyStorage

ROOT = "default/checkpoints"


def paths_in(storage: MemoryStorage) -> list[str]:
    return sorted(entry.path.removeprefix(f"{ROOT}/") for entry in BlockingStorage(storage).list_all())


def damage(storage: MemoryStorage, step: int) -> None:
    """Its manifest cannot be read any more."""
    BlockingStorage(storage).write(f"{ROOT}/step_{step}/metadata.json", b"{")


def save(storage: MemoryStorage, *steps: int, after: int | None = None) -> None:
    """By a process of its own, which goes on `after` a step that it loads."""
    with CheckpointManager(storage) as manager:
        if after is not None:
            manager.load(after)
        for step in steps:
            manager.save({"step": step}, step=step)


def test_files_of_a_checkpoint_whose_manifest_is_damaged_stay() -> None:
    """Whoever mends the manifest has the checkpoint again."""
    storage = MemoryStorage()
    save(storage, 1, 2)
    whole = BlockingStorage(storage).read(f"{ROOT}/step_1/metadata.json")
    damage(storage, 1)
    save(storage, 3)
    BlockingStorage(storage).write(f"{ROOT}/step_1/metadata.json", whole)
    with CheckpointManager(storage) as manager:
        assert manager.load(1) == {"step": 1}


def test_a_stake_stays_while_it_may_be_somebodys() -> None:
    storage = MemoryStorage()
    save(storage, 1)
    now = int(time.time())
    old, new = (f"step_9/stake-{when}-1-ab-model.bin" for when in (now - 8 * 86_400, now - 6 * 86_400))
    for path in (old, new):
        BlockingStorage(storage).write(f"{ROOT}/{path}", b"")
    save(storage, 2)
    assert [path for path in paths_in(storage) if "stake-" in path] == [new]


class Held(FaultyStorage):
    """Behind the first manifest of this step the next listing waits, and so does the second manifest of step 1."""

    def __init__(self, step: int) -> None:
        super().__init__(MemoryStorage())
        self._name, self._is_due, self._first_is_put = f"step_{step}/metadata.json", False, False
        self.lists, self.may_list, self.puts, self.may_put = (threading.Event() for _ in range(4))

    async def list_all(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        if self._is_due:
            self._is_due = False
            await _meet(self.lists, self.may_list)
        async for entry in super().list_all(prefix):
            yield entry

    async def put_if_absent(self, path: str, data: Data) -> None:
        if path.endswith("step_1/metadata.json"):
            if self._first_is_put:
                await _meet(self.puts, self.may_put)
            self._first_is_put = True
        await super().put_if_absent(path, data)
        self._is_due = self._is_due or path.endswith(self._name)


async def _meet(here: threading.Event, go_on: threading.Event) -> None:
    here.set()
    while not go_on.is_set():
        await asyncio.sleep(0.001)


def test_retention_deletes_nothing_once_another_has_taken_over() -> None:
    held = Held(2)
    with CheckpointManager(held, keep_count=1) as first, CheckpointManager(held.inner) as second:
        first.save({}, step=1)
        first.wait()
        first.save({}, step=2)
        assert held.lists.wait(20)
        second.load(2)
        second.save({}, step=3)
        held.may_list.set()
        first.wait()
        assert second.list_checkpoints() == [1, 2, 3]


def test_what_is_being_written_is_not_taken_for_what_a_deletion_left_there_before() -> None:
    held = Held(3)
    with CheckpointManager(held, keep_count=1) as manager:
        manager.save({}, step=1)
        manager.wait()
        held.fail("delete_many", held.made["delete_many"] + 1)
        manager.save({}, step=2)
        manager.wait()  # the manifest of step 1 is gone, and its files are not
        manager.save({}, step=3)
        assert held.lists.wait(20)
        again = manager.save_async({"again": True}, step=1)
        assert held.puts.wait(20)
        swept = held.made["delete_many"]
        held.may_list.set()
        while held.made["delete_many"] == swept:
            time.sleep(0.001)
        held.may_put.set()
        again.result()
        assert manager.load(1) == {"again": True}


def test_who_was_superseded_while_it_looked_sweeps_nothing() -> None:
    storage = MemoryStorage()
    save(storage, 1)
    orphan = f"{ROOT}/step_2/part-0-1-ab-0.safetensors"
    BlockingStorage(storage).write(orphan, b"")
    checkpoints = Checkpoints(Store(storage, "default"))

    async def superseded() -> None:
        raise Superseded("by another")

    checkpoints.check = superseded
    with pytest.raises(Superseded):
        background.run(checkpoints.sweep())
    assert BlockingStorage(storage).exists(orphan)


def test_a_latest_that_cannot_be_read_is_told_and_an_earlier_one_is_not_given_for_it() -> None:
    storage = MemoryStorage()
    save(storage, 1, 2)
    damage(storage, 2)
    with CheckpointManager(storage) as manager, pytest.raises(CheckpointDamaged, match=r"the latest .*, of step 2"):
        manager.load()


def test_one_that_cannot_be_read_is_in_nobodys_way_once_the_job_went_back_behind_it() -> None:
    storage = MemoryStorage()
    save(storage, 1, 3)
    save(storage, 2, after=1)
    damage(storage, 3)
    with CheckpointManager(storage) as manager:
        assert manager.load() == {"step": 2}
