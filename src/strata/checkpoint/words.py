"""How ranks of one job agree on a save without a coordinator: by what they say to each other in the storage.

{job}/checkpoints/runs/<run>/names.json         rank 0: the names of its arrays, which others need not write
{job}/checkpoints/runs/<run>/900.1.json         rank 0: the first save of step 900 goes there, and is called so
{job}/checkpoints/runs/<run>/900.1-3.json       rank 3: its part of it is durable, or why not
{job}/checkpoints/runs/<run>/900.1-over.json    rank 0: it is committed, or why not

A save that is tried again is the second of its step on all ranks. A run is one start of all ranks: words of a run that
is over say nothing to anybody.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from strata.checkpoint.agreement import Done, Outcome, Word
from strata.checkpoint.datapositions import Positions
from strata.checkpoint.lineage import Term
from strata.checkpoint.manifest import UNREADABLE, Metadata, PartRef
from strata.checkpoint.store import PARTS_AT_ONCE, Folder, Store
from strata.checkpoint.waiting import named
from strata.errors import ObjectNotFound, RankFailed, StrataError
from strata.logs import get_logger
from strata.storage import ObjectInfo

logger = get_logger("strata.checkpoint")

T = TypeVar("T")
RUNS = "runs"
LOCAL_SECONDS = 0.002, 0.05
"""How long to wait before the storage is asked again: at first, and at most."""
REMOTE_SECONDS = 0.05, 1.0
OVER_SECONDS = 86_400.0
"""A run of which for so long nobody could tell whether it ever began is over."""


class Names(msgspec.Struct, frozen=True):
    """The arrays of the first rank, and its term."""

    names: list[str]
    term: int


class Words:
    """Those of one run, as one rank says and hears them."""

    def __init__(self, store: Store, run: str, rank: int, size: int, patience: float) -> None:
        self._store, self.run, self.rank, self.size = store, run, rank, size
        self._patience = patience
        self._node = socket.gethostname()
        is_local = store.storage.url.startswith(("file:", "memory:"))
        self._has_spoken = False
        self._has_heard = False
        """Anything of rank 0, whose first word takes back what was said before."""
        self._known = "No step of this run has the parts of all ranks yet."
        """How far everybody was, last."""
        self._telling: set[asyncio.Future[None]] = set()
        self._pace = LOCAL_SECONDS if is_local else REMOTE_SECONDS

    # -- said --------------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """What rank 0 has not committed is not decided."""

    async def go_on_from(self, base: tuple[Folder, Metadata] | None) -> None:
        """The lineage in the storage says it."""

    async def tell_names(self, names: list[str], term: Term | None) -> None:
        await self._put("names", Names(names, 0 if term is None else term.term))

    async def tell(self, save: str, word: Word, epoch: int = 0) -> None:
        await self._put(save, word)

    async def decide(self, save: str, part: PartRef, metrics: Mapping[str, float], data: Positions) -> bool:
        return True

    async def removed(self, gone: Sequence[tuple[Folder, Metadata]]) -> None:
        """Nobody else keeps a list of them."""

    async def done(self, save: str, part: PartRef, copies: dict[str, list[str]]) -> None:
        await self._put(f"{save}-{self.rank}", Done(self._node, part, copies=copies))

    async def failed(self, save: str, why: str) -> None:
        done = Done(self._node, failed=why)
        await self._put(f"{save}-{self.rank}", done)
        if not self._has_heard:
            telling = asyncio.ensure_future(self._tell_again(save, done))  # which may be a while
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)

    async def _tell_again(self, save: str, done: Done) -> None:
        try:
            await self._hear(save, Word, save, "has not begun it")
            await self._put(f"{save}-{self.rank}", done)
        except StrataError as error:
            logger.info("nobody was told that %s failed here: %s", save, error)

    async def over(self, save: str, outcome: Outcome) -> None:
        await self._put(f"{save}-over", outcome)

    async def forget(self, save: str) -> None:
        """Nobody waits for what was said of this one any more."""
        parts = [f"{save}-{rank}" for rank in range(1, self.size)]
        await self._store.storage.delete_many([self._key(name) for name in (save, *parts, f"{save}-over")])

    async def forget_others(self, term: Term) -> None:
        """Words of runs that are over: those of terms before this one, and those of which nobody can tell for long."""
        said: dict[str, list[ObjectInfo]] = {}
        start = len(self._store.key(RUNS, ""))
        async for entry in self._store.storage.list_all(self._store.key(RUNS)):
            said.setdefault(entry.path[start:].partition("/")[0], []).append(entry)
        said.pop(self.run, None)
        gone = [entry.path for entries in said.values() if await self._is_over(entries, term.term) for entry in entries]
        await self._store.storage.delete_many(gone)

    async def _is_over(self, entries: Sequence[ObjectInfo], term: int) -> bool:
        for entry in entries:
            with suppress(RankFailed):  # what cannot be read, as of another version, does not tell
                name = entry.path.rpartition("/")[2].removesuffix(".json")
                told = await self._look_at(entry.path, Names) if name == "names" else None
                if told is not None:
                    return told.term < term
                word = await self._look_at(entry.path, Word) if "-" not in name else None
                if word is not None and word.term is not None:
                    return word.term.term < term
        return time.time() - max(entry.modified for entry in entries) > OVER_SECONDS

    # -- heard -------------------------------------------------------------------------------------------------------

    async def names(self, save: str) -> list[str]:
        found = await self._hear("names", Names, save, "has not said which arrays it has")
        return found.names

    async def word(self, save: str) -> Word:
        found = await self._hear(save, Word, save, f"has not begun to save step {_step(save)}")
        for telling in self._telling:  # of a save before this one
            telling.cancel()
        return found

    async def outcome(self, save: str, is_committed: Callable[[], Awaitable[bool]]) -> Outcome:
        """The checkpoint itself says it, too."""

        async def look() -> Outcome | None:
            return Outcome() if await is_committed() else await self._look(f"{save}-over", Outcome)

        return await self._until(look, lambda: self._silence(save, "has not said what became of the save"))

    async def parts(self, save: str, attempt: str, *, compare: bool = True) -> dict[int, Done]:
        found: dict[int, Done] = {}

        async def look() -> bool | None:
            absent = [rank for rank in range(1, self.size) if rank not in found]
            for start in range(0, len(absent), PARTS_AT_ONCE):
                some = absent[start : start + PARTS_AT_ONCE]
                looks = await asyncio.gather(*(self._look(f"{save}-{rank}", Done) for rank in some))
                for rank, done in zip(some, looks, strict=True):
                    if done is not None and done.part is not None and f"/part-{rank}-{attempt}." not in done.part.path:
                        continue  # of another start under the same name
                    if done is not None and done.part is None:
                        raise RankFailed(f"rank {rank} on {done.node} could not save its part: {done.failed}")
                    if done is not None:
                        found[rank] = done
            return True if len(found) == self.size - 1 else None

        def missing() -> str:
            absent = named([rank for rank in range(1, self.size) if rank not in found])
            return (
                f"the parts of {absent} are not there after {self._patience:g} s: did {absent} call "
                f"save(step={_step(save)})? {self._known} If that was called, look at the log there, and whether "
                f"{self._where} is the same storage for all"
            )

        await self._until(look, missing)
        self._known = f"The last step with the parts of all ranks is {_step(save)}."
        return {rank: found[rank] for rank in sorted(found)}

    async def absent(self, save: str) -> list[int]:
        said = await self.said(save)
        return [rank for rank in range(1, self.size) if rank not in said]

    async def peek(self, save: str) -> Word | None:
        """What rank 0 has said of it by now."""
        return await self._look(save, Word)

    async def said(self, save: str) -> dict[int, Done]:
        """What others have said so far."""
        looks = await asyncio.gather(*(self._look(f"{save}-{rank}", Done) for rank in range(1, self.size)))
        return {rank: done for rank, done in enumerate(looks, 1) if done is not None}

    # -- in the storage ----------------------------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return f"{self._store.storage.url}/{self._store.root}"

    def _key(self, name: str) -> str:
        return self._store.key(RUNS, self.run, f"{name}.json")

    async def _put(self, name: str, word: msgspec.Struct) -> None:
        if self.rank == 0 and not self._has_spoken:
            await self._forget_namesakes()
        await self._store.storage.write(self._key(name), msgspec.json.encode(word))

    async def _forget_namesakes(self) -> None:
        """Of an earlier start under the same name, which should not be: before rank 0 says its first word."""
        gone = [self._store.key(path) async for path in self._store.paths(RUNS, self.run)]
        await self._store.storage.delete_many(gone)
        self._has_spoken = True

    async def _look(self, name: str, kind: type[T]) -> T | None:
        return await self._look_at(self._key(name), kind)

    async def _look_at(self, key: str, kind: type[T]) -> T | None:
        try:
            return msgspec.json.decode(await self._store.storage.read(key), type=kind)
        except ObjectNotFound:
            return None
        except UNREADABLE as error:
            raise RankFailed(f"{self._store.storage.url}/{key} is no word of a rank: {error}") from error

    async def _hear(self, name: str, kind: type[T], save: str, silence: str) -> T:
        async def look() -> T | None:
            return await self._look(name, kind)

        found = await self._until(look, lambda: self._silence(save, silence))
        self._has_heard = True
        return found

    def _silence(self, save: str, what: str) -> str:
        return (
            f"rank 0 {what} after {self._patience:g} s: did rank 0 call save(step={_step(save)}), and is it still "
            f"there? If it is, rank {self.rank} on {self._node} looks for it in {self._where}, which must be the same "
            "storage for both"
        )

    async def _until(self, look: Callable[[], Awaitable[T | None]], silence: Callable[[], str]) -> T:
        clock, pause = asyncio.get_running_loop().time, self._pace[0]
        ends = clock() + self._patience
        while True:
            found = await look()
            if found is not None:
                return found
            if clock() > ends:
                raise RankFailed(silence())
            await asyncio.sleep(pause)
            pause = min(self._pace[1], pause * 1.3)


def _step(save: str) -> str:
    return save.partition(".")[0]
