"""One save, from a state in memory to a committed checkpoint.

prepare     take the state apart, plan its files           in the caller's thread; see `preparing`
stage       copy it into the arena                         in the caller's thread; see `staging`
write       files, then the part's manifest                on the private loop
commit      `metadata.json`, where none is                 the one moment at which it exists; see `committing`
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from strata.checkpoint import manifest
from strata.checkpoint.attempt import Attempt
from strata.checkpoint.changes import digested, write_gathered
from strata.checkpoint.digests import by_tensor
from strata.checkpoint.frameworks import Block
from strata.checkpoint.manifest import Chunk, File, Part, PartRef, Tensor, digest_of
from strata.checkpoint.plan import FilePlan, chunks_of, plan_files
from strata.checkpoint.preparing import Prepared
from strata.checkpoint.references import Base, changes, referring, unchanged
from strata.checkpoint.staging import Stage
from strata.checkpoint.stakes import staked
from strata.checkpoint.store import Store
from strata.checkpoint.uncollected import uncollected
from strata.checkpoint.writing import SnapshotWriter
from strata.errors import Conflict
from strata.storage.threads import DaemonThreads

BYTES, TREE = manifest.BYTES, manifest.TREE
PUT_BYTES = 64 << 20
"""More goes up in parallel parts, which cannot be put where nothing is: see `stakes`."""
STREAMED_BYTES = 32 << 20
INLINE_BYTES = 1 << 20


@dataclass(slots=True)
class Report:
    """How a save went, for people and for metrics."""

    step: int
    state_bytes: int = 0
    written_bytes: int = 0
    tensors: int = 0
    stall_seconds: float = 0.0
    """How long the caller was kept."""
    durable_seconds: float = 0.0
    """From the call to the commit; where there is a local tier, to that on the local disk."""
    uploaded_seconds: float = 0.0
    """From the call to the commit behind the local tier; 0 while that is not there, and where there is no such tier."""
    waited_seconds: float = 0.0
    """Of the stall: for a save before it."""
    notes: list[str] = field(default_factory=list)

    @property
    def referenced_bytes(self) -> int:
        """What did not have to be written again."""
        return self.state_bytes - self.written_bytes

    @property
    def mb_per_second(self) -> float:
        return self.written_bytes / 1e6 / self.durable_seconds if self.durable_seconds else 0.0


async def write_tree(store: Store, attempt: Attempt, stage: Stage, progress: Callable[[int], None]) -> Part:
    """The files of a tree of arrays."""
    prepared = stage.prepared
    files = _files(attempt, prepared.files)
    writer = SnapshotWriter(store.storage, stage.snapshot, stage.filled, progress)
    chunks = await writer.write([store.key(file.path) for file in files])
    stage.enough()
    with uncollected():
        return _part(attempt, prepared, _tensors(prepared, chunks), files)


async def write_changes(
    store: Store, attempt: Attempt, stage: Stage, base: Base, progress: Callable[[int], None]
) -> Part:
    """The files of what is not in the base, and references to what is."""
    prepared = stage.prepared
    chunks = await digested(stage.snapshot, stage.filled)
    with uncollected():
        tensors = _tensors(prepared, chunks)
        kept = unchanged(tensors, base)
        plans = plan_files(changes(tensors, kept))
        files = _files(attempt, plans)
    keys = [store.key(file.path) for file in files]
    if stage.snapshot.takes_turns:
        snapshot, filled = stage.again(plans)
        again = await SnapshotWriter(store.storage, snapshot, filled, progress).write(keys)
        _check_unchanged(plans, again, tensors)
    else:
        stage.enough()
        for key, plan in zip(keys, plans, strict=True):
            async with store.storage.open_writer(key, size=plan.size) as writer:
                await write_gathered(writer, plan, stage.snapshot, tensors, progress)
    with uncollected():
        return _part(attempt, prepared, *referring(tensors, kept, plans, files, base))


def _check_unchanged(plans: Sequence[FilePlan], written: list[list[Chunk]], tensors: list[Tensor]) -> None:
    """What was written is what was compared: nobody changed it while it was copied."""
    for plan, found in zip(plans, written, strict=True):
        left = iter(found)
        for wanted, _ in plan.placed:
            tensor = tensors[wanted.tensor]
            if any(chunk.digest != next(left).digest for chunk in tensor.chunks[wanted.chunks]):
                raise Conflict(f"tensor {tensor.name!r} was changed while it was being saved: no thread may do that")


def _files(attempt: Attempt, plans: Sequence[FilePlan]) -> list[File]:
    return [
        File(f"{attempt.stem}-{number}.safetensors", plan.size, len(plan.header), digest_of(plan.header))
        for number, plan in enumerate(plans)
    ]


def _part(attempt: Attempt, prepared: Prepared, tensors: list[Tensor], files: list[File]) -> Part:
    return Part(
        manifest.FORMAT,
        attempt.rank,
        attempt.name,
        TREE,
        prepared.skeleton,
        prepared.leaves,
        tensors,
        files,
        dict(attempt.data),
    )


def _tensors(prepared: Prepared, chunks: list[list[Chunk]]) -> list[Tensor]:
    owned = by_tensor(len(prepared.stored), prepared.files, chunks)
    return [
        Tensor(each.name, each.dtype, each.shape, own, each.shift, each.at)
        for each, own in zip(prepared.stored, owned, strict=True)
    ]


async def write_bytes(store: Store, attempt: Attempt, data: Block, progress: Callable[[int], None]) -> Part:
    """A state of bytes is a file of exactly those bytes. ObjectExists if another save has begun there: it may be under
    way yet."""
    path = attempt.bytes_path
    digests = _digesting(data)
    if len(data) <= PUT_BYTES:
        await store.storage.put_if_absent(store.key(path), data)
        progress(len(data))
    else:
        await _write_in_parts(store, attempt, data, progress)
    found = await digests
    chunks = [Chunk(0, start, size, each) for (start, size), each in zip(chunks_of(len(data)), found, strict=True)]
    tensor = Tensor("", "uint8", (len(data),), chunks)
    files = [File(path, len(data))]
    return Part(manifest.FORMAT, attempt.rank, attempt.name, BYTES, None, [0], [tensor], files, dict(attempt.data))


async def _write_in_parts(store: Store, attempt: Attempt, data: Block, progress: Callable[[int], None]) -> None:
    """As a stream, of which it is known what `write` would not tell: an error before its end leaves nothing that could
    yet become an object."""
    path = attempt.bytes_path
    async with (
        staked(store, path, attempt.name) as stake,
        store.storage.open_writer(store.key(path), size=len(data)) as writer,
    ):
        for start in range(0, len(data), STREAMED_BYTES):
            piece = data[start : start + STREAMED_BYTES]
            await writer.write(piece)
            progress(len(piece))
        stake.may_land = True


def _digesting(data: Block) -> Awaitable[list[str]]:
    """Beside the writing, unless a thread would take longer to start."""
    if len(data) <= INLINE_BYTES:
        done: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        done.set_result(_digests(data))
        return done
    threads = DaemonThreads(1, "strata-digest")
    digests = asyncio.get_running_loop().run_in_executor(threads, _digests, data)
    threads.shutdown(wait=False)
    return digests


def _digests(data: Block) -> list[str]:
    return [digest_of(data[start : start + size]) for start, size in chunks_of(len(data))]


async def declare(store: Store, attempt: Attempt, part: Part) -> PartRef:
    """The part's manifest."""
    data = manifest.encode_part(part)
    path = f"{attempt.stem}.json"
    await store.storage.put_if_absent(store.key(path), data)
    own = _own(attempt, part)
    written = sum(part.files[number].size - part.files[number].header_size for number in own)
    stored = written
    if len(own) < len(part.files):
        stored = sum([chunk.size for tensor in part.tensors for chunk in tensor.chunks])
    return PartRef(attempt.rank, path, len(data), digest_of(data), stored, written)


def _own(attempt: Attempt, part: Part) -> set[int]:
    """Those of its files that this save wrote."""
    return {number for number, file in enumerate(part.files) if file.path.startswith(f"{attempt.folder.name}/")}


def as_bytes(state: Any) -> Block | None:
    """The memory of a state that is bytes; a copy of what may change; None for a tree."""
    if not is_bytes(state):
        return None
    return np.frombuffer(state if type(state) is bytes else bytes(state), np.uint8)


def is_bytes(state: Any) -> bool:
    return type(state) is bytes or isinstance(state, bytearray | memoryview)
