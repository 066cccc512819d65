"""A part of a tensor, by what numpy takes between brackets."""

from typing import Any, TypeAlias

from strata.checkpoint.boxes import Box
from strata.errors import InvalidInput

Index: TypeAlias = Any
"""What numpy takes between brackets: integers, slices with steps of 1 or more, and an ellipsis."""


def box_of(shape: tuple[int, ...], index: Index) -> Box:
    """What must be read for this index; InvalidInput for one that the shape does not have."""
    ranges = [_range(length, each) for length, each in zip(shape, _full(shape, index), strict=True)]
    return Box(tuple([start for start, _ in ranges]), tuple([stop - start for start, stop in ranges]))


def inside(shape: tuple[int, ...], index: Index) -> tuple[Any, ...]:
    """The same index in an array that is that box."""
    full = _full(shape, index)
    return tuple([slice(None, None, each.step) if isinstance(each, slice) else 0 for each in full])


def _full(shape: tuple[int, ...], index: Index) -> list[Any]:
    """One for each dimension."""
    given = list(index) if isinstance(index, tuple) else [index]
    if sum(each is Ellipsis for each in given) > 1:
        raise InvalidInput("an index has at most one ellipsis")
    if Ellipsis in given:
        at = given.index(Ellipsis)
        given[at : at + 1] = [slice(None)] * (len(shape) - len(given) + 1)
    if len(given) > len(shape):
        raise InvalidInput(f"a tensor of shape {list(shape)} has no {len(given)} dimensions to be indexed")
    return given + [slice(None)] * (len(shape) - len(given))


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


def with_bytes(index: Index) -> tuple[Any, ...]:
    """The same index into an array that has one dimension more, its elements' bytes, all of which are wanted."""
    given = index if isinstance(index, tuple) else (index,)
    return (*given, slice(None)) if Ellipsis in given else (*given, Ellipsis)
