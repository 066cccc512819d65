"""The storage of a simulation: one for all processes, and what each of them has of it.

What a process has asked for is done by the storage, not by the process: if that dies, or gives up, the call is carried
out or is not, and perhaps much later. A process that is dead, or frozen, asks for nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any, Self, TypeVar

from strata.storage.backend import Data, ObjectInfo, Progress, StorageWriter, byte_view
from strata.storage.memory import MemoryStorage, Space
from strata.testing.faulty import FaultyStorage
from strata.testing.saves.virtualtime import Owner, outside

T = TypeVar("T")
METADATA = "/metadata.json"


class Depot(MemoryStorage):
    """What is really there. `committed` hears of every manifest at the moment it is put."""

    def __init__(self, space: Space, committed: Callable[[str, bytes], None]) -> None:
        super().__init__(space=space)
        self._committed = committed
        self.seconds = 0.0
        """How long everything takes, beside what a `FaultyStorage` may add."""

    async def put_if_absent(self, path: str, data: Data) -> None:
        await super().put_if_absent(path, data)
        if path.endswith(METADATA):
            self._committed(path, bytes(byte_view(data)))


class ProcessStorage:
    """The storage as one process reaches it."""

    def __init__(self, depot: Depot, faulty: FaultyStorage, owner: Owner) -> None:
        self._depot, self.faulty, self._owner = depot, faulty, owner
        self._asked = 0

    @property
    def url(self) -> str:
        return self.faulty.url

    async def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        await self._owner.act()
        if self._depot.seconds:
            await asyncio.sleep(self._depot.seconds)
        self._asked += 1
        number = self._asked
        task = outside(work())
        try:
            done = await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_forget)
            if Random(f"{self.faulty.seed} fate {number}").random() < 0.5:
                task.cancel()
            self._owner.check()
            raise
        await self._owner.act()
        return done

    async def write(self, path: str, data: Data, *, progress: Progress | None = None) -> None:
        await self._call(lambda: self.faulty.write(path, data, progress=progress))

    async def read(self, path: str, *, progress: Progress | None = None) -> bytes:
        return await self._call(lambda: self.faulty.read(path, progress=progress))

    async def exists(self, path: str) -> bool:
        return await self._call(lambda: self.faulty.exists(path))

    async def delete(self, path: str) -> None:
        await self._call(lambda: self.faulty.delete(path))

    async def delete_many(self, paths: Iterable[str]) -> None:
        wanted = list(paths)
        await self._call(lambda: self.faulty.delete_many(wanted))

    async def size(self, path: str) -> int:
        return await self._call(lambda: self.faulty.size(path))

    async def read_range(self, path: str, start: int, length: int) -> memoryview:
        return await self._call(lambda: self.faulty.read_range(path, start, length))

    async def read_ranges(
        self, path: str, ranges: Sequence[tuple[int, int]], *, version: str | None = None
    ) -> list[memoryview]:
        return await self._call(lambda: self.faulty.read_ranges(path, ranges, version=version))

    async def read_into(self, path: str, start: int, targets: Sequence[Data]) -> None:
        await self._call(lambda: self.faulty.read_into(path, start, targets))

    async def list_all(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        for entry in await self._call(lambda: _listed(self.faulty.list_all(prefix))):
            yield entry

    async def list_folder(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        for entry in await self._call(lambda: _listed(self.faulty.list_folder(prefix))):
            yield entry

    async def put_if_absent(self, path: str, data: Data) -> None:
        await self._call(lambda: self.faulty.put_if_absent(path, data))

    async def read_versioned(self, path: str) -> tuple[bytes, str]:
        return await self._call(lambda: self.faulty.read_versioned(path))

    async def version(self, path: str) -> str:
        return await self._call(lambda: self.faulty.version(path))

    async def compare_and_swap(self, path: str, data: Data, version: str | None) -> str:
        return await self._call(lambda: self.faulty.compare_and_swap(path, data, version))

    def open_writer(
        self, path: str, *, size: int | None = None, progress: Progress | None = None
    ) -> AbstractAsyncContextManager[StorageWriter]:
        return self.faulty.open_writer(path, size=size, progress=progress)

    async def close(self) -> None:
        self.faulty.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _listed(entries: AsyncIterator[ObjectInfo]) -> list[ObjectInfo]:
    return [entry async for entry in entries]


def _forget(task: "asyncio.Task[Any]") -> None:
    """Its outcome is nobody's any more."""
    if not task.cancelled():
        task.exception()
