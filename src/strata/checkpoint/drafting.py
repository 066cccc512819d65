"""A checkpoint that is made beside a job: by somebody who copies or imports, not by the job that saves.

It begins no term, which would supersede a job that runs there: it is as of the newest term there is. Its folder is
claimed before the first file is written, so that nobody sweeps them. Files have names of their own, and nothing before
the very last write, which replaces nothing, makes a checkpoint of them. What a crash leaves goes with the next attempt,
or with the next run of the job.
"""

import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from strata import __version__
from strata.checkpoint import manifest
from strata.checkpoint.assembling import Assembler, Outline, Supply, bytes_plan, files_of, tensors_of, tree_plan
from strata.checkpoint.checkpoints import Checkpoints
from strata.checkpoint.datapositions import NOWHERE, Positions
from strata.checkpoint.lineage import read_lineage
from strata.checkpoint.manifest import METADATA, Leaf, Metadata, Part, PartRef, digest_of
from strata.checkpoint.readers import claimed
from strata.checkpoint.saving import BYTES
from strata.checkpoint.store import Folder, Store, folder_named
from strata.core.ids import check_int
from strata.errors import Conflict, ObjectExists, ObjectNotFound, StorageError


class Facts(NamedTuple):
    """What a checkpoint says of itself beside its parts."""

    unix_seconds: float
    epoch: int
    metrics: dict[str, float | str]
    world_size: int
    data: Positions = NOWHERE


class Content(NamedTuple):
    """A part's state without its bytes."""

    rank: int
    kind: str
    skeleton: Any
    leaves: list[Leaf]
    outlines: Sequence[Outline]


async def committed(store: Store, step: int) -> list[Folder]:
    """The checkpoints of this step, on the line or not."""
    found = []
    async for entry in store.storage.list_folder(store.root):
        folder = folder_named(entry.path.rstrip("/").rpartition("/")[2])
        if folder is not None and folder.step == step and await store.is_committed(folder):
            found.append(folder)
    return sorted(found)


@asynccontextmanager
async def drafted(store: Store, step: int) -> AsyncIterator["Draft"]:
    """Conflict if there is a checkpoint of this step. What was written is removed again if this raises."""
    folder = Folder(check_int(step, "step"))
    taken = await committed(store, step)
    if taken:
        raise taken_already(store, taken[0])
    leftovers = [path async for path in store.paths(folder.name)]
    async with claimed(store, [folder.name]):
        draft = Draft(store, folder, await _newest_term(store))
        try:
            yield draft
        except BaseException:
            await draft.discard()
            raise
    if leftovers:
        await Checkpoints(store).sweep({folder.name})


def taken_already(store: Store, folder: Folder) -> Conflict:
    return Conflict(
        f"step {folder.step} is committed already in {store.storage.url}/{store.root}/{folder.name}: "
        "remove it first, or take another step or another job"
    )


class Draft:
    """The parts of a checkpoint that is not committed yet."""

    def __init__(self, store: Store, folder: Folder, term: int | None) -> None:
        self._store, self._folder = store, folder
        self._beside_a_job = term is not None
        self.name = f"{term or 0}-{secrets.token_hex(4)}"
        self._parts: list[PartRef] = []
        self._versions: dict[str, str] = {}
        self._written: list[str] = []
        self._is_decided = False

    async def write(self, content: Content, supply: Supply, progress: Callable[[int], None]) -> Part:
        """A part: its files, then its manifest."""
        outlines, storage = content.outlines, self._store.storage
        plan = bytes_plan(outlines[0].size) if content.kind == BYTES else tree_plan(outlines)
        paths = [f"{self._folder.name}/{self._named(content, number)}" for number in range(len(plan))]
        keys = [self._store.key(path) for path in paths]
        self._written += keys
        chunks = await Assembler(storage, supply, progress).write(outlines, plan, keys)
        for key in keys:
            self._versions[key] = await storage.version(key)
        part = Part(
            manifest.FORMAT,
            content.rank,
            self.name,
            content.kind,
            content.skeleton,
            content.leaves,
            tensors_of(outlines, chunks),
            files_of(plan, paths),
        )
        await self._write_manifest(part, sum(each.size for each in outlines))
        return part

    def _named(self, content: Content, number: int) -> str:
        stem = f"part-{content.rank}-{self.name}"
        if content.kind != BYTES:
            return f"{stem}-{number}.safetensors"
        if self._beside_a_job:  # which may save this very step now, under the usual name
            return f"{stem}.bin"
        return f"model-{content.rank}.bin" if content.rank else "model.bin"

    async def _write_manifest(self, part: Part, size: int) -> None:
        data = manifest.encode_part(part)
        path = f"{self._folder.name}/part-{part.rank}-{self.name}.json"
        self._written.append(self._store.key(path))
        await self._store.storage.put_if_absent(self._store.key(path), data)
        self._parts.append(PartRef(part.rank, path, len(data), digest_of(data), size, size))

    async def commit(self, facts: Facts) -> Metadata:
        """The one moment at which the checkpoint exists."""
        await self._check_files()
        metadata = Metadata(
            manifest.FORMAT,
            self._store.job,
            self._folder.step,
            facts.epoch,
            await _newest_term(self._store) or 0,
            self.name,
            facts.unix_seconds,
            facts.world_size,
            facts.metrics,
            self._parts,
            [],
            __version__,
            dict(facts.data),
        )
        data = manifest.encode_metadata(metadata)
        self._is_decided = True  # from here on it may be there, whatever the storage says
        try:
            await self._store.storage.put_if_absent(self._store.key(self._folder.name, METADATA), data)
        except ObjectExists:
            raise taken_already(self._store, self._folder) from None
        return manifest.decode_metadata(data, "the checkpoint just written")

    async def _check_files(self) -> None:
        """Whoever stood still for long enough lost the claim to the folder."""
        for key, version in self._versions.items():
            try:
                now = await self._store.storage.version(key)
            except ObjectNotFound:
                now = ""
            if now != version:
                raise Conflict(
                    f"{self._store.storage.url}/{key} was changed or removed before the checkpoint was whole: try again"
                )

    async def discard(self) -> None:
        """Remove what was written; nothing, once it may be a checkpoint."""
        if not self._is_decided:
            with suppress(StorageError):
                await self._store.storage.delete_many(self._written)


async def _newest_term(store: Store) -> int | None:
    newest = (await read_lineage(store)).newest
    return None if newest is None else newest.term
