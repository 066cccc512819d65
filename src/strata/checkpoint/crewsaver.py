"""Saves of a job of many ranks, each of which saves its part.

    rank 0       says where the save goes, writes its part, waits for the others', looks whether they are all of the
                 state, and commits
    the others   hear where it goes, write their parts, and wait until it is committed

What a rank has to copy it copies at once. It waits for rank 0 only at its first save, and at one that brings arrays it
did not have, to hear which arrays rank 0 has, since those it need not write; and where a save is skipped that comes too
soon, to hear whether it is. What it does not hear in time fails that save, as anything else would, and not the training
loop.
"""

import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from strata import background
from strata.checkpoint import waiting
from strata.checkpoint.agreement import REPLACED, Agreement, Outcome, Word, check_made, given_up
from strata.checkpoint.arena import Arena
from strata.checkpoint.attempt import Attempt
from strata.checkpoint.checkpoints import Checkpoints
from strata.checkpoint.committing import commit, committed_in
from strata.checkpoint.comparing import Comparing
from strata.checkpoint.datapositions import merged
from strata.checkpoint.given import whole_number
from strata.checkpoint.handle import SaveHandle
from strata.checkpoint.leftovers import give_back, is_refusal
from strata.checkpoint.lineage import Term, check_term, is_attempt_name
from strata.checkpoint.localcopies import CopiedCheckpoints
from strata.checkpoint.manifest import Metadata, Part, PartRef
from strata.checkpoint.preparing import Prepared
from strata.checkpoint.saver import Saver, _Save, why_of
from strata.checkpoint.settings import CheckpointManagerConfig
from strata.checkpoint.shares import Crew, Everything
from strata.checkpoint.store import Folder, Store, folder_named
from strata.checkpoint.tree import Leaf
from strata.checkpoint.watched import watched
from strata.checkpoint.whole import Whole, whole_of
from strata.errors import (
    CheckpointDamaged,
    InvalidInput,
    RankFailed,
    SaveAbandoned,
    SaveReplaced,
    SaveSkipped,
    StorageError,
    StrataError,
)
from strata.logs import get_logger

logger = get_logger("strata.checkpoint")

T = TypeVar("T")


class _NotHeard(Exception):
    """A save that cannot begin, since rank 0 was not heard: why not."""

    def __init__(self, handle: SaveHandle, error: StrataError) -> None:
        super().__init__(str(error))
        self.handle, self.error = handle, error


