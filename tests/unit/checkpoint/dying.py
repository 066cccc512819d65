"""Storages whose process dies at a call, is not heard of for a while, or is outrun by another."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from strata.checkpoint import CheckpointManager
from strata.errors import StorageUnavailable
from strata.storage import MemoryStorage, StorageBackend
from strata.testing.faulty import Call, FaultyStorage, Outcome
from strata.testing.manager_seam import ManagerSeam

T = TypeVar("T")


class Life:
    """Of a process: it ends at the call of this number, counted from 1 over all methods and storages."""

    def __init__(self, at: int, *, after: bool = False) -> None:
        self._at, self._after = at, after
        self.calls = 0

    @property
    def is_over(self) -> bool:
        return self.calls >= self._at

    def draw(self) -> Outcome:
        self.calls += 1
        if self.calls < self._at:
            return "done"
        return "after" if self._after and self.calls == self._at else "before"


class DyingStorage(FaultyStorage):
    """Dies at the call of this number, before it is done or after; or with the `life` that it shares with others."""

    def __init__(self, inner: StorageBackend, at: int = 0, *, after: bool = False, life: Life | None = None) -> None:
        super().__init__(inner)
        self.life = life or Life(at, after=after)

    @property
    def dead(self) -> bool:
        return self.life.is_over

    def draw(self, operation: str, path: str) -> tuple[Outcome, float]:
        return self.life.draw(), 0.0


class Paused(FaultyStorage):
    """Nothing is heard of the process from the call of this number on, or the first to write an object whose path ends
    so, until it is released."""

    def __init__(self, inner: StorageBackend, at: int | str) -> None:
        super().__init__(inner)
        self._at = at
        self.reached = threading.Event()

    def draw(self, operation: str, path: str) -> tuple[Outcome, float]:
        if not self._is_there(operation, path):
            return "done", 0.0
        self.reached.set()
        return "stuck", 0.0

    def _is_there(self, operation: str, path: str) -> bool:
        if isinstance(self._at, int):
            return len(self.calls) + 1 == self._at
        return operation == "put_if_absent" and path.endswith(self._at) and not self.reached.is_set()


class Outrun(FaultyStorage):
    """Before it puts the first object whose path has this in it something else happens, to its end."""

    def __init__(self, inner: StorageBackend, where: str, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._where, self._act = where, act
        self.is_outrun = False

    async def call(
        self,
        operation: str,
        path: str,
        whole: Callable[[], Awaitable[T]],
        half: Callable[[], Awaitable[object]] | None = None,
    ) -> T:
        if operation == "put_if_absent" and self._where in path and not self.is_outrun:
            self.is_outrun = True
            await asyncio.to_thread(self._act)
        return await super().call(operation, path, whole, half)


@contextmanager
def asleep(paused: Paused, act: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """A process that stands still in the middle of something. Gives what wakes it up, and waits until it is done."""
    sleeper = threading.Thread(target=act)
    sleeper.start()
    assert paused.reached.wait(60)

    def wake() -> None:
        paused.release()
        sleeper.join()

    try:
        yield wake
    finally:
        wake()


def save_in_its_place(paused: Paused, first: Callable[[], None], second: CheckpointManager, state: Any) -> bool:
    """A process saves, and is not heard of: another goes on from step 2 meanwhile and saves 3 and 4, and then the first
    one wakes up. Whether the job is the second one's now."""
    sleeper = threading.Thread(target=first)
    sleeper.start()
    while sleeper.is_alive() and not paused.reached.wait(0.01):
        pass
    second.load(2)
    second.save(state, step=3)
    second.save(state, step=4)
    second.wait()
    paused.release()
    sleeper.join()
    return ManagerSeam(second).is_newest_writer


def deaths(
    act: Callable[[DyingStorage], object], before: Callable[[], MemoryStorage], *, after: bool
) -> Iterator[MemoryStorage]:
    """What a process leaves that dies at each of its calls, one after the other."""
    counted = DyingStorage(before(), 10_000)
    act(counted)
    assert len(counted.calls) > 8
    for at in range(1, len(counted.calls) + 1):
        inner = before()
        dying = DyingStorage(inner, at, after=after)
        with suppress(StorageUnavailable):
            act(dying)
        assert dying.dead
        yield inner


def names(calls: list[Call]) -> list[str]:
    return [f"{call.operation} {call.path}" for call in calls]
