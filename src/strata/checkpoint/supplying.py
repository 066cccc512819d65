"""The bytes of a part's tensors, wherever their chunks lie: asked for in stretches, and verified as they come in."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import prod

import numpy as np

from strata.checkpoint.assembling import Outline, Stretch
from strata.checkpoint.boxes import Box
from strata.checkpoint.dtypes import dtype_of
from strata.checkpoint.frameworks import Block
from strata.checkpoint.gathering import memory_for, wishes_for
from strata.checkpoint.manifest import Chunk, Part, Tensor
from strata.checkpoint.reading import ChunkReader, Wish
from strata.checkpoint.store import Store
from strata.checkpoint.whole import Whole
from strata.errors import CheckpointDamaged


def outline_of(tensor: Tensor) -> Outline:
    """CheckpointDamaged if its chunks are not as many bytes as its shape needs."""
    size, there = dtype_of(tensor.dtype).bytes * prod(tensor.shape), sum(chunk.size for chunk in tensor.chunks)
    if size != there:
        raise CheckpointDamaged(
            f"tensor {tensor.name!r} has {there:,} bytes in the manifest, and its shape needs {size:,}"
        )
    return Outline(tensor.name, tensor.dtype, tensor.shape, size, tensor.shift, tensor.at)


class PartSupply:
    """Of one part, by the numbers of its tensors."""

    def __init__(self, store: Store, part: Part | Whole) -> None:
        self._part, self._tensors = part, part.tensors
        self._reader = ChunkReader(store, part.files, lambda count: None)
        self._ends: dict[int, list[int]] = {}

    async def __call__(self, stretches: Sequence[Stretch]) -> None:
        """A chunk is read whole, also where only some of it is asked for: else nobody knew whether it is sound."""
        wishes: list[Wish] = []
        later: list[tuple[Block, Block]] = []
        for stretch in stretches:
            end = stretch.start + len(stretch.target)
            for chunk, at in self._covering(stretch.tensor, stretch.start, end):
                first, last = max(at, stretch.start), min(at + chunk.size, end)
                target = stretch.target[first - stretch.start : last - stretch.start]
                if len(target) < chunk.size:
                    whole = np.empty(chunk.size, np.uint8)
                    later.append((target, whole[first - at : last - at]))
                    target = whole
                wishes.append(Wish(chunk, self._tensors[stretch.tensor].name, target))
        await self._reader.read(wishes)
        for target, source in later:
            target[:] = source

    async def put_together(self, tensor: int) -> Block:
        """All of one that lies in boxes."""
        assert isinstance(self._part, Whole)
        told = self._tensors[tensor]
        box = Box.whole(told.shape)
        memory = memory_for(told.dtype, box)
        await self._reader.read(wishes_for(told, self._part.boxes[tensor], box, memory))
        return memory

    def _covering(self, tensor: int, start: int, end: int) -> Iterator[tuple[Chunk, int]]:
        """Each chunk with any of these bytes, and where in the tensor it begins."""
        chunks = self._tensors[tensor].chunks
        if len(chunks) == 1:
            yield chunks[0], 0
            return
        ends = self._ends.get(tensor)
        if ends is None:
            ends = self._ends[tensor] = list(accumulate(chunk.size for chunk in chunks))
        for number in range(bisect_right(ends, start), len(chunks)):
            at = ends[number] - chunks[number].size
            if at >= end:
                return
            yield chunks[number], at
