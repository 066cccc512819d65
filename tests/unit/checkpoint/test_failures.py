"""Saves that fail: who is told, how often, and that training goes on."""

import asyncio
from typing import Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager, CheckpointManagerConfig
from strata.checkpoint.snapshot import Snapshot
from strata.errors import SaveFailed, StorageFull, StorageUnavailable
from strata.storage import MemoryStorage
from strata.testing.faulty import Faults, FaultyStorage
from tests.unit.checkpoint.states import assert_same

STATE = {"w": np.arange(100.0)}
LARGE = {f"w{n}": np.full(1 << 20, n, np.float64) for n in range(4)}
IN_TURNS = CheckpointManagerConfig(memory_bytes=16 << 20)
ALWAYS = Faults(before=1.0, only=frozenset({"put_if_absent", "write", "writer.write"}))


@pytest.fixture
def faulty() -> FaultyStorage:
    return FaultyStorage(MemoryStorage())


@pytest.mark.parametrize("state", [STATE, b"bytes", LARGE], ids=["tree", "bytes", "in turns"])
def test_a_loop_that_awaits_each_save_goes_on_until_the_third_has_failed(faulty: FaultyStorage, state: Any) -> None:
    """Whether the storage fails at once, or later."""
    manager, trained = CheckpointManager(faulty, config=IN_TURNS), []
    faulty.faults = ALWAYS

    async def train() -> None:
        for step in range(1, 20):
            handle = await manager.save_async(state, step=step)
            trained.append(step)
            while step == 2 and not handle.done():  # so quick that it is over before it is awaited
                await asyncio.sleep(0)
            await handle

    with pytest.raises(SaveFailed, match="3 saves in a row have failed"):
        asyncio.run(train())
    assert trained == [1, 2, 3]
    manager.close()


@pytest.mark.parametrize("incremental", [False, True])
def test_a_save_that_fails_while_it_is_copied_is_told_by_its_handle(faulty: FaultyStorage, incremental: bool) -> None:
    """Where memory is too short for all of it, writing goes on meanwhile."""
    config = CheckpointManagerConfig(memory_bytes=16 << 20, incremental=incremental)
    with CheckpointManager(faulty, config=config) as manager:
        manager.save(LARGE, step=1)
        faulty.faults = Faults(before=1.0, only=frozenset({"writer.write"}))
        changed = {name: array + 1 for name, array in LARGE.items()}
        handle = manager.save_async(changed, step=2)
        with pytest.raises(StorageUnavailable):
            handle.result()
        faulty.faults = Faults()
        manager.save_async(changed, step=3).result()
        assert_same(manager.load(), changed)


def test_whoever_was_told_three_times_may_try_again(faulty: FaultyStorage) -> None:
    with CheckpointManager(faulty) as manager:
        faulty.faults = ALWAYS
        for step in (1, 2, 3):
            with pytest.raises(StorageUnavailable):
                manager.save(STATE, step=step)
        with pytest.raises(StorageUnavailable):
            manager.save(STATE, step=4)  # this one tells by itself
        with pytest.raises(SaveFailed, match=r"4 saves in a row have failed; the last, of step 4 \(800 B\): "):
            manager.save_async(STATE, step=5)
        faulty.faults = Faults()
        manager.save_async(STATE, step=6).result()
        assert manager.list_checkpoints() == [6]


def test_what_does_not_fit_is_told_with_its_size(faulty: FaultyStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(path: str, *_: Any, **__: Any) -> None:
        raise StorageFull("no room", storage="memory://", key=path)

    with CheckpointManager(faulty) as manager:
        monkeypatch.setattr(faulty, "write", full)
        with pytest.raises(StorageFull, match=r"step 1 \(800 B\) does not fit: no room") as raised:
            manager.save(STATE, step=1)
        assert raised.value.key.startswith("default/checkpoints/step_1/part-0-")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, RuntimeError])
@pytest.mark.parametrize("state", [STATE, LARGE], ids=["whole", "in turns"])
def test_what_interrupts_the_copy_interrupts_nothing_else(
    kind: type[BaseException], state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop that writes goes on, and so may the caller."""

    def interrupted(*_: Any) -> None:
        raise kind("now")

    with CheckpointManager(MemoryStorage(), config=IN_TURNS) as manager:
        manager.save(state, step=1)
        with monkeypatch.context() as patched:
            patched.setattr(Snapshot, "fill", interrupted)
            with pytest.raises(kind, match="now"):
                manager.save_async(state, step=2)
            with pytest.raises(kind, match="now"):
                manager.save(state, step=2)
            for step in range(3, 40):  # whoever is told first, the loop or the caller
                with pytest.raises(kind, match="now"):
                    manager.save(state, step=step)
        manager.wait()  # it was told
        manager.save(state, step=50)
        assert manager.list_checkpoints() == [1, 50]


def test_how_far_a_save_is_is_told_when_it_takes_too_long(faulty: FaultyStorage) -> None:
    faulty.fail("put_if_absent", 1, "stuck")
    with CheckpointManager(faulty) as manager:
        handle = manager.save_async(STATE, step=7)
        told = r"the save of step 7 .*is not over after 0\.1 s: .* of 800 B are written"
        with pytest.raises(TimeoutError, match=told):
            handle.result(0.1)
        with pytest.raises(TimeoutError, match=r"the save of step 7 to memory:///default/checkpoints is not over"):
            manager.wait(0.1)
        faulty.release()
        handle.result()
