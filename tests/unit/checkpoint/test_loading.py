"""Loading in other ways than whole: like a template, a part of a tensor, and not for ever."""

import asyncio
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint import CheckpointManager, CheckpointManagerConfig, CheckpointReader
from strata.checkpoint.boxes import Box
from strata.checkpoint.manifest import CHUNK_BYTES
from strata.checkpoint.slices import box_of, inside, with_bytes
from strata.errors import CheckpointDamaged, CheckpointMismatch, InvalidInput, NotFound, StorageUnavailable, Unstorable
from strata.storage import BlockingStorage, MemoryStorage
from strata.testing.faulty import Faults, FaultyStorage
from tests.unit.checkpoint.states import assert_same

STATE: dict[str, Any] = {"model": {"w": torch.arange(12.0).reshape(3, 4), "b": np.arange(3)}, "step": 7}


@pytest.fixture
def manager() -> CheckpointManager:
    made = CheckpointManager(MemoryStorage())
    made.save(STATE, step=1)
    return made


# -- like a template ---------------------------------------------------------------------------------------------------


def test_a_template_without_data_says_where_arrays_go(manager: CheckpointManager) -> None:
    template = {"model": {"w": torch.empty(3, 4, device="meta"), "b": np.empty(3, np.int64)}}
    found = manager.load(like=template)
    assert_same(found, STATE)
    assert found["model"]["w"].device.type == "cpu"


def test_a_template_decides_the_package(manager: CheckpointManager) -> None:
    found = manager.load(like={"model": {"w": np.empty((3, 4), np.float32), "b": torch.empty(3, dtype=torch.int64)}})
    assert isinstance(found["model"]["w"], np.ndarray)
    assert found["model"]["b"].tolist() == [0, 1, 2]


def test_a_template_that_does_not_fit_is_told(manager: CheckpointManager) -> None:
    template = {"model": {"w": torch.empty(3, 5), "more": torch.empty(1)}}
    with pytest.raises(CheckpointMismatch, match=r"missing: model/more.*unexpected: model/b.*mismatched: model/w"):
        manager.load(like=template)
    assert manager.load(like=template, strict=False) == {"step": 7}
    assert manager.last_load.missing == ["model/more"]
    assert manager.last_load.unexpected == ["model/b"]


class Adam(NamedTuple):
    count: Any
    mu: Any


class Chain(NamedTuple):
    inner: Any


def test_named_tuples_are_of_the_classes_of_what_they_are_loaded_into_or_like() -> None:
    state = {"opt": (Adam(np.int32(3), {"w": np.ones(2)}), [Chain(Adam(1, np.ones(1)))]), "other": Chain(1)}
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save(state, step=1)
        for how in ("into", "like"):
            optimizer = (Adam(np.int32(0), {"w": np.zeros(2)}), [Chain(Adam(1, np.zeros(1)))])
            given = {"opt": optimizer, "other": Adam(1, 2)}
            found = manager.load(into=given) if how == "into" else manager.load(like=given)
            assert type(found["opt"][0]) is Adam
            assert type(found["opt"][1][0]) is Chain
            assert type(found["opt"][1][0].inner) is Adam
            assert type(found["other"]).__name__ == "Chain"
            assert_same(found["opt"][0].mu["w"], np.ones(2))
            assert (found["opt"][0].mu["w"] is optimizer[0].mu["w"]) == (how == "into")
            assert found["opt"][0].count == 3


def test_what_cannot_be_loaded_into_is_told_as_that(manager: CheckpointManager) -> None:
    with pytest.raises(Unstorable, match=r"this cannot be loaded into. the state itself: a torch"):
        manager.load(into=torch.nn.Linear(1, 1))
    with pytest.raises(Unstorable, match=r"this is no template. model: "):
        manager.load(like={"model": object()})


def test_names_are_changed_on_the_way(manager: CheckpointManager) -> None:
    found = manager.load(like={"net": {"w": torch.empty(3, 4), "b": np.empty(3, int)}}, rename={"model/": "net/"})
    assert torch.equal(found["model"]["w"], STATE["model"]["w"])


def test_what_was_tied_is_tied_again() -> None:
    shared = torch.randn(5)
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save({"a": shared, "b": shared}, step=1)
        found = manager.load(like={"a": torch.empty(5), "b": torch.empty(5)})
    assert torch.equal(found["a"], shared)
    assert found["a"] is found["b"]


