"""How ranks agree where there is a coordinator: through it; or through the storage, if it does not answer when a save
begins.

Rank 0 decides for each save which of the two it is. The others wait for the coordinator, and after a while look into
the storage, too. What was saved without the coordinator it learns as soon as it is back, before the next save. One that
is gone in the middle of a save is waited for.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from strata.checkpoint.agreement import Done, Outcome, Word, check_made
from strata.checkpoint.council import Council
from strata.checkpoint.datapositions import Positions
from strata.checkpoint.lineage import Term
from strata.checkpoint.manifest import Metadata, PartRef
from strata.checkpoint.recovering import Look
from strata.checkpoint.store import Folder
from strata.checkpoint.words import Words
from strata.errors import RankFailed, StrataError
from strata.rpc import RpcError, Status
from strata.session import is_silence

logger = logging.getLogger("strata.checkpoint")

T = TypeVar("T")
LOOK_SECONDS = 1.0


class EitherWay:
    """As one rank has it. `words` are those of this start of all ranks, if it has a name that all of them know: they
    are needed only until one save has gone through the coordinator. `look` gives the latest checkpoint. `reach` is how
    many seconds the coordinator may take to answer."""

    def __init__(self, council: Council, words: Words | None, look: Look, reach: float) -> None:
        self._council, self._words, self._look, self._reach = council, words, look, reach
        self.rank, self.size, self.run = council.rank, council.size, council.run
        self._without: dict[str, Words] = {}
        """Saves that go through the storage."""
        self._done: dict[str, tuple[PartRef, dict[str, list[str]]]] = {}
        self._is_behind = False
        """Whether the coordinator knows less than the storage."""

    async def _in_reach(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coordinator answers; RpcError if it does not. Where there is no other way, it is waited for."""
        if self._words is None:
            return await work
        if self._council.is_silent:  # it is not waited for at each save
            work.close()
            raise RpcError(Status.UNAVAILABLE, "the coordinator does not answer")
        task = asyncio.ensure_future(work)
        async with _no_longer(task):
            done, _ = await asyncio.wait({task}, timeout=self._reach)
        if not done:
            raise RpcError(Status.UNAVAILABLE, f"the coordinator did not answer within {self._reach:g} s")
        return task.result()

    # -- rank 0 ------------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        await self._or_later(self._council.settle())

    async def go_on_from(self, base: tuple[Folder, Metadata] | None) -> None:
        await self._or_later(self._council.go_on_from(base))

    async def _or_later(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await self._in_reach(work)
        except StrataError as error:
            if not is_silence(error):
                raise
            self._is_behind = True

    async def tell_names(self, names: list[str], term: Term | None) -> None:
        await self._council.tell_names(names, term)

    async def tell(self, save: str, word: Word, epoch: int = 0) -> None:
        try:
            await self._in_reach(self._tell(save, word, epoch))
        except StrataError as error:
            if not is_silence(error) or self._words is None:
                raise
            logger.warning("step %d is saved without the coordinator: %s", word.step, error)
            self._without[save] = self._words
            self._is_behind = True
            await self._words.tell(save, word)

    async def _tell(self, save: str, word: Word, epoch: int) -> None:
        if self._is_behind:
            await self._council.settle()
            await self._council.go_on_from(await self._look())
            self._is_behind = False
        await self._council.tell(save, word, epoch)
        if word.term is not None:
            self._words = self._council.beside(word.term)

    async def parts(self, save: str, attempt: str, *, compare: bool) -> dict[int, Done]:
        return await self._by(save).parts(save, attempt, compare=compare)

    async def absent(self, save: str) -> list[int]:
        return await self._by(save).absent(save)

    async def decide(self, save: str, part: PartRef, metrics: Mapping[str, float], data: Positions) -> bool:
        return await self._by(save).decide(save, part, metrics, data)

    async def over(self, save: str, outcome: Outcome) -> None:
        await self._by(save).over(save, outcome)

    async def forget(self, save: str) -> None:
        await self._by(save).forget(save)
        self._without.pop(save, None)

    async def forget_others(self, term: Term) -> None:
        await self._council.forget_others(term)

    async def removed(self, gone: Sequence[tuple[Folder, Metadata]]) -> None:
        if not self._is_behind:
            await self._council.removed(gone)

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
        word = await self._either(save, self._council.word(save), lambda words: words.word(save))
        if save not in self._without and word.term is not None:
            self._words = self._council.beside(word.term)
        return word

    async def _either(
        self, save: str, asked: Coroutine[Any, Any, T], look: Callable[[Words], Coroutine[Any, Any, T]]
    ) -> T:
        """What the coordinator says; or, if that takes long, what comes through the storage before it."""
        asking = asyncio.ensure_future(asked)
        words = self._words
        reach = 0.0 if self._council.is_silent else self._reach
        async with _no_longer(asking):
            done, _ = await asyncio.wait({asking}, timeout=None if words is None else reach)
            if done or words is None:
                return asking.result()
            looking = asyncio.ensure_future(look(words))
            async with _no_longer(looking):
                done, _ = await asyncio.wait({asking, looking}, return_when=asyncio.FIRST_COMPLETED)
        if asking in done:
            return asking.result()
        self._without[save] = words
        return looking.result()

    async def done(self, save: str, part: PartRef, copies: dict[str, list[str]]) -> None:
        self._done = {save: (part, copies)}
        try:
            await self._by(save).done(save, part, copies)
        except RankFailed:
            words = self._words
            if save in self._without or words is None or await words.peek(save) is None:
                raise
            self._without[save] = words
            await words.done(save, part, copies)

    async def failed(self, save: str, why: str) -> None:
        """Where the coordinator cannot be told, rank 0 may have gone the other way."""
        is_told = True
        try:
            await self._by(save).failed(save, why)
        except StrataError as error:
            if not is_silence(error) or self._words is None:
                raise
            is_told = False
        if save not in self._without and self._words is not None and (self._council.is_silent or not is_told):
            await self._words.failed(save, why)

    async def outcome(self, save: str, is_committed: Callable[[], Awaitable[bool]]) -> Outcome:
        """Rank 0 may have begun through the coordinator, not have heard so, and have gone the other way."""
        if save in self._without:
            return await self._without[save].outcome(save, is_committed)

        async def look(words: Words) -> Outcome:
            while await words.peek(save) is None:
                if await is_committed():
                    return Outcome()
                await asyncio.sleep(LOOK_SECONDS)
            await words.done(save, *self._done[save])
            return await words.outcome(save, is_committed)

        return await self._either(save, self._council.outcome(save, is_committed), look)

    def _by(self, save: str) -> Council | Words:
        return self._without.get(save, self._council)


@asynccontextmanager
async def _no_longer(task: asyncio.Future[Any]) -> AsyncIterator[None]:
    """What is under way after this is given up, also where the caller is: nothing is to be said later in its name."""
    try:
        yield
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
