"""What a save or a load is waiting for: every call to the storage is known while it lasts, and one that nothing comes
of ends the work, by name. A storage has limits of its own; this is for what has none, or does not keep them.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn, Self, TypeVar

from strata.core.ids import check_seconds
from strata.errors import InvalidInput, StorageUnavailable
from strata.storage.backend import Data, ObjectInfo, Progress, StorageBackend, StorageWriter, byte_view

T = TypeVar("T")

STUCK_SECONDS = 300.0
LOOKS = 10
"""So often within that time it is looked whether anything is stuck."""
TOLD = 3
SLOWEST_BYTES_PER_SECOND = 1_000_000
"""What is written in one call, without word of its progress, has this much longer."""


def _now() -> float:
    return asyncio.get_running_loop().time()


class _Call:
    __slots__ = ("_clock", "since", "what")

    def __init__(self, what: str, size: int) -> None:
        self.what = what
        self._clock = asyncio.get_running_loop().time  # progress may be told by a thread, which has no loop
        self.since = self._clock() + size / SLOWEST_BYTES_PER_SECOND

    def progress(self, count: int) -> None:
        self.since = self._clock()


class _Watch:
    """The calls under way for one piece of work."""

    def __init__(self) -> None:
        self.calls: set[_Call] = set()

    def stuck(self, seconds: float) -> list[_Call]:
        before = _now() - seconds
        return sorted((call for call in self.calls if call.since <= before), key=lambda call: call.since)


_current: ContextVar[_Watch | None] = ContextVar("strata_watch", default=None)


async def watched(work: Coroutine[Any, Any, T], what: str, seconds: float | None = STUCK_SECONDS) -> T:
    """Do it; StorageUnavailable if nothing comes of a call to the storage for so long. None waits for ever.

    The work itself only sees that it is cancelled: `reason_of` that tells it why.
    """
    if seconds is None:
        return await work
    try:
        check_seconds(seconds, "timeout")
    except InvalidInput:
        work.close()
        raise
    watch = _Watch()
    token = _current.set(watch)
    try:
        task = asyncio.ensure_future(work)
    finally:
        _current.reset(token)
    try:
        await asyncio.sleep(0)  # what is given up before it has begun could tell nobody
        while not (await asyncio.wait({task}, timeout=seconds / LOOKS))[0]:
            stuck = watch.stuck(seconds)
            if stuck:
                _raise(what, stuck, seconds)
    except BaseException as error:
        task.cancel(None if isinstance(error, asyncio.CancelledError) else error)
        await asyncio.wait({task}, timeout=1.0)  # what is stuck may not even end when it is told to
        raise
    try:
        return task.result()
    finally:
        del task  # its error refers to this frame


def reason_of(error: BaseException) -> BaseException:
    """What a piece of work was given up for, where it was not by whoever asked for it."""
    told = error.args[0] if isinstance(error, asyncio.CancelledError) and error.args else None
    return told if isinstance(told, StorageUnavailable) else error


def _raise(what: str, stuck: list[_Call], seconds: float) -> NoReturn:
    calls = ", ".join(f"{call.what} ({_now() - call.since:.0f} s)" for call in stuck[:TOLD])
    more = f" and {len(stuck) - TOLD} more" if len(stuck) > TOLD else ""
    raise StorageUnavailable(
        f"{what} is given up: for more than {seconds:g} s nothing came of {calls}{more}. "
        "Look at that storage; a longer timeout helps only if it is that slow",
        storage=stuck[0].what,
    )


class WatchedStorage:
    """Any storage, with its calls known to whoever watches. One that is made of several, each of which is watched, says
    so by `is_watched`: its own calls tell nothing more."""

    def __init__(self, inner: StorageBackend) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def stream_bytes(self) -> int:
        """What a writer holds in memory; see `ObjectStorage`. Not every storage says."""
        found: int = getattr(self.inner, "stream_bytes", 0)
        return found

    @contextmanager
    def _call(self, operation: str, path: str, size: int = 0) -> Iterator[_Call]:
        call = _Call(f"{operation} {self.inner.url}/{path}", size)
        watch = _current.get()
        if watch is None or getattr(self.inner, "is_watched", False):
            yield call
            return
        watch.calls.add(call)
        try:
            yield call
        finally:
            watch.calls.discard(call)

    async def write(self, path: str, data: Data, *, progress: Progress | None = None) -> None:
        with self._call("write", path) as call:
            await self.inner.write(path, data, progress=_both(call.progress, progress))

    async def read(self, path: str, *, progress: Progress | None = None) -> bytes:
        with self._call("read", path) as call:
            return await self.inner.read(path, progress=_both(call.progress, progress))

    async def exists(self, path: str) -> bool:
        with self._call("exists", path):
            return await self.inner.exists(path)

    async def delete(self, path: str) -> None:
        with self._call("delete", path):
            await self.inner.delete(path)

    async def delete_many(self, paths: Iterable[str]) -> None:
        with self._call("delete_many", ""):
            await self.inner.delete_many(paths)

    async def size(self, path: str) -> int:
        with self._call("size", path):
            return await self.inner.size(path)

    async def read_range(self, path: str, start: int, length: int) -> memoryview:
        with self._call("read", path):
            return await self.inner.read_range(path, start, length)

    async def read_ranges(
        self, path: str, ranges: Sequence[tuple[int, int]], *, version: str | None = None
    ) -> list[memoryview]:
        with self._call("read", path):
            return await self.inner.read_ranges(path, ranges, version=version)

    async def read_into(self, path: str, start: int, targets: Sequence[Data]) -> None:
        with self._call("read", path):
            await self.inner.read_into(path, start, targets)

    async def list_all(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        with self._call("list", prefix) as call:
            async for entry in self.inner.list_all(prefix):
                call.progress(1)
                yield entry

    async def list_folder(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        with self._call("list", prefix) as call:
            async for entry in self.inner.list_folder(prefix):
                call.progress(1)
                yield entry

    async def put_if_absent(self, path: str, data: Data) -> None:
        with self._call("write", path, byte_view(data).nbytes):
            await self.inner.put_if_absent(path, data)

    async def read_versioned(self, path: str) -> tuple[bytes, str]:
        with self._call("read", path):
            return await self.inner.read_versioned(path)

    async def version(self, path: str) -> str:
        with self._call("version", path):
            return await self.inner.version(path)

    async def compare_and_swap(self, path: str, data: Data, version: str | None) -> str:
        with self._call("write", path):
            return await self.inner.compare_and_swap(path, data, version)

    def open_writer(
        self, path: str, *, size: int | None = None, progress: Progress | None = None
    ) -> AbstractAsyncContextManager[StorageWriter]:
        return self._writer(path, size, progress)

    @asynccontextmanager
    async def _writer(self, path: str, size: int | None, progress: Progress | None) -> AsyncIterator[StorageWriter]:
        opening = self.inner.open_writer(path, size=size, progress=progress)
        with self._call("write", path):
            writer = await opening.__aenter__()
        try:
            yield _WatchedWriter(self, writer, path)
        except BaseException as error:
            with self._call("abort", path):
                await opening.__aexit__(type(error), error, error.__traceback__)
            raise
        with self._call("commit", path):
            await opening.__aexit__(None, None, None)

    async def close(self) -> None:
        await self.inner.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _both(one: Progress, other: Progress | None) -> Progress:
    if other is None:
        return one

    def tell(count: int) -> None:
        one(count)
        other(count)

    return tell


class _WatchedWriter:
    def __init__(self, storage: WatchedStorage, inner: StorageWriter, path: str) -> None:
        self._storage, self._inner, self._path = storage, inner, path

    async def write(self, data: Data) -> None:
        with self._storage._call("write", self._path, byte_view(data).nbytes):
            await self._inner.write(data)

    async def commit(self) -> None:
        with self._storage._call("commit", self._path):
            await self._inner.commit()

    async def abort(self) -> None:
        with self._storage._call("abort", self._path):
            await self._inner.abort()
