"""How ranks agree where there is a coordinator: through it, or through the storage while it is away.

Rank 0 decides for each save which of the two it is, and may go over to the storage at any point of it. The others wait
for the coordinator, and look into the storage, too: after a while, and at once while it is away, or was of late. What
was saved without the coordinator it learns when it is back, before the next save.

The law: a rank that has told the coordinator of its part tells the storage, too, once rank 0 has gone that way. What
the coordinator has decided, or may have, is committed all the same.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Any, TypeVar

from strata.checkpoint.agreement import Done, Outcome, Word, check_made
from strata.checkpoint.asking import now
from strata.checkpoint.council import Council
from strata.checkpoint.datapositions import Positions
from strata.checkpoint.lineage import Term
from strata.checkpoint.manifest import Metadata, PartRef
from strata.checkpoint.recovering import Look
from strata.checkpoint.store import Folder
from strata.checkpoint.words import Words
from strata.errors import RankFailed, StorageError, StrataError
from strata.logs import get_logger
from strata.rpc import RpcError, Status
from strata.session import is_silence

logger = get_logger("strata.checkpoint")

T = TypeVar("T")
LOOK_SECONDS = 1.0
WORDS_KEPT = 8
SOON_SECONDS = 0.2
"""Between looks into the storage, and at whether the coordinator is there, while it is away or was of late."""


class EitherWay:
    """As one rank has it. `words` are those of this start of all ranks, if it has a name that all of them know: they
    are needed only until one save has gone through the coordinator. `look` gives the latest checkpoint. `reach` is how
    many seconds the coordinator may take to answer; one that cannot be reached is not waited for as long."""

    def __init__(self, council: Council, words: Words | None, look: Look, reach: float) -> None:
        self._council, self._words, self._look, self._reach = council, words, look, reach
        self._next_words = words
        """From the next save on: in the one at hand not all may have heard what they are called."""
        self.rank, self.size, self.run = council.rank, council.size, council.run
        self._without: dict[str, Words] = {}
        """Saves that go through the storage."""
        self._told: dict[str, Word] = {}
        """What rank 0 said of the latest saves."""
        self._done: dict[str, tuple[PartRef, dict[str, list[str]]]] = {}
        self._is_behind = False
        """Whether the coordinator knows less than the storage."""
        self._is_settled = True
        self._committed: Word | None = None
        """The save that rank 0 committed last, since it went on from a checkpoint."""
        self._untold: list[tuple[Folder, Metadata]] = []
        """Checkpoints that rank 0 committed while the coordinator was away, and did not remove since, oldest first."""
        self._gone: list[tuple[Folder, Metadata]] = []
        """Checkpoints that the coordinator was not told to be removed."""

    async def _in_reach(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """What the coordinator answers; RpcError if it does not. Where there is no other way, it is waited for."""
        if self._words is None:
            return await work
        if self._council.is_silent:  # it is not waited for at each save
            work.close()
            raise RpcError(Status.UNAVAILABLE, "the coordinator does not answer")
        task, reach = asyncio.ensure_future(work), self._reach if seconds is None else seconds
        async with _no_longer(task):
            await self._answered(task, reach)
        if task.cancelled():
            raise RpcError(Status.UNAVAILABLE, f"the coordinator did not answer within {reach:g} s, or is not there")
        return task.result()

    async def _answered(self, task: asyncio.Future[Any], seconds: float) -> None:
        """Waits for it, not longer than so many seconds, and not for a coordinator that cannot be reached."""
        ends = now() + seconds
        while not task.done() and not self._council.is_silent and (left := ends - now()) > 0:
            await asyncio.wait({task}, timeout=min(SOON_SECONDS, left))

    def _remember(self, save: str, word: Word) -> None:
        self._told.pop(save, None)
        self._told[save] = word
        while len(self._told) > WORDS_KEPT:
            del self._told[next(iter(self._told))]

    # -- rank 0 ------------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        self._words = self._next_words
        self._is_settled = await self._or_later(self._council.settle())

    async def go_on_from(self, base: tuple[Folder, Metadata] | None) -> None:
        self._committed, self._untold = None, []
        await self._or_later(self._council.go_on_from(base))
        if self._is_behind and self._council.goes_back(base):
            self._council.point = None  # the coordinator has to hear that, and not only what is saved from there on

    async def _or_later(self, work: Coroutine[Any, Any, None]) -> bool:
        try:
            await self._in_reach(work)
        except StrataError as error:
            if not is_silence(error):
                raise
            self._is_behind = True
            return False
        return True

    async def tell_names(self, names: list[str], term: Term | None) -> None:
        await self._council.tell_names(names, term)

    async def tell(self, save: str, word: Word, epoch: int = 0) -> None:
        if word.folder:
            self._words = self._next_words
        self._remember(save, word)
        try:
            await self._in_reach(self._tell(save, word, epoch))
        except StrataError as error:
            await self._go_without(save, error)

    async def _go_without(self, save: str, error: StrataError) -> None:
        """From here on; raises the error if there is no other way, or it is another."""
        if not is_silence(error) or self._words is None:
            raise error
        logger.warning("step %d is saved without the coordinator: %s", self._told[save].step, error)
        self._without[save] = self._words
        self._is_behind = True
        await self._words.tell(save, self._told[save])

    async def _tell(self, save: str, word: Word, epoch: int) -> None:
        if self._is_behind:
            await self._catch_up()
            self._is_behind = False
        await self._council.tell(save, word, epoch)
        if word.term is not None:
            self._next_words = self._council.beside(word.term)

    async def _catch_up(self) -> None:
        """Without a look at all that is in the storage, which takes long where that is much."""
        if not self._is_settled:
            await self._council.settle()
            self._is_settled = True
        known = None if self._committed is None else await self._council.committed(self._committed)
        told, self._untold = self._untold, []
        try:
            await self._council.catch_up(known or await self._look(), told)
        except BaseException:
            self._untold = [*told, *self._untold]
            raise
        gone = list(self._gone)
        await self._council.removed(gone)
        del self._gone[: len(gone)]  # what was removed meanwhile is told next time

    async def parts(self, save: str, attempt: str, *, compare: bool) -> dict[int, Done]:
        if save not in self._without:
            try:
                return await self._in_reach(self._council.parts(save, attempt, compare=compare), inf)
            except StrataError as error:
                await self._go_without(save, error)
        return await self._without[save].parts(save, attempt, compare=compare)

    async def absent(self, save: str) -> list[int]:
        return await self._by(save).absent(save)

    async def decide(self, save: str, part: PartRef, metrics: Mapping[str, float], data: Positions) -> bool:
        if save in self._without:
            return await self._without[save].decide(save, part, metrics, data)
        return await self._decide(save, part, metrics, data)

    async def _decide(self, save: str, part: PartRef, metrics: Mapping[str, float], data: Positions) -> bool:
        """All parts are there. That the coordinator cannot be told, or does not say whether it is decided, changes
        nothing about that: then another may commit it, too."""
        try:
            return await self._in_reach(self._council.decide(save, part, metrics, data))
        except StrataError as error:
            if not is_silence(error) or self._words is None:
                raise
            self._is_behind = True
            return False

    async def over(self, save: str, outcome: Outcome) -> None:
        if not outcome.failed:
            self._committed = self._told.get(save)
        if save in self._without:
            await self._without[save].over(save, outcome)
        else:
            await self._or_later(self._council.over(save, outcome))
        if self._is_behind and not outcome.failed and self._committed is not None:
            made = await self._council.committed(self._committed)
            self._untold += [made] if made is not None else []

    async def forget(self, save: str) -> None:
        await self._by(save).forget(save)
        self._without.pop(save, None)

    async def forget_others(self, term: Term) -> None:
        await self._council.forget_others(term)

    async def removed(self, gone: Sequence[tuple[Folder, Metadata]]) -> None:
        folders = {folder for folder, _ in gone}
        self._untold = [each for each in self._untold if each[0] not in folders]
        if self._is_behind or not await self._or_later(self._council.removed(gone)):
            self._gone += gone

    # -- the others --------------------------------------------------------------------------------------------------

    async def names(self, save: str) -> list[str]:
        word = await self.word(save)
        check_made(word)
        assert word.term is not None
        return await self._council.beside(word.term).names(save)

    async def word(self, save: str) -> Word:
        """Whichever comes first: rank 0 says it on one way only."""
        if save in self._without:
            return await self._without[save].word(save)
        if save not in self._told:
            self._words = self._next_words
        word = await self._either(save, self._council.word(save), lambda words: words.word(save))
        self._remember(save, word)
        if save not in self._without and word.term is not None:
            self._next_words = self._council.beside(word.term)
        return word

    async def _either(
        self, save: str, asked: Coroutine[Any, Any, T], look: Callable[[Words], Coroutine[Any, Any, T]]
    ) -> T:
        """What the coordinator says; or, if that takes long, what comes through the storage before it."""
        asking = asyncio.ensure_future(asked)
        words = self._words
        async with _no_longer(asking):
            if words is None:
                await asyncio.wait({asking})
                return asking.result()
            await self._answered(asking, 0.0 if self._council.is_unsteady else self._reach)
            if asking.done():
                return asking.result()
            looking = asyncio.ensure_future(look(words))
            async with _no_longer(looking):
                await asyncio.wait({asking, looking}, return_when=asyncio.FIRST_COMPLETED)
                if not asking.done() and not self._council.is_silent and _has_failed(looking):
                    await asyncio.wait({asking})  # that the storage cannot be read at the moment is no answer
                is_answered = asking.done()
        if is_answered:
            return asking.result()
        self._without[save] = words
        return looking.result()

    async def _until_told(self, words: Words, save: str, is_over: Callable[[], Awaitable[bool]]) -> bool:
        """Until rank 0 says in the storage that it saves that way; False if it is over before."""
        while await words.peek(save) is None:
            if await is_over():
                return False
            await asyncio.sleep(SOON_SECONDS if self._council.is_unsteady else LOOK_SECONDS)
        return True

    async def done(self, save: str, part: PartRef, copies: dict[str, list[str]]) -> None:
        self._done = {save: (part, copies)}
        if save in self._without:
            await self._without[save].done(save, part, copies)
            return

        async def look(words: Words) -> None:
            await self._until_told(words, save, _never)
            await words.done(save, part, copies)

        try:
            await self._either(save, self._council.done(save, part, copies), look)
        except RankFailed:
            words = self._words
            if save in self._without or words is None or await words.peek(save) is None:
                raise
            self._without[save] = words
            await words.done(save, part, copies)

    async def failed(self, save: str, why: str) -> None:
        """Where the coordinator cannot be told, rank 0 may have gone the other way."""
        if save in self._without:
            await self._without[save].failed(save, why)
            return
        is_told = True
        try:
            await self._in_reach(self._council.failed(save, why))
        except StrataError as error:
            if not is_silence(error) or self._words is None:
                raise
            is_told = False
        if self._words is not None and (self._council.is_silent or not is_told):
            await self._words.failed(save, why)

    async def outcome(self, save: str, is_committed: Callable[[], Awaitable[bool]]) -> Outcome:
        """Rank 0 may have begun through the coordinator, not have heard so, and have gone the other way."""
        if save in self._without:
            return await self._without[save].outcome(save, is_committed)

        async def look(words: Words) -> Outcome:
            if not await self._until_told(words, save, is_committed):
                return Outcome()
            await words.done(save, *self._done[save])
            return await words.outcome(save, is_committed)

        outcome = await self._either(save, self._council.outcome(save, is_committed), look)
        words = self._words
        if outcome.failed and save not in self._without and words is not None and await words.peek(save) is not None:
            return await look(words)  # the coordinator gave it up, and rank 0 goes on without
        return outcome

    def _by(self, save: str) -> Council | Words:
        return self._without.get(save, self._council)


async def _never() -> bool:
    return False


def _has_failed(looking: asyncio.Future[Any]) -> bool:
    return not looking.cancelled() and isinstance(looking.exception(), StorageError)


@asynccontextmanager
async def _no_longer(task: asyncio.Future[Any]) -> AsyncIterator[None]:
    """What is under way after this is given up, also where the caller is: nothing is to be said later in its name."""
    try:
        yield
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
