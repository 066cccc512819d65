"""The one save that a process has under way, and what it must know from one save to the next.

The caller's thread takes a state apart and copies it; the private loop writes and commits. At most one save is being
written at a time: they share one arena.
"""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from strata import background
from strata.checkpoint.arena import Arena
from strata.checkpoint.attempt import Attempt, new_attempt
from strata.checkpoint.changes import found_base
from strata.checkpoint.checkpoints import Checkpoints, Survey
from strata.checkpoint.committing import commit
from strata.checkpoint.datapositions import NOWHERE, Positions
from strata.checkpoint.frameworks import Block
from strata.checkpoint.given import checked_metrics, whole_number
from strata.checkpoint.handle import SaveHandle
from strata.checkpoint.leftovers import giving_back
from strata.checkpoint.lineage import NOBODY, Term, begin_term, check_term, superseded_by, writer_name
from strata.checkpoint.manifest import Metadata, Part, PartRef
from strata.checkpoint.preparing import Planner, Prepared
from strata.checkpoint.readers import CheckpointGone, marked
from strata.checkpoint.references import Base
from strata.checkpoint.running import Running
from strata.checkpoint.saving import (
    TREE,
    as_bytes,
    declare,
    is_bytes,
    write_bytes,
    write_changes,
    write_tree,
)
from strata.checkpoint.settings import CheckpointManagerConfig
from strata.checkpoint.staging import Stage
from strata.checkpoint.stateful import tree_of
from strata.checkpoint.store import Folder, Store
from strata.checkpoint.telling import Telling
from strata.checkpoint.watched import reason_of, watched
from strata.core.events import Position, check_position
from strata.errors import (
    InvalidInput,
    ObjectExists,
    SaveAbandoned,
    SaveFailed,
    SaveReplaced,
    SaveSkipped,
    StorageError,
    StorageFull,
    Superseded,
)
from strata.logs import get_logger
from strata.texts import counted, readable_bytes

if TYPE_CHECKING:  # needs torch
    from strata.checkpoint.overlap import Deferred, OptimizerOverlap

logger = get_logger("strata.checkpoint")

HISTORY_KEPT = 100


class _Save(NamedTuple):
    """What is to be saved: bytes, or the stage on which a tree's copy appears."""

    handle: SaveHandle
    data: Block | None
    stage: Stage | None
    epoch: int
    metrics: dict[str, float]
    began: float
    hurried: bool
    positions: Positions = NOWHERE
    """Where this process is in each dataset."""


