"""All committed checkpoints of a job at a glance: on the line or left behind, pinned, and those that are damaged, too.

`Checkpoints` offers what can be loaded. Whoever looks after a storage must also see what cannot.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass

from strata.checkpoint.checkpoints import Checkpoints, Damage, Survey
from strata.checkpoint.lineage import Lineage, read_lineage, rebuilt
from strata.checkpoint.manifest import Metadata
from strata.checkpoint.store import Folder, folder_named
from strata.checkpoint.whole import number_of_tensors
from strata.errors import CheckpointDamaged, InvalidInput, NotFound, ObjectNotFound

READS_AT_ONCE = 8
NEAR = 5
_NAMED = re.compile(r"(\d{1,19})(?:-(\d{1,9}))?")
LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Listed:
    """One checkpoint. `metadata` is None where its manifest is damaged, `tensors` where they were not counted."""

    folder: Folder
    metadata: Metadata | None = None
    tensors: int | None = None
    damage: str = ""
    on_line: bool = False
    is_latest: bool = False
    is_pinned: bool = False

    @property
    def label(self) -> str:
        """The step, as a person names it; with its term where a step was saved again: `1000-7`."""
        return self.folder.name.removeprefix("step_")

    @property
    def ranks(self) -> int:
        """How many saved it."""
        return self.metadata.world_size if self.metadata else 0

    @property
    def stored_bytes(self) -> int:
        return sum(part.stored_bytes for part in self.metadata.parts) if self.metadata else 0

    @property
    def written_bytes(self) -> int:
        """Of those, what lies in its own folder; the rest is referred to."""
        return sum(part.written_bytes for part in self.metadata.parts) if self.metadata else 0


@dataclass(frozen=True, slots=True)
class Overview:
    """Of one job. Without a sound lineage nobody knows which checkpoints are on the line."""

    where: str
    checkpoints: Sequence[Listed]
    lineage_damage: str = ""
    latest_damage: str = ""
    """What is wrong with the newest, if that is why none is the latest."""

    @property
    def line(self) -> list[Listed]:
        """Those that can be gone back to."""
        return [each for each in self.checkpoints if each.on_line]

    def find(self, named: str = LATEST) -> Listed:
        """By step (`1000`), by folder (`step_1000-7`), or the latest. Of a step saved twice, the one on the line."""
        if named == LATEST:
            return self._latest()
        step, term = parse_step(named)
        same = [each for each in self.checkpoints if each.folder.step == step]
        if term is not None:
            same = [each for each in same if each.folder.term == term]
        if not same:
            near = ", ".join(each.label for each in self.line[-NEAR:]) or "none"
            raise NotFound(f"there is no committed checkpoint {named} in {self.where}; the latest are: {near}")
        return max(same, key=lambda each: (each.on_line, each.metadata is not None, each.folder))

    def _latest(self) -> Listed:
        if self.lineage_damage:
            raise CheckpointDamaged(f"{self.lineage_damage}. Which checkpoint is the latest is not known: name a step")
        if self.latest_damage:
            raise CheckpointDamaged(self.latest_damage)
        found = [each for each in self.checkpoints if each.is_latest]
        if not found:
            raise NotFound(f"there is no committed checkpoint in {self.where} that could be loaded")
        return found[0]


def parse_step(named: str) -> tuple[int, int | None]:
    """A step, and the term if the name says which. The name of a folder always does."""
    exact = folder_named(named)
    if exact is not None:
        return exact
    found = _NAMED.fullmatch(named)
    if found is None:
        raise InvalidInput(f"{named!r} names no checkpoint: give a step such as 1000, a folder's name, or {LATEST}")
    return int(found[1]), None if found[2] is None else int(found[2])


async def look_over(checkpoints: Checkpoints, *, count_tensors: bool = False) -> Overview:
    """To count tensors, the manifests of all parts are read, and those that are damaged found."""
    store, turn = checkpoints.store, asyncio.Semaphore(READS_AT_ONCE)

    async def look(folder: Folder) -> Listed | None:
        async with turn:
            return await _look(checkpoints, folder, count_tensors)

    looks = await asyncio.gather(*map(look, await store.folders()))
    found = [each for each in looks if each is not None]
    lineage, damage = await _lineage(checkpoints)
    if lineage is not None and not lineage.terms:
        lineage = rebuilt(each.metadata for each in found if each.metadata)
    line = lineage.line((each.folder, each.metadata) for each in found if each.metadata) if lineage else {}
    on_line, pinned = set(line.values()), await checkpoints.pinned()
    latest, latest_damage = None, ""
    if lineage is not None:
        try:
            unread = [each for each in found if each.metadata is None]
            damaged = {
                each.folder: Damage(CheckpointDamaged(each.damage), await checkpoints.attempt_of(each.folder))
                for each in unread
            }
            latest = Survey(lineage, [], line, damaged).latest()
        except CheckpointDamaged as error:
            latest_damage = str(error)
    marked = [
        Listed(
            each.folder,
            each.metadata,
            each.tensors,
            each.damage,
            each.folder in on_line,
            each.folder == latest,
            each.folder.name in pinned,
        )
        for each in found
    ]
    return Overview(checkpoints.where, marked, damage, latest_damage)


async def _look(checkpoints: Checkpoints, folder: Folder, count_tensors: bool) -> Listed | None:
    """None if it was deleted since it was listed."""
    store = checkpoints.store
    try:
        metadata = await store.metadata(folder)
    except ObjectNotFound:
        return None
    except (CheckpointDamaged, InvalidInput) as error:
        return Listed(folder, damage=str(error))
    if not count_tensors:
        return Listed(folder, metadata)
    try:
        parts = await store.parts(folder)
    except (CheckpointDamaged, InvalidInput) as error:
        return Listed(folder, metadata, damage=str(error)) if await store.is_committed(folder) else None
    return Listed(folder, metadata, number_of_tensors(parts))


async def _lineage(checkpoints: Checkpoints) -> tuple[Lineage | None, str]:
    try:
        return await read_lineage(checkpoints.store), ""
    except CheckpointDamaged as error:
        return None, str(error)
