"""Storages whose process dies at a call, or is not heard of for a while."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from strata import background
from strata.checkpoint import CheckpointManager
from strata.checkpoint.lineage import read_lineage
from strata.errors import StorageUnavailable
from strata.storage import MemoryStorage, StorageBackend
from strata.testing.faulty import Call, FaultyStorage, Outcome


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

    def _draw(self, operation: str, path: str) -> tuple[Outcome, float]:
        return self.life.draw(), 0.0


class Paused(FaultyStorage):
    """Nothing is heard of the process from the call of this number on, until it is released."""

    def __init__(self, inner: StorageBackend, at: int) -> None:
        super().__init__(inner)
        self._at = at
        self.reached = threading.Event()

    def _draw(self, operation: str, path: str) -> tuple[Outcome, float]:
        if len(self.calls) + 1 != self._at:
            return "done", 0.0
        self.reached.set()
        return "stuck", 0.0


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
    newest = background.run(read_lineage(second._checkpoints.store)).newest
    assert newest is not None
    return newest.writer == second._saver._writer


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
