"""The ends of a skeleton, by name."""

from collections import Counter, OrderedDict, namedtuple
from typing import Any

import numpy as np
import torch

from strata.checkpoint.preparing import Planner
from strata.checkpoint.skeleton import array_kinds, ends, plain_values, shown, value_numbers
from strata.checkpoint.tree import flatten
from strata.checkpoint.wellformed import check_skeleton

Pair = namedtuple("Pair", "left right")

STATE: dict[Any, Any] = {
    "w": torch.ones(2),
    "n": np.zeros(3),
    "raw": b"abc",
    "scalar": np.float32(2.0),
    "list": [1, "two", None, []],
    "tuple": (True, 2.5),
    "pair": Pair({"x": 1}, torch.zeros(1)),
    "numbers": {0: {"lr": 0.1}, (1, 2): "key"},
    "ordered": OrderedDict(a=float("inf")),
    "empty": {},
    "big": 2**80,
    "set": {3, 4},
    "a/b": "slash",
    "complex": 1 + 2j,
    "dtype": torch.bfloat16,
    "size": torch.Size([2, 3]),
    "many": {"a/b": torch.ones(1), "c": torch.ones(2)},
    "ordered arrays": OrderedDict(x=np.ones(1), y=np.ones(2)),
}


def test_values_stand_under_their_names() -> None:
    found = {name: shown(node) for name, node in plain_values(flatten(STATE).skeleton).items()}
    assert found == {
        "list/0": 1,
        "list/1": "two",
        "list/2": None,
        "list/3": [],
        "tuple/0": True,
        "tuple/1": 2.5,
        "pair/left/x": 1,
        "numbers/0/lr": 0.1,
        "numbers/(1, 2)": "key",
        "ordered/a": "inf",
        "empty": {},
        "big": 2**80,
        "set/0": 3,
        "set/1": 4,
        "a%2Fb": "slash",
        "complex": "1.0 + 2.0i",
        "dtype": "torch.dtype(bfloat16)",
        "size": "torch.Size([2, 3])",
    }


def test_arrays_are_told_by_what_they_are() -> None:
    flat = flatten(STATE)
    kinds = ["torch", "numpy", "bytes", "scalar", "torch", "torch", "torch", "numpy", "numpy"]
    assert array_kinds(flat.skeleton) == dict(enumerate(kinds))


def test_names_are_those_of_the_arrays() -> None:
    prepared = Planner().prepare(STATE)
    named = [name for name, node in ends(prepared.skeleton) if isinstance(node, dict) and _is_array(node)]
    assert named == [leaf.name for leaf in flatten(STATE).leaves]


def _is_array(node: dict[str, Any]) -> bool:
    return next(iter(node)) in ("torch", "numpy", "bytes", "scalar")


def test_empty_containers_and_single_values_are_ends() -> None:
    assert plain_values(flatten(Counter()).skeleton) == {"": {"items": [], "as": "Counter"}}
    assert shown({"items": [], "as": "Counter"}) == {}
    assert shown({"tuple": []}) == []
    assert [*ends(flatten(5).skeleton)] == [("", 5)]
    assert plain_values(flatten(torch.ones(1)).skeleton) == {}


def test_what_is_stored_like_an_array_is_told_from_those_that_are() -> None:
    for state in (STATE, {"bytes": np.ones(1), "scalar": {"torch": b"x"}}, [b"x", {"arrays": torch.ones(1)}], b"x"):
        skeleton = flatten(state).skeleton
        kinds = array_kinds(skeleton)
        assert {*check_skeleton(skeleton, len(kinds))} == value_numbers(skeleton)
        assert value_numbers(skeleton) == {n for n, kind in kinds.items() if kind in ("bytes", "bytearray", "scalar")}