def test_a_view_and_what_it_lies_in_are_both_loaded() -> None:
    whole = torch.arange(10.0)
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save({"whole": whole, "tail": whole[6:]}, step=1)
        found = manager.load(like={"whole": torch.empty(10), "tail": torch.empty(4)})
        assert found["tail"].tolist() == [6, 7, 8, 9]
        assert manager.load_slice("tail", np.s_[1:3]).tolist() == [7, 8]
        with pytest.raises(InvalidInput, match="out of range"):
            manager.load_slice("tail", 4)


def test_a_part_of_a_view_takes_no_more_memory_than_it_has() -> None:
    one = torch.arange(3.0)
    endless = one[:, None].expand(3, 2**50)
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save({"one": one, "endless": endless}, step=1)
        assert manager.load_slice("endless", np.s_[1:, -2:]).tolist() == [[1, 1], [2, 2]]
        assert manager.load()["endless"].shape == (3, 2**50)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"into": {}, "like": {}}, "into or like"),
        ({"keys": "*", "like": {}}, "give keys"),
        ({"keys": "*", "into": {}}, "give keys"),
        ({"rename": {}}, "rename says"),
        ({"timeout": 0}, "above 0"),
    ],
)
def test_what_contradicts_itself_is_refused(manager: CheckpointManager, said: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        manager.load(**said)


# -- arrays that share memory ------------------------------------------------------------------------------------------


def columns() -> dict[str, Any]:
    whole = np.arange(12.0).reshape(3, 4)
    return {"left": whole[:, :2], "right": whole[:, 2:]}


def sharing(name: str) -> dict[str, Any]:
    """States whose arrays share memory in some way."""
    t, x = torch.arange(8.0), np.arange(9.0).reshape(3, 3)
    huge = np.arange(1_000_000, dtype=np.int32)
    states: dict[str, dict[str, Any]] = {
        "shape": {"x": t, "row": t.view(2, 4)},
        "shape first": {"row": t.view(2, 4), "x": t},
        "transposed": {"a": x, "b": x.T},
        "transposed first": {"b": x.T, "a": x},
        "transposed tensor": {"a": t.view(2, 4), "b": t.view(2, 4).T},
        "reversed": {"a": x, "b": x[::-1], "c": x[:, ::-1]},
        "type": {"a": x, "b": x.view(np.int64), "c": x.view(np.uint8)},
        "slices": {"a": t[:6], "b": t[4:]},
        "slices of it": {"b": t[4:], "flat": t, "c": t[2:7:2], "one": t[5]},
        "of one element": {"x": t, "a": t.view(1, 8, 1), "b": t[3:4], "c": t[3]},
        "interleaved": {"even": t[::2], "odd": t[1::2]},
        "columns": columns(),
        "fortran": {"a": np.asfortranarray(x), "again": np.asfortranarray(x).T},
        "stored apart": {"a": huge[::500_000], "b": huge[1::499_999]},
    }
    return states[name]


SHARING = [
    "shape", "shape first", "transposed", "transposed first", "transposed tensor", "reversed", "type", "slices",
    "slices of it", "of one element", "interleaved", "columns", "fortran", "stored apart",
]  # fmt: skip


@pytest.mark.parametrize("name", SHARING)
def test_what_shares_memory_is_loaded_back_into_it(name: str) -> None:
    mine = sharing(name)
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save(mine, step=1)
        for each in mine.values():
            each[...] = 0
        manager.load(into=mine)
        assert_same(mine, sharing(name))
        for each in mine.values():
            each[...] = 0
        targets = {name: each for name, each in mine.items() if name != "a"}
        manager.load(into=targets, strict=False)
        assert_same(targets, {name: each for name, each in sharing(name).items() if name != "a"})


def test_two_arrays_are_not_loaded_into_memory_that_they_would_share() -> None:
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save({"a": np.arange(6), "b": np.arange(6) + 100}, step=1)
        memory = np.zeros(10, np.int64)
        with pytest.raises(CheckpointMismatch, match=r"1 mismatched: a \(shares memory with another array here"):
            manager.load(into={"a": memory[:6], "b": memory[4:]})
        assert not memory.any()
        manager.load(into={"a": memory[:6], "b": memory[4:]}, strict=False)
        assert memory.tolist() == [0, 0, 0, 0, 100, 101, 102, 103, 104, 105]
        assert len(manager.last_load.mismatched) == 1


def test_what_shares_memory_in_another_way_is_refused() -> None:
    was, mine = torch.arange(10.0), torch.zeros(10)
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save({"whole": was, "part": was[2:5], "square": was[:9].view(3, 3)}, step=1)
        for wrong in (
            {"whole": mine, "part": mine[3:6], "square": torch.zeros(3, 3)},
            {"whole": mine, "part": mine[2:7:2], "square": torch.zeros(3, 3)},
            {"whole": mine, "part": torch.zeros(3), "square": mine[:9].view(3, 3).T},
            {"whole": torch.zeros(10), "part": mine[:3], "square": mine[1:].view(3, 3)},
        ):
            with pytest.raises(CheckpointMismatch, match=r"1 mismatched: .*shares memory"):
                manager.load(into=wrong)
    assert not mine.any()


def test_two_that_were_one_may_be_loaded_apart_and_two_into_columns_of_one() -> None:
    was = torch.arange(6.0).view(2, 3)
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save({"a": was, "b": was.T}, step=1)
        a, b = torch.zeros(2, 3), torch.zeros(3, 2)
        manager.load(into={"a": a, "b": b})
        assert torch.equal(a, was)
        assert torch.equal(b, was.T)
        manager.save({"q": was, "k": was + 10}, step=2)
        fused = torch.zeros(2, 6)
        manager.load(into={"q": fused[:, :3], "k": fused[:, 3:]})
        assert torch.equal(fused, torch.cat([was, was + 10], 1))


def test_what_is_too_hard_to_tell_apart_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, shape, strides = np.zeros(1 << 20, np.uint8), (3, 5, 7, 9, 11), (1009, 4003, 10_007, 20_011, 30_011)
    one, other = (np.lib.stride_tricks.as_strided(memory[start:], shape, strides) for start in (0, 1))
    with pytest.raises(np.exceptions.TooHardError):
        np.shares_memory(one, other, max_work=1)  # type: ignore[arg-type]
    monkeypatch.setattr("strata.checkpoint.sharing.MOST_WORK", 1)
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save({"one": np.ones(shape, np.uint8), "other": np.ones(shape, np.uint8)}, step=1)
        manager.load(into={"one": one, "other": other})
    assert one.all()
    assert other.all()


# -- a part of a tensor ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "index",
    [
        ...,
        0,
        -1,
        np.s_[1:],
        np.s_[::2],
        np.s_[:, 1:3],
        np.s_[..., 2],
        np.s_[1, 2],
        np.s_[3:, :],
        np.s_[0:0],
        np.s_[2, ...],
    ],
)
def test_any_part_comes_as_it_was(manager: CheckpointManager, index: Any) -> None:
    found = manager.load_slice("model/w", index)
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, STATE["model"]["w"][index])


