"""What can be done with the committed checkpoints of a job: find, load, verify, keep, delete. All of it is async.

The law of deleting: the manifest goes first, and from that moment on there is no such checkpoint; its files follow, but
none that another checkpoint refers to, and none while somebody reads them. What a crash leaves is swept by the next
writer.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple, TypeAlias

from strata.checkpoint.lineage import LINEAGE, Lineage, read_lineage, rebuilt
from strata.checkpoint.loading import StateLoader, names_of
from strata.checkpoint.locating import jobs_in, some_jobs
from strata.checkpoint.manifest import METADATA, MOST_TERMS, Metadata, Part
from strata.checkpoint.matching import Load, LoadReport, chooser, renamer
from strata.checkpoint.opened import Opened
from strata.checkpoint.readers import being_read, marked
from strata.checkpoint.retention import KEEP_ALL, doomed
from strata.checkpoint.saving import BYTES
from strata.checkpoint.skeleton import plain_values
from strata.checkpoint.slices import Index
from strata.checkpoint.stakes import stands
from strata.checkpoint.store import Folder, Store, folder_named, folders_of
from strata.checkpoint.verifying import verify_part
from strata.checkpoint.whole import Whole, own_names, whole_of
from strata.core.settings import Retention
from strata.errors import CheckpointDamaged, InvalidInput, NotFound, ObjectNotFound
from strata.logs import get_logger
from strata.texts import some_of

logger = get_logger("strata.checkpoint")

PINS = "pins"
LOOKS = 5
"""So often a look is repeated that came too late for all it had seen."""
_PART = re.compile(r"[^/]+/part-\d+-(\d+-[0-9a-f]+)\.json")
"""A part's manifest, and whose it is."""


class Damage(NamedTuple):
    """What is wrong with a checkpoint's manifest, and the attempt that saved it: empty if no file's name tells."""

    error: CheckpointDamaged
    attempt: str

    @property
    def term(self) -> int:
        """The newest, where it is not known."""
        return int(self.attempt.partition("-")[0]) if self.attempt else MOST_TERMS


class Survey(NamedTuple):
    """What there is: checkpoints whose manifests are sound, those of them that are on the line, by step, and what is
    wrong with the others, of which nobody can say whether they are."""

    lineage: Lineage
    sound: list[tuple[Folder, Metadata]]
    line: dict[int, Folder]
    damaged: dict[Folder, Damage]

    def latest(self) -> Folder | None:
        """CheckpointDamaged if one of those that are damaged came after all others."""
        newest = max(self.line, default=-1)
        for folder, damage in self.damaged.items():
            if folder.step >= newest and self.lineage.holds(folder.step, damage.term):
                raise CheckpointDamaged(
                    f"the latest checkpoint, of step {folder.step}, cannot be read: {damage.error}. To go on from an "
                    f"earlier one, load it by its step (there are: {some_steps(self.line)}), or delete step "
                    f"{folder.step} first"
                )
        return self.line[newest] if self.line else None

    def at(self, step: int) -> Folder | None:
        """On the line, or else the latest run's. CheckpointDamaged if none that has this step is sound."""
        same = [(metadata.term, folder) for folder, metadata in self.sound if folder.step == step]
        for folder, damage in self.damaged.items():
            if folder.step == step and not same:
                raise damage.error
        return self.line.get(step) or max(same, default=(0, None))[1]


Looked: TypeAlias = Callable[[Survey], None]


def unheeded(survey: Survey) -> None:
    """For a look that nobody goes on from."""


