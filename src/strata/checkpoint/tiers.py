"""Checkpoints in two places: a fast local disk (near), and a storage behind it (far).

near    what was saved last, on this machine. A cache with one duty: what is not at the far end yet is kept.
far     the job's checkpoints. What was once there and is no longer was deleted, and counts on the local disk neither.

Both hold the same files under the same names. A checkpoint is looked for in both, and loaded from the local disk if it
is whole there. What the local disk holds of runs that the storage behind does not know is never offered.
"""

from collections.abc import Awaitable, Callable, Iterable
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple, TypeVar

from strata.checkpoint.checkpoints import PINS, Checkpoints, Damage, Survey
from strata.checkpoint.copies import Copies, Far, Near, View
from strata.checkpoint.lineage import Lineage
from strata.checkpoint.manifest import Metadata
from strata.checkpoint.matching import Load, LoadReport, Rename
from strata.checkpoint.opened import Opened
from strata.checkpoint.readers import CheckpointGone, gone
from strata.checkpoint.retention import doomed
from strata.checkpoint.slices import Index
from strata.checkpoint.stateful import Plan
from strata.checkpoint.store import Folder, Store
from strata.checkpoint.terms import Terms
from strata.core.settings import Retention
from strata.errors import (
    CheckpointDamaged,
    InvalidInput,
    StorageError,
    StorageUnavailable,
)
from strata.logs import get_logger
from strata.storage import StorageBackend

logger = get_logger("strata.checkpoint")

T = TypeVar("T")


class Tiers(Checkpoints):
    """The checkpoints of one job in both places."""

    def __init__(self, near: Store, far: Store) -> None:
        super().__init__(far)
        self.near = Near(near)
        self.far = Far(far, self.near)
        self.terms = Terms(near, far)
        self.near.check, self.far.check = self.terms.check_near, self.terms.settle
        self.heals = False
        """Whether a damaged copy on the local disk is removed, once it is known to be at the far end."""

    def act_as(self, rank: int, size: int | None = None) -> None:
        super().act_as(rank, size)
        self.near.act_as(rank, size)
        self.far.act_as(rank, size)

    # -- looking -----------------------------------------------------------------------------------------------------

    async def view(self, *, alone: bool = False) -> View:
        """Both places. `alone`: if the storage behind does not answer, the local disk as far as it is known."""
        try:
            return await self._view(await self.terms.look())
        except StorageUnavailable as error:
            if not alone and self.terms.term is None:
                raise StorageUnavailable(
                    f"which checkpoint is the latest is not known, since {self.where} does not answer: what is in "
                    f"{self.near.where} may be left behind. Try again; or read the local disk by itself with "
                    f"CheckpointReader({self.near.store.storage.url!r}). {error}",
                    storage=error.storage,
                    key=error.key,
                ) from error
            logger.warning("looking at the local disk alone: %s", error)
            return await self.near_view()

    async def near_view(self) -> View:
        """Without asking the storage behind."""
        lineage = await self.terms.remembered() or Lineage()
        disk = await self._on_disk()
        known = {folder: each for folder, each in disk.sound.items() if lineage.knows(each.term, each.attempt)}
        seen = [
            Copies(folder, each, near=True, far=disk.uploaded.get(folder.name) == each.attempt)
            for folder, each in known.items()
        ]
        return View(lineage, seen, disk.lost(lineage))

    async def _view(self, lineage: Lineage) -> View:
        disk, (sound, damaged) = await self._on_disk(), await self.look()
        far = dict(sound)
        seen = [Copies(folder, each, near=_is_same(disk.sound.get(folder), each), far=True) for folder, each in sound]
        for folder, each in disk.sound.items():
            if _is_same(far.get(folder), each) or not lineage.knows(each.term, each.attempt):
                continue
            was_there = disk.uploaded.get(folder.name) == each.attempt
            if not was_there or folder in far or folder in damaged:
                seen.append(Copies(folder, each, near=True, far=False))
        whole = {each.folder for each in seen}
        lost = disk.lost(lineage) | damaged
        return View(lineage, seen, {folder: each for folder, each in lost.items() if folder not in whole})

    async def _on_disk(self) -> "_Disk":
        """A disk that cannot be read holds nothing."""
        try:
            sound, damaged = await self.near.look()
            return _Disk(dict(sound), damaged, await self.near.uploaded())
        except StorageError as error:
            logger.warning("the local tier cannot be read: %s", error)
            return _Disk({}, {}, {})

    async def all(self) -> list[tuple[Folder, Metadata]]:
        return (await self.survey()).sound

    async def damaged(self) -> dict[Folder, Damage]:
        return (await self.view()).damaged

    async def survey(self) -> Survey:
        view = await self.view()
        sound = [(each.folder, each.metadata) for each in view.checkpoints]
        line = {step: each.folder for step, each in view.line().items()}
        return Survey(view.lineage, sound, line, view.damaged)

    @property
    def everywhere(self) -> str:
        return f"{self.where}, nor in {self.near.where}"

    async def metadata(self, folder: Folder) -> Metadata:
        return (await self._copies(folder)).metadata

    async def _copies(self, folder: Folder) -> Copies:
        found = (await self.view()).at(folder)
        if found is None:
            raise gone(self.store, folder)
        return found

    # -- loading -----------------------------------------------------------------------------------------------------

    async def load(
        self, folder: Folder, load: Load, progress: Callable[[int], None] = lambda count: None
    ) -> tuple[Any, LoadReport]:
        return await self._from_nearest(folder, lambda tier: tier.load(folder, load, progress))

    async def load_slice(self, folder: Folder, name: str, index: Index) -> Any:
        return await self._from_nearest(folder, lambda tier: tier.load_slice(folder, name, index))

    async def open(self, folder: Folder) -> Opened:
        opened = await self._from_nearest(folder, lambda tier: tier.open(folder))
        copies = await self._copies(folder)
        return NearestOpened(opened, partial(self._instead, folder)) if copies.near and copies.far else opened

    async def _instead(self, folder: Folder, error: Exception) -> Opened:
        await self._warn(folder, error)
        return await self.far.open(folder)

    async def _from_nearest(self, folder: Folder, use: Callable[[Checkpoints], Awaitable[T]]) -> T:
        copies = await self._copies(folder)
        if copies.near:
            try:
                return await use(self.near)
            except (CheckpointDamaged, CheckpointGone, StorageError) as error:
                if not copies.far:
                    raise
                await self._warn(folder, error)
        return await use(self.far)

    async def _warn(self, folder: Folder, error: Exception) -> None:
        """And remove a copy that is damaged."""
        logger.warning("step %d is taken from %s instead of the local disk: %s", folder.step, self.where, error)
        if self.heals and isinstance(error, CheckpointDamaged):
            try:
                await self.near.delete([folder])
            except StorageError as failure:
                logger.warning("a damaged copy on the local disk could not be removed: %s", failure)

    async def verify(self, folder: Folder, progress: Callable[[int], None] = lambda count: None) -> int:
        """Every copy; the bytes of all of them."""
        copies = await self._copies(folder)
        tiers = [tier for tier, is_there in ((self.near, copies.near), (self.far, copies.far)) if is_there]
        size, whole, damage = 0, [], []
        for tier in tiers:
            try:
                size += await tier.verify(folder, progress)
                whole.append(tier.where)
            except CheckpointDamaged as error:
                damage.append(str(error))
        if damage:
            other = f". The copy in {whole[0]} is whole" if whole else ""
            raise CheckpointDamaged("; ".join(damage) + other)
        return size

    # -- keeping and deleting ----------------------------------------------------------------------------------------

    async def pin(self, folder: Folder) -> None:
        """Wherever it is: a pin on the local disk goes up with it."""
        copies = await self._copies(folder)
        for tier, is_there in ((self.near, copies.near), (self.far, copies.far)):
            if is_there:
                await tier.pin(folder)

    async def unpin(self, folder: Folder) -> None:
        await self.near.unpin(folder)
        await self.far.unpin(folder)

    async def pinned(self) -> set[str]:
        return await self.near.pinned() | await self.far.pinned()

    async def delete(self, folders: Iterable[Folder]) -> None:
        """On the local disk first: what is left there alone would be uploaded again."""
        doomed = list(folders)
        await self.near.delete(doomed)
        await self.far.delete(doomed)

    async def sweep(self, names: set[str] | None = None) -> list[str]:
        return await self.near.sweep(names) + await self.far.sweep(names)

    async def carry_pin(self, folder: Folder) -> None:
        """To the far end, before the checkpoint is there."""
        if await self.near.store.storage.exists(self.near.store.key(PINS, folder.name)):
            await self.far.store.storage.write(self.far.store.key(PINS, folder.name), b"")

    async def retain_near(self, keep: int, unwanted: set[str]) -> None:
        """So many of the latest stay on the local disk, and what is to be uploaded; `unwanted` is not."""
        # In this order: a save that is committed meanwhile is not among those that may go.
        everything = await self.near.all()
        view = await self.near_view()
        line = {each.folder for each in view.line().values()}
        waiting = {each.folder.name for each in view.pending() if each.metadata.attempt not in unwanted}
        beyond = doomed(everything, line, waiting, Retention(keep_count=keep)) + await self._unreadable(everything)
        if beyond:
            await self.near.delete(beyond)

    async def _unreadable(self, sound: Iterable[tuple[Folder, Metadata]]) -> list[Folder]:
        """Folders with a damaged manifest, of checkpoints that were uploaded."""
        noted, fine = await self.near.uploaded(), {folder for folder, _ in sound}
        return [each for each in await self.near.store.folders() if each not in fine and each.name in noted]


