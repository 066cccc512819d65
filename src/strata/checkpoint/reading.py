"""Chunks from a storage into memory: those that lie side by side in one read, several reads at a time, each verified.

A chunk is read whole or not at all: only then its digest can tell whether it is what was written.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from strata.checkpoint.frameworks import Block
from strata.checkpoint.manifest import DIGEST, Chunk, File, Tensor
from strata.checkpoint.moves import move_many
from strata.checkpoint.store import Store
from strata.checkpoint.together import together
from strata.errors import CheckpointDamaged, ObjectCorrupt, ObjectNotFound
from strata.storage.threads import DaemonThreads

T = TypeVar("T", bound=Any)

READ_BYTES = 32 << 20
READS_AT_ONCE = 4
VERIFY_THREADS = 2
_NONE: Block = np.empty(0, np.uint8)


class Wish(NamedTuple):
    """A chunk of a tensor, and the memory it goes into."""

    chunk: Chunk
    tensor: str
    target: Block

    @property
    def first(self) -> Chunk:
        return self.chunk

    @property
    def size(self) -> int:
        return len(self.target)

    def bad(self) -> tuple[Chunk, str] | None:
        """The chunk that is not what was written, and its tensor."""
        is_sound = DIGEST + xxhash.xxh3_128_hexdigest(self.target.data) == self.chunk.digest
        return None if is_sound else (self.chunk, self.tensor)


class Neighbours(NamedTuple):
    """Tensors of one chunk each that lie side by side in a file, and go side by side into memory."""

    tensors: list[Tensor]
    target: Block

    @property
    def first(self) -> Chunk:
        return self.tensors[0].chunks[0]

    @property
    def size(self) -> int:
        return len(self.target)

    def bad(self) -> tuple[Chunk, str] | None:
        """The first that is not what was written."""
        digest, view, at = xxhash.xxh3_128_hexdigest, self.target.data, 0
        for tensor in self.tensors:
            chunk = tensor.chunks[0]
            end = at + chunk.size
            if DIGEST + digest(view[at:end]) != chunk.digest:
                return chunk, tensor.name
            at = end
        return None


class Scattered(NamedTuple):
    """Tensors of one chunk each that lie side by side in a file, and go to these addresses once they are verified.

    `owners` keep that memory: a thread may still copy there when whoever wanted it has given up.
    """

    tensors: list[Tensor]
    addresses: NDArray[np.int64]
    owners: list[Any]

    @property
    def first(self) -> Chunk:
        return self.tensors[0].chunks[0]

    @property
    def size(self) -> int:
        last = self.tensors[-1].chunks[0]
        return last.at + last.size - self.first.at

    def scatter(self, memory: Block) -> None:
        sizes = np.array([tensor.chunks[0].size for tensor in self.tensors], np.int64)
        move_many(self.addresses, np.cumsum(sizes) - sizes + memory.ctypes.data, sizes)


class Placed(NamedTuple):
    """A chunk of which some goes to places of its own, once it is verified."""

    chunk: Chunk
    tensor: str
    put: Callable[[Block], None]

    @property
    def first(self) -> Chunk:
        return self.chunk

    @property
    def size(self) -> int:
        return self.chunk.size


AnyWish: TypeAlias = Wish | Neighbours | Scattered | Placed


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
        self._lent: list[Block] = []

    async def read(self, wishes: Iterable[AnyWish]) -> None:
        """All of them; CheckpointDamaged names the first that is not what was written."""
        threads = DaemonThreads(VERIFY_THREADS, "strata-verify")
        turn = asyncio.Semaphore(READS_AT_ONCE)
        try:
            await together(self._read(batch, turn, threads) for batch in _batches(wishes))
        finally:
            threads.shutdown(wait=False)

    async def _read(self, batch: list[AnyWish], turn: asyncio.Semaphore, threads: DaemonThreads) -> None:
        file = self._files[batch[0].first.file]
        key = self._store.key(file.path)
        async with turn:
            lent = self._lend(batch)
            landed = _landing(batch, lent)
            try:
                await self._store.storage.read_into(key, batch[0].first.at, [wish.target for wish in landed])
            except (ObjectNotFound, ObjectCorrupt) as error:
                raise CheckpointDamaged(
                    f"{self._store.storage.url}/{key} is missing or too short ({error}): "
                    f"tensor {_name(batch[0])!r} cannot be read"
                ) from error
            verifying = asyncio.get_running_loop().run_in_executor(threads, _verify, batch, landed)
            if lent is not _NONE:
                await verifying
                self._lent.append(lent)  # not after an error: somebody may still write to it
        bad = await verifying
        if bad is not None:
            chunk, tensor = bad
            raise CheckpointDamaged(
                f"{self._store.storage.url}/{key} is damaged: tensor {tensor!r}, {chunk.size:,} bytes at "
                f"{chunk.at:,}, is not what was written"
            )
        self._progress(sum(wish.size for wish in batch))

    def _lend(self, batch: list[AnyWish]) -> Block:
        """Memory for what is scattered only when it is verified; used again where it is large enough."""
        needed = sum(wish.size for wish in batch if isinstance(wish, Scattered | Placed))
        if not needed:
            return _NONE
        known = self._lent.pop() if self._lent else _NONE
        return known if len(known) >= needed else np.empty(needed, np.uint8)


def _landing(batch: list[AnyWish], lent: Block) -> list[Wish | Neighbours]:
    """Each with memory: lent, where it has none of its own yet."""
    found: list[Wish | Neighbours] = []
    used = 0
    for wish in batch:
        memory = lent[used : used + wish.size]
        if isinstance(wish, Scattered):
            found.append(Neighbours(wish.tensors, memory))
            used += wish.size
        elif isinstance(wish, Placed):
            found.append(Wish(wish.chunk, wish.tensor, memory))
            used += wish.size
        else:
            found.append(wish)
    return found


def _name(wish: AnyWish) -> str:
    return wish.tensor if isinstance(wish, Wish | Placed) else wish.tensors[0].name


def _verify(batch: list[AnyWish], landed: list[Wish | Neighbours]) -> tuple[Chunk, str] | None:
    """The first that is not what was written. Nothing of what comes with it goes any further."""
    bad = next(filter(None, (wish.bad() for wish in landed)), None)
    if bad is None:
        for wish, there in zip(batch, landed, strict=True):
            if isinstance(wish, Scattered):
                wish.scatter(there.target)
            elif isinstance(wish, Placed):
                wish.put(there.target)
    return bad


def _batches(wishes: Iterable[AnyWish]) -> Iterable[list[AnyWish]]:
    """Neighbours in a file, up to a fair size."""
    batch: list[AnyWish] = []
    size = 0
    for wish in sorted(wishes, key=lambda each: (each.first.file, each.first.at)):
        if batch and (not _follows(batch[-1], wish.first) or size + wish.size > READ_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(wish)
        size += wish.size
    if batch:
        yield batch


def _follows(wish: AnyWish, next_one: Chunk) -> bool:
    return next_one.file == wish.first.file and next_one.at == wish.first.at + wish.size
