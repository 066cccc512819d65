"""A snapshot on its way to a storage: each segment as soon as it is filled, its digests beside it.

On a local disk the segments go out one after the other, at the disk's speed. To an object store, whole images go up in
parallel parts, several files at a time; where the arena is too small for images, a stream takes their place.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import takewhile

from strata.checkpoint.digests import FileDigests
from strata.checkpoint.frameworks import Block
from strata.checkpoint.manifest import Chunk
from strata.checkpoint.snapshot import Segment, Snapshot
from strata.checkpoint.together import together
from strata.storage import StorageBackend
from strata.storage.threads import DaemonThreads

FILES_AT_ONCE = 4
DIGEST_THREADS = 2
STRETCH_BYTES = 128 << 20
"""What is filled is written in stretches up to this long: a disk is idle between any two."""


class Filled:
    """Which segments of a snapshot are filled: told by the thread that fills, waited for on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.count = 0
        self._changed = asyncio.Event()
        self._error: BaseException | None = None

    def tell(self, number: int) -> None:
        """From any thread: this one is, and all before it."""
        self._loop.call_soon_threadsafe(self._set, number + 1)

    def fail(self, error: BaseException) -> None:
        """From any thread: no more will be. What interrupted that thread must not interrupt the loop."""
        if not isinstance(error, Exception):
            error = InterruptedError(f"the copy of the state was interrupted ({type(error).__name__})")
        self._loop.call_soon_threadsafe(self._fail, error)

    def _set(self, count: int) -> None:
        self.count = count
        self._wake()

    def _fail(self, error: BaseException) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, number: int) -> None:
        """Until this one is filled."""
        while self.count <= number:
            if self._error is not None:
                raise self._error
            await self._changed.wait()


class SnapshotWriter:
    """Writes the files of one snapshot under the given keys."""

    def __init__(
        self, storage: StorageBackend, snapshot: Snapshot, filled: Filled, progress: Callable[[int], None]
    ) -> None:
        self._storage, self._snapshot, self._filled, self._progress = storage, snapshot, filled, progress
        self._digests = [FileDigests(number, file) for number, file in enumerate(snapshot.files)]
        self._threads = DaemonThreads(DIGEST_THREADS, "strata-digest")

    async def write(self, keys: Sequence[str]) -> list[list[Chunk]]:
        """All files; their chunks, by file."""
        try:
            if self._snapshot.takes_turns or not _takes_images(self._storage):
                for number, key in enumerate(keys):
                    await self._stream(number, key)
            else:
                turn = asyncio.Semaphore(FILES_AT_ONCE)
                await together(self._put_image(number, key, turn) for number, key in enumerate(keys))
        except BaseException as error:
            self._snapshot.give_up(error)
            raise
        finally:
            self._threads.shutdown(wait=False)
        return [digests.found for digests in self._digests]

    def _own(self, file: int) -> list[tuple[int, Segment]]:
        return [(n, segment) for n, segment in enumerate(self._snapshot.segments) if segment.file == file]

    async def _stream(self, file: int, key: str) -> None:
        size = self._snapshot.files[file].size
        async with self._storage.open_writer(key, size=size) as writer:
            own = self._own(file)
            while own:
                await self._filled.wait(own[0][0])
                count = self._together(own)
                stretch, own = own[:count], own[count:]
                first, last = stretch[0][1], stretch[-1][1]
                memory = self._snapshot.memory(Segment(file, first.start, last.end, first.place))
                digesting = self._digest(file, first.start, memory)
                await writer.write(memory)
                await digesting
                self._progress(len(memory))
                self._snapshot.release(count)

    def _together(self, own: Sequence[tuple[int, Segment]]) -> int:
        """How many of these are filled already, and lie side by side in memory."""
        if self._snapshot.takes_turns:
            return 1
        begin = own[0][1].start
        some = takewhile(lambda each: each[0] < self._filled.count and each[1].end - begin <= STRETCH_BYTES, own)
        return max(1, sum(1 for _ in some))

    async def _put_image(self, file: int, key: str, turn: asyncio.Semaphore) -> None:
        own = self._own(file)
        async with turn:
            await self._filled.wait(own[-1][0])
            first, last = own[0][1], own[-1][1]
            image = self._snapshot.memory(Segment(file, 0, last.end, first.place))
            digesting = self._digest(file, 0, image)
            await self._storage.write(key, image)
            await digesting
            self._progress(len(image))

    def _digest(self, file: int, start: int, memory: Block) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._threads, self._digests[file].feed, start, memory)


def _takes_images(storage: StorageBackend) -> bool:
    """Whether it is faster to hand over a file whole: where it goes up in parallel parts."""
    return not storage.url.startswith("file:")
