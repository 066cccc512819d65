"""Removing by hand: what goes, what stays, and what is refused."""

import pytest
import torch

from strata import background
from strata.checkpoint import CheckpointManager
from strata.checkpoint.checkpoints import Checkpoints
from strata.checkpoint.overview import look_over
from strata.checkpoint.readers import marked
from strata.checkpoint.removal import Removal, plan_removal
from strata.checkpoint.store import Folder, Store
from strata.errors import Refused
from strata.storage import BlockingStorage, MemoryStorage


@pytest.fixture
def storage() -> MemoryStorage:
    """The second refers to the first, and the third to both of them."""
    made = MemoryStorage()
    with CheckpointManager(made, incremental=True) as manager:
        for step in (1, 2, 3):
            manager.save({"a": torch.full((100,), 1), "b": torch.full((50,), min(step, 2)), "step": step}, step=step)
    return made


async def plan(storage: MemoryStorage, *named: str, force: bool = False) -> tuple[Checkpoints, Removal]:
    checkpoints = Checkpoints(Store(storage, "default"))
    overview = await look_over(checkpoints)
    return checkpoints, await plan_removal(checkpoints, overview, map(overview.find, named), force=force)


def planned(storage: MemoryStorage, *named: str, force: bool = False) -> Removal:
    return background.run(plan(storage, *named, force=force))[1]


async def remove(storage: MemoryStorage, *named: str) -> Removal:
    checkpoints, found = await plan(storage, *named, force=True)
    await checkpoints.delete(each.folder for each in found.doomed)
    return found


def test_what_others_refer_to_stays_and_is_told(storage: MemoryStorage) -> None:
    found = planned(storage, "1")
    ((path, labels),) = found.kept.items()
    assert path.startswith("step_1/part-0-")
    assert path.endswith(".safetensors")
    assert labels == ["2", "3"]
    sizes = {entry.path: entry.size for entry in BlockingStorage(storage).list_all("default/checkpoints/step_1")}
    assert found.kept_bytes == sizes[f"default/checkpoints/{path}"]
    assert found.freed_bytes == sum(sizes.values()) - found.kept_bytes
    assert found.latest_after == "3"


def test_the_plan_is_what_happens(storage: MemoryStorage) -> None:
    before = sum(entry.size for entry in BlockingStorage(storage).list_all())

    async def remove() -> Removal:
        checkpoints, found = await plan(storage, "1", "2", "2")
        await checkpoints.delete(each.folder for each in found.doomed)
        return found

    found = background.run(remove())
    after = {entry.path: entry.size for entry in BlockingStorage(storage).list_all()}
    assert before - sum(after.values()) == found.freed_bytes
    assert {f"default/checkpoints/{path}" for path in found.kept} <= set(after)
    with CheckpointManager(storage) as manager:
        assert manager.list_checkpoints() == [3]
        assert manager.load()["a"][0] == 1
        assert manager.load()["b"][0] == 2


def test_what_was_kept_for_one_alone_goes_with_it(storage: MemoryStorage) -> None:
    kept = background.run(remove(storage, "1")).kept_bytes
    left = sum(entry.size for entry in BlockingStorage(storage).list_all())
    found = background.run(remove(storage, "2", "3"))
    assert kept
    assert (found.kept, left - found.freed_bytes) == ({}, _size_of(storage, "default/checkpoints/lineage.json"))


def _size_of(storage: MemoryStorage, key: str) -> int:
    assert [entry.path for entry in BlockingStorage(storage).list_all()] == [key]
    return BlockingStorage(storage).size(key)


def test_nothing_is_kept_for_what_goes_too(storage: MemoryStorage) -> None:
    with CheckpointManager(storage) as manager:
        manager.save({"a": torch.zeros(1)}, step=4)
    found = planned(storage, "1", "2", "3")
    assert (found.kept, found.kept_bytes, found.latest_after) == ({}, 0, "4")


def test_the_last_that_could_be_loaded_is_not_removed_unless_forced(storage: MemoryStorage) -> None:
    with pytest.raises(Refused, match="nothing that could be loaded would be left"):
        planned(storage, "1", "2", "3")
    assert planned(storage, "1", "2", "3", force=True).latest_after is None
    assert planned(storage, "3").latest_after == "2"


def test_what_is_pinned_is_not_removed_unless_forced(storage: MemoryStorage) -> None:
    with CheckpointManager(storage) as manager:
        manager.pin(2)
    with pytest.raises(Refused, match="step 2 is pinned"):
        planned(storage, "1", "2")
    assert [each.label for each in planned(storage, "1", "2", force=True).doomed] == ["1", "2"]


def test_a_pin_goes_with_what_was_removed_and_keeps_nothing_that_is_saved_in_its_place(storage: MemoryStorage) -> None:
    with CheckpointManager(storage) as manager:
        manager.pin(3)
        background.run(remove(storage, "3"))
        manager.save({}, step=3)
        manager.delete(3)
        assert manager.list_checkpoints() == [1, 2]


def test_what_is_left_behind_or_damaged_may_go_whatever_is_left(storage: MemoryStorage) -> None:
    blocking = BlockingStorage(storage)
    for step in (1, 2):
        blocking.write(f"default/checkpoints/step_{step}/metadata.json", b"not json")
    assert [each.label for each in planned(storage, "1", "2").doomed] == ["1", "2"]
    with pytest.raises(Refused):
        planned(storage, "1", "2", "3")


def test_without_a_lineage_nothing_is_removed_unless_forced(storage: MemoryStorage) -> None:
    BlockingStorage(storage).write("default/checkpoints/lineage.json", b"{}")
    with pytest.raises(Refused, match="the last good one is not known"):
        planned(storage, "1")
    assert planned(storage, "1", force=True).doomed


def test_files_that_somebody_reads_are_told(storage: MemoryStorage) -> None:
    async def while_read() -> Removal:
        async with marked(Store(storage, "default"), Folder(2)):
            return (await plan(storage, "2"))[1]

    found = background.run(while_read())
    assert (found.being_read, found.freed_bytes) == (["2"], 0)
