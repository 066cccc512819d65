"""The bytes of arrays as the state has them: each for itself, also where several are stored as views of one."""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from strata.checkpoint.assembling import Outline, Stretch
from strata.checkpoint.dtypes import dtype_of
from strata.checkpoint.frameworks import Block
from strata.checkpoint.frameworks.base import dense_strides, span
from strata.checkpoint.loading import names_of
from strata.checkpoint.manifest import Tied
from strata.checkpoint.soundness import check_expanded, size_of
from strata.checkpoint.store import Store
from strata.checkpoint.supplying import PartSupply, outline_of
from strata.checkpoint.whole import Whole


class Leaf(NamedTuple):
    """An array of a part: which tensor it is, or from which byte on and how it lies in it."""

    name: str
    number: int
    tensor: int
    dtype: str
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...] | None
    """None if its elements lie one after the other."""
    is_tied: bool
    """Whether it is a second name for the whole of a tensor."""
    is_view: bool
    """Whether it lies in a tensor with others."""

    @property
    def span(self) -> tuple[int, int]:
        """From where to where in the tensor its elements lie."""
        if self.strides is None or not self.size:
            return self.offset, self.offset + self.size
        low, high = span(self.shape, self.strides, dtype_of(self.dtype).bytes)
        return self.offset + low, self.offset + high

    @property
    def size(self) -> int:
        return dtype_of(self.dtype).bytes * prod(self.shape)

    @property
    def outline(self) -> Outline:
        return Outline(self.name, self.dtype, self.shape, self.size)


def leaves_of(part: Whole) -> list[Leaf]:
    """All of them, by their numbers."""
    return [
        _leaf(part, number, name, each)
        for number, (name, each) in enumerate(zip(names_of(part), part.leaves, strict=True))
    ]


def _leaf(part: Whole, number: int, name: str, leaf: int | Tied) -> Leaf:
    if not isinstance(leaf, Tied) or leaf.offset is None:
        tensor = leaf.tensor if isinstance(leaf, Tied) else leaf
        told = part.tensors[tensor] if tensor in part.boxes else outline_of(part.tensors[tensor])
        return Leaf(name, number, tensor, told.dtype, told.shape, 0, None, isinstance(leaf, Tied), False)
    is_dense = leaf.strides == dense_strides(leaf.shape, dtype_of(leaf.dtype).bytes)
    strides = None if is_dense else leaf.strides
    return Leaf(name, number, leaf.tensor, leaf.dtype, leaf.shape, leaf.offset, strides, False, True)


def check_leaf(part: Whole, leaf: Leaf) -> None:
    """InvalidInput for one that cannot be written out."""
    check_expanded(leaf.name, leaf.size, size_of(part.tensors[leaf.tensor]))


class LeafSupply:
    """Of some leaves, numbered as they are given. Memory for one that has gaps, and none for others."""

    def __init__(self, store: Store, part: Whole, leaves: Sequence[Leaf]) -> None:
        self._part, self._leaves = part, leaves
        self._supply = PartSupply(store, part)
        self._gathered: tuple[int, Block] | None = None

    async def __call__(self, stretches: Sequence[Stretch]) -> None:
        direct = []
        for stretch in stretches:
            leaf = self._leaves[stretch.tensor]
            if leaf.strides is None and leaf.tensor not in self._part.boxes:
                direct.append(Stretch(leaf.tensor, leaf.offset + stretch.start, stretch.target))
            else:
                whole = await self._gather(stretch.tensor)
                stretch.target[:] = whole[stretch.start : stretch.start + len(stretch.target)]
        await self._supply(direct)

    async def whole(self, number: int) -> Block:
        """All bytes of one."""
        check_leaf(self._part, self._leaves[number])
        target = np.empty(self._leaves[number].size, np.uint8)
        await self([Stretch(number, 0, target)] if len(target) else [])
        return target

    async def _gather(self, number: int) -> Block:
        if self._gathered is not None and self._gathered[0] == number:
            return self._gathered[1]
        leaf, item = self._leaves[number], dtype_of(self._leaves[number].dtype).bytes
        check_leaf(self._part, leaf)
        if leaf.strides is None:
            made = await self._supply.put_together(leaf.tensor)
            self._gathered = (number, made)
            return made
        first, last = leaf.span
        block = np.empty(last - first, np.uint8)
        await self._supply([Stretch(leaf.tensor, first, block)])
        raw = np.ndarray(
            (*leaf.shape, item), np.uint8, buffer=block, offset=leaf.offset - first, strides=(*leaf.strides, 1)
        )
        made = np.ascontiguousarray(raw).reshape(-1)
        self._gathered = (number, made)
        return made
