"""How two checkpoints differ, without reading a tensor."""

from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from strata import background
from strata.checkpoint import CheckpointManager
from strata.checkpoint.differences import (
    ADDED,
    CHANGED,
    REMOVED,
    SAME,
    Contents,
    Differences,
    TensorChange,
    ValueChange,
    compare,
    read_contents,
)
from strata.checkpoint.manifest import CHUNK_BYTES, Chunk
from strata.checkpoint.store import Folder, Store
from strata.storage import BlockingStorage, MemoryStorage


def contents(state: Any, *, storage: MemoryStorage | None = None, step: int = 1, incremental: bool = False) -> Contents:
    storage = storage or MemoryStorage()
    with CheckpointManager(storage, incremental=incremental) as manager:
        manager.save(state, step=step)
    store = Store(storage, "default")
    found = background.run(read_contents(store, Folder(step)))
    for entry in [*BlockingStorage(storage).list_all()]:
        if entry.path.endswith(".safetensors"):
            assert entry.size  # they lie there, and nobody needs them
    return found


def differences(before: Any, after: Any) -> Differences:
    return compare(contents(before), contents(after))


def told(found: Differences) -> dict[str, str]:
    return {each.name: each.what for each in found.tensors}


def test_the_same_is_the_same() -> None:
    state = {"w": torch.randn(100), "n": float("nan"), "big": 2**70, "list": [1, None]}
    found = differences(state, state)
    assert not found
    assert told(found) == {"w": SAME}
    assert (found.count(SAME), found.bytes(SAME), found.bytes(CHANGED)) == (1, 400, 0)


def test_tensors_are_added_removed_and_changed() -> None:
    found = differences(
        {"same": torch.ones(3), "gone": torch.ones(4), "other": torch.ones(5)},
        {"same": torch.ones(3), "other": torch.zeros(5), "new": torch.ones(6)},
    )
    assert found
    assert found.tensors == [
        TensorChange("same", SAME, "float32[3]", "float32[3]", 12, 0),
        TensorChange("other", CHANGED, "float32[5]", "float32[5]", 20, 20),
        TensorChange("new", ADDED, None, "float32[6]", 24, 24),
        TensorChange("gone", REMOVED, "float32[4]", None, 16, 16),
    ]
    assert [found.bytes(what) for what in (SAME, CHANGED, ADDED, REMOVED)] == [12, 20, 24, 16]


def test_of_a_large_tensor_only_the_chunks_that_changed_count() -> None:
    old = np.zeros(3 * CHUNK_BYTES + 5, np.uint8)
    new = old.copy()
    new[CHUNK_BYTES + 7] = 1
    new[-1] = 1
    (change,) = differences({"w": old}, {"w": new}).tensors
    assert (change.what, change.bytes, change.changed_bytes) == (CHANGED, 3 * CHUNK_BYTES + 5, CHUNK_BYTES + 5)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (torch.zeros(2, 3), torch.zeros(3, 2), ("float32[2, 3]", "float32[3, 2]", 0)),
        (torch.zeros(2), torch.zeros(2).bfloat16(), ("float32[2]", "bfloat16[2]", 4)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32), ("float32[2]", "int32[2]", 0)),
        (torch.zeros(0, 3), torch.zeros(3, 0), ("float32[0, 3]", "float32[3, 0]", 0)),
    ],
)
def test_another_shape_or_type_is_a_change_whatever_the_bytes(
    before: torch.Tensor, after: torch.Tensor, words: tuple[str, str, int]
) -> None:
    (change,) = differences({"w": before}, {"w": after}).tensors
    assert (change.what, change.before, change.after, change.changed_bytes) == (CHANGED, *words)


def test_tied_tensors_are_compared_under_both_names_and_counted_once() -> None:
    one, other = torch.zeros(100), torch.ones(100)
    found = differences({"a": one, "b": one}, {"a": other, "b": other})
    assert told(found) == {"a": CHANGED, "b": CHANGED}
    assert [each.is_tied for each in found.tensors] == [False, True]
    assert (found.count(CHANGED), found.bytes(CHANGED)) == (2, 400)
    assert told(differences({"a": one, "b": one}, {"a": one.clone(), "b": one.clone()})) == {"a": SAME, "b": SAME}


def test_a_view_differs_only_by_the_chunks_it_lies_in() -> None:
    def state(last: int) -> dict[str, Any]:
        whole = np.zeros(3 * CHUNK_BYTES, np.uint8)
        whole[-1] = last
        return {"whole": whole, "first": whole[:10], "last": whole[-10:]}

    found = differences(state(0), state(1))
    assert told(found) == {"whole": CHANGED, "first": SAME, "last": CHANGED}
    assert {each.name: each.changed_bytes for each in found.tensors} == {"whole": CHUNK_BYTES, "first": 0, "last": 10}


def test_a_view_that_moved_is_told_as_changed() -> None:
    whole = np.zeros(100, np.uint8)
    found = differences({"w": whole, "v": whole[:10]}, {"w": whole, "v": whole[10:20]})
    assert told(found) == {"w": SAME, "v": CHANGED}