class _Disk(NamedTuple):
    """What lies on the local one."""

    sound: dict[Folder, Metadata]
    damaged: dict[Folder, Damage]
    uploaded: dict[str, str]

    def lost(self, lineage: Lineage) -> dict[Folder, Damage]:
        """What was nowhere else, and would count."""
        return {
            folder: each
            for folder, each in self.damaged.items()
            if folder.name not in self.uploaded and lineage.knows(each.term, each.attempt)
        }


class NearestOpened(Opened):
    """Open on the local disk; what turns out to be damaged is read from behind."""

    def __init__(self, near: Opened, instead: Callable[[Exception], Awaitable[Opened]]) -> None:
        self._opened, self._instead = near, instead
        self.folder, self.report = near.folder, near.report

    def plan(self, into: Any, rename: Rename | None) -> Plan:
        return self._opened.plan(into, rename)

    async def read(self, plan: Plan, strict: bool) -> Any:
        planned = deepcopy(self.report)
        try:
            return await self._opened.read(plan, strict)
        except (CheckpointDamaged, StorageError) as error:
            await self._opened.close()
            self._opened = await self._instead(error)
        self._opened.report = self.report = planned
        return await self._opened.read(plan, strict)

    async def close(self) -> None:
        await self._opened.close()


def checked_local(near: StorageBackend, far: StorageBackend) -> StorageBackend:
    """InvalidInput for what cannot be a local tier before the other."""
    if not near.url.startswith(("file:", "memory:")):
        raise InvalidInput(f"local must be a folder on a disk of this machine, not {near.url}")
    if near.url == far.url:
        raise InvalidInput(f"local and path must be two places, and both are {near.url}")
    return near


def _is_same(one: Metadata | None, other: Metadata | None) -> bool:
    return one is not None and other is not None and one.attempt == other.attempt
