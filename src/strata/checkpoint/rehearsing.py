"""Whether a checkpoint that is there is what would be written: everything is read and digested, and nothing written."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from strata.checkpoint.assembling import Assembler, Supply, bytes_plan, tree_plan
from strata.checkpoint.drafting import Content
from strata.checkpoint.manifest import Chunk, Part
from strata.checkpoint.saving import BYTES
from strata.checkpoint.store import Folder, Store
from strata.storage.backend import Data


async def is_same(
    store: Store, folder: Folder, content: Content, supply: Supply, progress: Callable[[int], None]
) -> bool:
    metadata = await store.metadata(folder)
    if len(metadata.parts) != 1:
        return False
    part = await store.part(metadata.parts[0])
    if not _fits(part, content):
        return False
    plan = bytes_plan(content.outlines[0].size) if content.kind == BYTES else tree_plan(content.outlines)
    chunks = await Assembler(_Nowhere(), supply, progress).write(content.outlines, plan, ["nowhere"] * len(plan))
    return [_digests(tensor.chunks) for tensor in part.tensors] == [_digests(each) for each in chunks]


def _fits(part: Part, content: Content) -> bool:
    mine = [(each.name, each.dtype, each.shape, each.shift) for each in content.outlines]
    theirs = [(each.name, each.dtype, each.shape, each.shift) for each in part.tensors]
    return mine == theirs and (part.kind, part.skeleton, part.leaves) == (
        content.kind,
        content.skeleton,
        content.leaves,
    )


def _digests(chunks: Sequence[Chunk]) -> list[tuple[int, str]]:
    return [(chunk.size, chunk.digest) for chunk in chunks]


class _Nowhere:
    """Where nothing is kept."""

    @asynccontextmanager
    async def open_writer(self, path: str, *, size: int | None = None) -> "AsyncIterator[_Nowhere]":
        yield self

    async def write(self, data: Data) -> None:
        """Forgotten."""

    async def commit(self) -> None:
        """There is nothing."""

    async def abort(self) -> None:
        """There is nothing."""
