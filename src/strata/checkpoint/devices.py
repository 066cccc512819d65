"""From a storage straight to a device, through a little pinned memory that is used again and again.

Two halves take turns: while one is copied to the device, the other is filled and verified. Nothing that is not what was
written reaches a device.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from strata.checkpoint.arena import Arena
from strata.checkpoint.frameworks import COPIED, Block, Copying, Framework
from strata.checkpoint.manifest import Chunk, Tensor
from strata.checkpoint.reading import ChunkReader, Wish, cut
from strata.storage.threads import DaemonThreads

HALF_BYTES = 256 << 20


class OnDevice(NamedTuple):
    """The bytes of an array, there."""

    framework: Framework
    bytes: Any


class _Landing(NamedTuple):
    chunk: Chunk
    tensor: str
    framework: Framework
    target: Any


async def to_devices(reader: ChunkReader, tensors: Sequence[Tensor], targets: Mapping[int, OnDevice]) -> None:
    """All chunks of these tensors."""
    landings = [
        _Landing(chunk, tensors[number].name, there.framework, target)
        for number, there in targets.items()
        for chunk, target in cut(tensors[number], there.bytes)
    ]
    if not landings:
        return
    landings.sort(key=lambda each: (each.chunk.file, each.chunk.at))
    half = min(HALF_BYTES, sum(each.chunk.size for each in landings))
    half = max(half, *(each.chunk.size for each in landings))
    is_cuda = any(getattr(there.bytes, "is_cuda", False) for there in targets.values())
    threads = DaemonThreads(1, "strata-device")
    loop = asyncio.get_running_loop()
    try:
        memory = await loop.run_in_executor(threads, _take, 2 * half, is_cuda)
        copying: list[Copying] = [COPIED, COPIED]
        for turn, wave in enumerate(_waves(landings, half)):
            side = turn % 2
            await loop.run_in_executor(threads, copying[side].wait)
            blocks = _laid_out(wave, memory[side * half : (side + 1) * half])
            await reader.read(Wish(each.chunk, each.tensor, block) for each, block in zip(wave, blocks, strict=True))
            copying[side] = await loop.run_in_executor(threads, _send, wave, blocks)
        for each in copying:
            await loop.run_in_executor(threads, each.wait)
    finally:
        threads.shutdown(wait=False)


def _take(size: int, is_cuda: bool) -> Block:
    return Arena(size).take(size, pinned=is_cuda)


def _waves(landings: Sequence[_Landing], most: int) -> Iterator[list[_Landing]]:
    wave: list[_Landing] = []
    size = 0
    for each in landings:
        if size + each.chunk.size > most and wave:
            yield wave
            wave, size = [], 0
        wave.append(each)
        size += each.chunk.size
    if wave:
        yield wave


def _laid_out(wave: Sequence[_Landing], memory: Block) -> list[Block]:
    found, at = [], 0
    for each in wave:
        found.append(memory[at : at + each.chunk.size])
        at += each.chunk.size
    return found


def _send(wave: Sequence[_Landing], blocks: Sequence[Block]) -> Copying:
    """Begin to copy. Of the packages with devices only one can be in use: the others' arrays are made anew."""
    pairs = [(each.target, block) for each, block in zip(wave, blocks, strict=True)]
    return wave[0].framework.copy_to_device(pairs)