class Saver:
    """Saves states of one job from this process."""

    tiered = False
    """Whether what is committed goes on to another storage."""

    def __init__(self, checkpoints: Checkpoints, config: CheckpointManagerConfig, arena: Arena) -> None:
        self._checkpoints, self._config, self.arena = checkpoints, config, arena
        self.telling = Telling(checkpoints.store.job)
        self._planner = Planner()
        self._process = os.getpid()
        self._writer = writer_name()
        self._run = ""
        """The name of this start of all ranks, where there are several."""
        self._turn = threading.Lock()
        self._running: Running | None = None
        self._term: Term | None = None
        self._newest = -1
        self._finishing: threading.Thread | None = None
        self._overlap = _overlap(config.overlap)
        self._is_closed = False
        self._returned: int | None = None
        self._made_at = time.time()
        self._seen: Survey | None = None
        """What was there when this process last loaded what to go on from, or found nothing to load."""
        self._last: tuple[Folder, Part] | None = None
        self._failures = 0
        self._last_failed: SaveHandle | None = None
        self._superseded: Superseded | None = None
        self.history: list[SaveHandle] = []
        self.positions: Callable[[], Positions] = lambda: NOWHERE
        """Where this process is in each dataset that it reads as part of the job, at the moment."""
        self._reading: dict[str, Callable[[], Position]] = {}
        """What it reads beside."""

    # -- in the caller's thread --------------------------------------------------------------------------------------

    def check(self, state: Any) -> Prepared | None:
        """Raises Unstorable for what cannot be saved; gives the plan for what can."""
        return None if is_bytes(state) else self._planner.prepare(tree_of(state))

    def _prepared(self, handle: SaveHandle, state: Any) -> Prepared:
        return self._planner.prepare(state)

    def reads(self, name: str, where: Callable[[], Position] | None) -> None:
        self._reading.pop(name, None)
        if where is not None:
            self._reading[name] = where

    def _positions(self) -> Positions:
        beside = {name: where() for name, where in self._reading.items()}
        for name, position in beside.items():
            check_position(position, f"where {name!r} is read, as told to reads(),")
        return {**self.positions(), **beside}

    def prepare(self, state: Any) -> None:
        """Plan, and allocate the memory, before the first save is due."""
        self._check_usable()
        prepared = self.check(state)
        if prepared is not None:
            self._stage(prepared)

    def loaded(self, step: int, seen: Survey | None) -> None:
        """The job goes on from here: what was saved beyond is left behind by the next save."""
        self._returned = step
        self.looked(seen)

    def looked(self, seen: Survey | None) -> None:
        """Remember what was there when this process loaded, or found nothing to load. A process that takes over after
        that supersedes this one. One that took over before does not: what it may still commit is left behind by the
        first save of this one."""
        self._seen = seen

    def begin(
        self, state: Any, step: int, epoch: int, metrics: dict[str, float] | None, *, hurried: bool
    ) -> SaveHandle:
        """Start a save; returns once the state may be changed again: as soon as can be, if the caller is `hurried`."""
        began = time.perf_counter()
        self._check_usable()
        step, epoch = whole_number(step, "step"), whole_number(epoch, "epoch")
        given = checked_metrics(metrics)
        handle = self._new_handle(step)
        data = as_bytes(state)
        prepared = None if data is not None else self._prepared(handle, tree_of(state))
        handle.report.state_bytes = len(data) if data is not None else (prepared.size if prepared else 0)
        handle.report.tensors = len(prepared.stored) if prepared else 1
        with self._turn:
            if not self._my_turn(handle, hurried=hurried):
                return handle
            self._check_failures(hurried=hurried)
            self._free_arena()
            handle.report.waited_seconds = time.perf_counter() - began
            positions = self._positions()
            stage = None if prepared is None else self._stage(prepared)
            save = _Save(handle, data, stage, epoch, given, began, hurried, positions)
            self._remember(handle)
            if stage is None or stage.snapshot.takes_turns or not hurried:
                self._start(save)
                self._copy(save)
            else:  # the loop would take turns with the caller, who is in a hurry
                try:
                    self._copy(save)
                finally:
                    self._start(save)
        return handle

    def _new_handle(self, step: int) -> SaveHandle:
        return SaveHandle(step, tiered=self.tiered)

    def _remember(self, handle: SaveHandle) -> None:
        self.history = [*self.history[1 - HISTORY_KEPT :], handle]

    def _start(self, save: "_Save") -> None:
        self._running = Running(save.handle, self._save(save), partial(self._failed, save.handle))

    def _copy(self, save: "_Save") -> None:
        stage, handle = save.stage, save.handle
        deferred = None
        if stage is not None:
            deferred = self._fill(stage, handle, hurried=save.hurried)
        if save.hurried:  # who is not is kept until the commit, which the loop knows
            handle.report.stall_seconds = time.perf_counter() - save.began
        if stage is None or deferred is None:
            handle.staged()
            return
        self._finishing = threading.Thread(target=_finish, args=(stage, deferred, handle), name="strata-overlap")
        self._finishing.start()

    def _fill(self, stage: Stage, handle: SaveHandle, *, hurried: bool) -> "Deferred | None":
        """A save that fails while its state is still being copied is told as any other is: not by this call."""
        try:
            return stage.fill(alone=hurried, overlap=self._overlap if hurried else None)
        except BaseException as error:
            if stage.is_given_up(error):
                return None
            handle.told = True
            raise

    def _stage(self, prepared: Prepared) -> Stage:
        beside = self._checkpoints.store.storage.stream_bytes
        return Stage(prepared, self.arena, background.loop(), may_repeat=self._config.incremental, beside=beside)

    def wait(self, timeout: float | None = None) -> None:
        """Until nothing is being written. Raises a failure that nobody was told of yet."""
        running = self._running
        if running is not None:
            try:
                running.over.result(timeout)
            except TimeoutError:
                handle = running.handle
                raise TimeoutError(
                    f"the save of step {handle.step} to {self._checkpoints.where} is not over after {timeout:g} s: "
                    f"{handle.progress}"
                ) from None
        if self._last_failed is not None and not self._last_failed.told:
            self._last_failed.result()

    def abandon(self, why: str) -> None:
        """What is under way, unless its commit may have been made. Whoever calls this knows: it is raised to nobody. It
        may be a signal handler, in the middle of anything: there is no lock to wait for."""
        running = self._running
        if running is not None:
            running.give_up(SaveAbandoned(f"the save of step {running.handle.step} was given up: {why}"))

    def close(self) -> None:
        """Once what is under way is over; the memory goes back."""
        self._is_closed = True
        try:
            self.wait()
        finally:
            self._free_arena()
            self.arena.release()
            if self._overlap is not None:
                self._overlap.close()

    def _check_usable(self) -> None:
        if self._is_closed:
            raise InvalidInput(f"this manager of {self._checkpoints.where} is closed: make another")
        self._check_process()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise InvalidInput("this process was forked from the one that saves: make a manager of its own, if it must")

    def _check_failures(self, *, hurried: bool) -> None:
        """Whoever goes on after SaveFailed was raised has as many tries again."""
        if self._superseded is not None:  # for good: to begin a term again would be to take it back
            raise Superseded(str(self._superseded)) from self._superseded
        if hurried and self._failures >= self._config.max_failed_saves and self._last_failed is not None:
            count, self._failures = self._failures, 0
            self._last_failed.told = True
            error = self._last_failed.error()
            what = f"{count} saves in a row have failed; the last, of {_named(self._last_failed)}"
            raise SaveFailed(f"{what}: {error}") from error

    def _my_turn(self, handle: SaveHandle, *, hurried: bool) -> bool:
        """Whoever is not hurried wants to know that it is committed, and waits rather than skip it."""
        if self._running is None or self._running.handle.done():
            return True
        running = self._running.handle
        if self._config.when_busy == "skip" and hurried:
            self._skipped(handle, f"step {running.step} is still being written")
            return False
        if self._config.when_busy == "replace":
            words = f"the save of step {running.step} was given up for a later one, of step {handle.step}"
            self._running.give_up(SaveReplaced(words))
        self._running.over.result()
        if running.status != "replaced":
            handle.report.notes.append(f"waited for step {running.step}")
        return True

    def _free_arena(self) -> None:
        """Copies that nobody waits for any more may still be landing there."""
        if self._finishing is not None:
            self._finishing.join()
            self._finishing = None

    # -- on the loop -------------------------------------------------------------------------------------------------

    async def _save(self, save: "_Save") -> None:
        handle = save.handle
        try:
            what = f"the save of step {handle.step} to {self._checkpoints.where}"
            await watched(self._write(save), what, self._config.stuck_seconds)
        except SaveSkipped as skipped:
            if save.stage is not None:
                save.stage.give_up(skipped)
            self._skipped(handle, str(skipped))
            return
        except BaseException as error:
            if save.stage is not None:
                save.stage.give_up(error)
            self._failed(handle, error)
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        handle.report.durable_seconds = time.perf_counter() - save.began
        if not save.hurried:
            handle.report.stall_seconds = handle.report.durable_seconds
        self._failures = 0
        self.telling.committed(handle.report)
        handle.committed()
        await self._retain()

    async def _write(self, save: "_Save") -> None:
        async with self._claimed(save) as attempt, self._base(save) as base:
            await self._write_to(self._checkpoints.store, attempt, save, base)

    @asynccontextmanager
    async def _claimed(self, save: "_Save") -> AsyncIterator[Attempt]:
        """Where it goes. While this lasts nobody in this process takes its files for rubbish."""
        checkpoints = self._checkpoints
        async with checkpoints.deleting:  # what is left to do after the save before this one
            attempt = await self._attempt(save)
            names = {attempt.folder.name, attempt.own_folder.name}
            checkpoints.taken |= names
        try:
            yield attempt
        finally:
            checkpoints.taken -= names

    async def _write_to(self, store: Store, attempt: Attempt, save: "_Save", base: Base | None) -> Folder:
        """Where it is then."""
        report = save.handle.report

        def progress(count: int) -> None:
            report.written_bytes += count

        async with giving_back(store, attempt) as others:
            if save.stage is None:
                assert save.data is not None
                others.append(attempt.bytes_path)
                try:
                    part = await write_bytes(store, attempt, save.data, progress)
                except ObjectExists:
                    attempt = attempt._replace(folder=attempt.own_folder)
                    others[:] = [attempt.bytes_path]
                    part = await write_bytes(store, attempt, save.data, progress)
            elif base is None:
                part = await write_tree(store, attempt, save.stage, progress)
            else:
                part = await write_changes(store, attempt, save.stage, base, progress)
            reference = await declare(store, attempt, part)
        folder = await self._commit(store, attempt, save, part, reference)
        if folder != attempt.folder:  # where a process that was left behind has put a manifest since
            self._checkpoints.sweep_later(attempt.folder)
        self._last = (folder, part)
        report.written_bytes = reference.written_bytes
        return folder

    async def _commit(self, store: Store, attempt: Attempt, save: "_Save", part: Part, reference: PartRef) -> Folder:
        """Gives where it is."""
        save.handle.decide()
        return await commit(store, attempt, [part], [reference])

    @asynccontextmanager
    async def _base(self, save: "_Save") -> AsyncIterator[Base | None]:
        """What an incremental save may refer to. While this lasts nobody deletes it."""
        store = self._checkpoints.store
        if save.stage is None or not self._config.incremental:
            yield None
            return
        if self._last is None or not await store.is_committed(self._last[0]):
            self._last = await self._checkpoints.latest_part()
        if self._last is None or self._last[1].kind != TREE:
            yield None
            return
        folder, part = self._last
        async with AsyncExitStack() as mark:
            base = None
            try:
                await mark.enter_async_context(marked(store, folder, strictly=True))
                base = await found_base(store, part)
            except (StorageError, CheckpointGone) as error:  # nothing that may go meanwhile can be referred to
                logger.warning("step %d is written whole: %s", save.handle.step, error)
            yield base

    async def _attempt(self, save: "_Save") -> Attempt:
        """Where it goes, and as whose. A return to an earlier step begins a new term."""
        step = save.handle.step
        if self._term is None or self._returned is not None or step <= self._newest:
            self._term = await self._new_term(step)
        free = await self._is_free(Folder(step)) and not await self._has_bytes(save)
        self._newest = step
        folder = Folder(step) if free else Folder(step, self._term.term)
        return new_attempt(folder, self._term, save.epoch, save.metrics, save.positions)

    async def _has_bytes(self, save: "_Save") -> bool:
        """Whether bytes are there already that another save has left: its file may grow yet."""
        if save.data is None:
            return False
        store = self._checkpoints.store
        return await store.storage.exists(store.key(Folder(save.handle.step).name, "model.bin"))

    async def _is_free(self, folder: Folder) -> bool:
        """One that is not was left behind, by a run that came this far before."""
        return not await self._checkpoints.store.is_committed(folder)

    async def _new_term(self, step: int) -> Term:
        survey = await self._checkpoints.survey()
        base = self._returned
        if base is None:
            base = max((known for known in survey.line if known < step), default=-1)
        agree = partial(self._goes_on_from, survey.line.get(base))
        known = [metadata for _, metadata in survey.sound]
        oldest = min((metadata.term for metadata in known), default=0)
        store, mine, after = self._checkpoints.store, self._writer, self._term
        if after is None and self._seen is not None:
            after = self._seen.lineage.newest or NOBODY
            self._check_overtaken(self._seen, survey, base)
        term = await begin_term(store, base, mine, oldest, known, after=after, run=self._run, agree=agree)
        self._tell_of_return(base, survey.line)
        self._checkpoints.check = partial(check_term, self._checkpoints.store, term)
        if self._term is None:
            await self._sweep()
        self._returned, self._newest = None, base
        return term

    def _check_overtaken(self, seen: Survey, survey: Survey, base: int) -> None:
        """Superseded if a writer that began after this process has committed beyond `base` since this process loaded.

        This process is then left over from an earlier start and loaded late. A writer that began before this process
        is left over itself: its last commits are left behind. Clocks that differ matter only while both still write.
        """
        newest = survey.lineage.newest
        if newest is None or newest.unix_seconds <= self._made_at:
            return
        known = {metadata.attempt for _, metadata in seen.sound}
        if any(
            metadata.term == newest.term and metadata.step > base and metadata.attempt not in known
            for _, metadata in survey.sound
        ):
            raise superseded_by(self._checkpoints.store, newest)

    async def _goes_on_from(self, base: Folder | None) -> None:
        """For whoever must agree with others."""

    def _tell_of_return(self, base: int, line: Iterable[int]) -> None:
        behind = sorted(known for known in line if known > base)
        if behind:
            where = f"from step {base}" if base >= 0 else "from the start"
            steps = f"step{'s' * (len(behind) > 1)} {', '.join(map(str, behind))}"
            logger.warning("the job goes on %s, and leaves %s behind", where, steps)

    async def _sweep(self) -> None:
        gone = await self._checkpoints.sweep()
        if gone:
            logger.info("removed %s that an earlier run left behind", counted(len(gone), "file"))

    async def _retain(self) -> None:
        """A failure here fails no save: what is not deleted now is deleted after the next one."""
        try:
            what = f"deleting what retention does not keep in {self._checkpoints.where}"
            await watched(self._let_go(), what, self._config.stuck_seconds)
        except Exception:
            logger.exception("checkpoints beyond what retention keeps could not be deleted")

    async def _let_go(self) -> list[tuple[Folder, Metadata]]:
        return await self._checkpoints.retain(self._config.retention)

    def _skipped(self, handle: SaveHandle, why: str) -> None:
        handle.skip(why)
        self.telling.skipped(handle.report, why)

    def _failed(self, handle: SaveHandle, error: BaseException) -> None:
        error = why_of(handle, error)
        if isinstance(error, SaveReplaced):
            self.telling.replaced(handle.report, str(error))
            handle.failed(error)
            return
        if error is handle.given_up:
            handle.told = True
            self.telling.abandoned(handle.report, str(error))
            handle.failed(error)
            return
        if isinstance(error, Superseded):
            self._superseded = error
        if isinstance(error, StorageFull):
            error = StorageFull(f"{_named(handle)} does not fit: {error}", storage=error.storage, key=error.key)
        self._failures += 1
        self._last_failed = handle
        self.telling.failed(handle.report, error, self._failures)
        logger.debug("the save of step %d failed", handle.step, exc_info=error)
        _shorten(error, self)
        handle.failed(error)


