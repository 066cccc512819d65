"""All checkpoints at a glance, the damaged ones too."""

from collections.abc import Callable

import msgspec
import pytest

from strata import background
from strata.checkpoint import CheckpointManager
from strata.checkpoint.checkpoints import Checkpoints
from strata.checkpoint.overview import Overview, look_over, parse_step
from strata.checkpoint.store import Folder, Store
from strata.errors import CheckpointDamaged, InvalidInput, NotFound
from strata.storage import BlockingStorage, MemoryStorage
from tests.unit.checkpoint.forging import with_digest

HERE = "default/checkpoints"


@pytest.fixture
def storage() -> MemoryStorage:
    """Steps 1 and 2; then back to 1 and on with 2 again; 1 is pinned."""
    made = MemoryStorage()
    with CheckpointManager(made) as manager:
        manager.save({"a": bytes(100), "b": bytes(10)}, step=1, epoch=3, metrics={"loss": 0.5})
        manager.save({"a": b"first"}, step=2)
        manager.pin(1)
    with CheckpointManager(made) as manager:
        manager.load(1)
        manager.save({"a": b"second"}, step=2)
    return made


def overview(storage: MemoryStorage, *, count_tensors: bool = True) -> Overview:
    return background.run(look_over(Checkpoints(Store(storage, "default")), count_tensors=count_tensors))


def change(storage: MemoryStorage, key: str, how: Callable[[bytes], bytes]) -> None:
    blocking = BlockingStorage(storage)
    blocking.write(f"{HERE}/{key}", how(blocking.read(f"{HERE}/{key}")))


def test_everything_committed_is_told_apart(storage: MemoryStorage) -> None:
    one, left, again = overview(storage).checkpoints
    assert (one.label, one.on_line, one.is_pinned, one.is_latest) == ("1", True, True, False)
    assert (one.stored_bytes, one.written_bytes, one.tensors) == (110, 110, 2)
    assert one.metadata is not None
    assert (one.metadata.epoch, one.metadata.metrics) == (3, {"loss": 0.5})
    assert (left.label, left.on_line, left.is_latest) == ("2", False, False)
    assert (again.label, again.on_line, again.is_latest) == ("2-2", True, True)
    assert [each.damage for each in (one, left, again)] == ["", "", ""]


def test_checkpoints_are_found_by_step_by_folder_and_as_the_latest(storage: MemoryStorage) -> None:
    found = overview(storage)
    assert found.find().folder == found.find("latest").folder == Folder(2, 2)
    assert found.find("2").folder == Folder(2, 2)
    assert found.find("2-2").folder == found.find("step_2-2").folder == Folder(2, 2)
    assert found.find("step_2").folder == Folder(2)
    with pytest.raises(NotFound, match=r"no committed checkpoint 9 in .*; the latest are: 1, 2-2"):
        found.find("9")
    with pytest.raises(NotFound):
        found.find("step_1-4")


@pytest.mark.parametrize("named", ["", "-1", "1.5", "step_", "newest", "1-", "9" * 20])
def test_what_names_no_checkpoint_is_refused(named: str) -> None:
    with pytest.raises(InvalidInput, match="names no checkpoint"):
        parse_step(named)


def test_a_damaged_manifest_is_shown_and_not_hidden(storage: MemoryStorage) -> None:
    change(storage, "step_1/metadata.json", lambda data: data.replace(b'"epoch": 3', b'"epoch": 4'))
    one, *_, last = overview(storage).checkpoints
    assert one.metadata is None
    assert "step_1/metadata.json is damaged" in one.damage
    assert (one.on_line, one.is_pinned, last.is_latest) == (False, True, True)
    assert overview(storage).find("1").folder == Folder(1)


def test_a_damaged_or_missing_part_is_found_when_tensors_are_counted(storage: MemoryStorage) -> None:
    blocking = BlockingStorage(storage)
    parts = [e.path for e in blocking.list_all(f"{HERE}/step_1") if e.path.endswith(".json") and "part" in e.path]
    blocking.delete(parts[0])
    assert not overview(storage, count_tensors=False).checkpoints[0].damage
    one = overview(storage).checkpoints[0]
    assert "is missing: the checkpoint is not whole" in one.damage
    assert (one.on_line, one.tensors, one.stored_bytes) == (True, None, 110)


def test_a_newer_format_is_told_and_does_not_hide_the_others(storage: MemoryStorage) -> None:
    change(storage, "step_1/metadata.json", lambda data: with_digest(msgspec.json.decode(data) | {"format": 9}))
    one, *others = overview(storage).checkpoints
    assert "upgrade" in one.damage
    assert [each.damage for each in others] == ["", ""]


def test_without_a_sound_lineage_all_are_shown_and_no_latest_is_guessed(storage: MemoryStorage) -> None:
    change(storage, "lineage.json", lambda data: data.replace(b'"base":', b'"base":1'))
    found = overview(storage)
    assert "lineage.json is damaged" in found.lineage_damage
    assert [each.label for each in found.checkpoints] == ["1", "2", "2-2"]
    assert found.line == []
    with pytest.raises(CheckpointDamaged, match="name a step"):
        found.find()
    assert found.find("1").folder == Folder(1)


def test_nothing_is_nothing() -> None:
    found = overview(MemoryStorage())
    assert not found.checkpoints
    with pytest.raises(NotFound, match="no committed checkpoint"):
        found.find()


def test_an_older_one_is_not_the_latest_where_the_newest_is_damaged(storage: MemoryStorage) -> None:
    change(storage, "step_2-2/metadata.json", lambda data: data[:-20])
    seen = overview(storage)
    assert not [each for each in seen.checkpoints if each.is_latest]
    with pytest.raises(CheckpointDamaged, match="the latest checkpoint, of step 2, cannot be read"):
        seen.find()
    assert seen.find("1").folder == Folder(1)
