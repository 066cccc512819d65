"""States taken apart and put together: everything that may stand in one, and everything that may not."""

import collections
import enum
import math
import random
import warnings
from typing import Any, NamedTuple

import ml_dtypes
import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint.frameworks import framework_named
from strata.checkpoint.marks import PerRank, Replicated
from strata.checkpoint.pruning import pruned
from strata.checkpoint.shares import Crew
from strata.checkpoint.tree import Leaf, flatten, unflatten
from strata.checkpoint.wellformed import check_skeleton
from strata.errors import InvalidInput, Unstorable
from tests.unit.checkpoint.states import assert_same


def round_trip(state: Any) -> Any:
    """Through JSON, as a manifest is."""
    flat = flatten(state)
    skeleton = msgspec.json.decode(msgspec.json.encode(flat.skeleton))
    check_skeleton(skeleton, len(flat.leaves))

    def array(number: int, package: str) -> Any:
        leaf = flat.leaves[number]
        size = leaf.value.nbytes
        block = np.empty(size, np.uint8)
        leaf.framework.copy_out([(leaf.value, block)]).wait()
        return framework_named(package).make(leaf.described.dtype, leaf.described.shape, block)

    return unflatten(skeleton, array)


class Point(NamedTuple):
    x: Any
    y: Any


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(max_size=20)
    | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
        | st.dictionaries(st.integers() | st.booleans() | st.none() | st.text(max_size=3), inner, max_size=4)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=20,
)


@given(plain)
def test_plain_values_come_back_as_they_were(state: Any) -> None:
    assert_same(round_trip(state), state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4)])
def test_tensors_of_any_type_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape).to(dtype)
    assert_same(round_trip({"t": tensor}), {"t": tensor})


@pytest.mark.parametrize(
    "dtype",
    ["u1", "i2", "<u4", ">u4", "i8", "f2", "f8", ">f8", "c8", "c16", "?", "S5", "U3", "M8[ns]", "m8[s]"],
)
def test_arrays_of_any_type(dtype: str) -> None:
    array = np.zeros(7, dtype)
    array[3:] = np.array([1, 0, 1, 1], "u1").astype(dtype)
    assert_same(round_trip([array, array[2]]), [array, array[2]])


def test_types_that_other_packages_add_to_numpy() -> None:
    array = np.array([1.5, -2, 3], ml_dtypes.bfloat16)
    assert_same(round_trip((array,)), (array,))


def test_containers_keep_their_kind() -> None:
    state = {
        "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
        "counter": collections.Counter({3: 2, 1: 5}),
        "default": collections.defaultdict(list, {"x": [1]}),
        "set": {1, 2},
        "frozen": frozenset({"a"}),
        "torch": [torch.float16, torch.device("cpu"), torch.Size([2, 3])],
        "keys": {(1, "a"): 1, None: 2, 1.5: 3, True: 4},
    }
    back = round_trip(state)
    assert back == state
    assert {name: type(value) for name, value in back.items()} == {name: type(value) for name, value in state.items()}
    assert back["default"].default_factory is list
    assert type(back["torch"][2]) is torch.Size


def test_a_named_tuple_comes_back_with_its_names_and_without_its_class() -> None:
    back = round_trip(Point(1, torch.ones(2)))
    assert type(back).__name__ == "Point"
    assert back.x == 1
    assert torch.equal(back.y, torch.ones(2))


def test_a_parameter_comes_back_as_one() -> None:
    back = round_trip([torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2), requires_grad=False)])
    assert [type(each) for each in back] == [torch.nn.Parameter] * 2
    assert [each.requires_grad for each in back] == [True, False]


def test_optimizers_and_generators_can_be_stored() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
    state = {
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "python": random.getstate(),
        "numpy": np.random.default_rng(1).bit_generator.state,
        "legacy": np.random.RandomState(1).get_state(),
        "torch": torch.get_rng_state(),
        "best": math.inf,
    }
    assert_same(round_trip(state), state)
    random.setstate(round_trip(state)["python"])


def test_names_are_paths() -> None:
    tensor = torch.ones(1)
    state = {"model": {"a.b": tensor + 1}, "x/y": [tensor, (tensor + 2, Point(tensor + 3, 1))], "": tensor + 4}
    assert [leaf.name for leaf in flatten(state).leaves] == ["model/a.b", "x%2Fy/0", "x%2Fy/1/0", "x%2Fy/1/1/x", "%"]


