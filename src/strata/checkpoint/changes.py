"""Writing what changed: an incremental save.

digest      every chunk of the snapshot, before anything is written
compare     with the base; see `references`
write       files of what changed, and nothing else

Where the arena is too small for the state, it passes through twice: once to be digested, and what changed once more to
be written. The caller waits for both, as for any save that takes turns.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from strata.checkpoint.digests import FileDigests
from strata.checkpoint.frameworks import Block
from strata.checkpoint.manifest import Chunk, File, Part, Tensor
from strata.checkpoint.plan import FilePlan
from strata.checkpoint.references import Base
from strata.checkpoint.snapshot import SEGMENT_BYTES, Snapshot
from strata.checkpoint.store import Store, folder_named
from strata.checkpoint.writing import Filled
from strata.errors import ObjectNotFound
from strata.storage.backend import StorageWriter
from strata.storage.threads import DaemonThreads

GATHERED_BYTES = 4 << 20


async def digested(snapshot: Snapshot, filled: Filled) -> list[list[Chunk]]:
    """All chunks, by file. Each segment is given back once it is digested."""
    digests = [FileDigests(number, file) for number, file in enumerate(snapshot.files)]
    loop, threads = asyncio.get_running_loop(), DaemonThreads(1, "strata-digest")
    try:
        for number, segment in enumerate(snapshot.segments):
            await filled.wait(number)
            memory = snapshot.memory(segment)
            await loop.run_in_executor(threads, digests[segment.file].feed, segment.start, memory)
            if snapshot.takes_turns:
                snapshot.release()
    finally:
        threads.shutdown(wait=False)
    return [found.found for found in digests]


async def write_gathered(
    writer: StorageWriter,
    plan: FilePlan,
    snapshot: Snapshot,
    tensors: Sequence[Tensor],
    progress: Callable[[int], None],
) -> None:
    """The file of this plan, from a snapshot that holds all of the state."""
    await writer.write(plan.header)
    for piece in _gathered(_stretches(plan, snapshot, tensors), np.empty(GATHERED_BYTES, np.uint8)):
        await writer.write(piece)
        progress(len(piece))


def _stretches(plan: FilePlan, snapshot: Snapshot, tensors: Sequence[Tensor]) -> Iterator[Block]:
    """What follows the file's header, as it lies in the arena."""
    arena, bases = snapshot.arena, snapshot.bases
    start = end = 0
    for wanted, _ in plan.placed:
        for chunk in tensors[wanted.tensor].chunks[wanted.chunks]:
            at = bases[chunk.file] + chunk.at
            if at != end or end - start >= SEGMENT_BYTES:
                if end > start:
                    yield arena[start:end]
                start = at
            end = at + chunk.size
    if end > start:
        yield arena[start:end]


def _gathered(stretches: Iterable[Block], scratch: Block) -> Iterator[Block]:
    """Small ones together: handing over each by itself would cost more than the copy."""
    used = 0
    for stretch in stretches:
        is_large = 2 * len(stretch) > len(scratch)
        if used and (is_large or used + len(stretch) > len(scratch)):
            yield scratch[:used]
            used = 0
        if is_large:
            yield stretch
        else:
            scratch[used : used + len(stretch)] = stretch
            used += len(stretch)
    if used:
        yield scratch[:used]


async def found_base(store: Store, part: Part) -> Base:
    """This part, with what is known of its files: whether each is there, and whether its own checkpoint still is."""
    orphans, lost = set(), set()
    committed: dict[str, bool] = {}
    for number, file in enumerate(part.files):
        name = file.path.partition("/")[0]
        folder = folder_named(name)
        if name not in committed:
            committed[name] = folder is not None and await store.is_committed(folder)
        if not committed[name]:
            orphans.add(number)
        if not await _is_whole(store, file):
            lost.add(number)
    return Base(part, frozenset(orphans), frozenset(lost))


async def _is_whole(store: Store, file: File) -> bool:
    try:
        return await store.storage.size(store.key(file.path)) == file.size
    except ObjectNotFound:
        return False
