"""One state, put together from the parts of all ranks."""

import math
from typing import Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManagerConfig
from strata.checkpoint.manifest import BYTES, FORMAT, TREE, Chunk, File, Part, Tensor
from strata.checkpoint.marks import Replicated
from strata.checkpoint.tree import flatten, unflatten
from strata.checkpoint.whole import whole_of
from strata.errors import CheckpointDamaged
from strata.storage import MemoryStorage
from tests.unit.checkpoint.crews import Crew
from tests.unit.checkpoint.states import assert_same


def joined(*states: Any, rank: int = 0) -> Any:
    """Of states that have no arrays."""
    parts = [
        Part(FORMAT, number, "a", TREE, flatten(state).skeleton, [], [], []) for number, state in enumerate(states)
    ]
    return unflatten(whole_of(parts, rank, "here").skeleton, lambda number, package: None)


def test_keys_that_are_written_alike_stay_apart() -> None:
    big = 2**60
    state = {
        math.nan: 1,
        "nan": 2,
        math.inf: 3,
        "inf": 4,
        big: 5,
        str(big): 6,
        (big,): 7,
        (str(big),): 8,
        0: 9,
        "0": 10,
    }
    found = joined(state, state)
    assert [(type(key), repr(key), value) for key, value in found.items()] == [
        (type(key), repr(key), value) for key, value in state.items()
    ]


def test_keys_of_all_ranks_are_there_and_the_lowest_rank_has_the_say() -> None:
    found = joined({(1, False): "a", -0.0: "b"}, {(1, False): "c", 0.0: "d", (1, "False"): "e"})
    assert found == {(1, False): "a", -0.0: "b", (1, "False"): "e"}


def test_lists_and_tuples_of_one_length_are_joined_and_others_are_the_lowest_ranks() -> None:
    found = joined(
        {"l": [{"a": 1}, 2], "t": ({"a": 1}, 2), "n": [1]}, {"l": [{"b": 3}, 4], "t": ({"b": 3}, 4), "n": [5, 6]}
    )
    assert found == {"l": [{"a": 1, "b": 3}, 2], "t": ({"a": 1, "b": 3}, 2), "n": [1]}


def test_bytes_are_the_ranks_own_or_the_first_ranks() -> None:
    def part(rank: int) -> Part:
        path, digest = f"step_1/model-{rank}.bin", "xxh3-128:0"
        tensor = Tensor("", "uint8", (1,), [Chunk(0, 0, 1, digest)])
        return Part(FORMAT, rank, "a", BYTES, None, [0], [tensor], [File(path, 1)])

    parts = [part(0), part(1)]
    assert [whole_of(parts, rank, "here").files for rank in range(3)] == [parts[n].files for n in (0, 1, 0)]


ALIKE: list[tuple[Any, Any]] = [("nan", math.nan), ("0", 0), (True, "True"), ((1,), "(1,)"), (0, 0.5)]


@pytest.mark.parametrize(("one", "other"), ALIKE[:-1], ids=repr)
def test_arrays_under_keys_that_are_written_alike_are_refused(one: Any, other: Any) -> None:
    """Else one of them would stand under both keys, and the other nowhere."""
    with (
        Crew(MemoryStorage(), 2, config=CheckpointManagerConfig(ranks_seconds=5)) as crew,
        pytest.raises(CheckpointDamaged, match=r"what rank 1 calls 'd/.*' is something else on ranks before it"),
    ):
        crew.save([{"d": {one: np.zeros(3)}}, {"d": {other: np.ones(3)}}], 1)


def test_arrays_under_keys_that_are_not_are_all_there() -> None:
    one, other = ALIKE[-1]
    with Crew(MemoryStorage(), 2) as crew:
        crew.save([{"d": {one: np.zeros(3)}}, {"d": {other: np.ones(3)}}], 1)
        assert_same(crew.managers[0].load(), {"d": {one: np.zeros(3), other: np.ones(3)}})


def test_both_keys_on_one_rank_and_one_of_them_on_another() -> None:
    """Who has both calls one of them by another name; who has one does not know of it."""
    states = [{"d": {"0": Replicated(np.zeros(3)), 0: Replicated(np.ones(3))}}, {"d": {0: Replicated(np.ones(3))}}]
    with (
        Crew(MemoryStorage(), 2, config=CheckpointManagerConfig(ranks_seconds=5)) as crew,
        pytest.raises(CheckpointDamaged, match="'d/0' is something else on ranks before it"),
    ):
        crew.save(states, 1)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_key_is_no_position(swapped: bool) -> None:
    states: list[Any] = [{"d": [np.zeros(3)]}, {"d": {"0": np.ones(3)}}]
    with (
        Crew(MemoryStorage(), 2, config=CheckpointManagerConfig(ranks_seconds=5)) as crew,
        pytest.raises(CheckpointDamaged, match="'d/0' of rank 1 has no place beside"),
    ):
        crew.save(states[::-1] if swapped else states, 1)
