"""How ranks of one job agree on a save through the coordinator.

    rank 0       BeginCheckpoint, with the place          AwaitCheckpoint until all parts but its own are there,
                                                          AckCheckpoint: decided; the commit; CommitCheckpoint
    the others   AwaitCheckpoint until it is begun        AckCheckpoint, AwaitCheckpoint until it is over

Rank 0 acknowledges last, once it has looked whether the parts are all of the state: so what is decided is sound, and
whoever the coordinator asks may put the manifest, should rank 0 be gone. A place is the checkpoint's folder and the
attempt's name. What is too long for the coordinator, the names of arrays and digests of copies, goes through the
storage beside it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple

from strata.checkpoint.agreement import REPLACED, Done, Outcome, Word
from strata.checkpoint.asking import PAUSE_SECONDS, REASON_CHARS, Asking, now
from strata.checkpoint.datapositions import Positions
from strata.checkpoint.finishing import missing, place_of, placed, term_of
from strata.checkpoint.lineage import Term, read_lineage, stem_of
from strata.checkpoint.manifest import Metadata, PartRef
from strata.checkpoint.recovering import Point, Recovery
from strata.checkpoint.store import Folder, Store
from strata.checkpoint.waiting import named
from strata.checkpoint.words import Words
from strata.core.commits import ABANDONED, COULD_NOT_SAVE
from strata.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    ObjectNotFound,
    RankFailed,
    Refused,
    SaveReplaced,
    SaveSkipped,
    StaleGeneration,
    StrataError,
    Superseded,
)
from strata.logs import get_logger
from strata.v1 import coordinator_pb2 as pb

logger = get_logger("strata.checkpoint")

AWAIT_SECONDS = 10.0
LEAST_SECONDS = 0.05
TELL_SECONDS = 5.0
"""To tell of a commit: the checkpoint says it itself."""
FAILED = "it failed: "
"""How rank 0 says of a step that nobody saves it since it failed before it began."""

_OPEN = pb.ATTEMPT_STATUS_OPEN
_DECIDED = pb.ATTEMPT_STATUS_DECIDED
_COMMITTED = pb.ATTEMPT_STATUS_COMMITTED


class _Begun(NamedTuple):
    attempt: int
    term: Term

    @property
    def name(self) -> str:
        """The same on all ranks, also where one has tried more often than others."""
        return f"attempt{self.attempt}"


class Council:
    """As one rank has it."""

    def __init__(
        self, asking: Asking, store: Store, rank: int, size: int, *, run: str = "", is_open: bool = False
    ) -> None:
        self._asking, self._store, self.rank, self.size, self.run = asking, store, rank, size, run
        self._is_open = is_open
        """Whether ranks number themselves anew in each generation: then a save is of one of them alone."""
        self.recovery = Recovery(asking, store, size)
        self._where = f"{store.storage.url}/{store.root}"
        self._begun: dict[str, _Begun] = {}
        self._heard: dict[str, Word] = {}
        self._ended = ""
        """The save of which the coordinator knows, last, that it was given up."""
        self._numbers: dict[str, int] = {}
        """By place: the coordinator's numbers of checkpoints that are not removed yet."""
        self.point: Point | None = None
        """What this process went on from, last, as far as the coordinator said so."""
        self.generation: int | None = None
        """The one that this process went on or saved in, last."""
        self._called_off: dict[int, str] = {}
        """Why the last try to save a step was given up: it may be tried again."""
        self._off: dict[int, Word] = {}
        """Steps that rank 0 gave up before they were begun, since it last began one."""
        self._is_off_forgotten = False
        """Whether the coordinator was told of them before it heard where all ranks go on from."""
        self._unsure: int | None = None
        """A step that was begun, perhaps: no answer came."""
        self._telling: dict[asyncio.Future[None], int] = {}
        """That this rank has no part in a step: for as long as rank 0 has not begun it."""
        self._term: Term | None = None
        self._words: dict[str, Words] = {}

    @property
    def is_silent(self) -> bool:
        """Whether the coordinator did not answer when it was last asked, or cannot be reached."""
        return self._asking.is_silent

    @property
    def is_unsteady(self) -> bool:
        """Whether it was out of reach of late: others may go another way."""
        return self._asking.is_unsteady

    # -- rank 0 ------------------------------------------------------------------------------------------------------

    async def _list(self) -> list[pb.Checkpoint]:
        """The newest checkpoints that the coordinator knows. From now on their removal can be told."""
        answer = await self._asking.patiently("ListCheckpoints", page_size=1000)
        self._numbers |= {checkpoint.place: checkpoint.attempt for checkpoint in answer.checkpoints}
        return list(answer.checkpoints)

    async def settle(self) -> None:
        known = await self._list()
        for checkpoint in known:
            if checkpoint.status == _DECIDED:
                await self.recovery.put_manifest(checkpoint.attempt)
        over = [each.place for each in known if each.status not in (_OPEN, _DECIDED) and each.place]
        for place in await missing(self._store, over):  # whoever removed them did not come to say so
            await self._tell_removed(place)

    async def go_on_from(self, base: tuple[Folder, Metadata] | None) -> None:
        async def look() -> tuple[Folder, Metadata] | None:
            return base

        point = await self.recovery.recover(look, insist=True)
        if point.folder != (None if base is None else base[0]):
            there = "the start" if point.folder is None else point.folder.name
            raise RankFailed(
                f"this rank goes on from {'the start' if base is None else base[0].name}, and the job from {there} "
                f"({point.reason}): all ranks must load again"
            )
        self.point, self.generation = point, point.generation
        self._unsure, self._is_off_forgotten = None, True

    async def catch_up(
        self, latest: tuple[Folder, Metadata] | None, earlier: Sequence[tuple[Folder, Metadata]] = ()
    ) -> None:
        """Tell the coordinator what was saved without it: the latest, and those before it, oldest first. Nobody goes
        back for that, unless this process went back meanwhile, or the coordinator knows of another recovery point."""
        if self.point is not None and latest is not None:
            before = [each for each in earlier if each[0].step < latest[0].step]
            try:
                await self.recovery.tell_saved([*before, latest], self.point.number)
                await self._list()
                return
            except (Refused, StaleGeneration) as error:
                logger.warning("all ranks go on from %s: %s", latest[0].name, error)
        await self.go_on_from(latest)

    async def committed(self, word: Word) -> tuple[Folder, Metadata] | None:
        """The checkpoint that came of this save of rank 0's, if it is where it was said to go."""
        folder, _ = placed(f"{word.folder} {word.attempt}")
        with suppress(ObjectNotFound):
            metadata = await self._store.metadata(folder)
            if metadata.attempt == word.attempt and await self._store.is_committed(folder):
                return folder, metadata
        return None

    def goes_back(self, base: tuple[Folder, Metadata] | None) -> bool:
        """Whether this is not where the coordinator last said that all ranks go on from."""
        return self.point is None or self.point.folder != (None if base is None else base[0])

    async def tell_names(self, names: list[str], term: Term | None) -> None:
        if term is not None:
            await self.beside(term).tell_names(names, term)

    async def tell(self, save: str, word: Word, epoch: int = 0) -> None:
        if word.skipped or word.failed:
            if save not in self._begun and save != self._ended:
                self._off[word.step] = word
                await self._call_off(word)
            return
        assert word.term is not None
        await self._give_up_others(word.step)
        await self._call_off_again(word.step)
        place = f"{word.folder} {word.attempt}"
        self._unsure = word.step
        of = self.generation if self._is_open else None
        answer = await self._asking.patiently(
            "BeginCheckpoint", step=word.step, epoch=epoch, place=place, generation=of
        )
        self._unsure = None
        if answer.skipped:
            raise SaveSkipped(f"step {word.step} is not saved: {answer.reason}")
        if answer.status != _OPEN:
            raise Conflict(f"step {word.step} is saved already, as attempt {answer.attempt} of this job")
        self._begun[save] = _Begun(answer.attempt, word.term)
        self._numbers[place] = answer.attempt
        self._off, self._is_off_forgotten = {}, False

    async def _call_off(self, word: Word) -> None:
        """It may have begun all the same, if rank 0 did not wait for the answer."""
        why = (word.skipped or FAILED + word.failed)[:REASON_CHARS]
        silence = TELL_SECONDS if self._asking.is_silent else None
        of = self.generation if self._is_open or word.abandoned else None
        with suppress(StaleGeneration):  # others save this step anew by now, and this is nothing to them
            call = {"step": word.step, "skip": why, "generation": of}
            answer = await self._asking.patiently("BeginCheckpoint", silence=silence, **call)
            if answer.status == _OPEN:
                await self._asking.patiently("FailCheckpoint", silence=silence, attempt=answer.attempt, reason=why)

    async def _call_off_again(self, step: int) -> None:
        """Ranks that come late still wait for those; what is said of the step that is saved now is another try."""
        self._off.pop(step, None)
        for word in self._off.values() if self._is_off_forgotten else ():
            with suppress(Refused):  # it was saved by the process that this one was before
                await self._call_off(word)

    async def _give_up_others(self, step: int) -> None:
        """Of this process's saves, which come one after the other, only the last can be under way."""
        if self._unsure not in (None, step):
            with suppress(Refused):  # it is over, or was saved by the process that this one was before
                await self._call_off(Word(self._unsure, failed="rank 0 went on without the coordinator"))
        for save in list(self._begun):
            await self.over(save, Outcome("the next one has begun", certain=False))

    async def parts(self, save: str, attempt: str, *, compare: bool) -> dict[int, Done]:
        begun = self._begun[save]
        await self._all_but_mine(save, begun)
        found = await self._asking.decision(begun.attempt)
        if found.size != self.size:
            absent = set(range(self.size)) - {part.rank for part in found.parts} - {self.rank}
            have = "it has left, or was" if len(absent) == 1 else "they have left, or were"
            raise RankFailed(
                f"step {_step(save)} cannot be saved without {named(absent)}: {have} given up by the coordinator. "
                "Start all ranks again"
            )
        told = {part.rank: Done(found.nodes[part.rank], part) for part in found.parts if part.rank != self.rank}
        await self._check_shared(told)
        if not compare:
            return told
        said = await self.beside(begun.term).said(begun.name)
        await self.beside(begun.term).forget(begun.name)
        return {rank: said.get(rank, done) for rank, done in told.items()}

    async def _check_shared(self, told: Mapping[int, Done]) -> None:
        """Of each other machine, whether one of its parts is where it says."""
        for rank, done in {done.node: (rank, done) for rank, done in told.items()}.values():
            assert done.part is not None
            if done.node != self._asking.node and not await self._store.storage.exists(self._store.key(done.part.path)):
                raise InvalidInput(
                    f"rank 0 on {self._asking.node} does not find the part of rank {rank} on {done.node} in "
                    f"{self._where}: all ranks must have the same storage there"
                )

    async def _all_but_mine(self, save: str, begun: _Begun) -> None:
        ends = now() + self._asking.patience
        while True:
            answer = await self._await(save, begun.attempt, known=_OPEN, but_mine=True, ends=ends)
            if answer.but_mine:
                return
            if answer.abandoned:
                del self._begun[save]
                self._ended = save
                raise RankFailed(f"the save of step {_step(save)} was given up: {answer.reason}")
            if now() > ends:
                absent = named(await self.absent(save))
                raise RankFailed(
                    f"the parts of {absent} are not there after {self._asking.patience:g} s: did {absent} call "
                    f"save(step={_step(save)})? The coordinator hears of everybody: look at the log there"
                )

    async def absent(self, save: str) -> list[int]:
        begun = self._begun.get(save)
        parts = [] if begun is None else (await self._asking.decision(begun.attempt)).parts
        return sorted(set(range(self.size)) - {self.rank, *(part.rank for part in parts)})

    async def decide(self, save: str, part: PartRef, metrics: Mapping[str, float], data: Positions) -> bool:
        """From now on whoever the coordinator asks commits it."""
        answer = await self._asking.acknowledge(self._begun[save].attempt, part, metrics, data)
        if answer.status not in (_DECIDED, _COMMITTED):
            raise RankFailed(f"step {_step(save)} is not decided, though all parts were there")
        return False

    async def over(self, save: str, outcome: Outcome) -> None:
        begun = self._begun.get(save)
        if begun is None:
            return
        if not outcome.failed:
            del self._begun[save]
            await self._asking.call("CommitCheckpoint", most=TELL_SECONDS, attempt=begun.attempt)  # or when asked to
            return
        why = REPLACED if outcome.replaced else outcome.failed[:REASON_CHARS]
        with suppress(Refused, NotFound):  # it was over before, or is open no more
            await self._asking.call("FailCheckpoint", attempt=begun.attempt, reason=why)
            if outcome.certain:  # were it decided, it would be put again and again
                await self._asking.report_damage(begun.attempt, why)
        self._ended = save
        self._begun.pop(save, None)  # what could not be told is told before the next one

    async def forget(self, save: str) -> None:
        """The coordinator does."""

    async def forget_others(self, term: Term) -> None:
        await self.beside(term).forget_others(term)

    async def removed(self, gone: Sequence[tuple[Folder, Metadata]]) -> None:
        for folder, metadata in gone:
            await self._tell_removed(place_of(folder, metadata))

    async def _tell_removed(self, place: str) -> None:
        """What the coordinator is not told now it is told when the next run settles."""
        number = self._numbers.pop(place, None)
        if number is not None:
            try:
                await self._asking.call("ReportRemoved", attempt=number, what=pb.ReportRemovedRequest.WHAT_ALL)
            except StrataError as error:
                logger.info("the coordinator was not told that %s is removed: %s", place, error)

    # -- the others --------------------------------------------------------------------------------------------------

    async def word(self, save: str) -> Word:
        known = self._heard.get(save)
        if known is None:
            self._tell_no_more(lambda step: step == _step(save))  # it is tried again, and may be well
            known = await self._listen(save)
            self._heard = {save: known}
            self._tell_no_more(lambda step: True)  # rank 0 has come to this one, and those before it are over
        return known

    def _tell_no_more(self, is_past: Callable[[int], bool]) -> None:
        for telling, step in self._telling.items():
            if is_past(step):
                telling.cancel()

    async def _listen(self, save: str) -> Word:
        step, ends = _step(save), now() + self._asking.patience
        if self.generation is None:  # what was given up before this process came is nothing to it
            self.generation = (await self.recovery.recover(None)).generation
        while now() < ends:
            # committed: of this step, before everybody went back
            answer = await self._await(save, 0, known=_COMMITTED, ends=ends)
            if answer.skipped or answer.abandoned:
                if self._is_old_news(step, answer.reason):
                    await asyncio.sleep(PAUSE_SECONDS)
                    continue
                self._called_off[step] = answer.reason
                return _not_saved(step, answer)
            if answer.checkpoint.status == _OPEN:
                folder, attempt = placed(answer.checkpoint.place)
                term = await self._term_of(attempt)
                self._check_run(term)
                self._term, self._begun[save] = term, _Begun(answer.checkpoint.attempt, term)
                self.generation = answer.checkpoint.generation
                return Word(step, folder=folder.name, attempt=attempt, term=term)
            if answer.HasField("checkpoint"):
                await asyncio.sleep(PAUSE_SECONDS)
        raise RankFailed(
            f"rank 0 has not begun to save step {step} after {self._asking.patience:g} s: did rank 0 call "
            f"save(step={step}), and is it still there? Its log says what it waits for"
        )

    def _is_old_news(self, step: int, reason: str) -> bool:
        """Of a try before this one."""
        return step in self._called_off and self._called_off[step] in reason

    def _check_run(self, term: Term) -> None:
        """A process that was left over may have taken rank 0's name: what it has in memory is of another start."""
        if self.run and term.run and term.run != self.run:
            raise Superseded(
                f"rank 0 saves as start {term.run!r} of this job, and rank {self.rank} on {self._asking.node} is of "
                f"start {self.run!r}: one of the two is left over from an earlier start, and nothing of both can be "
                "saved together. Start all ranks again, with the same run_id"
            )

    async def _term_of(self, attempt: str) -> Term:
        """Rank 0 has begun it where all ranks look, before it said so."""
        try:
            return await term_of(self._store, attempt, self._term)
        except Superseded:
            newest = (await read_lineage(self._store)).newest
            if newest is not None and newest.term >= int(attempt.partition("-")[0]):
                raise
            raise InvalidInput(
                f"rank {self.rank} on {self._asking.node} does not see what rank 0 writes to {self._where}: all ranks "
                "must have the same storage there, and this is another"
            ) from None

    async def done(self, save: str, part: PartRef, copies: dict[str, list[str]]) -> None:
        begun = self._begun[save]
        if copies:
            await self.beside(begun.term).done(begun.name, part, copies)
        try:
            await self._asking.acknowledge(begun.attempt, part, {})
        except Refused as error:
            why = (await self._await(save, begun.attempt, known=_OPEN)).reason
            if is_replaced(why):
                raise SaveReplaced(f"the save of step {_step(save)} was given up for a later one") from error
            raise RankFailed(f"the save of step {_step(save)} was given up: {why or error}") from error

    async def failed(self, save: str, why: str) -> None:
        begun = self._begun.pop(save, None)
        if begun is not None:
            await self._fail(_step(save), begun.attempt, why)
            return
        telling = asyncio.ensure_future(self._fail_when_begun(save, why))  # which may be a while
        self._telling[telling] = _step(save)
        telling.add_done_callback(self._telling.pop)

    async def _fail_when_begun(self, save: str, why: str) -> None:
        ends = now() + self._asking.patience
        try:
            while now() < ends:
                answer = await self._await(save, 0, known=_COMMITTED, ends=ends)
                if answer.checkpoint.status == _OPEN:
                    await self._fail(_step(save), answer.checkpoint.attempt, why)
                is_over = (answer.skipped or answer.abandoned) and not self._is_old_news(_step(save), answer.reason)
                if answer.checkpoint.status == _OPEN or is_over:
                    return
                await asyncio.sleep(PAUSE_SECONDS)
        except StrataError as error:
            logger.info("nobody was told that %s failed here: %s", save, error)

    async def _fail(self, step: int, attempt: int, why: str) -> None:
        self._called_off[step] = ABANDONED.format(attempt)
        await self._asking.call("FailCheckpoint", attempt=attempt, reason=why[:REASON_CHARS])

    async def outcome(self, save: str, is_committed: Callable[[], Awaitable[bool]]) -> Outcome:
        begun, known = self._begun.pop(save), _OPEN
        ends = now() + self._asking.patience
        while True:
            answer = await self._await(save, begun.attempt, known=known, ends=ends)
            if answer.abandoned:
                self._called_off[_step(save)] = answer.reason
                if await is_committed():  # without the coordinator, by a rank 0 that did not hear it
                    return Outcome()
                return Outcome(answer.reason, _is_certain(answer.reason), is_replaced(answer.reason))
            known = answer.checkpoint.status or known
            if known not in (_OPEN, _DECIDED, _COMMITTED):
                return Outcome(f"attempt {begun.attempt} is of no use any more", certain=False)
            if known == _COMMITTED or await is_committed():
                return Outcome()
            if now() > ends:
                step = _step(save)
                raise RankFailed(
                    f"nobody has committed step {step} after {self._asking.patience:g} s: this rank's part is there. "
                    "Is rank 0 still there? Its log says what it waits for"
                )

    def beside(self, term: Term) -> Words:
        """What goes through the storage, under the name of the term, which is like no other."""
        self._term, stem = term, stem_of(term)
        if stem not in self._words:
            self._words = {stem: Words(self._store, stem, self.rank, self.size, self._asking.patience)}
        return self._words[stem]

    async def _await(self, save: str, attempt: int, *, known: int, but_mine: bool = False, ends: float = inf) -> Any:
        return await self._asking.patiently(
            "AwaitCheckpoint",
            step=_step(save),
            attempt=attempt,
            known=known,
            but_mine=but_mine,
            timeout_seconds=max(LEAST_SECONDS, min(AWAIT_SECONDS, self._asking.patience, ends - now())),
        )


def _step(save: str) -> int:
    return int(save.partition(".")[0])


def _is_certain(reason: str) -> bool:
    """Whether nobody can commit what was given up: a rank had no part in it. Rank 0, if it was lost, may have gone
    another way."""
    return COULD_NOT_SAVE in reason


def is_replaced(reason: str) -> bool:
    """Whether rank 0 says so: what another rank failed for may have these words in it, too."""
    own = reason.partition(f"{COULD_NOT_SAVE}: ")[2] or reason
    return own.removeprefix(FAILED) == REPLACED


def _not_saved(step: int, answer: Any) -> Word:
    if answer.abandoned:
        return Word(step, failed=answer.reason, replaced=is_replaced(answer.reason))
    if answer.reason.startswith(FAILED):
        why = answer.reason.removeprefix(FAILED)
        return Word(step, failed=why, replaced=is_replaced(why))
    return Word(step, skipped=answer.reason)
