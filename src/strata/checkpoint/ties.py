"""Arrays that share memory: stored once, and tied again when they are loaded.

Two arrays over the very same elements are one tensor under two names. Arrays that overlap in part, such as a buffer
and slices of it, are stored as the bytes they cover together, and each is a view of those.
"""

import ctypes
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.checkpoint.dtypes import dtype_of
from strata.checkpoint.frameworks import Block, Described, Layout
from strata.checkpoint.frameworks.base import dense_strides
from strata.checkpoint.tree import Leaf

SHIFT = 64
_SHARES = attrgetter("shares")
SPARSE = 4
"""Arrays that take less than this part of the bytes they span are stored one by one, and not tied."""


class Stored(msgspec.Struct, frozen=True, gc=False):
    """What is written under one name: an array, or bytes in which several lie."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    leaf: int
    """The array itself; of several, the first."""
    shared: Block | None = None
    """The memory in which several lie."""
    shift: int = 0
    """How far that is from a multiple of SHIFT: kept, so that elements stay aligned."""
    share: int = 0
    at: tuple[int, ...] | None = None
    """Of an array that other ranks hold, too: which of this rank's shares it is, and where that begins."""


class Tied(msgspec.Struct, frozen=True, gc=False):
    """Which of the stored a leaf is; with a layout if it lies in it with others."""

    stored: int
    layout: Layout | None = None
    shares: list[int] | None = None
    """Of an array that other ranks hold, too: which of the stored are pieces of it."""


def apart(leaves: Sequence[Leaf]) -> bool:
    """Whether no two of these share memory, nor are the same array. True of most states, and soon found out."""
    described = [leaf.described for leaf in leaves]
    if any(map(_SHARES, leaves)):
        described += [share.described for leaf in leaves for share in leaf.shares or ()]
    starts, ends = _bounds(described)
    elsewhere: list[int] = []
    if not starts.all():
        elsewhere = [id(leaf.value) for leaf in leaves if not leaf.described.start]
        starts, ends = starts[starts > 0], ends[starts > 0]
    order = np.argsort(starts, kind="stable")
    return len(set(elsewhere)) == len(elsewhere) and bool((starts[order][1:] >= ends[order][:-1]).all())


def untied(leaves: Sequence[Leaf]) -> list[Stored] | None:
    """What to store of those that are `apart`: each is one tensor. None if other ranks hold some of them, too."""
    if any(leaf.shares is not None for leaf in leaves):
        return None
    return [_alone(leaf, number) for number, leaf in enumerate(leaves)]


def tie(leaves: Sequence[Leaf]) -> tuple[list[Stored], list[Tied]]:
    """What to store of these, and which of that each of them is."""
    firsts = _firsts(leaves)
    clusters = _clusters(leaves, [number for number, first in enumerate(firsts) if first == number])
    stored: list[Stored] = []
    tied: list[Tied] = []
    of_cluster: dict[int, int] = {}
    of_first: dict[int, int] = {}
    for number, leaf in enumerate(leaves):
        first = firsts[number]
        cluster = clusters.get(first)
        if cluster is not None:
            if cluster.start not in of_cluster:
                of_cluster[cluster.start] = len(stored)
                stored.append(cluster.stored(leaves, number))
            tied.append(cluster.tied(of_cluster[cluster.start], leaf, first))
            continue
        if first not in of_first:
            of_first[first] = len(stored)
            stored += [_alone(leaf, number)] if leaf.shares is None else _shared(leaf, number)
        own = of_first[first]
        tied.append(Tied(own, None, None if leaf.shares is None else list(range(own, own + len(leaf.shares)))))
    return stored, tied


def _shared(leaf: Leaf, number: int) -> list[Stored]:
    """A name of its own for each piece: what comes after the first `%` is no escape, and no second key either."""
    return [
        Stored(
            f"{leaf.name}%p{place}" if place else leaf.name,
            share.described.dtype,
            share.described.shape,
            share.described.size,
            number,
            share=place,
            at=share.at,
        )
        for place, share in enumerate(leaf.shares or ())
    ]


def _alone(leaf: Leaf, number: int) -> Stored:
    described = leaf.described
    return Stored(leaf.name, described.dtype, described.shape, described.size, number)


def _firsts(leaves: Sequence[Leaf]) -> list[int]:
    """For each, the first one that is the same array, or lies in the same place in the same way."""
    seen: dict[Any, int] = {}
    found = []
    for number, leaf in enumerate(leaves):
        described = leaf.described
        same: Any = id(leaf.value)
        if leaf.shares:
            same = tuple([(share.at, _place(leaf, share.described)) for share in leaf.shares])
        elif described.start and leaf.shares is None:
            same = _place(leaf, described)
        found.append(seen.setdefault(same, number))
    return found


def _place(leaf: Leaf, described: Described) -> Any:
    """The same for those that lie in the same memory in the same way."""
    return (described.start or id(leaf.value), described.strides, described.dtype, described.shape)


class _Cluster(NamedTuple):
    """Bytes in which several lie. `whole` is the one that covers all of them without a gap, if there is one."""

    start: int
    end: int
    whole: int | None

    def stored(self, leaves: Sequence[Leaf], first: int) -> Stored:
        if self.whole is not None:
            return msgspec.structs.replace(_alone(leaves[self.whole], self.whole), shift=self.start % SHIFT)
        size = self.end - self.start
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.start))
        return Stored(leaves[first].name, "uint8", (size,), size, first, memory, self.start % SHIFT)

    def tied(self, stored: int, leaf: Leaf, number: int) -> Tied:
        return Tied(stored) if number == self.whole else Tied(stored, layout_of(leaf, self.start))


def layout_of(leaf: Leaf, start: int) -> Layout:
    """How an array lies in the memory that begins there."""
    described = leaf.described
    first, strides = described.start, described.strides
    if strides is None:
        strides = dense_strides(described.shape, dtype_of(described.dtype).bytes)
    for length, stride in zip(described.shape, strides, strict=True):
        if stride < 0:
            first -= (length - 1) * stride
    return Layout(described.dtype, described.shape, first - start, strides)


def _clusters(leaves: Sequence[Leaf], numbers: Sequence[int]) -> dict[int, _Cluster]:
    """Those that overlap another in part, each with the bytes that they cover together. Only in the host's memory."""
    placed = [n for n in numbers if leaves[n].described.start and not leaves[n].described.on_device]
    placed = [n for n in placed if leaves[n].shares is None]
    if len(placed) < 2:
        return {}
    starts, ends = _bounds([leaves[n].described for n in placed])
    order = np.argsort(starts, kind="stable")
    reach = np.maximum.accumulate(ends[order])
    begins = np.concatenate(([True], starts[order][1:] >= reach[:-1]))
    if begins.all():
        return {}
    group = np.cumsum(begins) - 1
    found: dict[int, _Cluster] = {}
    for each in np.flatnonzero(np.bincount(group) > 1):
        members = sorted(placed[int(member)] for member in order[group == each])
        start = min(leaves[n].described.start for n in members)
        end = max(leaves[n].described.end for n in members)
        if sum(leaves[n].described.size for n in members) * SPARSE < end - start:
            continue
        whole = (n for n in members if leaves[n].described.is_dense and leaves[n].described.size == end - start)
        cluster = _Cluster(start, end, next(whole, None))
        found.update(dict.fromkeys(members, cluster))
    return found


def _bounds(placed: Sequence[Described]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    starts = np.array([each.start for each in placed], np.uint64)
    return starts, starts + np.array([each.reach for each in placed], np.uint64)
