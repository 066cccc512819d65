"""Tensors from anywhere, streamed into the files of a new checkpoint: planned as a save plans them, in little memory.

Read into one window while the one before is being written; digests are taken of what is written.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from strata.checkpoint.digests import FileDigests, by_tensor
from strata.checkpoint.frameworks import Block
from strata.checkpoint.manifest import Chunk, File, Tensor, digest_of
from strata.checkpoint.plan import FilePlan, Placed, Wanted, chunks_of, plan_files
from strata.storage import StorageWriter
from strata.storage.threads import DaemonThreads

WINDOW_BYTES = 16 << 20


class Outline(NamedTuple):
    """A tensor that is to be written; its bytes are supplied when it is their turn."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    shift: int = 0
    at: tuple[int, ...] | None = None


class Stretch(NamedTuple):
    """Some bytes of one of the tensors, by its number, and the memory they go into."""

    tensor: int
    start: int
    target: Block


Supply: TypeAlias = Callable[[Sequence[Stretch]], Awaitable[None]]
"""Fills the memory of all of these. It is not asked again before it is done."""


def tree_plan(outlines: Sequence[Outline]) -> list[FilePlan]:
    """The files of a tree of arrays."""
    return plan_files(Wanted(each.name, each.dtype, each.shape, each.size, n) for n, each in enumerate(outlines))


def bytes_plan(size: int) -> list[FilePlan]:
    """The one file of a state of bytes: exactly those."""
    return [FilePlan(b"", [Placed(Wanted("", "uint8", (size,), size, 0), 0)], size)]


class Target(Protocol):
    """All that is asked of a storage here."""

    def open_writer(self, path: str, *, size: int | None = None) -> AbstractAsyncContextManager[StorageWriter]: ...


class Assembler:
    """Writes files of tensors to a storage."""

    def __init__(self, storage: Target, supply: Supply, progress: Callable[[int], None]) -> None:
        self._storage, self._supply, self._progress = storage, supply, progress

    async def write(
        self, outlines: Sequence[Outline], plan: Sequence[FilePlan], keys: Sequence[str]
    ) -> list[list[Chunk]]:
        """One file after the other; the chunks of each tensor."""
        threads = DaemonThreads(1, "strata-digest")
        try:
            numbered = enumerate(zip(plan, keys, strict=True))
            found = [
                await self._write(file, key, FileDigests(number, file), threads) for number, (file, key) in numbered
            ]
        finally:
            threads.shutdown(wait=False)
        return by_tensor(len(outlines), plan, found)

    async def _write(self, file: FilePlan, key: str, digests: FileDigests, threads: DaemonThreads) -> list[Chunk]:
        loop = asyncio.get_running_loop()
        async with (
            self._storage.open_writer(key, size=file.size) as writer,
            aclosing(self._windows(file)) as windows,
        ):
            if file.header:
                await writer.write(file.header)
            async for start, memory in windows:
                digesting = loop.run_in_executor(threads, digests.feed, start, memory)
                await writer.write(memory)
                await digesting
                self._progress(len(memory))
        return digests.found

    async def _windows(self, file: FilePlan) -> AsyncGenerator[tuple[int, Block], None]:
        """Each as it is filled, while the next one is being filled."""
        memories = (np.empty(min(WINDOW_BYTES, file.size), np.uint8), np.empty(min(WINDOW_BYTES, file.size), np.uint8))
        filling: asyncio.Task[tuple[int, Block]] | None = None
        try:
            for turn, cuts in enumerate(_cuts(file)):
                filled = None if filling is None else await filling
                filling = asyncio.ensure_future(self._fill(cuts, memories[turn % 2]))
                if filled is not None:
                    yield filled
            if filling is not None:
                yield await filling
        finally:
            if filling is not None:
                filling.cancel()
                await asyncio.gather(filling, return_exceptions=True)

    async def _fill(self, cuts: Sequence["_Cut"], memory: Block) -> tuple[int, Block]:
        first = cuts[0].at
        await self._supply(
            [Stretch(cut.tensor, cut.start, memory[cut.at - first : cut.at - first + cut.size]) for cut in cuts]
        )
        return first, memory[: cuts[-1].at + cuts[-1].size - first]


class _Cut(NamedTuple):
    tensor: int
    start: int
    at: int
    size: int


def _cuts(file: FilePlan) -> Iterator[list[_Cut]]:
    """Whole chunks, side by side, as many as a window holds."""
    window: list[_Cut] = []
    size = 0
    for wanted, at in file.placed:
        for start, length in chunks_of(wanted.size):
            if window and size + length > WINDOW_BYTES:
                yield window
                window, size = [], 0
            window.append(_Cut(wanted.tensor, wanted.start + start, at + start, length))
            size += length
    if window:
        yield window


def tensors_of(outlines: Sequence[Outline], chunks: Sequence[list[Chunk]]) -> list[Tensor]:
    return [
        Tensor(each.name, each.dtype, each.shape, own, each.shift, each.at)
        for each, own in zip(outlines, chunks, strict=True)
    ]


def files_of(plan: Sequence[FilePlan], paths: Sequence[str]) -> list[File]:
    return [
        File(path, file.size, len(file.header), digest_of(file.header)) if file.header else File(path, file.size)
        for file, path in zip(plan, paths, strict=True)
    ]
