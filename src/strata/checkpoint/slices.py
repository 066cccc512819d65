"""A part of a tensor, read without the rest.

The whole tensor has its place in the address space, and only chunks that hold a part of what is wanted are ever read
into it: what is not touched takes no memory.
"""

import mmap
from typing import Any, TypeAlias

import numpy as np

from strata.checkpoint.frameworks import Block
from strata.checkpoint.manifest import CHUNK_BYTES
from strata.errors import InvalidInput

Index: TypeAlias = Any
"""What numpy takes between brackets: integers, slices with steps of 1 or more, and an ellipsis."""
Box: TypeAlias = list[tuple[int, int]]
"""From where to where, in each dimension."""


def box_of(shape: tuple[int, ...], index: Index) -> Box:
    """What must be read for this index; InvalidInput for one that the shape does not have."""
    given = list(index) if isinstance(index, tuple) else [index]
    if sum(each is Ellipsis for each in given) > 1:
        raise InvalidInput("an index has at most one ellipsis")
    if Ellipsis in given:
        at = given.index(Ellipsis)
        given[at : at + 1] = [slice(None)] * (len(shape) - len(given) + 1)
    if len(given) > len(shape):
        raise InvalidInput(f"a tensor of shape {list(shape)} has no {len(given)} dimensions to be indexed")
    given += [slice(None)] * (len(shape) - len(given))
    return [_range(length, each) for length, each in zip(shape, given, strict=True)]


def _range(length: int, each: Any) -> tuple[int, int]:
    if isinstance(each, slice):
        start, stop, step = each.indices(length)
        if step < 0:
            raise InvalidInput("slices of a checkpoint go forwards: turn them round once they are loaded")
        return start, max(start, stop)
    if isinstance(each, bool) or not hasattr(each, "__index__"):
        raise InvalidInput(f"an index is made of integers, slices and an ellipsis, not {each!r}")
    place = each.__index__()
    if not -length <= place < length:
        raise InvalidInput(f"index {place} is out of range: the dimension has {length}")
    place %= length
    return place, place + 1


def chunks_for(shape: tuple[int, ...], item: int, box: Box) -> list[int]:
    """The chunks that hold any element of the box, by number."""
    if any(stop <= start for start, stop in box):
        return []
    inner = len(shape)
    while inner and box[inner - 1] == (0, shape[inner - 1]):  # whole rows lie side by side
        inner -= 1
    steps = [item]
    for length in reversed(shape[1:]):
        steps.insert(0, steps[0] * length)
    if not inner:
        size = steps[0] * shape[0] if shape else item
        return list(range(-(-size // CHUNK_BYTES)))
    starts = np.array([box[inner - 1][0] * steps[inner - 1]], np.int64)
    for dimension in range(inner - 1):
        places = np.arange(*box[dimension], dtype=np.int64) * steps[dimension]
        starts = (starts[:, None] + places[None, :]).reshape(-1)
    length = (box[inner - 1][1] - box[inner - 1][0]) * steps[inner - 1]
    first, last = starts // CHUNK_BYTES, (starts + length - 1) // CHUNK_BYTES
    wanted = np.zeros(int(last.max()) + 2, np.int64)
    np.add.at(wanted, first, 1)
    np.add.at(wanted, last + 1, -1)
    return [int(number) for number in np.flatnonzero(np.cumsum(wanted))]


def with_bytes(index: Index) -> tuple[Any, ...]:
    """The same index into an array that has one dimension more, its elements' bytes, all of which are wanted."""
    given = index if isinstance(index, tuple) else (index,)
    return (*given, slice(None)) if Ellipsis in given else (*given, Ellipsis)


def sparse_memory(size: int) -> Block:
    """As much of the address space, of which only what is written to becomes memory."""
    if not size:
        return np.empty(0, np.uint8)
    if not hasattr(mmap, "MAP_NORESERVE"):
        return np.empty(size, np.uint8)
    return np.frombuffer(
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_NORESERVE), np.uint8
    )