def test_names_are_unique() -> None:
    names = [leaf.name for leaf in flatten({0: np.ones(1), "0": np.ones(2), "0%2": np.ones(3)}).leaves]
    assert len(set(names)) == 3
    assert "__metadata__" not in [leaf.name for leaf in flatten({"__metadata__": np.ones(1)}).leaves]


class Incomparable:
    def __lt__(self, other: object) -> bool:
        raise RuntimeError("no order")


class Unwritable(Incomparable):
    def __lt__(self, other: object) -> bool:
        return NotImplemented

    def __repr__(self) -> str:
        raise ZeroDivisionError("no text")


def nested(layout: torch.layout) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that these are young
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


class Colour(enum.Enum):
    RED = 1


class Own(dict[str, int]):
    pass


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (object(), "builtins.object cannot be stored"),
        (Colour.RED, "Colour"),
        (lambda: 1, "no code"),
        (Own(), "make it a plain dict"),
        (torch.nn.Linear(1, 1), "no code"),
        (torch.ones(2).to_sparse(), "to_dense"),
        (torch.empty(2, device="meta"), "meta"),
        (nested(torch.strided), "a nested tensor cannot be stored"),
        (nested(torch.jagged), "a nested tensor cannot be stored"),
        ({torch.ones(2), torch.ones(3)}, "arrays in a set have no order"),
        (frozenset({torch.ones(1)}), "arrays in a set have no order"),
        ({(1, torch.ones(2)), (1, torch.ones(2))}, "cannot be put in order (Boolean value of Tensor"),
        ({Incomparable(), Incomparable()}, "cannot be put in order (no order)"),
        ({Unwritable(), Unwritable()}, "cannot be put in order (no text)"),
        (np.array([object()]), "plain numbers"),
        (np.ma.array([1, 2], mask=[False, True]), "MaskedArray cannot be stored: store the plain arrays in it"),
        (np.ones((1, 2)).view(np.matrix), "matrix cannot be stored"),
        (np.ones(2).view(type("Metres", (np.ndarray,), {})), "Metres cannot be stored"),
        (np.zeros(2, [("a", "i4")]), "plain numbers"),
        (np.longdouble(1), "plain numbers"),
        (collections.defaultdict(lambda: 1), "make it a dict"),
        ({object(): 1}, "the key"),
        ("\ud800", "no text"),
        ({"\ud800": 1}, "the key"),
        ({10**5000: 1}, "the key (which cannot be written down) of type int"),
        ({(1, 10**5000): 1}, "the key (which cannot be written down) of type tuple"),
    ],
)
def test_what_cannot_be_stored_is_named(value: Any, why: str) -> None:
    with pytest.raises(Unstorable, match="model/layers/1") as raised:
        flatten({"fine": 1, "model": {"layers": [torch.ones(1), value]}})
    assert why in str(raised.value)


def test_a_nested_tensor_is_no_template_either() -> None:
    with pytest.raises(Unstorable, match="a: a nested tensor"):
        flatten({"a": nested(torch.strided)}, template=True)


def test_a_set_that_is_refused_twice_does_not_contain_itself() -> None:
    refused = {torch.ones(1)}
    with pytest.raises(Unstorable, match=r"0: arrays in a set.*1: arrays in a set"):
        flatten([refused, refused])


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(Unstorable, match="and 3 more"):
        flatten([object()] * 8)


def test_a_state_that_contains_itself_is_refused() -> None:
    state: dict[str, Any] = {"a": [1]}
    state["a"].append(state)
    with pytest.raises(Unstorable, match="a/1: it contains itself"):
        flatten(state)


@pytest.mark.parametrize("kind", [list, tuple, lambda inner: {"a": inner[0]}, lambda inner: {(1, 2): inner[0]}])
def test_a_state_of_as_many_levels_as_may_be_comes_back(kind: Any) -> None:
    state: Any = float("inf")
    for _ in range(127):
        state = kind([state])
    assert_same(round_trip(state), state)


def test_a_state_without_end_is_refused() -> None:
    state: Any = 1
    for _ in range(500):
        state = [state]
    with pytest.raises(Unstorable, match="more than 128 levels"):
        flatten(state)


