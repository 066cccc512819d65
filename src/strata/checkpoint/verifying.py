"""Every byte of a checkpoint, read and compared with its digest, in little memory; and whether files are as long as
they were, which is asked before memory is taken for what they hold."""

import asyncio
from collections.abc import Callable, Iterable

import numpy as np

from strata.checkpoint.manifest import Chunk, File, Part, digest_of
from strata.checkpoint.reading import READ_BYTES, ChunkReader, Wish
from strata.checkpoint.store import Store
from strata.checkpoint.together import together
from strata.errors import CheckpointDamaged, ObjectCorrupt, ObjectNotFound

LOOKS_AT_ONCE = 8


async def check_lengths(store: Store, files: Iterable[File]) -> None:
    """CheckpointDamaged names a file that is missing, or is not as long as it was written."""
    turn = asyncio.Semaphore(LOOKS_AT_ONCE)

    async def look(file: File) -> None:
        async with turn:
            await _check_length(store, file)

    await together(look(file) for file in files)


async def _check_length(store: Store, file: File) -> None:
    key = store.key(file.path)
    try:
        size = await store.storage.size(key)
    except ObjectNotFound as error:
        raise store.missing(file.path) from error
    if size != file.size:
        raise CheckpointDamaged(f"{store.storage.url}/{key} has {size:,} bytes, and {file.size:,} were written")


async def verify_part(store: Store, part: Part, progress: Callable[[int], None]) -> int:
    """How many bytes were compared."""
    total = 0
    await check_lengths(store, part.files)
    for file in part.files:
        total += await _verify_header(store, file)
    reader = ChunkReader(store, part.files, progress)
    memory = np.empty(READ_BYTES, np.uint8)
    named = [(chunk, tensor.name) for tensor in part.tensors for chunk in tensor.chunks]
    named.sort(key=lambda pair: (pair[0].file, pair[0].at))
    batch: list[tuple[Chunk, str]] = []
    size = 0
    for chunk, name in named:
        if batch and size + chunk.size > READ_BYTES:
            total += await _verify(reader, batch, memory)
            batch, size = [], 0
        batch.append((chunk, name))
        size += chunk.size
    return total + (await _verify(reader, batch, memory) if batch else 0)


async def _verify(
    reader: ChunkReader, batch: list[tuple[Chunk, str]], memory: "np.ndarray[tuple[int], np.dtype[np.uint8]]"
) -> int:
    wishes, at = [], 0
    for chunk, name in batch:
        wishes.append(Wish(chunk, name, memory[at : at + chunk.size]))
        at += chunk.size
    await reader.read(wishes)
    return at


async def _verify_header(store: Store, file: File) -> int:
    """What precedes the tensors."""
    if not file.header_size:
        return 0
    key = store.key(file.path)
    where = f"{store.storage.url}/{key}"
    try:
        header = await store.storage.read_range(key, 0, file.header_size)
    except (ObjectNotFound, ObjectCorrupt) as error:
        raise CheckpointDamaged(f"{where} is missing or too short: {error}") from error
    if digest_of(header) != file.header_digest:
        raise CheckpointDamaged(f"{where} is damaged: its header is not what was written")
    return file.header_size
