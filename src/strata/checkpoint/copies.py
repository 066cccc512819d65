"""What lies on a local disk and in the storage behind it, seen together: which checkpoint is where."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from strata.checkpoint.checkpoints import Checkpoints, Damage
from strata.checkpoint.lineage import Lineage
from strata.checkpoint.manifest import METADATA, Metadata
from strata.checkpoint.store import Folder, Store
from strata.errors import CheckpointDamaged, ObjectNotFound, StorageError
from strata.logs import get_logger

logger = get_logger("strata.checkpoint")

UPLOADED = "uploaded"


class Near(Checkpoints):
    """On the local disk. `uploaded/step_1000` says that this one was at the far end."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._noted: dict[str, str] = {}

    async def uploaded(self) -> dict[str, str]:
        """Which attempt it was, by folder."""
        found = dict(self._noted)
        async for path in self.store.paths(UPLOADED):
            try:
                name = path.removeprefix(f"{UPLOADED}/")
                found[name] = (await self.store.storage.read(self.store.key(path))).decode(errors="replace")
            except ObjectNotFound:  # deleted since it was listed
                continue
        return found

    async def note_uploaded(self, folder: Folder, attempt: str) -> None:
        """Where a full disk cannot take the note, this process knows it all the same: so room can be made."""
        self._noted[folder.name] = attempt
        try:
            await self.store.storage.write(self.store.key(UPLOADED, folder.name), attempt.encode())
        except StorageError as error:
            logger.warning("that step %d is uploaded could not be noted: %s", folder.step, error)

    async def delete(self, folders: Iterable[Folder]) -> None:
        gone = list(folders)
        await super().delete(gone)
        await self._forget_notes({folder.name for folder in gone})

    async def undo(self, folder: Folder, attempt: str) -> None:
        """Remove what a save that failed may have left; nothing of another's."""
        self.store.forget(folder)
        try:
            if (await self.store.metadata(folder)).attempt == attempt:
                await self.store.storage.delete(self.store.key(folder.name, METADATA))
                self.store.forget(folder)
        except (ObjectNotFound, CheckpointDamaged):
            pass
        left = [self.store.key(path) async for path in self.store.paths(folder.name) if attempt in path]
        await self.store.storage.delete_many(left)

    async def sweep(self, names: set[str] | None = None) -> list[str]:
        """And notes that a crash left."""
        gone = await super().sweep(names)
        if names is None:
            await self._forget_notes(
                (await self.uploaded()).keys() - {each.name for each in await self.store.folders()}
            )
        return gone

    async def _forget_notes(self, names: Collection[str]) -> None:
        await self.store.storage.delete_many([self.store.key(UPLOADED, name) for name in names])
        for name in names:
            self._noted.pop(name, None)


class Far(Checkpoints):
    """In the storage behind. What the local disk is about to upload is needed there already."""

    def __init__(self, store: Store, near: Near) -> None:
        super().__init__(store)
        self._near = near

    async def files_needed(self) -> set[str]:
        try:
            return await super().files_needed() | await self._near.files_needed()
        except StorageError as error:
            if error.storage != self._near.store.storage.url:
                raise
            logger.warning("the local tier cannot be read: %s", error)
            return await super().files_needed()


@dataclass(frozen=True, slots=True)
class Copies:
    """A checkpoint, and where it is."""

    folder: Folder
    metadata: Metadata
    near: bool
    far: bool


class View(NamedTuple):
    """All checkpoints of a job that count, at one moment."""

    lineage: Lineage
    checkpoints: list[Copies]
    damaged: dict[Folder, Damage]
    """Those that are whole nowhere."""

    def line(self) -> dict[int, Copies]:
        return self.lineage.line((each, each.metadata) for each in self.checkpoints)

    def pending(self) -> list[Copies]:
        """On the line, and not at the far end yet; the newest first."""
        return [each for _, each in sorted(self.line().items(), reverse=True) if not each.far]

    def at(self, folder: Folder) -> Copies | None:
        """Of two that have one name, the later one."""
        same = [each for each in self.checkpoints if each.folder == folder]
        return max(same, key=lambda each: each.metadata.term, default=None)
