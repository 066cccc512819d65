"""Carries checkpoints from the local disk to the storage behind, one at a time, for as long as there are any.

The newest goes first, then those before it that retention would keep. What fails is tried again, after a while that
grows, and at once when somebody waits. All state lives on the private loop.

The law: nothing is uploaded that is not on the line, and nothing once another process has taken over.
"""

import asyncio
import os
import random
import time
from contextvars import Context
from typing import NamedTuple

from strata import background
from strata.checkpoint.copies import Copies, View
from strata.checkpoint.handle import SaveHandle
from strata.checkpoint.retention import KEEP_ALL, doomed
from strata.checkpoint.settings import CheckpointManagerConfig
from strata.checkpoint.store import Folder
from strata.checkpoint.telling import count_upload, show_behind
from strata.checkpoint.tiers import Tiers
from strata.checkpoint.uploading import Proven, Taken, Upload
from strata.checkpoint.watched import watched
from strata.errors import (
    CheckpointDamaged,
    NotFound,
    SaveReplaced,
    StorageError,
    StorageUnavailable,
    StrataError,
    Superseded,
)
from strata.logs import get_logger
from strata.texts import counted, readable_bytes

logger = get_logger("strata.checkpoint")

PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
_chance = random.Random()
"""Of our own: a training run's random numbers are not drawn from behind its back."""


class _Awaited(NamedTuple):
    """A save of this process that is committed on the local disk."""

    handle: SaveHandle
    began: float
    attempt: str


class _LeftBehind(Exception):
    """The job went back behind it, or on without it."""


