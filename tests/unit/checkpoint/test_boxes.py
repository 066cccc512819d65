"""Boxes: every element of an array is where it belongs, however it is cut."""

from itertools import pairwise
from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint.boxes import Box, cover, is_stretch, offset, place, slabs, stretch

SHAPES = st.lists(st.integers(1, 5), max_size=4).map(tuple)


@st.composite
def boxes_in(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    at = tuple(draw(st.integers(0, length)) for length in shape)
    return Box(at, tuple(draw(st.integers(0, length - start)) for start, length in zip(at, shape, strict=True)))


def numbered(shape: tuple[int, ...]) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
    return np.arange(prod(shape)).reshape(shape)


@given(st.data())
def test_a_stretch_is_boxes_in_its_order(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    first = data.draw(st.integers(0, prod(shape)))
    last = data.draw(st.integers(first, prod(shape)))
    found = [numbered(shape)[box.within(Box.whole(shape))].reshape(-1) for box in stretch(shape, first, last)]
    assert [int(each) for some in found for each in some] == list(range(first, last))
    assert len(found) <= max(1, 2 * len(shape) - 1)


@given(st.data(), st.integers(1, 30))
def test_slabs_are_all_of_a_box_each_in_one(data: st.DataObject, most: int) -> None:
    shape = data.draw(SHAPES)
    box = data.draw(boxes_in(shape))
    found = list(slabs(box, most))
    held = numbered(shape)[box.within(Box.whole(shape))]
    elements = [held[slab.within(box)].reshape(-1).tolist() for slab in found]
    assert [each for some in elements for each in some] == held.reshape(-1).tolist()
    assert all(len(some) <= most for some in elements)
    assert all(is_stretch(slab.moved(tuple(-at for at in box.at)), box.shape) for slab in found)


@given(st.data())
def test_any_box_is_put_together_from_any_pieces(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    whole = numbered(shape)
    wanted = data.draw(boxes_in(shape))
    target = np.full(wanted.shape, -1)
    cuts = [sorted({0, length, *data.draw(st.lists(st.integers(0, length), max_size=3))}) for length in shape]
    pieces = [Box((), ())]
    for edges in cuts:
        pieces = [Box((*box.at, at), (*box.shape, end - at)) for box in pieces for at, end in pairwise(edges)]
    assert cover(shape, pieces)
    assert not cover(shape, pieces[1:])
    assert not cover(shape, [*pieces, pieces[0]])
    step = data.draw(st.integers(1, 7))
    for piece in pieces:
        elements = whole[piece.within(Box.whole(shape))].reshape(-1)
        for first in range(0, len(elements), step):
            place(target, wanted, piece, first, elements[first : first + step])
    assert np.array_equal(target, whole[wanted.within(Box.whole(shape))])


@given(st.data())
def test_what_two_boxes_share(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    one, two = data.draw(boxes_in(shape)), data.draw(boxes_in(shape))
    whole = numbered(shape)
    both = one.meet(two)
    shared = set(whole[one.within(Box.whole(shape))].reshape(-1)) & set(whole[two.within(Box.whole(shape))].reshape(-1))
    assert shared == (set() if both is None else set(whole[both.within(Box.whole(shape))].reshape(-1)))


@given(st.data())
def test_whether_a_box_is_one_stretch(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    box = data.draw(boxes_in(shape).filter(lambda each: each.size > 0))
    numbers = numbered(shape)[box.within(Box.whole(shape))].reshape(-1)
    assert is_stretch(box, shape) == (numbers[-1] - numbers[0] + 1 == len(numbers))
    assert offset(box, shape) == numbers[0]


def test_gaps_and_overlaps_of_the_same_size_are_no_cover() -> None:
    half = Box((0, 0), (2, 2))
    assert cover((4, 2), [half, Box((2, 0), (2, 2))])
    assert not cover((4, 2), [half, half])
    assert not cover((4, 2), [half, Box((1, 0), (2, 2))])
    assert not cover((4, 2), [half, Box((3, 0), (2, 2))])
    assert not cover((4, 2), [half, Box((2, 0, 0), (2, 2, 1))])
    assert cover((), [Box((), ())])
    assert cover((0, 3), [])
    assert cover((3,), [Box((0,), (0,)), Box((0,), (3,)), Box((3,), (0,))])


def test_more_cells_than_any_mesh_has_are_refused() -> None:
    side = 5000
    cross = [Box((n, n), (1, 1)) for n in range(side)]
    assert not cover((side, side), [*cross, Box((0, 0), (side, side - 1))])