def test_chunks_that_are_cut_otherwise_cannot_be_compared_and_count_as_changed() -> None:
    one = contents({"w": np.zeros(100, np.uint8)})
    (tensor,) = one.parts[0].tensors
    halves = [Chunk(0, 0, 50, "xxh3-128:1"), Chunk(0, 50, 50, "xxh3-128:2")]
    part = msgspec.structs.replace(one.parts[0], tensors=[msgspec.structs.replace(tensor, chunks=halves)])
    (change,) = compare(one, one._replace(parts=[part])).tensors
    assert (change.what, change.changed_bytes) == (CHANGED, 100)


def test_plain_values_that_differ_are_told() -> None:
    found = differences(
        {"step": 1, "lr": 0.5, "same": "x", "gone": None, "flag": 1, "list": [1, 2]},
        {"step": 2, "lr": float("nan"), "same": "x", "new": [], "flag": True, "list": [1, 3]},
    )
    assert found.values == [
        ValueChange("step", CHANGED, 1, 2),
        ValueChange("lr", CHANGED, 0.5, {"float": "nan"}),
        ValueChange("new", ADDED, None, []),
        ValueChange("flag", CHANGED, 1, True),
        ValueChange("list/1", CHANGED, 2, 3),
        ValueChange("gone", REMOVED, None, None),
    ]


Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ({0: 1, "0": 2}, {0: 5, "0": 2}, [("0", 1, 5)]),
        ({0: 1, "0": 2}, {0: 1, "0": 5}, [("0%2", 2, 5)]),
        ({"x": [1, 2]}, {"x": (1, 2)}, [("x", "list", "tuple")]),
        ([1], (1,), [("", "list", "tuple")]),
        ({"x": []}, {"x": ()}, [("x", [], {"tuple": []})]),
        ({"x": {1, 2}}, {"x": frozenset({1, 2})}, [("x", "set", "frozenset")]),
        ({"x": (1, 2)}, {"x": Pair(1, 2)}, None),
        ({"x": {"a": 1}}, {"x": OrderedDict(a=1)}, [("x", "dict", "OrderedDict")]),
        ({"x": defaultdict(int, a=1)}, {"x": defaultdict(str, a=1)}, [("x", "defaultdict(int)", "defaultdict(str)")]),  # type: ignore[arg-type]
        ({"x": 0.0}, {"x": -0.0}, [("x", 0.0, -0.0)]),
        ({"x": 1}, {"x": 1.0}, [("x", 1, 1.0)]),
        ({0: 1}, {"0": 1}, [("0", "value under 0", "value")]),
        ({0: torch.ones(2)}, {"0": torch.ones(2)}, [("0", "torch under 0", "torch")]),
        ({"x": torch.ones(2)}, {"x": np.ones(2, np.float32)}, [("x", "torch", "numpy")]),
        (
            {"x": torch.nn.Parameter(torch.ones(2)), "y": torch.nn.Parameter(torch.ones(2))},
            {"x": torch.ones(2), "y": torch.nn.Parameter(torch.ones(2), requires_grad=False)},
            [
                ("x", "torch, parameter, trained", "torch"),
                ("y", "torch, parameter, trained", "torch, parameter, frozen"),
            ],
        ),
    ],
)
def test_what_holds_the_same_and_is_something_else_is_told(
    before: Any, after: Any, changes: list[tuple[str, Any, Any]] | None
) -> None:
    found = differences(before, after)
    assert found
    assert all(each.what == SAME for each in found.tensors)
    if changes is not None:
        assert [(each.name, each.before, each.after) for each in found.values] == changes
        assert [each.what for each in found.values] == [CHANGED] * len(changes)
        assert [str(each.after) for each in found.values] == [str(after) for *_, after in changes]  # -0.0 is not 0.0
    assert not differences(before, before)
    assert not differences(after, after)


def test_a_key_that_comes_or_goes_changes_nothing_else() -> None:
    found = differences({"a": 1, "l": [1]}, {"a": 1, 7: 2, "l": [1, 2], "t": (torch.ones(1),)})
    assert [(each.name, each.what) for each in found.values] == [("7", ADDED), ("l/1", ADDED)]
    assert told(found) == {"t/0": ADDED}


def test_where_the_bytes_of_the_later_one_lie() -> None:
    storage = MemoryStorage()
    frozen = np.zeros(CHUNK_BYTES, np.uint8)
    for step in (1, 2, 3):
        contents(
            {"frozen": frozen, "w": np.full(100, step), "late": np.full(10, min(step, 2))},
            storage=storage,
            step=step,
            incremental=True,
        )
    first, last = (background.run(read_contents(Store(storage, "default"), Folder(step))) for step in (1, 3))
    found = compare(first, last)
    assert found.lies_in == {"step_1": CHUNK_BYTES, "step_3": 800, "step_2": 80}
    assert told(found) == {"frozen": SAME, "w": CHANGED, "late": CHANGED}


def test_bytes_and_a_tree_have_nothing_in_common() -> None:
    found = differences(b"abc", {"w": torch.ones(1), "n": 1})
    assert told(found) == {"": REMOVED, "w": ADDED}
    assert [each.what for each in found.values] == [ADDED]
    (change,) = differences(b"abc", b"abd").tensors
    assert (change.what, change.changed_bytes) == (CHANGED, 3)