def why_of(handle: SaveHandle, error: BaseException) -> BaseException:
    """What it was given up for, where the error says only that it was."""
    reason = reason_of(error)
    if not isinstance(reason, asyncio.CancelledError):
        return reason
    return handle.given_up or SaveAbandoned(f"the save of step {handle.step} was given up: its process ends")


def _shorten(error: BaseException, saver: Saver) -> None:
    """Leave the saver's own calls out of the traceback: the saver keeps its latest errors, and frames that refer to it
    would keep it and its memory after its manager is dropped, until the garbage collector runs."""
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        found = errors.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        entry = below = found.__traceback__
        while entry is not None:
            if entry.tb_frame.f_locals.get("self") is saver:
                below = entry.tb_next
            entry = entry.tb_next
        found.__traceback__ = below
        errors += [found.__cause__, found.__context__]


def _named(handle: SaveHandle) -> str:
    return f"step {handle.step} ({readable_bytes(handle.report.state_bytes)})"


def _overlap(with_what: str) -> "OptimizerOverlap | None":
    if with_what != "optimizer":
        return None
    from strata.checkpoint.overlap import OptimizerOverlap

    return OptimizerOverlap()


def _finish(stage: Stage, deferred: "Deferred", handle: SaveHandle) -> None:
    try:
        stage.finish(deferred)
    except BaseException:
        logger.debug("the copy for step %d failed, which its save tells", handle.step, exc_info=True)
    handle.staged()