class CrewSaver(Saver):
    """Saves one rank's part of a job's states."""

    def __init__(
        self, checkpoints: Checkpoints, config: CheckpointManagerConfig, arena: Arena, agreement: Agreement
    ) -> None:
        super().__init__(checkpoints, config, arena)
        self._agreement, self._run = agreement, agreement.run
        self._planner.crew = Crew(agreement.rank, agreement.size, Everything())
        self._comparing = Comparing(leads=self._leads)
        self._names: dict[str, list[str]] = {}
        """Rank 0's, of saves that are not begun yet: another may be asked for before one is."""
        self._told: tuple[list[str], Term] | None = None
        """The names that were told, and under which term."""
        self._had: frozenset[str] | None = None
        """The arrays that another rank had when it last heard those of rank 0; None if it has to hear them."""
        self._calls: Counter[int] = Counter()
        self._said: list[str] = []
        """Saves of which words are still in the storage."""
        self._folder: Folder | None = None
        """Where the last save went that this rank has begun for all."""
        self._deciding = ""
        """The save whose commit may have been made, whatever the storage says."""

    @property
    def _leads(self) -> bool:
        return self._agreement.rank == 0

    # -- in the caller's thread --------------------------------------------------------------------------------------

    def begin(
        self, state: Any, step: int, epoch: int, metrics: dict[str, float] | None, *, hurried: bool
    ) -> SaveHandle:
        """A rank that cannot even begin says so, too: the others need not wait for it. A process that was forked from a
        rank is none, and says nothing in its name."""
        self._check_process()
        step = whole_number(step, "step")
        self._calls[step] += 1
        began = time.perf_counter()
        try:
            if not self._leads and self._had is None:  # those that could not begin are counted nowhere else
                self._check_usable()
                self._check_failures(hurried=hurried)
            handle = super().begin(state, step, epoch, metrics, hurried=hurried)
        except _NotHeard as unheard:
            handle = unheard.handle
            handle.report.stall_seconds = time.perf_counter() - began
            self._remember(handle)
            background.run(self._give_up(handle, unheard.error))
        except Exception as error:
            background.run(self._tell_failure(self._called(step), step, error))
            raise
        if handle.skipped:
            self._forget_state(handle.name)
        return handle

    def _new_handle(self, step: int) -> SaveHandle:
        return SaveHandle(step, name=self._called(step))

    def _called(self, step: int) -> str:
        return f"{step}.{self._calls[step]}"

    def _prepared(self, handle: SaveHandle, state: object) -> Prepared:
        had = self._had
        is_heard = not self._leads and had is None and self._hears_names(handle)
        prepared = super()._prepared(handle, state)
        names = [leaf.name for leaf in prepared.taken]
        if self._leads:
            self._names[handle.name] = [leaf.name for leaf in prepared.taken if not _lies_elsewhere(leaf)]
        elif had is not None and not had.issuperset(names) and self._hears_names(handle):
            is_heard, prepared = True, super()._prepared(handle, state)
        if is_heard:
            self._had = frozenset(names)
        self._comparing.take(handle.name, prepared.taken)
        return prepared

    def _hears_names(self, handle: SaveHandle) -> bool:
        """Those of this save, which rank 0 tells before it says a word of it; False if it is not made, which is told
        to the user as for any other save."""
        what = "hearing which arrays rank 0 has"
        asked = self._from_rank_0(handle, self._agreement.word(handle.name), "to say which arrays it has")
        if not self._ask(handle, asked, what).folder:
            return False
        names = self._ask(handle, self._agreement.names(handle.name), what)
        self._planner.crew = self._planner.crew._replace(led=frozenset(names))
        return True

    def _forget_state(self, name: str) -> None:
        """Of a save that comes to nothing: what was taken down of its state."""
        self._comparing.given(name)
        self._names.pop(name, None)

    def _my_turn(self, handle: SaveHandle, *, hurried: bool) -> bool:
        """Rank 0 decides for all whether a save is skipped."""
        if self._leads:
            before = self._running
            mine = super()._my_turn(handle, hurried=hurried)
            error = None if before is None else before.handle.error()
            if before is not None and isinstance(error, SaveReplaced):  # perhaps before it had said a word
                background.run(self._tell_failure(before.handle.name, before.handle.step, error))
            if not mine:
                self._said.append(handle.name)
                word = Word(handle.step, handle.skipped, term=self._term)
                telling = self._agreement.tell(handle.name, word)
                background.run(self._say(f"that step {handle.step} is skipped", telling))
            return mine
        running = self._running
        if running is None or running.handle.done():
            return True
        if self._config.when_busy == "skip" and hurried:
            asked = self._from_rank_0(handle, self._agreement.word(handle.name), "to say whether it is skipped")
            word = self._ask(handle, asked, "hearing whether rank 0 skips this save")
            if word.skipped:
                self._skipped(handle, word.skipped)
                return False
        running.over.result()
        return True

    def _ask(self, handle: SaveHandle, work: Coroutine[Any, Any, T], what: str) -> T:
        """Of rank 0."""
        try:
            return background.run(watched(work, f"{what}, in {self._checkpoints.where},", self._config.stuck_seconds))
        except StrataError as error:
            raise _NotHeard(handle, error) from error

    def _from_rank_0(self, handle: SaveHandle, work: Coroutine[Any, Any, T], to: str) -> Coroutine[Any, Any, T]:
        """What is waited for from there."""

        async def who() -> list[int]:
            return [0]

        return waiting.told(work, handle.step, who, to)

    # -- on the loop -------------------------------------------------------------------------------------------------

    async def _write(self, save: _Save) -> None:
        try:
            await super()._write(save)
        except SaveSkipped:
            self._forget_state(save.handle.name)
            raise
        except BaseException as error:
            if self._folder is not None and self._deciding != save.handle.name:
                self._checkpoints.sweep_later(self._folder)
            await self._tell_failure(save.handle.name, save.handle.step, why_of(save.handle, error))
            raise

    async def _give_up(self, handle: SaveHandle, error: BaseException) -> None:
        await self._tell_failure(handle.name, handle.step, error)
        if isinstance(error, SaveSkipped):
            self._skipped(handle, str(error))
        else:
            self._failed(handle, error)

    async def _tell_failure(self, name: str, step: int, error: BaseException) -> None:
        """To whoever waits for this rank."""
        self._had = None  # rank 0 may have other arrays by now
        self._forget_state(name)
        await self._say(f"that step {step} failed", self._say_failed(name, step, error))

    async def _say_failed(self, name: str, step: int, error: BaseException) -> None:
        replaced = isinstance(error, SaveReplaced)
        why = REPLACED if replaced else str(error) or type(error).__name__
        why = why.encode(errors="backslashreplace").decode()  # names of files may be no text
        if self._leads:
            certain = self._deciding != name or is_refusal(error)
            if name not in self._said:
                self._said.append(name)
            abandoned = isinstance(error, SaveAbandoned)
            word = Word(step, failed=why, replaced=replaced, abandoned=abandoned, term=self._term)
            await self._agreement.tell(name, word)
            await self._agreement.over(name, Outcome(why, certain, replaced))
        elif not isinstance(error, RankFailed | SaveReplaced | SaveSkipped):
            await self._agreement.failed(name, why)

    async def _say(self, what: str, words: Coroutine[Any, Any, None]) -> None:
        """To other ranks. That it cannot be said changes nothing: they will not wait for ever."""
        try:
            await watched(words, f"telling other ranks {what}", self._config.stuck_seconds)
        except StrataError as silence:
            logger.warning("%s could not be told to other ranks: %s", what, silence)

    async def _new_term(self, step: int) -> Term:
        await self._agreement.settle()
        return await super()._new_term(step)

    async def _goes_on_from(self, base: Folder | None) -> None:
        await self._agreement.go_on_from(None if base is None else (base, await self._checkpoints.metadata(base)))

    async def _attempt(self, save: _Save) -> Attempt:
        if not self._leads:
            return await self._heard(save)
        before = self._term
        attempt = await super()._attempt(save)
        names = self._names.pop(save.handle.name, [])
        if self._told != (names, attempt.term):
            await self._agreement.tell_names(names, attempt.term)
            self._told = (names, attempt.term)
        if attempt.term != before:
            with suppress(StorageError):  # the next run's first save does it
                await self._agreement.forget_others(attempt.term)
        word = Word(attempt.folder.step, folder=attempt.folder.name, attempt=attempt.name, term=attempt.term)
        self._said.append(save.handle.name)
        self._folder = attempt.folder
        await self._agreement.tell(save.handle.name, word, attempt.epoch)
        return attempt

    async def _heard(self, save: _Save) -> Attempt:
        """Where rank 0 says that it goes."""
        step, heard = save.handle.step, self._agreement.word(save.handle.name)
        word = await self._from_rank_0(save.handle, heard, "to begin it")
        check_made(word)
        folder = folder_named(word.folder)
        if word.step != step or folder is None or word.term is None or not is_attempt_name(word.attempt):
            raise RankFailed(f"what rank 0 says of the save of step {step} makes no sense: {word}")
        self._check_base(word.term)
        return Attempt(folder, word.term, word.attempt, save.epoch, save.metrics, self._agreement.rank, save.positions)

    def _check_base(self, term: Term) -> None:
        """Who has loaded another step than rank 0 would save a mixture."""
        if self._returned is not None and self._returned != term.base:
            there = f"step {term.base}" if term.base >= 0 else "the start"
            raise InvalidInput(
                f"rank {self._agreement.rank} went on from step {self._returned}, and rank 0 from {there}: load the "
                "same step on all ranks"
            )
        self._returned = None

    async def _commit(self, store: Store, attempt: Attempt, save: _Save, part: Part, reference: PartRef) -> Folder:
        if self._leads:
            try:
                found, others = await self._gathered(store, attempt, save, part)
                data = merged(found, attempt.folder.step)
                save.handle.decide()
            except BaseException:
                with suppress(StrataError):
                    await give_back(store, attempt, [attempt.bytes_path])
                raise
            self._deciding = save.handle.name
            alone = await self._agreement.decide(save.handle.name, reference, attempt.metrics, data)
            folder = await commit(store, attempt, found, [reference, *others], self._agreement.size, alone=alone)
            await self._tell_of_commit(save)
            return folder
        copies = self._comparing.given(save.handle.name)
        await self._agreement.done(save.handle.name, reference, copies.digests if copies is not None else {})

        folder = attempt.folder

        async def is_committed() -> bool:
            nonlocal folder
            found = await committed_in(store, attempt)
            folder = found or folder
            return found is not None

        over = self._agreement.outcome(save.handle.name, is_committed)
        outcome = await self._from_rank_0(save.handle, over, "to commit it")
        if outcome.failed:
            if outcome.certain:
                with suppress(StrataError):
                    await give_back(store, attempt, [attempt.bytes_path])
            raise given_up(attempt.folder.step, outcome)
        self._comparing.is_done(copies)
        return folder

    async def _gathered(
        self, store: Store, attempt: Attempt, save: _Save, own: Part
    ) -> tuple[list[Part], list[PartRef]]:
        """The parts of all ranks, which are all of the state, and where those of others are."""
        name, step = save.handle.name, save.handle.step
        parts_told = self._agreement.parts(name, attempt.name, compare=self._comparing.has(name))
        told = await waiting.told(parts_told, step, partial(self._agreement.absent, name), "until all parts are there")
        references = [done.part for done in told.values() if done.part is not None]
        parts = [own, *await self._read(store, attempt, references)]
        whole = _whole(parts, save.handle.step)
        self._comparing.compare(save.handle, parts, whole, told)
        return parts, references

    async def _tell_of_commit(self, save: _Save) -> None:
        """The checkpoint says it itself: that the words cannot be said, or taken back, is no failure."""
        await self._say(f"that step {save.handle.step} is committed", self._say_committed(save.handle.name))

    async def _say_committed(self, name: str) -> None:
        await self._agreement.over(name, Outcome())
        await self._forget_before(name)

    async def _forget_before(self, name: str) -> None:
        """Whoever has done its part of this save waits for none before it."""
        place = self._said.index(name)
        gone, self._said = self._said[:place], self._said[place:]
        for each in gone:
            await self._agreement.forget(each)

    async def _read(self, store: Store, attempt: Attempt, references: Sequence[PartRef]) -> list[Part]:
        """The parts of others. Who took over has swept them: then that is what is told."""
        try:
            return await store.parts_of(references)
        except CheckpointDamaged:
            await check_term(store, attempt.term)
            raise

    async def _retain(self) -> None:
        """Rank 0 deletes, for all; copies on a disk of its own each machine."""
        if self._leads:
            await super()._retain()
        if isinstance(self._checkpoints, CopiedCheckpoints):
            await self._checkpoints.keep_copies(self._config.local_keep)

    async def _let_go(self) -> list[tuple[Folder, Metadata]]:
        gone = await super()._let_go()
        await self._agreement.removed(gone)
        return gone


def _lies_elsewhere(leaf: Leaf) -> bool:
    """Whether other ranks have all of it: one that has it alone does not say that it lies in pieces."""
    shards = leaf.described.shards
    return shards is not None and not shards.pieces


def _whole(parts: Sequence[Part], step: int) -> Whole:
    """As it would be loaded. The parts are what was written: if they do not fit together, the states did not."""
    try:
        return whole_of(parts, 0, f"the state of step {step}")
    except CheckpointDamaged as error:
        raise RankFailed(f"nothing is saved, since what the ranks have does not fit together. {error}") from error
