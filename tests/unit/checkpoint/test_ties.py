"""Arrays that share memory, found from where they lie."""

import numpy as np
import torch

from strata.checkpoint.marks import Replicated
from strata.checkpoint.shares import Crew
from strata.checkpoint.ties import apart, tie, untied
from strata.checkpoint.tree import flatten


def test_the_same_array_is_stored_once() -> None:
    tensor, array = torch.ones(4, 3), np.ones(5)
    stored, tied = tie(flatten([tensor, array, tensor, tensor.detach(), array]).leaves)
    assert [each.name for each in stored] == ["0", "1"]
    assert [each.stored for each in tied] == [0, 1, 0, 0, 1]
    assert all(each.layout is None for each in tied)


def test_neighbours_are_not_tied() -> None:
    flat = torch.arange(10.0)
    stored, tied = tie(flatten([flat[:5], flat[5:]]).leaves)
    assert len(stored) == 2
    assert all(each.layout is None for each in tied)


def test_slices_of_a_buffer_are_stored_with_it() -> None:
    flat = torch.arange(10.0)
    stored, tied = tie(flatten([flat[2:4], flat, flat[::2], flat[5]]).leaves)
    assert [(each.name, each.dtype, each.shape) for each in stored] == [("1", "float32", (10,))]
    assert tied[1].layout is None
    assert [each.layout.offset for each in tied if each.layout] == [8, 0, 20]


def test_a_transpose_is_its_matrix_seen_otherwise() -> None:
    matrix = torch.arange(6).reshape(2, 3)
    stored, tied = tie(flatten([matrix.t(), matrix]).leaves)
    assert [(each.dtype, each.shape) for each in stored] == [("int64", (2, 3))]
    assert tied[0].layout is not None
    assert tied[0].layout.strides == (8, 24)


def test_arrays_that_overlap_without_a_whole_are_stored_as_bytes() -> None:
    flat = np.arange(10, dtype=np.int16)
    stored, tied = tie(flatten([flat[1:6], flat[4:9], flat[8:0:-2]]).leaves)
    assert [(each.dtype, each.size) for each in stored] == [("uint8", 16)]
    assert stored[0].shared is not None
    assert stored[0].shared.tobytes() == flat[1:9].tobytes()
    assert [each.layout.offset for each in tied if each.layout] == [0, 6, 14]


def test_a_few_elements_of_something_huge_do_not_bring_it_along() -> None:
    huge = np.zeros(1_000_000, np.uint8)
    stored, _ = tie(flatten([huge[::500_000], huge[1::499_999]]).leaves)
    assert sum(each.size for each in stored) < 10


def test_empty_arrays_share_nothing() -> None:
    stored, _ = tie(flatten([torch.empty(0), torch.empty(0), np.empty((0, 3))]).leaves)
    assert len(stored) == 3


def test_arrays_that_are_apart_are_stored_as_tie_would_have_it() -> None:
    leaves = flatten(
        {"a": np.ones(3), "b": {"c": torch.ones(2, 2), "d": np.empty((0, 3))}, "e": np.ones((4, 4)).T}
    ).leaves
    stored, tied = tie(leaves)
    assert apart(leaves)
    assert untied(leaves) == stored
    assert [each.stored for each in tied] == [0, 1, 2, 3]
    assert all(each.layout is None and each.shares is None for each in tied)


def test_shares_are_never_taken_for_whole_arrays() -> None:
    states = [{"w": np.ones(3)}, {"w": Replicated(np.ones(3))}]
    crew = Crew(1, 2, {"w"})
    assert [untied(flatten(state, crew=crew).leaves) for state in states] == [None, None]
