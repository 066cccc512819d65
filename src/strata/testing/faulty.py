"""A storage that fails on purpose, from a seed: for testing what stands on storage.

What happens to a call depends on the seed, the operation, its path and how often that was called, and on nothing else:
the same program meets the same faults however its threads are scheduled.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple, Self, TypeAlias, TypeVar

from strata.errors import InvalidInput, StorageError, StorageUnavailable
from strata.storage.backend import Data, ObjectInfo, Progress, StorageBackend, StorageWriter, byte_view, checked_keys

T = TypeVar("T")

Outcome: TypeAlias = Literal["done", "before", "after", "partial", "stuck"]


OPERATIONS = frozenset(
    (
        "write",
        "read",
        "exists",
        "delete",
        "delete_many",
        "size",
        "read_range",
        "read_ranges",
        "read_into",
        "list_all",
        "list_folder",
        "put_if_absent",
        "read_versioned",
        "version",
        "compare_and_swap",
        "writer.write",
        "writer.commit",
    )
)
"""All that can fail. `writer` is what `open_writer` gives."""


@dataclass(frozen=True, slots=True)
class Faults:
    """How often what happens, as shares between 0 and 1.

    before: the call fails, and nothing was done.
    after: it was done, and the call fails all the same: the answer was lost.
    partial: a stream fails after half of a piece, `delete_many` after half of its paths; other calls as `before`.
    stuck: the call does not return until `release()`; then it is done.
    latency_seconds: every call takes up to this much longer.
    only: the `OPERATIONS` that this is about; none means all.
    """

    before: float = 0.0
    after: float = 0.0
    partial: float = 0.0
    stuck: float = 0.0
    latency_seconds: float = 0.0
    only: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        shares = (self.before, self.after, self.partial, self.stuck)
        if min(shares) < 0 or sum(shares) > 1:
            raise InvalidInput(f"the shares of faults must be at least 0 and together at most 1, not {shares}")
        for operation in self.only:
            _check_operation(operation)


class Call(NamedTuple):
    """A call that was made, and what became of it."""

    operation: str
    path: str
    outcome: Outcome


class FaultyStorage:
    """Wraps any storage. `calls` tells what became of each call so far; `made`, how often each method was called.

    A subclass may decide otherwise in `draw`, do more around each call in `call`, and raise another error in `fault`.
    """

    def __init__(self, inner: StorageBackend, seed: int = 0, faults: Faults | None = None) -> None:
        self.inner = inner
        self.seed = seed
        self.faults = faults or Faults()
        self.calls: list[Call] = []
        self._counts: Counter[tuple[str, str]] = Counter()
        self._planned: dict[tuple[str, int], Outcome] = {}
        self.made: Counter[str] = Counter()
        self._stuck: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._released = False

    def fail(self, operation: str, call: int, outcome: Outcome = "before") -> None:
        """The so-maniest call of that method, counted from 1, ends like this."""
        _check_operation(operation)
        self._planned[operation, call] = outcome

    def release(self) -> None:
        """Let every stuck call go on, and nothing get stuck from now on."""
        self._released = True
        stuck, self._stuck = self._stuck, []
        for loop, event in stuck:
            with suppress(RuntimeError):  # its loop has ended, and the call with it
                loop.call_soon_threadsafe(event.set)

    @property
    def stuck(self) -> int:
        """How many calls do not return at the moment."""
        return len(self._stuck)

    @property
    def url(self) -> str:
        return self.inner.url

    async def write(self, path: str, data: Data, *, progress: Progress | None = None) -> None:
        await self.call("write", path, lambda: self.inner.write(path, data, progress=progress))

    async def read(self, path: str, *, progress: Progress | None = None) -> bytes:
        return await self.call("read", path, lambda: self.inner.read(path, progress=progress))

    async def exists(self, path: str) -> bool:
        return await self.call("exists", path, lambda: self.inner.exists(path))

    async def delete(self, path: str) -> None:
        await self.call("delete", path, lambda: self.inner.delete(path))

    async def delete_many(self, paths: Iterable[str]) -> None:
        wanted = checked_keys(paths)
        half = wanted[: len(wanted) // 2]
        await self.call(
            "delete_many",
            wanted[0] if wanted else "",
            lambda: self.inner.delete_many(wanted),
            lambda: self.inner.delete_many(half),
        )

    async def size(self, path: str) -> int:
        return await self.call("size", path, lambda: self.inner.size(path))

    async def read_range(self, path: str, start: int, length: int) -> memoryview:
        return await self.call("read_range", path, lambda: self.inner.read_range(path, start, length))

    async def read_ranges(
        self, path: str, ranges: Sequence[tuple[int, int]], *, version: str | None = None
    ) -> list[memoryview]:
        return await self.call("read_ranges", path, lambda: self.inner.read_ranges(path, ranges, version=version))

    async def read_into(self, path: str, start: int, targets: Sequence[Data]) -> None:
        await self.call("read_into", path, lambda: self.inner.read_into(path, start, targets))

    async def list_all(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        await self.call("list_all", prefix, _nothing)
        async for entry in self.inner.list_all(prefix):
            yield entry

    async def list_folder(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        await self.call("list_folder", prefix, _nothing)
        async for entry in self.inner.list_folder(prefix):
            yield entry

    async def put_if_absent(self, path: str, data: Data) -> None:
        await self.call("put_if_absent", path, lambda: self.inner.put_if_absent(path, data))

    async def read_versioned(self, path: str) -> tuple[bytes, str]:
        return await self.call("read_versioned", path, lambda: self.inner.read_versioned(path))

    async def version(self, path: str) -> str:
        return await self.call("version", path, lambda: self.inner.version(path))

    async def compare_and_swap(self, path: str, data: Data, version: str | None) -> str:
        return await self.call("compare_and_swap", path, lambda: self.inner.compare_and_swap(path, data, version))

    @asynccontextmanager
    async def open_writer(
        self, path: str, *, size: int | None = None, progress: Progress | None = None
    ) -> AsyncIterator[StorageWriter]:
        async with self.inner.open_writer(path, size=size, progress=progress) as writer:
            faulty = _FaultyWriter(self, path, writer)
            yield faulty
            await faulty.commit()

    async def close(self) -> None:
        self.release()
        await self.inner.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def call(
        self,
        operation: str,
        path: str,
        whole: Callable[[], Awaitable[T]],
        half: Callable[[], Awaitable[object]] | None = None,
    ) -> T:
        """Each call of a method passes here. `whole` does it, `half` a part of it."""
        outcome, late = self.draw(operation, path)
        self.calls.append(Call(operation, path, outcome))
        if late:
            await asyncio.sleep(late)
        if outcome == "stuck":
            await self._wait_for_release()
        if outcome == "before" or (outcome == "partial" and half is None):
            raise self.fault(operation, path)
        if outcome == "partial" and half is not None:
            await half()
            raise self.fault(operation, path)
        result = await whole()
        if outcome == "after":
            raise self.fault(operation, path)
        return result

    def draw(self, operation: str, path: str) -> tuple[Outcome, float]:
        """What becomes of this call, and by how many seconds it is late."""
        self.made[operation] += 1
        self._counts[operation, path] += 1
        planned = self._planned.get((operation, self.made[operation]))
        faults = self.faults
        if planned is not None or (faults.only and operation not in faults.only):
            return planned or "done", 0.0
        random = Random(f"{self.seed} {operation} {path!a} {self._counts[operation, path]}")
        late = random.random() * faults.latency_seconds
        drawn = random.random()
        kinds: tuple[tuple[Outcome, float], ...] = (
            ("before", faults.before),
            ("after", faults.after),
            ("partial", faults.partial),
            ("stuck", faults.stuck),
        )
        for outcome, share in kinds:
            if drawn < share:
                return outcome, late
            drawn -= share
        return "done", late

    async def _wait_for_release(self) -> None:
        mine = asyncio.get_running_loop(), asyncio.Event()
        self._stuck.append(mine)
        try:
            if not self._released:  # looked at once `release`, which another thread may call, finds this call
                await mine[1].wait()
        finally:
            if mine in self._stuck:
                self._stuck.remove(mine)

    def fault(self, operation: str, path: str) -> StorageError:
        """What a call that fails raises."""
        return StorageUnavailable(f"{operation} of {path!r} failed on purpose", storage=self.url, key=path)


class _FaultyWriter:
    def __init__(self, storage: FaultyStorage, path: str, writer: StorageWriter) -> None:
        self._storage = storage
        self._path = path
        self._writer = writer
        self._ended = False

    async def write(self, data: Data) -> None:
        view = byte_view(data)
        half = view[: len(view) // 2]
        await self._storage.call(
            "writer.write", self._path, lambda: self._writer.write(data), lambda: self._writer.write(half)
        )

    async def commit(self) -> None:
        if not self._ended:
            await self._storage.call("writer.commit", self._path, self._writer.commit)
            self._ended = True

    async def abort(self) -> None:
        self._ended = True
        await self._writer.abort()


def _check_operation(operation: str) -> None:
    """A fault that never comes would test nothing."""
    if operation not in OPERATIONS:
        raise InvalidInput(f"a storage has no operation {operation!r}: it has {', '.join(sorted(OPERATIONS))}")


async def _nothing() -> None:
    return None
