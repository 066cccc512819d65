"""Parts of an array as boxes: where each begins, and how long it is in each dimension.

An array that many ranks hold lies in the storage in pieces, and each is a box of it. So is what a rank wants of it when
it loads. What is read are stretches of a piece, in the order of C; each is a few boxes of its own.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

CELLS_EACH, CELLS_LEAST = 64, 1 << 16
"""Pieces of arrays lie in a grid, or nearly so: one that has more cells than so many for each piece, and than the
second, is none that was ever saved."""


class Box(NamedTuple):
    """Some elements of an array."""

    at: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> "Box":
        return cls((0,) * len(shape), shape)

    @property
    def size(self) -> int:
        """How many."""
        return prod(self.shape)

    def lies_in(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape has all of them."""
        if len(self.at) != len(shape) or len(self.shape) != len(shape):
            return False
        return all(0 <= at <= at + own <= length for at, own, length in zip(self.at, self.shape, shape, strict=True))

    def meet(self, other: "Box") -> "Box | None":
        """What is in both; None if nothing is."""
        starts = tuple([max(one, two) for one, two in zip(self.at, other.at, strict=True)])
        ends = [min(one, two) for one, two in zip(self.ends, other.ends, strict=True)]
        shape = tuple([end - start for start, end in zip(starts, ends, strict=True)])
        return Box(starts, shape) if min(shape, default=1) > 0 else None

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple([at + length for at, length in zip(self.at, self.shape, strict=True)])

    def within(self, outer: "Box") -> tuple[slice, ...]:
        """The index of these elements in an array that holds the outer box."""
        return tuple(
            [
                slice(at - base, at - base + length)
                for at, base, length in zip(self.at, outer.at, self.shape, strict=True)
            ]
        )

    def moved(self, by: tuple[int, ...]) -> "Box":
        return Box(tuple([at + step for at, step in zip(self.at, by, strict=True)]), self.shape)


def stretch(shape: tuple[int, ...], first: int, last: int) -> Iterator[Box]:
    """The elements from the first to before the last, in the order of C: the end of a row, whole rows, and the
    beginning of another."""
    if first >= last:
        return
    if len(shape) <= 1:
        yield Box((first,), (last - first,)) if shape else Box((), ())
        return
    row = prod(shape[1:])
    number, within = divmod(first, row)
    if within:
        some = min(row - within, last - first)
        yield from _in_row(number, stretch(shape[1:], within, within + some))
        number, first = number + 1, first + some
    count, rest = divmod(max(0, last - first), row)
    if count:
        yield Box((number, *(0 for _ in shape[1:])), (count, *shape[1:]))
    yield from _in_row(number + count, stretch(shape[1:], 0, rest))


def _in_row(number: int, boxes: Iterator[Box]) -> Iterator[Box]:
    for box in boxes:
        yield Box((number, *box.at), (1, *box.shape))


def slabs(box: Box, most: int) -> Iterator[Box]:
    """A box in boxes of at most so many elements, in order. In memory that holds it each of them lies in one."""
    if box.size <= most:
        yield box
        return
    row = Box(box.at[1:], box.shape[1:])
    rows = max(1, most // row.size)
    for start in range(0, box.shape[0], rows):
        at, count = box.at[0] + start, min(rows, box.shape[0] - start)
        for inner in [row] if row.size <= most else slabs(row, most):
            yield Box((at, *inner.at), (count, *inner.shape))


def place(target: NDArray[Any], wanted: Box, piece: Box, first: int, elements: NDArray[Any]) -> None:
    """Put what is wanted of a stretch of a piece where it belongs: `elements` are those from its `first` on."""
    done = 0
    for box in stretch(piece.shape, first, first + len(elements)):
        there = box.moved(piece.at)
        both = there.meet(wanted)
        if both is not None:
            found = elements[done : done + box.size].reshape(box.shape)
            target[both.within(wanted)] = found[both.within(there)]
        done += box.size


def is_stretch(box: Box, shape: tuple[int, ...]) -> bool:
    """Whether these elements of an array lie one after the other."""
    long = [place for place, length in enumerate(box.shape) if length > 1]
    inner = long[0] + 1 if long else len(shape)
    return box.shape[inner:] == shape[inner:]


def offset(box: Box, shape: tuple[int, ...]) -> int:
    """How many elements of an array come before the first of the box."""
    found = 0
    for at, length in zip(box.at, shape, strict=True):
        found = found * length + at
    return found


def cover(shape: tuple[int, ...], boxes: Sequence[Box]) -> bool:
    """Whether each element of an array is in exactly one of these."""
    own = [box for box in boxes if box.size]
    if not all(box.lies_in(shape) for box in own) or sum(box.size for box in own) != prod(shape):
        return False
    if all(is_stretch(box, shape) for box in own):
        return _follow(sorted([(offset(box, shape), box.size) for box in own]))
    cuts = [sorted({0, *(box.at[d] for box in own), *(box.ends[d] for box in own)}) for d in range(len(shape))]
    counts = tuple([len(each) - 1 for each in cuts])
    if prod(counts) > max(CELLS_LEAST, CELLS_EACH * len(own)):
        return False
    places = [{at: number for number, at in enumerate(each)} for each in cuts]
    cells = np.zeros(counts, np.bool_)
    for box in own:
        index = tuple([slice(place[at], place[end]) for place, at, end in zip(places, box.at, box.ends, strict=True)])
        if cells[index].any():
            return False
        cells[index] = True
    return True  # as many elements as there are, and none twice


def _follow(stretches: Sequence[tuple[int, int]]) -> bool:
    """Whether each begins where the one before ends."""
    end = 0
    for start, size in stretches:
        if start != end:
            return False
        end = start + size
    return True
