"""One state, put together from the parts of all ranks."""

import math
from typing import Any

from strata.checkpoint.manifest import BYTES, FORMAT, TREE, Chunk, File, Part, Tensor
from strata.checkpoint.tree import flatten, unflatten
from strata.checkpoint.whole import whole_of


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
