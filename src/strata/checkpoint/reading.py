"""Chunks from a storage into memory: those that lie side by side in one read, several reads at a time, each verified.

A chunk is read whole or not at all: only then its digest can tell whether it is what was written.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import xxhash

from strata.checkpoint.frameworks import Block
from strata.checkpoint.manifest import DIGEST, Chunk, File, Tensor
from strata.checkpoint.store import Store
from strata.checkpoint.together import together
from strata.errors import CheckpointDamaged, ObjectCorrupt, ObjectNotFound
from strata.storage.threads import DaemonThreads

T = TypeVar("T", bound=Any)

READ_BYTES = 32 << 20
READS_AT_ONCE = 4
VERIFY_THREADS = 2


class Wish(NamedTuple):
    """A chunk of a tensor, and the memory it goes into."""

    chunk: Chunk
    tensor: str
    target: Block


def cut(tensor: Tensor, memory: T) -> list[tuple[Chunk, T]]:
    """The part of a tensor's memory, wherever that is, for each of its chunks."""
    found, at = [], 0
    for chunk in tensor.chunks:
        found.append((chunk, memory[at : at + chunk.size]))
        at += chunk.size
    if at != len(memory):
        raise CheckpointDamaged(
            f"tensor {tensor.name!r} has {at:,} bytes in the manifest, and its shape needs {len(memory):,}"
        )
    return found


class ChunkReader:
    """Fulfils wishes for the chunks of one part."""

    def __init__(self, store: Store, files: Sequence[File], progress: Callable[[int], None]) -> None:
        self._store, self._files, self._progress = store, files, progress

    async def read(self, wishes: Iterable[Wish]) -> None:
        """All of them; CheckpointDamaged names the first that is not what was written."""
        threads = DaemonThreads(VERIFY_THREADS, "strata-verify")
        turn = asyncio.Semaphore(READS_AT_ONCE)
        try:
            await together(self._read(batch, turn, threads) for batch in _batches(wishes))
        finally:
            threads.shutdown(wait=False)

    async def _read(self, batch: list[Wish], turn: asyncio.Semaphore, threads: DaemonThreads) -> None:
        file = self._files[batch[0].chunk.file]
        key = self._store.key(file.path)
        async with turn:
            try:
                await self._store.storage.read_into(key, batch[0].chunk.at, [wish.target for wish in batch])
            except (ObjectNotFound, ObjectCorrupt) as error:
                raise CheckpointDamaged(
                    f"{self._store.storage.url}/{key} is missing or too short ({error}): "
                    f"tensor {batch[0].tensor!r} cannot be read"
                ) from error
            loop = asyncio.get_running_loop()
            bad = await loop.run_in_executor(threads, _first_bad, batch)
        if bad is not None:
            raise CheckpointDamaged(
                f"{self._store.storage.url}/{key} is damaged: tensor {bad.tensor!r}, {bad.chunk.size:,} bytes at "
                f"{bad.chunk.at:,}, is not what was written"
            )
        self._progress(sum(wish.chunk.size for wish in batch))


def _first_bad(batch: list[Wish]) -> Wish | None:
    digest = xxhash.xxh3_128_hexdigest
    for wish in batch:
        if DIGEST + digest(wish.target.data) != wish.chunk.digest:
            return wish
    return None


def _batches(wishes: Iterable[Wish]) -> Iterable[list[Wish]]:
    """Neighbours in a file, up to a fair size."""
    batch: list[Wish] = []
    size = 0
    for wish in sorted(wishes, key=lambda each: (each.chunk.file, each.chunk.at)):
        if batch and (not _follows(batch[-1].chunk, wish.chunk) or size + wish.chunk.size > READ_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(wish)
        size += wish.chunk.size
    if batch:
        yield batch


def _follows(one: Chunk, other: Chunk) -> bool:
    return other.file == one.file and other.at == one.at + one.size
