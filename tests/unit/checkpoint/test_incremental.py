"""Incremental saves: only what changed is written, and every checkpoint is whole all the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from strata import background
from strata.checkpoint import CheckpointManager, CheckpointManagerConfig
from strata.checkpoint.manifest import CHUNK_BYTES, Chunk, File, Part, Tensor
from strata.checkpoint.plan import FilePlan, plan_files
from strata.checkpoint.readers import marked
from strata.checkpoint.references import Base, changes, referring, unchanged
from strata.checkpoint.staging import Stage
from strata.checkpoint.store import Folder
from strata.errors import CheckpointDamaged, Conflict
from strata.storage import BlockingStorage, MemoryStorage
from strata.testing.manager_seam import ManagerSeam
from tests.unit.checkpoint.states import assert_same

SMALL_BUDGET = CheckpointManagerConfig(memory_bytes=16 << 20)


def random(size: int, seed: int = 0) -> "np.ndarray[Any, Any]":
    return np.random.default_rng(seed).integers(0, 255, size, np.uint8)


def files_in(storage: MemoryStorage) -> set[str]:
    paths = (entry.path.removeprefix("default/checkpoints/") for entry in BlockingStorage(storage).list_all())
    return {path for path in paths if path.endswith(".safetensors")}


def test_what_did_not_change_is_not_written_again() -> None:
    state = {"frozen": torch.randn(1000), "trained": torch.zeros(10), "step": 1}
    with CheckpointManager(MemoryStorage(), incremental=True) as manager:
        assert manager.save(state, step=1).written_bytes == 4040
        state |= {"trained": torch.ones(10), "step": 2}
        report = manager.save(state, step=2)
        assert (report.written_bytes, report.referenced_bytes) == (40, 4000)
        assert manager.save(state, step=3).written_bytes == 0
        for step in (1, 2, 3):
            manager.verify(step)
        assert_same(manager.load(3), state)
        assert_same(manager.load(1), state | {"trained": torch.zeros(10), "step": 1})
        told = manager.describe(3).references
        assert {path.partition("/")[0] for path in told} == {"step_1", "step_2"}


def test_of_a_large_tensor_only_chunks_that_changed_are_written(tmp_path: Path) -> None:
    big = random(3 * CHUNK_BYTES + 5000)
    with CheckpointManager(tmp_path, incremental=True) as manager:
        manager.save({"w": big}, step=1)
        big[CHUNK_BYTES + 1] ^= 1
        big[-1] ^= 1
        report = manager.save({"w": big}, step=2)
        assert report.written_bytes == CHUNK_BYTES + 5000
        assert_same(manager.load(), {"w": big})
        manager.verify()
    (file,) = (tmp_path / "default/checkpoints/step_2").glob("*.safetensors")
    found = load_file(file)
    assert set(found) == {f"w@{CHUNK_BYTES}", f"w@{3 * CHUNK_BYTES}"}
    assert (found[f"w@{CHUNK_BYTES}"] == big[CHUNK_BYTES : 2 * CHUNK_BYTES]).all()


def test_with_most_parameters_frozen_a_tenth_is_written() -> None:
    layers = {f"layer{n}": torch.randn(256, 256) for n in range(100)}
    with CheckpointManager(MemoryStorage(), incremental=True) as manager:
        manager.save(layers, step=0)
        for step in range(1, 4):
            for n in range(5):
                layers[f"layer{n}"] += 1
            report = manager.save(layers, step=step)
            assert report.written_bytes < 0.1 * report.state_bytes
        assert_same(manager.load(), layers)


def test_an_incremental_save_takes_up_where_another_process_ended() -> None:
    storage, state = MemoryStorage(), {"w": torch.randn(100)}
    with CheckpointManager(storage, incremental=True) as manager:
        manager.save(state, step=1)
    with CheckpointManager(storage, incremental=True) as manager:
        assert_same(manager.load(), state)
        assert manager.save(state, step=2).written_bytes == 0


def test_without_incremental_each_folder_is_complete() -> None:
    storage, state = MemoryStorage(), {"w": torch.randn(100)}
    with CheckpointManager(storage, incremental=True) as manager:
        manager.save(state, step=1)
    with CheckpointManager(storage) as manager:
        assert manager.save(state, step=2).referenced_bytes == 0
        assert manager.describe().references == []


def test_files_stay_as_long_as_anything_refers_to_them() -> None:
    storage = MemoryStorage()
    frozen, moving = torch.randn(1000), torch.zeros(10)
    with CheckpointManager(storage, keep_count=1, incremental=True) as manager:
        for step in range(1, 6):
            manager.save({"frozen": frozen, "moving": moving + step}, step=step)
            manager.wait()
            assert manager.list_checkpoints() == [step]
            manager.verify()
        assert {path.partition("/")[0] for path in files_in(storage)} == {"step_1", "step_5"}
        manager.save({"frozen": frozen + 1, "moving": moving}, step=6)
        manager.wait()
        assert {path.partition("/")[0] for path in files_in(storage)} == {"step_6"}


def test_a_file_of_which_little_is_needed_is_referred_to_only_while_its_checkpoint_is_kept() -> None:
    storage = MemoryStorage()
    few, many = torch.randn(4000), torch.randn(6000)
    with CheckpointManager(storage, keep_count=2, incremental=True) as manager:
        manager.save({"few": few, "many": many}, step=1)
        assert manager.save({"few": few, "many": many + 1}, step=2).referenced_bytes == 16000
        assert manager.save({"few": few, "many": many + 2}, step=3).referenced_bytes == 16000
        manager.wait()
        assert manager.list_checkpoints() == [2, 3]
        assert manager.save({"few": few, "many": many + 3}, step=4).referenced_bytes == 0
        manager.wait()
        assert manager.save({"few": few, "many": many + 4}, step=5).referenced_bytes == 16000
        manager.wait()
        assert {path.partition("/")[0] for path in files_in(storage)} == {"step_4", "step_5"}
        for step in manager.list_checkpoints():
            manager.verify(step)


def test_a_file_that_is_gone_is_not_referred_to() -> None:
    storage, state = MemoryStorage(), {"w": torch.randn(100)}
    with CheckpointManager(storage, incremental=True) as manager:
        manager.save(state, step=1)
        for path in files_in(storage):
            BlockingStorage(storage).delete(f"default/checkpoints/{path}")
        assert manager.save(state, step=2).written_bytes == 400
        assert_same(manager.load(), state)


def test_a_damaged_base_is_no_reason_not_to_save() -> None:
    storage, state = MemoryStorage(), {"w": torch.randn(100)}
    with CheckpointManager(storage, incremental=True) as manager:
        manager.save(state, step=1)
        (part,) = manager.describe().parts
    BlockingStorage(storage).write(f"default/checkpoints/{part.path}", b"{}")
    with CheckpointManager(storage, incremental=True) as manager:
        assert manager.save(state, step=2).written_bytes == 400
        assert_same(manager.load(), state)


def test_damage_in_what_is_referred_to_is_named() -> None:
    storage, state = MemoryStorage(), {"w": torch.randn(100), "v": torch.zeros(1)}
    with CheckpointManager(storage, incremental=True) as manager:
        manager.save(state, step=1)
        (path,) = files_in(storage)
        manager.save(state | {"v": torch.ones(1)}, step=2)
        data = bytearray(BlockingStorage(storage).read(f"default/checkpoints/{path}"))
        data[5000 if len(data) > 5000 else -20] ^= 1
        BlockingStorage(storage).write(f"default/checkpoints/{path}", bytes(data))
        with pytest.raises(CheckpointDamaged, match=r"step_1/.*'w'"):
            manager.load(2)
        with pytest.raises(CheckpointDamaged, match=r"step_1/.*'w'"):
            manager.verify(2)


def test_a_state_larger_than_the_memory_passes_through_twice() -> None:
    state = {"a": random(30 << 20, 1), "b": random(20 << 20, 2), "c": random(1000, 3)}
    storage = MemoryStorage()
    with CheckpointManager(storage, config=SMALL_BUDGET, incremental=True) as manager:
        manager.save(state, step=1)
        state["a"][9 << 20] ^= 1
        report = manager.save_async(state, step=2).result()
        assert report.written_bytes == CHUNK_BYTES
        assert_same(manager.load(), state)
        manager.verify()
        state["a"] += 1
        state["b"] += 1
        assert manager.save(state, step=3).referenced_bytes == 1000
        assert_same(manager.load(), state)


def test_what_is_changed_between_the_two_times_fails_the_save(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"a": random(30 << 20, 1), "b": random(20 << 20, 2)}
    again = Stage.again

    def meddled(stage: Stage, plans: list[FilePlan]) -> Any:
        state["a"][9 << 20] ^= 2
        return again(stage, plans)

    monkeypatch.setattr(Stage, "again", meddled)
    with CheckpointManager(MemoryStorage(), config=SMALL_BUDGET, incremental=True) as manager:
        manager.save(state, step=1)
        state["a"][9 << 20] ^= 1
        with pytest.raises(Conflict, match="'a' was changed while it was being saved"):
            manager.save(state, step=2)
        assert manager.list_checkpoints() == [1]


def test_bytes_are_always_whole(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, incremental=True) as manager:
        manager.save(b"the same", step=1)
        manager.save({"w": torch.ones(3)}, step=2)
        manager.save(b"the same", step=3)
        assert (tmp_path / "default/checkpoints/step_3/model.bin").read_bytes() == b"the same"
        manager.save({"w": torch.ones(3)}, step=4)
        assert_same(manager.load(), {"w": torch.ones(3)})


def test_a_reader_of_a_checkpoint_protects_what_that_refers_to() -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage, incremental=True) as manager:
        manager.save({"w": torch.ones(1000)}, step=1)
        manager.save({"w": torch.ones(1000), "v": torch.ones(1)}, step=2)
        manager.save({"w": torch.zeros(1000)}, step=3)
        checkpoints = ManagerSeam(manager).checkpoints
        store = checkpoints.store

        async def delete_while_reading() -> int:
            async with marked(store, Folder(2)):
                await checkpoints.delete([Folder(1)])
                await checkpoints.delete([Folder(2)])
                return len([path async for path in store.paths() if path.endswith(".safetensors")])

        assert background.run(delete_while_reading()) == 3
        manager.delete(3)
        assert files_in(storage) == set()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 255)), max_size=6), st.integers(1, 3))
def test_any_history_of_changes_comes_back(history: list[tuple[int, int]], keep: int) -> None:
    state = {f"t{n}": random(50 + n, n) for n in range(5)}
    with CheckpointManager(MemoryStorage(), keep_count=keep, incremental=True) as manager:
        past = []
        for step, (which, by) in enumerate(history):
            state = state | {f"t{which}": state[f"t{which}"] ^ np.uint8(by)}
            past.append(state)
            manager.save(state, step=step)
        manager.wait()
        for step in manager.list_checkpoints():
            assert_same(manager.load(step), past[step])
            manager.verify(step)


# -- the pure part -----------------------------------------------------------------------------------------------------


def part(*tensors: Tensor, files: int = 1, size: int = 100) -> Part:
    return Part(1, 0, "a", "tree", None, [], list(tensors), [File(f"step_1/{n}", size) for n in range(files)])


def chunk(digest: str, size: int = 10, file: int = 0, at: int = 0) -> Chunk:
    return Chunk(file, at, size, digest)


def test_a_chunk_is_kept_by_place_and_digest() -> None:
    base = Base(part(Tensor("w", "uint8", (30,), [chunk("a"), chunk("b", at=10), chunk("c", at=20)])))
    now = [
        Tensor("w", "uint8", (25,), [chunk("a"), chunk("x"), chunk("c", 5)]),
        Tensor("v", "uint8", (9,), [chunk("a", 9)]),
    ]
    assert unchanged(now, base) == [[chunk("a"), None, None], [None]]


def test_orphans_of_which_less_than_half_is_needed_and_lost_files_are_not_used() -> None:
    tensors = [Tensor(f"t{n}", "uint8", (49,), [chunk(f"{n}", 49, n)]) for n in range(3)]
    base = Base(part(*tensors, files=3), orphans=frozenset({1}), lost=frozenset({2}))
    assert [each[0] is not None for each in unchanged(tensors, base)] == [True, False, False]
    assert unchanged(tensors, Base(part(*tensors, files=3, size=98), orphans=frozenset({1})))[1][0] is not None


def test_own_files_come_before_those_referred_to() -> None:
    base = Base(part(Tensor("w", "uint8", (10,), [chunk("a", file=1, at=7)]), files=2))
    now = [Tensor("w", "uint8", (10,), [chunk("a")]), Tensor("v", "uint8", (10,), [chunk("n", at=10)])]
    kept = unchanged(now, base)
    plans = plan_files(changes(now, kept))
    tensors, files = referring(now, kept, plans, [File("step_2/0", 1)], base)
    assert [file.path for file in files] == ["step_2/0", "step_1/1"]
    assert tensors[0].chunks == [chunk("a", file=1, at=7)]
    assert tensors[1].chunks == [chunk("n", at=4096)]
