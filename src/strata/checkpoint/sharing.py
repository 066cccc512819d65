"""Arrays that share memory where they are loaded into: whether what they get there can be one.

The law: two arrays that share an element are both filled only if the checkpoint has the same bytes for it. So it has if
they lie in one tensor in the same way. Save does not tie all that share memory (see `ties`), so where they do not, the
bytes themselves are compared, and nothing is filled before.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from strata.checkpoint.dtypes import dtype_of
from strata.checkpoint.frameworks import Block, Layout
from strata.checkpoint.ties import layout_of
from strata.checkpoint.tree import Leaf

MOST_WORK = 100_000
"""Of numpy's search for an element that two share. What is harder to find out is taken for shared."""


class Target(NamedTuple):
    """An array that is to be filled, where it lies, and as what: some tensor, in which it lies so."""

    leaf: Leaf
    tensor: int
    there: Layout

    @property
    def here(self) -> Layout:
        return layout_of(self.leaf, 0)


class Clash(NamedTuple):
    """Two targets, by number, that share memory and are not laid out alike in the checkpoint."""

    first: int
    second: int
    is_same: bool
    """Whether they are one array here, under two names."""


def clashes(targets: Sequence[Target]) -> Iterator[Clash]:
    """Those that have no memory of their own to tell are left out."""
    placed = [number for number, each in enumerate(targets) if each.leaf.described.start]
    layouts = {number: targets[number].here for number in placed}
    origins = {number: _origin(targets[number], layouts[number]) for number in placed}
    before: list[int] = []
    for number in sorted(placed, key=lambda each: _bounds(targets[each])):
        start = _bounds(targets[number])[0]
        before = [each for each in before if _bounds(targets[each])[1] > start]
        for each in before:
            if origins[each] != origins[number] and _share(layouts[each], layouts[number]):
                yield Clash(each, number, _normal(layouts[each]) == _normal(layouts[number]))
        before.append(number)


def agree(targets: Sequence[Target], elements: Sequence[Block]) -> list[bool]:
    """Of each, whether it holds its elements once all have got theirs."""
    found = [False] * len(targets)
    for group in _neighbours(targets):
        told = _tried([targets[number] for number in group], [elements[number] for number in group])
        for number, holds in zip(group, told, strict=True):
            found[number] = holds
    return found


def _neighbours(targets: Sequence[Target]) -> list[list[int]]:
    """Those whose memory reaches into one another's: between others may lie all that a machine can address."""
    groups: list[list[int]] = []
    reach = 0
    for number in sorted(range(len(targets)), key=lambda each: _bounds(targets[each])):
        start, end = _bounds(targets[number])
        if not groups or start >= reach:
            groups.append([])
        groups[-1].append(number)
        reach = max(reach, end)
    return groups


def _tried(targets: Sequence[Target], elements: Sequence[Block]) -> list[bool]:
    """In memory of its own, of which only what is written to is taken."""
    start = min(_bounds(each)[0] for each in targets)
    scratch = np.zeros(max(_bounds(each)[1] for each in targets) - start, np.uint8)
    views = [_view(layout_of(each.leaf, start), scratch) for each in targets]
    for view, wanted in zip(views, elements, strict=True):
        view[...] = wanted
    return [np.array_equal(view, wanted) for view, wanted in zip(views, elements, strict=True)]


def _origin(target: Target, here: Layout) -> Any:
    """The same for those that get the same bytes in the same places."""
    there = _normal(target.there)
    if there.strides == _normal(here).strides:
        return target.tensor, here.offset - there.offset
    return target.tensor, there, _normal(here)


def _normal(layout: Layout) -> Layout:
    """Without the strides that lead nowhere: those of one element."""
    strides = (step if length > 1 else 0 for step, length in zip(layout.strides, layout.shape, strict=True))
    return layout._replace(strides=tuple(strides))


def _bounds(target: Target) -> tuple[int, int]:
    described = target.leaf.described
    return described.start, described.end


def _share(one: Layout, other: Layout) -> bool:
    try:
        return np.shares_memory(_Ghost(one).array, _Ghost(other).array, max_work=MOST_WORK)  # type: ignore[arg-type]  # the stubs know no other
    except np.exceptions.TooHardError:
        return True


class _Ghost:
    """To be compared by its addresses, which may be a device's: nobody may look at its elements."""

    def __init__(self, layout: Layout) -> None:
        steps = [(length, step) for length, step in zip(layout.shape, layout.strides, strict=True) if step]
        self.__array_interface__ = {
            "shape": tuple(length for length, _ in steps),
            "strides": tuple(step for _, step in steps),
            "typestr": f"|V{dtype_of(layout.dtype).bytes}",
            "data": (layout.offset, True),
            "version": 3,
        }

    @property
    def array(self) -> "np.ndarray[Any, Any]":
        return np.asarray(self)


def _view(layout: Layout, memory: Block) -> Block:
    item = dtype_of(layout.dtype).bytes
    return np.ndarray((*layout.shape, item), np.uint8, memory, layout.offset, (*layout.strides, 1))
