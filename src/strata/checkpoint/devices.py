"""From a storage to what cannot be read into: arrays on devices, and parts of arrays that do not lie in one, through a
little memory, pinned for devices, that is used again and again.

Two halves take turns: while one is copied to its arrays, the other is filled and verified. Nothing that is not what was
written reaches a device.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from strata.checkpoint.arena import Arena
from strata.checkpoint.boxes import Box, slabs
from strata.checkpoint.dtypes import dtype_of
from strata.checkpoint.frameworks import COPIED, Block, Copying, Framework
from strata.checkpoint.gathering import once, wishes_for
from strata.checkpoint.manifest import Chunk, Tensor
from strata.checkpoint.plan import ALIGNMENT
from strata.checkpoint.reading import ChunkReader, Placed, Wish, cut
from strata.storage.threads import DaemonThreads

HALF_BYTES = 256 << 20
ALIGNED = 64

Filled: TypeAlias = Callable[[Block], Iterable[Wish | Placed]]
"""What must be read for bytes that are to lie in this memory."""


class Landing(NamedTuple):
    """Bytes that go to an array at once: into what of it, and what they are; `first` is about where they are stored."""

    framework: Framework
    target: Any
    size: int
    first: tuple[int, int]
    filled: Filled

    @property
    def room(self) -> int:
        """So that what comes behind it is aligned."""
        return -(-self.size // ALIGNED) * ALIGNED


def whole_landings(tensor: Tensor, framework: Framework, target: Any) -> Iterator[Landing]:
    """All chunks of a tensor, into the bytes of an array; see `device_bytes`."""
    for chunk, some in cut(tensor, target):
        yield Landing(framework, some, chunk.size, (chunk.file, chunk.at), partial(_wish, chunk, tensor.name))


def box_landings(
    tensor: Tensor, pieces: Sequence[Tensor] | None, framework: Framework, value: Any, wanted: Box
) -> Iterator[Landing]:
    """A box of a tensor, into an array that holds exactly that. A chunk that two waves need is read twice, so landings
    are as large as can be."""
    item = dtype_of(tensor.dtype).bytes
    chunk = next((chunk for each in pieces or [tensor] for chunk in each.chunks), None)
    first = (0, 0) if chunk is None else (chunk.file, chunk.at)
    for slab in slabs(wanted, max(1, HALF_BYTES // item)):
        target = framework.part(value, slab.within(wanted))
        yield Landing(framework, target, item * slab.size, first, partial(wishes_for, tensor, pieces, slab))


def _wish(chunk: Chunk, tensor: str, block: Block) -> list[Wish]:
    return [Wish(chunk, tensor, block)]


async def land(reader: ChunkReader, landings: Iterable[Landing]) -> None:
    """All of them, each once it is verified."""
    ordered = sorted(landings, key=lambda each: each.first)
    if not ordered:
        return
    half = min(HALF_BYTES, sum(each.room for each in ordered))
    half = -(-max(half, *(each.room for each in ordered)) // ALIGNMENT) * ALIGNMENT  # as memory comes
    is_cuda = any(getattr(each.target, "is_cuda", False) for each in ordered)
    threads = DaemonThreads(1, "strata-device")
    loop = asyncio.get_running_loop()
    try:
        memory = await loop.run_in_executor(threads, _take, 2 * half, is_cuda)
        copying: list[Copying] = [COPIED, COPIED]
        for turn, wave in enumerate(_waves(ordered, half)):
            side = turn % 2
            await loop.run_in_executor(threads, copying[side].wait)
            blocks = _laid_out(wave, memory[side * half : (side + 1) * half])
            wishes = [wish for each, block in zip(wave, blocks, strict=True) for wish in each.filled(block)]
            await reader.read(once(wishes))
            copying[side] = await loop.run_in_executor(threads, _send, wave, blocks)
        for each in copying:
            await loop.run_in_executor(threads, each.wait)
    finally:
        threads.shutdown(wait=False)


def _take(size: int, is_cuda: bool) -> Block:
    return Arena(size).take(size, pinned=is_cuda)


def _waves(landings: Sequence[Landing], most: int) -> Iterator[list[Landing]]:
    wave: list[Landing] = []
    size = 0
    for each in landings:
        if size + each.room > most and wave:
            yield wave
            wave, size = [], 0
        wave.append(each)
        size += each.room
    if wave:
        yield wave


def _laid_out(wave: Sequence[Landing], memory: Block) -> list[Block]:
    found, at = [], 0
    for each in wave:
        found.append(memory[at : at + each.size])
        at += each.room
    return found


def _send(wave: Sequence[Landing], blocks: Sequence[Block]) -> Copying:
    """Begin to copy. Of the packages with devices only one can be in use: the others' arrays are made anew."""
    pairs = [(each.target, block) for each, block in zip(wave, blocks, strict=True)]
    return wave[0].framework.copy_to_device(pairs)