class Checkpoints:
    """The committed checkpoints of one job."""

    def __init__(self, store: Store, rank: int = 0) -> None:
        self.store, self.rank = store, rank
        self.size: int | None = None
        """How many ranks go on from what is loaded; None for whoever only reads."""
        self.check: Callable[[], Awaitable[object]] = _nothing
        """Raises once another process has taken over: asked before anything is deleted that it may need."""
        self.deleting = asyncio.Lock()
        """Held while files that nobody needs are looked for, and while a save looks for a folder to write to."""
        self.taken: set[str] = set()
        """Folders that a save of this process may write to: nobody refers to its files yet."""
        self._unswept: set[str] = set()
        """Folders with files that nobody may need any more."""
        self._told: set[Folder] = set()

    @property
    def where(self) -> str:
        return f"{self.store.storage.url}/{self.store.root}"

    @property
    def everywhere(self) -> str:
        """Wherever any could be."""
        return self.where

    def act_as(self, rank: int, size: int | None = None) -> None:
        """Load what this rank has of its own."""
        self.rank, self.size = rank, size

    async def all(self) -> list[tuple[Folder, Metadata]]:
        """Every committed checkpoint whose manifest is sound, on the line or not."""
        return (await self.look())[0]

    async def damaged(self) -> dict[Folder, Damage]:
        """Every committed checkpoint whose manifest is not."""
        return (await self.look())[1]

    async def look(self) -> tuple[list[tuple[Folder, Metadata]], dict[Folder, Damage]]:
        """Both."""
        for _ in range(LOOKS):
            found = await self._look()
            if found is not None:
                return found
        return [], {}

    async def _look(self) -> tuple[list[tuple[Folder, Metadata]], dict[Folder, Damage]] | None:
        """None if all that was listed has been deleted since: there are others now."""
        sound, damaged = [], {}
        folders = await self.store.folders()
        for folder in folders:
            try:
                sound.append((folder, await self.store.metadata(folder)))
            except ObjectNotFound:
                continue
            except CheckpointDamaged as error:
                damaged[folder] = Damage(error, await self.attempt_of(folder))
                if folder not in self._told:
                    self._told.add(folder)
                    logger.error("%s", error)
        return None if folders and not sound and not damaged else (sound, damaged)

    async def attempt_of(self, folder: Folder) -> str:
        """That of the newest term, by the names of the files."""
        found = [_PART.fullmatch(path) async for path in self.store.paths(folder.name)]
        return max((each[1] for each in found if each), key=lambda name: int(name.partition("-")[0]), default="")

    async def line(self) -> dict[int, Folder]:
        """Those that lead to where the job is now, by step."""
        return (await self.survey()).line

    async def survey(self) -> Survey:
        """All of it, at one moment."""
        lineage = await read_lineage(self.store)
        sound, damaged = await self.look()
        if not lineage.terms:
            lineage = rebuilt(metadata for _, metadata in sound)
            if lineage.terms:
                logger.warning("%s/%s is missing: it is taken from the checkpoints themselves", self.where, LINEAGE)
        return Survey(lineage, sound, lineage.line(sound), damaged)

    async def latest(self) -> Folder | None:
        """None if there is no checkpoint. One that cannot be read any more is CheckpointDamaged: to go back further
        without a word would be to lose work without a word."""
        return (await self.survey()).latest()

    async def find(self, step: int | None) -> Folder:
        """The latest, or the one of this step: on the line, or else any that has it and is more than a manifest."""
        return await self.find_in(await self.survey(), step)

    async def find_in(self, survey: Survey, step: int | None) -> Folder:
        """The same, in what was there at one moment."""
        if step is not None and step not in survey.line:
            hollow = [each for each in survey.sound if each[0].step == step and await self._is_hollow(*each)]
            survey = survey._replace(sound=[each for each in survey.sound if each not in hollow])
        folder = survey.latest() if step is None else survey.at(step)
        if folder is None and step is None:
            jobs = [job for job in await jobs_in(self.store.storage) if job != self.store.job]
            there = f"; there are some of {some_jobs(jobs)}: say which with job_id" if jobs else ""
            raise NotFound(f"there is no committed checkpoint in {self.everywhere}{there}")
        if folder is None:
            there = some_steps(survey.line)
            raise NotFound(f"there is no committed checkpoint of step {step} in {self.where}; the latest are: {there}")
        self.store.forget(folder)  # what is listed may be dated to the second only
        return folder

    async def find_to_delete(self, step: int) -> Folder:
        """As `find`, or one of this step whose manifest is damaged."""
        try:
            return await self.find(step)
        except CheckpointDamaged:
            damaged = [folder for folder in await self.damaged() if folder.step == step]
            if not damaged:
                raise
            return damaged[-1]

    async def latest_part(self) -> tuple[Folder, Part] | None:
        """This rank's of the latest on the line, if there is one that is sound."""
        line = await self.line()
        if not line:
            return None
        folder = line[max(line)]
        try:
            own = [each for each in (await self.store.metadata(folder)).parts if each.rank == self.rank]
            return (folder, await self.store.part(own[0])) if own else None
        except (CheckpointDamaged, InvalidInput, ObjectNotFound) as error:
            logger.warning("nothing is referred to in %s: %s", folder.name, error)
            return None

    async def metadata(self, folder: Folder) -> Metadata:
        """What the checkpoint says of itself."""
        return await self.store.metadata(folder)

    # -- loading -----------------------------------------------------------------------------------------------------

    async def load(
        self, folder: Folder, load: Load, progress: Callable[[int], None] = lambda count: None
    ) -> tuple[Any, LoadReport]:
        """The state, and what of it did not fit."""
        async with marked(self.store, folder):
            report = LoadReport()
            whole = await self._whole(folder, goes_on=load.keys is None)
            loader = self._loader(folder, whole, progress)
            if whole.kind == BYTES:
                if not load.is_whole:
                    raise InvalidInput(f"step {folder.step} is a state of bytes: it is loaded whole")
                return await loader.bytes(), report
            strictly = self._where(folder) if load.strict else None
            if load.into is not None:
                return await loader.into(load.into, renamer(load.rename), report, strictly), report
            if load.like is not None:
                return await loader.like(load.like, renamer(load.rename), report, strictly), report
            names = [] if load.keys is None else [*names_of(whole), *plain_values(whole.skeleton)]
            return await loader.tree(None if load.keys is None else chooser(names, load.keys)), report

    async def load_slice(self, folder: Folder, name: str, index: Index) -> Any:
        """A part of one array."""
        async with marked(self.store, folder):
            whole = await self._whole(folder)
            if whole.kind == BYTES:
                raise InvalidInput(f"step {folder.step} is a state of bytes: it has no tensors")
            return await self._loader(folder, whole, lambda count: None).slice(name, index)

    async def _whole(self, folder: Folder, *, goes_on: bool = False) -> Whole:
        """As this rank sees it. Where fewer ranks go on than have saved, what the rest had of their own is told."""
        parts = await self.store.parts(folder)
        if goes_on and self.rank == 0 and self.size is not None:
            _tell_of_others(folder, parts, self.size)
        return whole_of(parts, self.rank, self._where(folder))

    def _loader(self, folder: Folder, whole: Whole, progress: Callable[[int], None]) -> StateLoader:
        return StateLoader(self.store, whole, progress, self._where(folder))

    async def open(self, folder: Folder) -> Opened:
        """For an object that is loaded into: nobody deletes the checkpoint until it is closed."""
        async with AsyncExitStack() as mark:
            await mark.enter_async_context(marked(self.store, folder))
            whole = await self._whole(folder, goes_on=True)
            if whole.kind == BYTES:
                raise InvalidInput(f"step {folder.step} is a state of bytes: it is loaded whole")
            loader = self._loader(folder, whole, lambda count: None)
            return Opened(folder, self._where(folder), loader, mark.pop_all())

    def _where(self, folder: Folder) -> str:
        return f"{self.where}/{folder.name}"

    # -- verifying ---------------------------------------------------------------------------------------------------

    async def verify(self, folder: Folder, progress: Callable[[int], None] = lambda count: None) -> int:
        """Read every byte and compare; how many there were. CheckpointDamaged names what is not as it was written."""
        size = 0
        self.store.forget(folder)
        async with marked(self.store, folder):
            for part in await self.store.parts(folder):
                size += await verify_part(self.store, part, progress)
        return size

    # -- keeping and deleting ----------------------------------------------------------------------------------------

    async def pin(self, folder: Folder) -> None:
        await self.store.metadata(folder)
        await self.store.storage.write(self.store.key(PINS, folder.name), b"")

    async def unpin(self, folder: Folder) -> None:
        await self.store.storage.delete(self.store.key(PINS, folder.name))

    async def pinned(self) -> set[str]:
        return {path.removeprefix(f"{PINS}/") async for path in self.store.paths(PINS)}

    async def retain(self, rule: Retention) -> list[tuple[Folder, Metadata]]:
        """Delete what is beyond the rule; gives what that was."""
        beyond: list[Folder] = []
        sound: list[tuple[Folder, Metadata]] = []
        if rule != KEEP_ALL:
            survey = await self.survey()
            sound = survey.sound
            beyond = doomed(sound, set(survey.line.values()), await self.pinned(), rule)
        if beyond or self._unswept:
            await self.check()
            await self.delete(beyond)
        if beyond:
            logger.info("deleted %s, beyond what retention keeps", ", ".join(folder.name for folder in beyond))
        return [each for each in sound if each[0] in beyond]

    def sweep_later(self, folder: Folder) -> None:
        """A save failed there, for certain: what ranks that are gone have written goes with the next retention."""
        self._unswept.add(folder.name)

    async def delete(self, folders: Iterable[Folder]) -> None:
        """Their manifests, then whatever nobody else needs."""
        async with self.deleting:
            await self._delete(list(folders))

    async def _delete(self, gone: list[Folder]) -> None:
        for folder in gone:
            self._unswept |= {folder.name, *await self._referred_to(folder)}  # whatever becomes of it
            # The pin first: one that outlived its checkpoint would keep another that is saved under the same name.
            await self.store.storage.delete(self.store.key(PINS, folder.name))
            await self.store.storage.delete(self.store.key(folder.name, METADATA))
            self.store.forget(folder)
        await self.sweep(self._unswept)

    async def _referred_to(self, folder: Folder) -> set[str]:
        """Folders with files that may have been kept for this one alone."""
        try:
            return folders_of((await self.store.metadata(folder)).references)
        except (ObjectNotFound, CheckpointDamaged):
            return set()

    async def sweep(self, names: set[str] | None = None) -> list[str]:
        """Remove files of these folders (of all, if None) that no checkpoint refers to; gives their paths.

        Only the newest writer may. What somebody reads, and what a save of its own writes, stays until the next time.
        """
        there = [path async for path in self.store.paths()]
        # In this order. Whoever writes beside the job marks a folder before there is a file in it; and whoever takes a
        # mark away has committed by then what is needed.
        keep = await being_read(self.store) | self.taken
        needed = await self.files_needed()
        gone = []
        for path in there:
            name = path.partition("/")[0]
            if folder_named(name) is None or name in keep or (names is not None and name not in names):
                continue
            if path not in needed and not stands(path):
                gone.append(path)
        await self.check()  # now: whoever begins after this writes what was not there when these were listed
        await self.store.storage.delete_many([self.store.key(path) for path in gone])
        self._unswept &= keep
        return gone

    async def _is_hollow(self, folder: Folder, metadata: Metadata) -> bool:
        """Whether it is a manifest alone, put by a run that was left behind when its files had been swept: it had
        looked whether it may before others took over. One on the line that has lost its files is damaged."""
        if (await read_lineage(self.store)).holds(metadata.step, metadata.term) or folder.name in await self.pinned():
            return False
        return not all([await self.store.storage.exists(self.store.key(part.path)) for part in metadata.parts])

    async def files_needed(self) -> set[str]:
        """Every file that a committed checkpoint is made of. One whose manifest is damaged needs all of its folder; one
        that is hollow needs nothing."""
        needed: set[str] = set()
        for folder in await self.store.folders():
            try:
                metadata = await self.store.metadata(folder)
            except ObjectNotFound:
                continue
            except CheckpointDamaged:
                needed |= {path async for path in self.store.paths(folder.name)}
                continue
            needed |= await self._needed_by(folder, metadata)
        return needed

    async def _needed_by(self, folder: Folder, metadata: Metadata) -> set[str]:
        needed = {f"{folder.name}/{METADATA}", *metadata.references}
        for reference in metadata.parts:
            needed.add(reference.path)
            try:
                needed |= {file.path for file in await self.store.part_files(reference)}
            except CheckpointDamaged:
                if await self._is_hollow(folder, metadata):
                    return set()
                needed |= {path async for path in self.store.paths(folder.name)}
        return needed


async def _nothing() -> None:
    """To check: whoever has begun no term may delete what a user asks for."""


def _tell_of_others(folder: Folder, parts: Sequence[Part], size: int) -> None:
    """What ranks had of their own that are none any more."""
    own = {part.rank: own_names(part) for part in parts if part.rank >= size}
    names = list(dict.fromkeys(name for some in own.values() for name in some))
    ranks = [rank for rank, some in own.items() if some]
    if ranks:
        logger.warning(
            "step %d was saved by %d ranks, and %d go on from it: what others had of their own (%s of %s) is not "
            "loaded. CheckpointReader(..., rank=%d) reads it",
            *(folder.step, len(parts), size),
            *(some_of(names), f"ranks {some_of(ranks)}" if len(ranks) > 1 else f"rank {ranks[0]}", ranks[0]),
        )


def some_steps(line: Iterable[int]) -> str:
    """The latest of them, for people."""
    return ", ".join(map(str, sorted(line)[-5:])) or "none"
