"""Saves of a job of many ranks, each of which saves its part.

    rank 0       says where the save goes, writes its part, waits for the others', looks whether they are all of the
                 state, and commits
    the others   hear where it goes, write their parts, and wait until it is committed

What a rank has to copy it copies at once. It waits for rank 0 only at its first save, to hear which arrays rank 0 has,
since those it need not write; and where a save is skipped that comes too soon, to hear whether it is.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from strata import background
from strata.checkpoint.arena import Arena
from strata.checkpoint.attempt import Attempt
from strata.checkpoint.checkpoints import Checkpoints
from strata.checkpoint.handle import SaveHandle
from strata.checkpoint.leftovers import give_back, is_refusal
from strata.checkpoint.lineage import check_term
from strata.checkpoint.manifest import Part, PartRef
from strata.checkpoint.preparing import Prepared
from strata.checkpoint.replicas import copies_of, differing
from strata.checkpoint.saver import Saver, _Save, whole_number
from strata.checkpoint.saving import commit
from strata.checkpoint.settings import CheckpointManagerConfig
from strata.checkpoint.shares import Crew, Everything
from strata.checkpoint.store import Store, folder_named
from strata.checkpoint.whole import whole_of
from strata.checkpoint.words import Done, Outcome, Word, Words
from strata.errors import (
    CheckpointDamaged,
    ObjectNotFound,
    RankFailed,
    SaveReplaced,
    SaveSkipped,
    StorageError,
    StrataError,
)

logger = logging.getLogger("strata.checkpoint")

TOLD = 5


class CrewSaver(Saver):
    """Saves one rank's part of a job's states."""

    def __init__(self, checkpoints: Checkpoints, config: CheckpointManagerConfig, arena: Arena, words: Words) -> None:
        super().__init__(checkpoints, config, arena)
        self._words = words
        self._planner.crew = Crew(words.rank, words.size, Everything())
        self._names: list[str] = []
        self._copies: dict[str, list[str]] = {}
        self._told: list[str] | None = None
        self._is_heard = words.rank == 0
        self._is_compared = False
        self._calls: Counter[int] = Counter()
        self._said: list[str] = []
        """Saves of which words are still in the storage."""
        self._deciding = ""
        """The save whose commit may have been made, whatever the storage says."""

    @property
    def _leads(self) -> bool:
        return self._words.rank == 0

    # -- in the caller's thread --------------------------------------------------------------------------------------

    def begin(
        self, state: Any, step: int, epoch: int, metrics: dict[str, float] | None, *, hurried: bool
    ) -> SaveHandle:
        """A rank that cannot even begin says so, too: the others need not wait for it."""
        step = whole_number(step, "step")
        self._calls[step] += 1
        try:
            return super().begin(state, step, epoch, metrics, hurried=hurried)
        except Exception as error:
            background.run(self._tell_failure(self._called(step), step, error))
            raise

    def _new_handle(self, step: int) -> SaveHandle:
        return SaveHandle(step, name=self._called(step))

    def _called(self, step: int) -> str:
        return f"{step}.{self._calls[step]}"

    def _prepared(self, state: object) -> Prepared:
        if not self._is_heard:
            self._planner.crew = self._planner.crew._replace(led=frozenset(background.run(self._words.names())))
            self._is_heard = True
        prepared = super()._prepared(state)
        if not self._is_compared:
            self._copies = copies_of(prepared.taken)
            self._is_compared = True
        if self._leads:
            self._names = [leaf.name for leaf in prepared.taken]
        return prepared

    def _my_turn(self, handle: SaveHandle, *, hurried: bool) -> bool:
        """Rank 0 decides for all whether a save is skipped."""
        if self._leads:
            before = self._running
            mine = super()._my_turn(handle, hurried=hurried)
            if before is not None and before.handle.status == "replaced":  # perhaps before it had said a word
                replaced = before.handle
                background.run(self._tell_failure(replaced.name, replaced.step, asyncio.CancelledError()))
            if not mine:
                self._said.append(handle.name)
                background.run(self._words.tell(handle.name, Word(handle.step, handle.skipped, term=self._term)))
            return mine
        running = self._running
        if running is None or running.handle.done():
            return True
        if self._config.when_busy == "skip" and hurried:
            word = background.run(self._words.word(handle.name))
            if word.skipped:
                handle.skip(word.skipped)
                self.telling.skipped(handle.report, handle.skipped)
                return False
        running.over.result()
        return True

    # -- on the loop -------------------------------------------------------------------------------------------------

    async def _write(self, save: _Save) -> None:
        try:
            await super()._write(save)
        except SaveSkipped:
            raise
        except BaseException as error:
            await self._tell_failure(save.handle.name, save.handle.step, error)
            raise

    async def _tell_failure(self, name: str, step: int, error: BaseException) -> None:
        """To whoever waits for this rank. That it cannot be told changes nothing: they will not wait for ever."""
        replaced = isinstance(error, asyncio.CancelledError)
        why = "a later save took its place" if replaced else str(error) or type(error).__name__
        self._is_heard = self._leads  # rank 0 may have other arrays by now
        try:
            if self._leads:
                certain = self._deciding != name or is_refusal(error)
                if self._told is None:  # who waits to hear them hears the rest, too
                    await self._words.tell_names(self._names, 0 if self._term is None else self._term.term)
                if name not in self._said:
                    self._said.append(name)
                await self._words.tell(name, Word(step, failed=why, replaced=replaced, term=self._term))
                await self._words.over(name, Outcome(why, certain, replaced))
            elif not isinstance(error, RankFailed | SaveReplaced):
                await self._words.failed(name, why)
        except StrataError as silence:
            logger.warning("that step %d failed could not be told to other ranks: %s", step, silence)

    async def _attempt(self, save: _Save) -> Attempt:
        if not self._leads:
            return await self._heard(save)
        is_first = self._term is None
        attempt = await super()._attempt(save)
        if is_first:
            with suppress(StorageError):  # the next run's first save does it
                await self._words.forget_others(attempt.term.term)
        if self._names != self._told:
            await self._words.tell_names(self._names, attempt.term.term)
            self._told = self._names
        word = Word(attempt.folder.step, folder=attempt.folder.name, attempt=attempt.name, term=attempt.term)
        self._said.append(save.handle.name)
        await self._words.tell(save.handle.name, word)
        return attempt

    async def _heard(self, save: _Save) -> Attempt:
        """Where rank 0 says that it goes."""
        step, word = save.handle.step, await self._words.word(save.handle.name)
        if word.skipped:
            raise SaveSkipped(word.skipped)
        if word.failed:
            raise _given_up(word.step, word)
        folder = folder_named(word.folder)
        if word.step != step or folder is None or word.term is None:
            raise RankFailed(f"what rank 0 says of the save of step {step} makes no sense: {word}")
        return Attempt(folder, word.term, word.attempt, save.epoch, save.metrics, self._words.rank)

    async def _commit(self, store: Store, attempt: Attempt, save: _Save, part: Part, reference: PartRef) -> None:
        if self._leads:
            try:
                found, others = await self._gathered(store, attempt, save, part)
            except BaseException:
                with suppress(StrataError):
                    await give_back(store, attempt, [attempt.bytes_path])
                raise
            self._deciding = save.handle.name
            await commit(store, attempt, found, [reference, *others], self._words.size)
            await self._tell_of_commit(save)
            return
        copies, self._copies = self._copies, {}
        await self._words.done(save.handle.name, reference, copies)

        async def is_committed() -> bool:
            store.forget(attempt.folder)
            try:
                return (await store.metadata(attempt.folder)).attempt == attempt.name
            except ObjectNotFound:
                return False

        outcome = await self._words.outcome(save.handle.name, is_committed)
        if outcome.failed:
            if outcome.certain:
                with suppress(StrataError):
                    await give_back(store, attempt, [attempt.bytes_path])
            raise _given_up(attempt.folder.step, outcome)

    async def _gathered(
        self, store: Store, attempt: Attempt, save: _Save, own: Part
    ) -> tuple[list[Part], list[PartRef]]:
        """The parts of all ranks, which are all of the state, and where those of others are."""
        told = await self._words.parts(save.handle.name, attempt.name)
        references = [done.part for done in told.values() if done.part is not None]
        parts = [own, *await self._read(store, attempt, references)]
        whole_of(parts, 0, f"{store.storage.url}/{store.key(attempt.folder.name)}")
        self._tell_of_differences(save, own, told)
        return parts, references

    async def _tell_of_commit(self, save: _Save) -> None:
        """The checkpoint says it itself: that the words cannot be said, or taken back, is no failure."""
        try:
            await self._words.over(save.handle.name, Outcome())
            await self._forget_before(save.handle.name)
        except StrataError as error:
            logger.warning("that step %d is committed could not be told to other ranks: %s", save.handle.step, error)

    async def _forget_before(self, name: str) -> None:
        """Whoever has done its part of this save waits for none before it."""
        place = self._said.index(name)
        gone, self._said = self._said[:place], self._said[place:]
        for each in gone:
            await self._words.forget(each)

    def _tell_of_differences(self, save: _Save, own: Part, told: Mapping[int, Done]) -> None:
        """Once: buffers may differ from rank to rank, and then they do so at each save."""
        for rank, done in told.items():
            shared = [name for name in self._copies if done.copies.get(name, self._copies[name]) != self._copies[name]]
            if shared:
                raise RankFailed(
                    f"rank {rank} on {done.node} has other values than rank 0 for {', '.join(shared[:TOLD])}, which is "
                    "marked Replicated: it is not the same on all ranks"
                )
            names = differing(done.copies, own)
            if names:
                some = ", ".join(names[:TOLD]) + (f" and {len(names) - TOLD} more" if len(names) > TOLD else "")
                words = (
                    f"rank {rank} has other values than rank 0 for {some}: rank 0's are saved. If each rank needs its "
                    "own, mark them PerRank"
                )
                logger.warning("step %d: %s", save.handle.step, words)
                save.handle.report.notes.append(words)

    async def _read(self, store: Store, attempt: Attempt, references: Sequence[PartRef]) -> list[Part]:
        """The parts of others. Who took over has swept them: then that is what is told."""
        try:
            return [await store.part(each) for each in references]
        except CheckpointDamaged:
            await check_term(store, attempt.term)
            raise

    async def _retain(self) -> None:
        """Rank 0 deletes, for all."""
        if self._leads:
            await super()._retain()


def _given_up(step: int, told: Word | Outcome) -> StrataError:
    """To be raised: what became of it on rank 0 becomes of it here."""
    if told.replaced:
        return SaveReplaced(f"the save of step {step} was given up for a later one")
    return RankFailed(f"rank 0 gave up the save of step {step}: {told.failed}")
