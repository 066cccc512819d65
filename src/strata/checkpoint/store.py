"""Where the checkpoints of a job lie in a storage, and what is there.

{job}/checkpoints/lineage.json                  which run of the writer followed which; see `lineage`
{job}/checkpoints/step_1000/metadata.json       a committed checkpoint
{job}/checkpoints/step_1000-3/metadata.json     the same step, saved again by the third run after a return
{job}/checkpoints/pins/step_1000                kept whatever retention says
{job}/checkpoints/readers/…                     somebody reads; see `readers`
{job}/checkpoints/far.json, uploaded/…          on a local tier; see `terms` and `tiers`
"""

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple

from strata.checkpoint.manifest import (
    METADATA,
    File,
    Metadata,
    Part,
    PartRef,
    decode_files,
    decode_metadata,
    decode_part,
    digest_of,
)
from strata.checkpoint.soundness import check_sound, check_together
from strata.checkpoint.together import together
from strata.checkpoint.uncollected import uncollected
from strata.checkpoint.watched import WatchedStorage
from strata.checkpoint.whole import Whole, whole_of
from strata.core.ids import check_id
from strata.errors import CheckpointDamaged, InvalidInput, ObjectNotFound
from strata.storage import ObjectInfo, StorageBackend

PARTS_KNOWN = 10_000
"""Of so many it is remembered which files they are made of: that is asked of all of them at each deletion."""
PARTS_AT_ONCE = 64
"""Small objects: what one rank reads of a thousand others must not take a thousand times as long."""
_FOLDER = re.compile(r"step_(\d{1,19})(?:-(\d{1,9}))?")


class Folder(NamedTuple):
    """The folder of one checkpoint: `term` is 0 for the first run that saved this step."""

    step: int
    term: int = 0

    @property
    def name(self) -> str:
        return f"step_{self.step}" + (f"-{self.term}" if self.term else "")


def folder_named(name: str) -> Folder | None:
    """None for anything else that lies there."""
    found = _FOLDER.fullmatch(name)
    return Folder(int(found[1]), int(found[2] or 0)) if found else None


def folders_of(paths: Iterable[str]) -> set[str]:
    """The names of those in which these files lie."""
    return {path.partition("/")[0] for path in paths}


class Store:
    """The checkpoints of one job. Knows keys and manifests; changes nothing."""

    def __init__(self, storage: StorageBackend, job: str) -> None:
        self.storage = WatchedStorage(storage)
        self.job = check_id(job, "job_id")
        self.root = f"{self.job}/checkpoints"
        self._metadata: dict[str, Metadata] = {}
        self._stamps: dict[str, tuple[int, float]] = {}
        self._files: dict[str, list[File]] = {}

    def key(self, *parts: str) -> str:
        """Below the job's folder."""
        return "/".join((self.root, *parts))

    async def folders(self) -> list[Folder]:
        """Those of committed checkpoints. What is known of one that is another by now is forgotten."""
        found = []
        async for path, entry in self._entries():
            name, _, rest = path.partition("/")
            folder = folder_named(name)
            if folder is not None and rest == METADATA:
                found.append(folder)
                stamp = (entry.size, entry.modified)
                if self._stamps.get(name) != stamp:
                    self.forget(folder)
                    self._stamps[name] = stamp
        return sorted(found)

    async def paths(self, *below: str) -> AsyncIterator[str]:
        """Of every object there, from the job's folder on."""
        async for path, _ in self._entries(*below):
            yield path

    async def _entries(self, *below: str) -> AsyncIterator[tuple[str, ObjectInfo]]:
        prefix = len(self.root) + 1
        async for entry in self.storage.list_all(self.key(*below)):
            yield entry.path[prefix:], entry

    async def metadata(self, folder: Folder) -> Metadata:
        """Of a committed checkpoint: it never changes, so it is read once. But it may be removed and saved again, by
        others too: see `folders`."""
        known = self._metadata.get(folder.name)
        if known is None:
            key = self.key(folder.name, METADATA)
            known = decode_metadata(await self.storage.read(key), f"{self.storage.url}/{key}")
            if known.step != folder.step:
                raise CheckpointDamaged(f"{self.storage.url}/{key} says it is of step {known.step}: it was moved here")
            self._metadata[folder.name] = known
        return known

    async def is_committed(self, folder: Folder) -> bool:
        return await self.storage.exists(self.key(folder.name, METADATA))

    def missing(self, path: str) -> CheckpointDamaged:
        """To be raised: of a committed checkpoint this file is gone."""
        return CheckpointDamaged(f"{self.storage.url}/{self.key(path)} is missing: the checkpoint is not whole")

    def forget(self, folder: Folder) -> None:
        """It is deleted, or may be another by now."""
        self._metadata.pop(folder.name, None)
        self._stamps.pop(folder.name, None)

    async def part(self, reference: PartRef) -> Part:
        """A rank's manifest, which must be what the checkpoint says."""
        data, where = await self._manifest(reference)
        with uncollected():
            part = decode_part(data, where)
            check_sound(part, where)
        if part.rank != reference.rank:
            raise CheckpointDamaged(
                f"{where} is the part of rank {part.rank}, where that of {reference.rank} should be"
            )
        return part

    async def parts(self, folder: Folder) -> list[Part]:
        """Those of all ranks, in their order."""
        found = {part.rank: part for part in await self.parts_of((await self.metadata(folder)).parts)}
        parts = [found[rank] for rank in sorted(found)]
        check_together(parts, self._told(folder))
        return parts

    async def parts_of(self, references: Sequence[PartRef]) -> list[Part]:
        """These, some at a time."""
        found: dict[int, Part] = {}

        async def read(place: int) -> None:
            found[place] = await self.part(references[place])

        places = range(len(references))
        for start in range(0, len(references), PARTS_AT_ONCE):
            await together(map(read, places[start : start + PARTS_AT_ONCE]))
        return [found[place] for place in places]

    async def whole(self, folder: Folder, rank: int = 0) -> Whole:
        """The state of a checkpoint, from the parts of all ranks, as one of them sees it."""
        return whole_of(await self.parts(folder), rank, self._told(folder))

    def _told(self, folder: Folder) -> str:
        return f"{self.storage.url}/{self.key(folder.name)}"

    async def part_files(self, reference: PartRef) -> list[File]:
        """Those that it is made of. Nobody may read by what is said there: it is not looked at as `part` is."""
        known = self._files.get(reference.digest)
        if known is None:
            if len(self._files) >= PARTS_KNOWN:
                self._files.clear()
            known = self._files[reference.digest] = decode_files(*await self._manifest(reference))
        return known

    async def _manifest(self, reference: PartRef) -> tuple[bytes, str]:
        key = self.key(reference.path)
        where = f"{self.storage.url}/{key}"
        try:
            data = await self.storage.read(key)
        except ObjectNotFound as error:
            raise self.missing(reference.path) from error
        except InvalidInput as error:
            raise CheckpointDamaged(f"the checkpoint names a part that cannot be one: {error}") from error
        if digest_of(data) != reference.digest:
            raise CheckpointDamaged(f"{where} is damaged: its digest does not match what the checkpoint says")
        return data, where
