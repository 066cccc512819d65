"""A checkpoint copied to another root, storage or job, and made whole: what it refers to elsewhere becomes its own.

Every byte is verified on the way. To copy again what was copied is to find it there.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from strata.checkpoint.drafting import Content, Facts, committed, drafted, taken_already
from strata.checkpoint.manifest import Metadata, Part, Tensor
from strata.checkpoint.readers import marked
from strata.checkpoint.store import Folder, Store
from strata.checkpoint.supplying import PartSupply, outline_of
from strata.errors import CheckpointDamaged


class Copied(NamedTuple):
    """Where the copy is, and whether it had been there already."""

    folder: Folder
    bytes: int
    was_there: bool = False


async def copy_checkpoint(
    source: Store, folder: Folder, target: Store, progress: Callable[[int], None] = lambda count: None
) -> Copied:
    """Conflict if the target has another checkpoint of this step."""
    async with marked(source, folder):
        metadata = await source.metadata(folder)
        parts = await source.parts(folder)
        size = sum(reference.stored_bytes for reference in metadata.parts)
        there = await _there(target, folder.step, parts)
        if there is not None:
            return Copied(there, size, was_there=True)
        async with drafted(target, folder.step) as draft:
            for part in parts:
                made = await draft.write(_content(part), PartSupply(source, part), progress)
                _check_same(part, made)
            await draft.commit(_facts(metadata))
        return Copied(Folder(folder.step), size)


async def _there(target: Store, step: int, parts: list[Part]) -> Folder | None:
    """The same checkpoint, if the target has it; Conflict if it has another."""
    taken = await committed(target, step)
    for folder in taken:
        others = await target.parts(folder)
        if [*map(_state, parts)] == [*map(_state, others)]:
            return folder
    if taken:
        raise taken_already(target, taken[0])
    return None


def _state(part: Part) -> Any:
    """What is stored, wherever it lies."""
    return part.rank, part.kind, part.skeleton, part.leaves, [_digests(tensor) for tensor in part.tensors]


def _digests(tensor: Tensor) -> Any:
    chunks = [(chunk.size, chunk.digest) for chunk in tensor.chunks]
    return tensor.name, tensor.dtype, tensor.shape, tensor.shift, tensor.at, chunks


def _content(part: Part) -> Content:
    return Content(part.rank, part.kind, part.skeleton, part.leaves, [outline_of(tensor) for tensor in part.tensors])


def _facts(metadata: Metadata) -> Facts:
    return Facts(metadata.unix_seconds, metadata.epoch, metadata.metrics, metadata.world_size, metadata.data)


def _check_same(part: Part, made: Part) -> None:
    """Between reading and writing the bytes lay in memory, which is not always kind."""
    for before, after in zip(part.tensors, made.tensors, strict=True):
        same_cuts = [chunk.size for chunk in before.chunks] == [chunk.size for chunk in after.chunks]
        if same_cuts and _digests(before) != _digests(after):
            raise CheckpointDamaged(f"tensor {before.name!r} changed in memory while it was copied: try again")
