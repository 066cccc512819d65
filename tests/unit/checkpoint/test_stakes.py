"""A save of bytes that fails: whether the next one may take its place, or must go elsewhere."""

from typing import Any

import pytest

from strata.checkpoint import CheckpointManager, CheckpointManagerConfig, saving
from strata.errors import SaveReplaced, StorageFull, StorageUnavailable
from strata.storage import BlockingStorage, MemoryStorage
from strata.testing.faulty import FaultyStorage, Outcome

LONG = bytes(range(100))


@pytest.fixture(autouse=True)
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "PUT_BYTES", len(LONG) - 1)
    monkeypatch.setattr(saving, "STREAMED_BYTES", 40)


@pytest.fixture
def faulty() -> FaultyStorage:
    return FaultyStorage(MemoryStorage())


def found(storage: FaultyStorage) -> list[str]:
    """Bytes and stakes, without the time."""
    paths = [entry.path.removeprefix("default/checkpoints/") for entry in BlockingStorage(storage.inner).list_all()]
    return sorted(path.partition("stake-")[0] for path in paths if "stake-" in path or path.endswith(".bin"))


@pytest.mark.parametrize(("operation", "call"), [("writer.write", 1), ("writer.write", 3), ("list_all", 1)])
def test_what_failed_before_its_end_is_written_again_to_the_same_place(
    faulty: FaultyStorage, operation: str, call: int
) -> None:
    with CheckpointManager(faulty) as manager:
        manager.save(LONG[:-1], step=4)
        faulty.fail(operation, faulty.made[operation] + call)
        with pytest.raises(StorageUnavailable):
            manager.save(LONG, step=5)
        assert found(faulty) == ["step_4/model.bin"]
        manager.save(LONG, step=5)
        assert found(faulty) == ["step_4/model.bin", "step_5/model.bin"]
        assert manager.load() == LONG


def test_what_was_refused_at_its_end_is_written_again_to_the_same_place(
    faulty: FaultyStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(operation: str, path: str) -> StorageFull:
        return StorageFull("no room", storage="memory://", key=path)

    with CheckpointManager(faulty) as manager:
        faulty.fail("writer.commit", 1)
        with monkeypatch.context() as patched:
            patched.setattr(faulty, "fault", full)
            with pytest.raises(StorageFull):
                manager.save(LONG, step=5)
        assert found(faulty) == []
        manager.save(LONG, step=5)
        assert found(faulty) == ["step_5/model.bin"]


@pytest.mark.parametrize("outcome", ["before", "after"])
def test_what_was_not_answered_at_its_end_may_yet_be_done_so_the_next_goes_elsewhere(
    faulty: FaultyStorage, outcome: Outcome
) -> None:
    with CheckpointManager(faulty) as manager:
        faulty.fail("writer.commit", 1, outcome)
        with pytest.raises(StorageUnavailable):
            manager.save(LONG, step=5)
        assert found(faulty) == ["step_5/"]
        manager.save(LONG, step=5)
        BlockingStorage(faulty.inner).write("default/checkpoints/step_5/model.bin", b"late")
        assert found(faulty) == ["step_5-2/model.bin", "step_5/", "step_5/model.bin"]
        assert manager.load() == LONG


@pytest.mark.parametrize(
    ("operation", "left"), [("writer.write", []), ("writer.commit", ["step_5/"])], ids=["before", "at the end"]
)
def test_what_is_given_up_leaves_a_stake_only_if_it_may_yet_be_done(
    faulty: FaultyStorage, operation: str, left: list[str]
) -> None:
    config = CheckpointManagerConfig(when_busy="replace")
    with CheckpointManager(faulty, config=config) as manager:
        faulty.fail(operation, 1, "stuck")
        handle: Any = manager.save_async(LONG, step=5)
        while not faulty.stuck:
            with pytest.raises(TimeoutError):
                handle.result(0.001)
        manager.save(LONG[:-1], step=6)
        with pytest.raises(SaveReplaced):
            handle.result()
        assert found(faulty) == [*left, "step_6/model.bin"]
