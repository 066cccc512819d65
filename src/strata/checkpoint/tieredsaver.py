"""Saves to the local disk, from where checkpoints go on to the storage behind; see `uploader`.

A disk that is full or broken loses no save: that one, and those of a while, are written straight to the storage behind.
"""

import asyncio
import time
from typing import Any

from strata import background
from strata.checkpoint.arena import Arena
from strata.checkpoint.attempt import Attempt, new_attempt
from strata.checkpoint.handle import SaveHandle
from strata.checkpoint.lineage import Term
from strata.checkpoint.room import free_bytes
from strata.checkpoint.running import finish_all
from strata.checkpoint.saver import Saver, _Save
from strata.checkpoint.settings import CheckpointManagerConfig
from strata.checkpoint.store import Folder
from strata.checkpoint.tiers import Tiers
from strata.checkpoint.uploader import Uploader, uploaders_at_work
from strata.checkpoint.watched import watched
from strata.errors import StorageError, StorageUnavailable, Superseded
from strata.logs import get_logger
from strata.texts import readable_bytes

logger = get_logger("strata.checkpoint")

OUT_SECONDS = 600.0
"""How long a disk that failed is left alone."""
UNDO_SECONDS = 10.0
FAR_BEHIND = 3
"""So many checkpoints that are not uploaded are worth a word."""
SPARE_BYTES = 1 << 20