@pytest.mark.parametrize("index", [3, (0, 0, 0), np.s_[::-1], "x", True, (..., ...), 1.5])
def test_what_is_no_part_is_refused(manager: CheckpointManager, index: Any) -> None:
    with pytest.raises(InvalidInput):
        manager.load_slice("model/w", index)


def test_an_unknown_tensor_is_told_with_those_like_it(manager: CheckpointManager) -> None:
    with pytest.raises(NotFound, match=r"no tensor 'model/ww'; there is model/w"):
        manager.load_slice("model/ww")


def test_only_chunks_that_hold_a_part_of_it_are_read() -> None:
    rows = torch.arange(5 * CHUNK_BYTES // 4, dtype=torch.float32).reshape(5 * 1024, -1)
    storage = MemoryStorage()
    with CheckpointManager(storage) as manager:
        manager.save({"w": rows}, step=1)
        (path,) = (entry.path for entry in BlockingStorage(storage).list_all() if entry.path.endswith("safetensors"))
        data = bytearray(BlockingStorage(storage).read(path))
        data[4096 + 10] ^= 1  # in the first chunk
        BlockingStorage(storage).write(path, bytes(data))
        assert torch.equal(manager.load_slice("w", np.s_[1024:2048]), rows[1024:2048])
        with pytest.raises(CheckpointDamaged, match="'w'"):
            manager.load_slice("w", np.s_[1023:2048])


def test_a_tensor_of_no_dimension_and_an_empty_one() -> None:
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save({"zero": torch.tensor(5.0), "none": torch.empty(0, 3)}, step=1)
        assert manager.load_slice("zero").item() == 5.0
        assert manager.load_slice("none", np.s_[:, 1]).shape == (0,)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.data())