class Uploader:
    """Of one manager."""

    def __init__(self, tiers: Tiers, config: CheckpointManagerConfig) -> None:
        self._tiers, self._config = tiers, config
        self._process = os.getpid()
        self._task: asyncio.Task[None] | None = None
        self._work: asyncio.Task[None] | None = None
        self._again = self._stopped = self._swept = False
        self._hurry, self._changed = asyncio.Event(), asyncio.Event()
        self._awaited: dict[str, _Awaited] = {}
        self._deleted: set[Folder] = set()
        self._untold: StrataError | None = None
        self._proven: Proven = {}
        self.far_turn = asyncio.Lock()
        """Held by whoever writes a checkpoint straight to the storage behind, or sweeps there."""
        self.current: Upload | None = None
        self.behind = 0
        """How many checkpoints are to be uploaded."""
        self.failures = 0
        """In a row."""
        self._tries = self._failed_try = 0
        """How many there were, and which of them failed last."""
        self.problem: Exception | None = None
        self.refused: dict[str, StrataError] = {}
        """Attempts that will never be uploaded, and why."""
        self.unwanted: set[str] = set()
        """Attempts that were given up for later ones."""
        self.superseded: Superseded | None = None

    # -- from any thread ---------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be something to upload."""
        background.loop().call_soon_threadsafe(self.start)

    def check(self) -> None:
        """Superseded if another process has taken over."""
        if self.superseded is not None:
            self._untold = None
            raise self.superseded

    def wait(self, timeout: float | None = None) -> None:
        """Until nothing is left to upload. Raises why something is not, if that is tried in vain meanwhile: what was
        under way before, and fails, is tried once more at once.

        In a child that was forked from the process that uploads there is nothing to wait for.
        """
        if os.getpid() != self._process:
            return
        waiting = asyncio.run_coroutine_threadsafe(self._idle(), background.loop())
        try:
            waiting.result(timeout)
        except TimeoutError:
            raise TimeoutError(f"{self.behind} checkpoints are not in {self._tiers.where} yet") from None
        finally:
            waiting.cancel()

    def stop(self) -> None:
        """What is not uploaded stays on the local disk, for the next manager."""
        if os.getpid() == self._process:
            background.run_while_alive(self._stop)

    # -- on the loop -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._again = True
        if self._task is None and not self._stopped and self.superseded is None:
            # In a context of its own: it is no part of the save that wakes it.
            self._task = asyncio.get_running_loop().create_task(self._run(), context=Context())
            _at_work[self] = self._process

    def expect(self, folder: Folder, attempt: str, handle: SaveHandle, began: float) -> None:
        """This save is committed on the local disk."""
        self._deleted.discard(folder)
        self._awaited[folder.name] = _Awaited(handle, began, attempt)
        self._set_behind(self.behind + 1)
        self.start()

    async def forget(self, folder: Folder) -> None:
        """It is about to be deleted."""
        self._deleted.add(folder)
        self._give_up(folder.name, NotFound(f"step {folder.step} was deleted before it was uploaded"))
        if self._work is not None and self.current is not None and self.current.folder == folder:
            await _cancelled(self._work)

    async def _idle(self) -> None:
        tries = self._tries
        while self._task is not None:
            self._hurry.set()
            await self._changed.wait()
            if self._failed_try > tries:
                raise self._told()
        untold, self._untold = self._untold, None
        if untold is not None:
            raise untold

    async def _stop(self) -> None:
        self._stopped = True
        if self._task is not None:
            await _cancelled(self._task)
        for name in list(self._awaited):
            self._give_up(name, StorageUnavailable("the manager was closed first", storage=self._tiers.where))

    async def _run(self) -> None:
        try:
            while self._again and self.superseded is None:
                self._again = False
                await self._step()
        finally:
            self._task = None
            _at_work.pop(self, None)
            self._tell()

    async def _step(self) -> None:
        """One upload, or a failure and a pause."""
        found = None
        self._tries += 1
        try:
            found = await watched(self._next(), "looking for what to upload", self._config.stuck_seconds)
            if found is not None:
                self._again = True
                await self._upload(found)
        except Superseded as error:
            self._lost(error)
        except Exception as error:  # noqa: BLE001  told by the log, by `tiers()`, and by `wait()`
            self._failed(error, found)
            await self._pause()
        else:
            self.failures, self.problem = 0, None

    # -- what is next ------------------------------------------------------------------------------------------------

    async def _next(self) -> Copies | None:
        """The storage behind is not asked as long as the local disk has nothing for it."""
        awaited = list(self._awaited)
        if not awaited and not await self._may_have_some():
            self._set_behind(0)
            return None
        await self._tiers.terms.settle()
        view = await self._tiers.view()
        await self._note_uploaded(view)
        pending = await self._wanted(view)
        self._give_up_others(view, pending)
        for name in set(awaited) - {each.folder.name for each in view.checkpoints}:
            self._give_up(name, NotFound(f"{name} is on the local disk no longer, and was not uploaded"))
        self._set_behind(len(pending))
        return pending[0] if pending else None

    async def _may_have_some(self) -> bool:
        near, uploaded = await self._tiers.near.all(), await self._tiers.near.uploaded()
        return any(uploaded.get(folder.name) != metadata.attempt for folder, metadata in near)

    async def _note_uploaded(self, view: View) -> None:
        """A process may have died between the commit and the note of it."""
        noted = await self._tiers.near.uploaded()
        for each in view.checkpoints:
            if each.near and each.far and noted.get(each.folder.name) != each.metadata.attempt:
                await self._arrived(each)

    async def _wanted(self, view: View) -> list[Copies]:
        """Newest first: those that retention would keep if all of them were there."""
        line = view.line()
        pending = [each for each in view.pending() if each.metadata.attempt not in self.refused]
        pending = [each for each in pending if each.folder not in self._deleted]
        if self._config.upload == "newest":
            there = max((step for step, each in line.items() if each.far), default=-1)
            return [each for each in pending[:1] if each.metadata.step > there]
        if not pending or self._config.retention == KEEP_ALL:
            return pending
        everything = [(each.folder, each.metadata) for each in view.checkpoints]
        usable = {each.folder for each in line.values()}
        beyond = doomed(everything, usable, await self._tiers.pinned(), self._config.retention)
        return [each for each in pending if each.folder not in beyond]

    def _give_up_others(self, view: View, wanted: list[Copies]) -> None:
        keep = {each.metadata.attempt for each in wanted} | self.refused.keys()
        for each in view.checkpoints:
            if not each.far and each.metadata.attempt not in keep:
                self.unwanted.add(each.metadata.attempt)
                words = f"step {each.folder.step} is not uploaded: others took its place"
                self._give_up(each.folder.name, SaveReplaced(words))

    # -- one ---------------------------------------------------------------------------------------------------------

    async def _upload(self, found: Copies) -> None:
        await self._sweep_once()
        near, far = self._tiers.near.store, self._tiers.far.store
        upload = Upload(near, far, found.folder, lambda: self._check_line(found), self._proven)
        began = time.perf_counter()
        what = f"the upload of step {found.folder.step} to {self._tiers.where}"
        work = asyncio.ensure_future(watched(upload.run(), what, self._config.stuck_seconds))
        self.current, self._work = upload, work
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            await _cancelled(work)
            raise
        finally:
            self.current = self._work = None
        if work.cancelled():  # it is being deleted
            return
        error = work.exception()
        if isinstance(error, _LeftBehind):
            return
        if isinstance(error, CheckpointDamaged | Taken):
            self._refuse(found, error)
            return
        if error is not None:
            raise error
        await self._arrived(found)
        count_upload(self._tiers.store.job, "uploaded", upload.bytes)
        seconds = time.perf_counter() - began
        logger.info("uploaded step %d: %s in %.1f s", found.folder.step, readable_bytes(upload.bytes), seconds)
        await self.retain(far=True)

    async def _check_line(self, found: Copies) -> None:
        lineage = await self._tiers.terms.settle()
        saved = found.metadata
        if not (lineage.knows(saved.term, saved.attempt) and lineage.holds(saved.step, saved.term)):
            raise _LeftBehind

    async def _sweep_once(self) -> None:
        """Of what earlier runs left in the storage behind. Only once this process is the one that writes there."""
        if self._tiers.terms.is_settled and not self._swept:
            async with self.far_turn:
                gone = await self._tiers.far.sweep()
            self._swept = True
            if gone:
                logger.info("removed %s that an earlier run left behind", counted(len(gone), "file"))

    async def retain(self, *, far: bool) -> None:
        """A failure here fails nothing else: what is not deleted now is deleted the next time."""
        try:
            await watched(self._retain(far), "deleting what is beyond retention", self._config.stuck_seconds)
        except (StrataError, OSError):
            logger.exception("checkpoints beyond what retention keeps could not be deleted")

    async def _retain(self, far: bool) -> None:
        if far:
            await self._tiers.far.retain(self._config.retention)
        await self._tiers.retain_near(self._config.local_keep, self.unwanted)

    # -- how it went -------------------------------------------------------------------------------------------------

    async def _arrived(self, found: Copies) -> None:
        await self._tiers.carry_pin(found.folder)
        await self._tiers.near.note_uploaded(found.folder, found.metadata.attempt)
        awaited = self._awaited.get(found.folder.name)
        if awaited is not None and awaited.attempt == found.metadata.attempt:
            del self._awaited[found.folder.name]
            awaited.handle.report.uploaded_seconds = time.perf_counter() - awaited.began
            awaited.handle.uploaded()

    def _set_behind(self, count: int) -> None:
        self.behind = count
        show_behind(self._tiers.store.job, count)

    def _give_up(self, name: str, error: StrataError) -> None:
        awaited = self._awaited.pop(name, None)
        if awaited is not None:
            awaited.handle.not_uploaded(error)

    def _refuse(self, found: Copies, error: StrataError) -> None:
        logger.error("step %d is not uploaded, and will not be: %s", found.folder.step, error)
        count_upload(self._tiers.store.job, "refused")
        self.refused[found.metadata.attempt] = self._untold = error
        self._give_up(found.folder.name, error)

    def _lost(self, error: Superseded) -> None:
        logger.error("nothing is uploaded any more: %s", error)
        self.superseded = self._untold = error
        for name in list(self._awaited):
            self._give_up(name, error)

    def _failed(self, error: Exception, found: Copies | None) -> None:
        self._again = True
        self.failures += 1
        self._failed_try = self._tries
        self.problem = error
        count_upload(self._tiers.store.job, "failed")
        what = "uploading" if found is None else f"uploading step {found.folder.step}"
        logger.error("%s to %s failed (%d in a row): %s", what, self._tiers.where, self.failures, error)
        self._tell()

    def _told(self) -> Exception:
        """The last failure, in words for whoever waits."""
        assert self.problem is not None
        error = self.problem
        if not isinstance(error, StorageError):
            return error
        words = f"not everything is in {self._tiers.where} yet; it is whole in {self._tiers.near.where}. {error}"
        return type(error)(words, storage=error.storage, key=error.key)

    async def _pause(self) -> None:
        longest = min(LONGEST_PAUSE_SECONDS, PAUSE_SECONDS * 2.0 ** min(self.failures - 1, 10))
        self._hurry.clear()
        try:
            await asyncio.wait_for(self._hurry.wait(), longest * _chance.uniform(0.5, 1.0))
        except TimeoutError:
            return

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


_at_work: dict[Uploader, int] = {}
"""And the process of each: a child that was forked does nothing for its parent's."""


def uploaders_at_work() -> list[Uploader]:
    """Those of this process that have something to upload, or try to."""
    return [uploader for uploader, process in list(_at_work.items()) if process == os.getpid()]


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
