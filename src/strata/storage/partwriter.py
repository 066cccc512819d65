"""A streaming writer to an object store: it fills parts from reused memory and feeds them to one upload."""

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from strata.errors import InvalidInput
from strata.storage.backend import Data, Progress, byte_view
from strata.storage.parts import MAX_PARTS, Block, Feed, Loans, Upload
from strata.storage.refusals import has_a_hole, writer_ended

if TYPE_CHECKING:
    from strata.storage.objectstore import ObjectStorage

T = TypeVar("T")


class PartWriter:
    """Fills parts from reused memory and feeds them to an upload; a small object is put at once."""

    def __init__(
        self, storage: "ObjectStorage", path: str, key: str, part_bytes: int, progress: Progress | None
    ) -> None:
        self._storage, self._path, self._key, self._part_bytes = storage, path, key, part_bytes
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        self._loans = Loans(self._returned)
        self._feed = Feed(1)
        self._free: asyncio.Queue[Block] = asyncio.Queue()
        self._blocks = 0
        self._block: Block | None = None
        self._filled = 0
        self._parts = 0
        self._done = 0
        self._upload: Upload | None = None
        self._ended = False
        self._failed = False
        self._total = 0
        self._turn = asyncio.Lock()

    async def write(self, data: Data) -> None:
        rest = byte_view(data)
        async with self._turn:
            self._check()
            self._total += len(rest)
            try:
                while len(rest):
                    rest = rest[await self._fill(rest) :]
            except BaseException:
                self._failed = True
                raise

    async def _fill(self, rest: memoryview) -> int:
        if self._block is None:
            self._block = await self._take()
        count = min(len(rest), self._part_bytes - self._filled)
        np.copyto(self._block[self._filled : self._filled + count], np.frombuffer(rest[:count], np.uint8))
        self._filled += count
        if self._filled == self._part_bytes:
            await self._send()
        return count

    async def commit(self) -> None:
        async with self._turn:
            if not self._ended:
                await self._commit()

    async def _commit(self) -> None:
        self._check()
        try:
            await (self._put_whole() if self._upload is None else self._finish(self._upload))
        except BaseException:
            self._failed = True
            raise
        self._ended = True
        self._give_back()
        if self._progress and self._done < self._total:
            self._done = self._total
            self._progress(self._total)

    async def _put_whole(self) -> None:
        # Not to be used again before the client let go of it, which a failure does not tell.
        block, self._block = self._block, None
        await self._storage.write(self._path, b"" if block is None else block[: self._filled])
        self._block = block

    async def _finish(self, upload: Upload) -> None:
        if self._filled:
            await self._send()
        await self._or_failed(self._feed.end())
        await self._storage.finish_upload(upload)

    async def abort(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self._upload is not None:
            await self._storage.abort_upload(self._upload)
        self._give_back()

    def _check(self) -> None:
        if self._ended:
            raise writer_ended(self._storage.url, self._path)
        if self._failed:
            raise has_a_hole(self._storage.url, self._path)

    async def _send(self) -> None:
        assert self._block is not None
        if self._parts == MAX_PARTS:
            raise InvalidInput(
                f"{self._path!r} grew beyond {MAX_PARTS:,} parts of {self._part_bytes:,} bytes: say its size when the "
                "writer is opened, and the parts will be large enough"
            )
        if self._upload is None:
            self._upload = self._storage.start_upload(self._path, self._key, self._feed, self._part_bytes)
        part, self._block = self._loans.lend(self._block[: self._filled]), None
        self._filled = 0
        self._parts += 1
        await self._or_failed(self._feed.put(part))

    async def _take(self) -> Block:
        if self._blocks < self._storage.options.concurrency:
            self._blocks += 1
            try:
                spare = self._storage.spare.pop()  # another thread's writer may be at it too
            except IndexError:
                spare = np.empty(0, np.uint8)
            return spare if len(spare) == self._part_bytes else np.empty(self._part_bytes, np.uint8)
        return await self._or_failed(self._free.get())

    async def _or_failed(self, wanted: Awaitable[T]) -> T:
        """What is awaited, unless the upload ends first: then it has failed, and nothing will ever come."""
        task = asyncio.ensure_future(wanted)
        waiting = {task} if self._upload is None else {task, self._upload.ending}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if self._upload is not None and self._upload.ending.done():
                with self._storage.told(self._path, "write"):
                    self._upload.ending.result()
            return await task
        finally:
            task.cancel()

    def _returned(self, part: Block) -> None:
        """From one of the client's threads, or from any, wherever the last reference was."""
        block = part if part.base is None else part.base
        try:
            self._loop.call_soon_threadsafe(self._count, len(part), block)
        except RuntimeError:  # the loop is closed, and with it all of this
            return

    def _count(self, size: int, block: Block) -> None:
        self._free.put_nowait(block)
        self._done += size
        if self._progress and not self._ended:
            self._progress(self._done)
        if self._ended:
            self._give_back()

    def _give_back(self) -> None:
        """Keep the memory for the next writer; only as much as one may use."""
        if self._block is not None:
            self._free.put_nowait(self._block)
            self._block = None
        spare = self._storage.spare
        while not self._free.empty():
            block = self._free.get_nowait()
            if len(spare) < self._storage.options.concurrency and not self._storage.closed:
                spare.append(block)