def test_a_skeleton_from_the_future_is_refused() -> None:
    with pytest.raises(InvalidInput, match="upgrade"):
        unflatten({"hologram": 1}, lambda number, package: None)


def test_a_name_that_is_none_cannot_smuggle_code_in() -> None:
    node = {"named": "x); import os #", "fields": ["__class__", "def", "1"], "values": [1, 2, 3]}
    assert tuple(unflatten(node, lambda number, package: None)) == (1, 2, 3)


def ones(*names: str) -> dict[str, torch.Tensor]:
    return {name: torch.full((2,), float(number)) for number, name in enumerate(names)}


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
@pytest.mark.parametrize(
    "names", [("a.b", "c"), ("a/b", "c"), ("", "c"), ("__metadata__", "c"), ("ü", "%"), ("only",), ("3", "4")]
)
def test_a_dict_of_nothing_but_arrays_is_one_too(kind: type, names: tuple[str, ...]) -> None:
    state = {"model": kind(ones(*names)), "again": [kind(ones(*names)), kind(ones(*names))]}
    assert_same(round_trip(state), state)
    found = [leaf.name for leaf in flatten(state).leaves]
    assert len(set(found)) == len(found)


def test_many_arrays_take_one_line_of_the_skeleton() -> None:
    assert flatten({"a": np.ones(1), "m": collections.OrderedDict(ones("x", "y"))}).skeleton == {
        "dict": {"a": {"numpy": 0}, "m": {"arrays": ["x", "y"], "from": 1, "of": "torch", "as": "OrderedDict"}}
    }


def test_names_that_are_taken_are_not_given_to_many_arrays_either() -> None:
    leaves = flatten({"m": {0: torch.ones(1), "0": torch.ones(1)}, "m/0": ones("x")}).leaves
    assert [leaf.name for leaf in leaves] == ["m/0", "m/0%2", "m%2F0/x"]
    leaves = flatten([{"x": torch.ones(1)}, torch.ones(1)]).leaves
    assert [leaf.name for leaf in leaves] == ["0/x", "1"]
    leaves = flatten({1: ones("x"), "1": ones("x")}).leaves
    assert [leaf.name for leaf in leaves] == ["1/x", "1/x%2"]


def test_every_one_of_many_arrays_that_cannot_be_stored_is_named() -> None:
    state = {"model": {"good": torch.ones(1), "bad": torch.ones(1, device="meta"), "worse": torch.ones(2).to_sparse()}}
    with pytest.raises(Unstorable, match=r"model/bad: .*meta.*model/worse: .*layout"):
        flatten(state)


@given(st.sets(st.integers(0, 3)), st.booleans())
def test_some_of_many_arrays_may_be_left_out(wanted: set[int], ordered: bool) -> None:
    arrays = ones("a", "b", "c", "d")
    state = {"m": collections.OrderedDict(arrays) if ordered else arrays}
    left = pruned(flatten(state).skeleton, wanted.__contains__, lambda name: True)
    expected = type(state["m"])((name, arrays[name]) for n, name in enumerate("abcd") if n in wanted)
    assert_same(unflatten(left, lambda number, _: arrays["abcd"[number]]), {"m": expected} if wanted else {})


LONG = 10**5000


@pytest.mark.parametrize("number", [2**53, 2**53 + 1, -(2**64), 2**8191, -(2**8191) + 1, LONG, -LONG], ids=range(7))
def test_numbers_of_any_size_come_back(number: int) -> None:
    assert_same(round_trip({"n": number}), {"n": number})


@pytest.mark.parametrize("crew", [Crew(), Crew(0, 2), Crew(1, 2, {"m/a"}), Crew(1, 2)], ids=str)
@pytest.mark.parametrize("mark", [lambda value: value, PerRank, Replicated])
def test_a_dict_of_arrays_is_shared_out_as_they_are_one_by_one(crew: Crew, mark: Any) -> None:
    arrays = {"a": np.ones(3), "b": np.ones(2)}
    at_once = flatten({"m": mark(arrays)}, crew=crew).leaves
    one_by_one = flatten({"m": mark({**arrays, "number": 1})}, crew=crew).leaves
    assert [(leaf.name, outlines(leaf)) for leaf in at_once] == [(leaf.name, outlines(leaf)) for leaf in one_by_one]


def outlines(leaf: Leaf) -> list[Any] | None:
    return None if leaf.shares is None else [(share.at, share.described) for share in leaf.shares]
