"""The arrays of a checkpoint: what each is, its bytes once they are read, and the array that is made of them.

A tensor is read once, however many arrays lie in it. Many small ones that lie side by side are read in one go, into one
piece of memory: a slab.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from strata.checkpoint import manifest
from strata.checkpoint.boxes import Box
from strata.checkpoint.dtypes import dtype_of
from strata.checkpoint.frameworks import Block, Framework, Layout, framework_named
from strata.checkpoint.gathering import memory_for, wishes_for
from strata.checkpoint.memory import Memory
from strata.checkpoint.reading import AnyWish, ChunkReader, Neighbours, Wish, cut
from strata.checkpoint.runs import Run, runs_of
from strata.checkpoint.soundness import check_expanded, size_of
from strata.checkpoint.store import Store
from strata.checkpoint.uncollected import uncollected
from strata.checkpoint.verifying import check_lengths
from strata.checkpoint.whole import Whole
from strata.errors import CheckpointDamaged, StrataError

NONSENSE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, StopIteration)
"""What putting a state together raises if its skeleton is none."""
WITH_VIEWS = ("numpy", "torch")
"""Whose arrays may share memory with others."""


class Slab(NamedTuple):
    """Small tensors that were read side by side, and the memory they lie in."""

    run: Run
    memory: Block


class StoredArrays:
    """Those of one checkpoint, by number; `where` is what to call it."""

    def __init__(self, store: Store, whole: Whole, progress: Callable[[int], None], where: str) -> None:
        self._store, self._whole, self._where = store, whole, where
        self.reader = ChunkReader(store, whole.files, progress)
        self._blocks: dict[int, Block] = {}
        self._slabs: dict[int, Slab] = {}
        self._made: defaultdict[str, dict[int, Any]] = defaultdict(dict)

    def tensor(self, number: int) -> int:
        """The number of the tensor that it is, or lies in."""
        leaf = self._whole.leaves[number]
        return leaf.tensor if isinstance(leaf, manifest.Tied) else leaf

    def is_view(self, number: int) -> bool:
        """Whether it lies in a tensor with others."""
        leaf = self._whole.leaves[number]
        return isinstance(leaf, manifest.Tied) and leaf.offset is not None

    def is_spread(self, number: int) -> bool:
        """Whether ranks held it together."""
        return self.tensor(number) in self._whole.spread

    def described(self, number: int) -> tuple[str, tuple[int, ...]]:
        """Its type and shape."""
        leaf = self._whole.leaves[number]
        if isinstance(leaf, manifest.Tied):
            if leaf.offset is not None:
                return leaf.dtype, leaf.shape
            leaf = leaf.tensor
        tensor = self._whole.tensors[leaf]
        return tensor.dtype, tensor.shape

    def digest(self, number: int) -> str:
        """Of its bytes, where they are one chunk; else nothing."""
        chunks = self._whole.tensors[self.tensor(number)].chunks
        return chunks[0].digest if len(chunks) == 1 and not self.is_view(number) else ""

    def stored_bytes(self, number: int) -> int:
        """Of the tensor; a view may have more of its own."""
        return size_of(self._whole.tensors[self.tensor(number)])

    def check_expanded(self, numbers: Iterable[int]) -> None:
        """InvalidInput if one of these is a view that cannot be written out."""
        for number in numbers:
            leaf = self._whole.leaves[number]
            if isinstance(leaf, manifest.Tied) and leaf.offset is not None:
                check_expanded(leaf.name, size_of(leaf), self.stored_bytes(number))

    def array(self, number: int, package: str) -> Any:
        """Made by this package, of what has been read: one for all that are the same tensor."""
        leaf, made = self._whole.leaves[number], self._made[package]
        if isinstance(leaf, manifest.Tied) and leaf.offset is not None:
            if package not in WITH_VIEWS:
                raise CheckpointDamaged(f"{self._where} says that {leaf.name!r} of {package} is a view, which has none")
            return self._view(leaf, leaf.tensor, framework_named(package))
        tensor = leaf.tensor if isinstance(leaf, manifest.Tied) else leaf
        known = made.get(tensor)
        if known is None:
            made.update(self._make(tensor, framework_named(package)))
            known = made[tensor]
        return known

    def _make(self, tensor: int, framework: Framework) -> Iterable[tuple[int, Any]]:
        """An array; with it those that lie side by side with it, which are made soonest together."""
        tensors, slab = self._whole.tensors, self._slabs.get(tensor)
        if slab is not None:
            numbers = slab.run.numbers
            made = framework.carve(slab.run.dtype, [tensors[number].shape for number in numbers], slab.memory)
            if made is not None:
                return zip(numbers, made, strict=True)
        told = tensors[tensor]
        return [(tensor, framework.make(told.dtype, told.shape, self.block(tensor)))]

    def block(self, tensor: int) -> Block:
        """The bytes of a tensor that has been read."""
        slab = self._slabs.get(tensor)
        if slab is None:
            return self._blocks[tensor]
        chunk = self._whole.tensors[tensor].chunks[0]
        at = chunk.at - slab.run.start
        return slab.memory[at : at + chunk.size]

    def _view(self, leaf: manifest.Tied, tensor: int, framework: Framework) -> Any:
        assert leaf.offset is not None
        return framework.view(Layout(leaf.dtype, leaf.shape, leaf.offset, leaf.strides), self.block(tensor))

    def dense(self, number: int) -> Block:
        """The elements of one array, in order and without gaps."""
        return np.ascontiguousarray(self.elements(number)).reshape(-1)

    def elements(self, number: int) -> Block:
        """As they lie: a view may have far more than there are bytes for."""
        leaf, block = self._whole.leaves[number], self.block(self.tensor(number))
        dtype, shape = self.described(number)
        item = dtype_of(dtype).bytes
        if not (isinstance(leaf, manifest.Tied) and leaf.offset is not None):
            return block.reshape((*shape, item))
        return np.ndarray((*shape, item), np.uint8, buffer=block, offset=leaf.offset, strides=(*leaf.strides, 1))

    async def check_lengths(self, tensors: Iterable[int]) -> None:
        """Of the files that hold these."""
        own, boxes = self._whole.tensors, self._whole.boxes
        files = {chunk.file for number in tensors for chunk in own[number].chunks}
        files |= {
            chunk.file for number in boxes.keys() & set(tensors) for each in boxes[number] for chunk in each.chunks
        }
        await check_lengths(self._store, [self._whole.files[number] for number in sorted(files)])

    @contextmanager
    def making_sense(self) -> Iterator[None]:
        """Putting a state together needs nothing but the manifest: what goes wrong here was never a state."""
        try:
            yield
        except NONSENSE as error:
            if isinstance(error, StrataError):
                raise
            raise CheckpointDamaged(
                f"{self._where} describes no state that was ever saved ({type(error).__name__}: {error})"
            ) from error

    async def read(self, blocks: dict[int, Block], new: Iterable[int], others: Iterable[AnyWish] = ()) -> None:
        """Tensors into this memory, and those that are new into memory that is made for them."""
        tensors, memory = self._whole.tensors, Memory()
        with uncollected():
            runs, alone = runs_of(tensors, new)
            self._blocks = blocks | {number: memory.take(tensors[number]) for number in alone}
            wishes: list[AnyWish] = [*others]
            for number, block in self._blocks.items():
                boxes = self._whole.boxes.get(number)
                if boxes is not None:
                    wishes += wishes_for(tensors[number], boxes, Box.whole(tensors[number].shape), block)
                    continue
                wishes += [Wish(chunk, tensors[number].name, target) for chunk, target in cut(tensors[number], block)]
            self._slabs = {}
            for run in runs:
                slab = Slab(run, memory.take_run(run))
                wishes.append(Neighbours([tensors[number] for number in run.numbers], slab.memory))
                self._slabs.update(dict.fromkeys(run.numbers, slab))
        await self.reader.read(wishes)

    async def all(self, number: int) -> Block:
        """An array's elements, as their bytes in one more dimension."""
        await self.read({}, {self.tensor(number)})
        return self.elements(number)

    async def some(self, number: int, box: Box) -> Block:
        """The same of a box alone: the rest is not read."""
        number = self.tensor(number)
        tensor = self._whole.tensors[number]
        memory = memory_for(tensor.dtype, box)
        await self.reader.read(wishes_for(tensor, self._whole.boxes.get(number), box, memory))
        return memory.reshape((*box.shape, dtype_of(tensor.dtype).bytes))