class TieredSaver(Saver):
    """Saves states of one job from this process, on the local disk first."""

    tiered = True

    def __init__(self, tiers: Tiers, config: CheckpointManagerConfig, arena: Arena) -> None:
        super().__init__(tiers.near, config, arena)
        self._tiers = tiers
        tiers.heals = True
        self.uploader = Uploader(tiers, config)
        self._taken: set[str] | None = None
        self._out_until = 0.0
        self._out_for = ""
        self._wrote_far = False
        self.uploader.wake()

    # -- in the caller's thread --------------------------------------------------------------------------------------

    def begin(
        self, state: Any, step: int, epoch: int, metrics: dict[str, float] | None, *, hurried: bool
    ) -> SaveHandle:
        self.uploader.check()
        behind = self.uploader.behind
        handle = super().begin(state, step, epoch, metrics, hurried=hurried)
        if behind >= FAR_BEHIND:
            words = f"{behind} checkpoints are on the local disk alone, and not in {self._tiers.where} yet"
            handle.report.notes.append(words)
            logger.warning("%s%s", words, f": {self.uploader.problem}" if self.uploader.problem else "")
        return handle

    def wait(self, timeout: float | None = None) -> None:
        """Until nothing is being written or uploaded. Raises a failure that nobody was told of yet."""
        ends = None if timeout is None else time.monotonic() + timeout
        super().wait(timeout)
        self.uploader.wait(None if ends is None else max(0.0, ends - time.monotonic()))

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.uploader.stop()

    # -- on the loop -------------------------------------------------------------------------------------------------

    async def _write(self, save: _Save) -> None:
        async with self._claimed(save) as attempt:
            await self._write_somewhere(save, attempt)

    async def _write_somewhere(self, save: _Save, attempt: Attempt) -> None:
        problem = await self._why_not_near(save.handle.report.state_bytes)
        if not problem:
            try:
                what = f"the save of step {attempt.folder.step} to {self._tiers.near.where}"
                folder = await watched(self._write_near(save, attempt), what, self._config.stuck_seconds)
            except (StorageError, Superseded) as error:  # superseded, or the disk was emptied: the other tier knows
                problem = str(error)
                await self._give_up_near(attempt, problem)
                if save.stage is not None and save.stage.snapshot.takes_turns:
                    raise  # what was copied first is no longer there
            else:
                self.uploader.expect(folder, attempt.name, save.handle, save.began)
                return
        await self._write_far(save, attempt, problem)

    async def _write_near(self, save: _Save, attempt: Attempt) -> Folder:
        async with self._base(save) as base:
            return await self._write_to(self._tiers.near.store, attempt, save, base)

    async def _write_far(self, save: _Save, near: Attempt, problem: str) -> None:
        """Whole: what it could refer to may not be there."""
        attempt = new_attempt(near.folder, near.term, near.epoch, near.metrics, near.data)
        try:
            await self._tiers.terms.settle()
            async with self.uploader.far_turn:
                await self._write_to(self._tiers.far.store, attempt, save, None)
        except StorageError as error:
            raise type(error)(
                f"neither tier could take it. The local disk: {problem}. Behind it: {error}",
                storage=error.storage,
                key=error.key,
            ) from error
        self._wrote_far = True
        logger.warning("step %d was written straight to %s: %s", save.handle.step, self._tiers.where, problem)
        save.handle.report.notes.append(f"written straight to {self._tiers.where}: {problem}")
        save.handle.report.uploaded_seconds = time.perf_counter() - save.began
        save.handle.uploaded()

    # -- the local disk ----------------------------------------------------------------------------------------------

    async def _why_not_near(self, size: int) -> str:
        """Nothing, if the disk can take so many bytes."""
        if time.monotonic() < self._out_until:
            return self._out_for
        try:
            if not self._tiers.terms.is_copied:
                await self._tiers.terms.copy()
            return await self._why_no_room(size + size // 64 + SPARE_BYTES)
        except StorageError as error:
            if error.storage != self._tiers.near.store.storage.url:
                raise
            self._leave_alone(str(error))
            return self._out_for

    async def _why_no_room(self, size: int) -> str:
        """What is uploaded makes room, oldest first, if that is enough."""
        near, free = self._tiers.near, await free_bytes(self._tiers.near.store.storage)
        if free is None or free >= size:
            return ""
        uploaded = [each for each in (await self._tiers.near_view()).checkpoints if each.far]
        uploaded.sort(key=lambda each: (each.metadata.term, each.folder.step))
        if free + sum(part.written_bytes for each in uploaded for part in each.metadata.parts) >= size:
            for each in uploaded:
                logger.info("%s makes room on the local disk", each.folder.name)
                await near.delete([each.folder])
                free = await free_bytes(near.store.storage) or 0
                if free >= size:
                    return ""
        return f"{near.store.storage.url} has room for {readable_bytes(free)}, and {readable_bytes(size)} are needed"

    async def _give_up_near(self, attempt: Attempt, problem: str) -> None:
        self._leave_alone(problem)
        self._tiers.terms.is_copied = False
        try:
            async with asyncio.timeout(UNDO_SECONDS):
                await self._tiers.near.undo(attempt.folder, attempt.name)
        except (StorageError, TimeoutError) as error:
            logger.warning("what was written to the local disk stays there for now: %s", error)

    def _leave_alone(self, problem: str) -> None:
        logger.error("the local disk is left alone for %.0f s: %s", OUT_SECONDS, problem)
        self._out_until, self._out_for = time.monotonic() + OUT_SECONDS, problem

    # -- terms -------------------------------------------------------------------------------------------------------

    async def _new_term(self, step: int) -> Term:
        view = await self._tiers.view(alone=True)
        base = self._returned
        if base is None:
            base = max((known for known in view.line() if known < step), default=-1)
        oldest = min((each.metadata.term for each in view.checkpoints), default=1) - 1
        term = await self._tiers.terms.begin(base, self._writer, oldest)
        self._taken = await self._names_taken()
        if self._term is None:
            await self._sweep()
        self._returned, self._newest = None, base
        return term

    async def _names_taken(self) -> set[str] | None:
        """Folders behind that anything is in. Looked for once the term has begun: a run before that began to fill one
        later sees the term, and stops. None: it is not known."""
        if not self._tiers.terms.is_settled:
            return None
        try:
            return {path.partition("/")[0] async for path in self._tiers.far.store.paths()}
        except StorageUnavailable as error:
            logger.warning("%s", error)
            return None

    async def _is_free(self, folder: Folder) -> bool:
        if self._taken is None or folder.name in self._taken:
            return False
        try:
            return await super()._is_free(folder)
        except StorageError:
            return False

    async def _sweep(self) -> None:
        try:
            await self._tiers.terms.copy()
            await super()._sweep()
        except StorageError as error:
            logger.warning("the local disk is not tidied up: %s", error)

    async def _retain(self) -> None:
        wrote_far, self._wrote_far = self._wrote_far, False
        await self.uploader.retain(far=wrote_far)


@background.before_the_end
def _upload_all() -> None:
    """What is committed on a local disk goes on before Python ends, also if its manager was dropped."""
    finish_all()
    for uploader in uploaders_at_work():
        try:
            uploader.wait()
        except Exception as error:  # noqa: BLE001  nobody is left to be raised it
            logger.error("Python ends before everything is uploaded: %s", error)