def test_an_index_is_the_same_in_its_box(shape: list[int], data: st.DataObject) -> None:
    index = tuple(
        data.draw(st.one_of(st.integers(0, n - 1), st.slices(n).filter(lambda each: (each.step or 1) > 0)))
        for n in shape
    )
    numbers = np.arange(np.prod(shape)).reshape(shape)
    box = box_of(tuple(shape), index)
    boxed = numbers[box.within(Box.whole(tuple(shape)))]
    assert boxed[inside(tuple(shape), index)].tolist() == numbers[index].tolist()
    assert numbers[..., None][with_bytes(index)][..., 0].tolist() == numbers[index].tolist()


# -- not for ever ------------------------------------------------------------------------------------------------------


def stuck(storage: MemoryStorage, operation: str) -> FaultyStorage:
    return FaultyStorage(storage, faults=Faults(stuck=1.0, only=frozenset({operation})))


@pytest.mark.parametrize("operation", ["read", "read_into", "list_all"])
def test_a_load_that_is_stuck_names_what_it_waits_for(operation: str) -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage) as manager:
        manager.save(STATE, step=3)
    faulty = stuck(storage, operation)
    reader = CheckpointReader(faulty)
    with pytest.raises(StorageUnavailable, match=r"loading step 3 of memory.*nothing came of \w+ memory:"):
        reader.load(3, timeout=0.2)
    faulty.release()
    assert_same(reader.load(3, timeout=30), STATE)


@pytest.mark.parametrize("operation", ["write", "put_if_absent", "compare_and_swap"])
def test_a_save_that_is_stuck_fails_by_name_and_the_next_is_saved(operation: str) -> None:
    storage = MemoryStorage()
    faulty = stuck(storage, operation)
    manager = CheckpointManager(faulty, config=CheckpointManagerConfig(stuck_seconds=0.2))
    handle = manager.save_async(STATE, step=1)
    with pytest.raises(StorageUnavailable, match=r"the save of step 1 to memory.*nothing came of write"):
        handle.result()
    faulty.release()
    manager.save(STATE, step=2)
    assert manager.latest_step() == 2
    manager.close()


def test_nothing_that_is_asked_of_a_stuck_storage_waits_for_ever() -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage) as manager:
        manager.save(STATE, step=1)
    faulty = stuck(storage, "list_all")
    manager = CheckpointManager(faulty, config=CheckpointManagerConfig(stuck_seconds=0.1))
    for ask in (
        manager.list_checkpoints,
        manager.latest_step,
        manager.describe,
        manager.tiers,
        lambda: manager.pin(1),
        lambda: manager.unpin(1),
        lambda: manager.delete(1),
        lambda: asyncio.run(manager.list_checkpoints_async()),
        lambda: asyncio.run(manager.latest_step_async()),
        lambda: asyncio.run(manager.delete_async(1)),
    ):
        with pytest.raises(StorageUnavailable, match=r"for more than 0.1 s nothing came of list memory:"):
            ask()
    faulty.release()
    assert manager.list_checkpoints() == [1]
    manager.close()


def test_slow_is_not_stuck() -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage) as manager:
        manager.save({f"t{n}": torch.ones(3) for n in range(20)}, step=1)
    slow = FaultyStorage(storage, faults=Faults(latency_seconds=0.05))
    assert len(CheckpointReader(slow).load(timeout=2.0)) == 20


def test_a_load_that_is_given_up_ends() -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage) as manager:
        manager.save(STATE, step=1)
    before = threading.active_count()
    for _ in range(5):
        with pytest.raises(StorageUnavailable):
            CheckpointReader(stuck(storage, "read_into")).load(timeout=0.1)
    assert threading.active_count() <= before + 2
