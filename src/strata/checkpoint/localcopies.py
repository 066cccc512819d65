"""Copies of what this machine's ranks save on a disk of its own, which no other machine sees: what is loaded is taken
from there, where it is whole.

The storage behind holds the checkpoints, and what is not there does not count. A file of a part goes to both at once,
and its name says which attempt wrote it, so a copy under the same name is the same; nothing else is copied. What has to
be read from behind is copied as well, stretch by stretch, and ranks that share the disk read each stretch once: one
claims it, and the others wait for the copy. A disk that fails, or is full, costs the copies and nothing more.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, Self, TypeVar

from strata.checkpoint.checkpoints import Checkpoints
from strata.checkpoint.claims import is_alive, own_name
from strata.checkpoint.matching import Load, LoadReport
from strata.checkpoint.opened import Opened
from strata.checkpoint.slices import Index
from strata.checkpoint.store import Folder, Store
from strata.checkpoint.tiers import NearestOpened
from strata.checkpoint.watched import WatchedStorage
from strata.errors import CheckpointDamaged, ObjectExists, ObjectNotFound, StorageError
from strata.logs import get_logger
from strata.storage import ObjectInfo, StorageBackend
from strata.storage.backend import Data, Progress, StorageWriter, byte_view

logger = get_logger("strata.checkpoint")

T = TypeVar("T")
SHARED_BYTES = 1 << 20
"""What is shorter is not worth a copy."""
POLL_SECONDS = 0.01
CLAIM = ".claim"
FETCH_SECONDS = 60.0
"""The longest to wait for another to fetch a stretch."""
OUT_SECONDS = 600.0
"""How long a disk that failed is left alone."""
_COPIED = re.compile(r".*/(step_\d+[^/]*)/part-\d+-(\d+)-[0-9a-f]+[^/]*")
"""A file of a part: its folder, and the term that wrote it."""


class LocalCopies:
    """The storage behind, with copies on a disk."""

    is_watched = True
    """What is stuck is one of the two, and told by its own name."""

    def __init__(self, far: StorageBackend, near: StorageBackend) -> None:
        self.far, self.near = WatchedStorage(far), WatchedStorage(near)
        self._out_until = 0.0
        self.hits = 0
        """How often a copy was read."""

    @property
    def url(self) -> str:
        return self.far.url

    @property
    def stream_bytes(self) -> int:
        found: int = getattr(self.far, "stream_bytes", 0)
        return found

    def _is_copied(self, path: str) -> bool:
        return time.monotonic() >= self._out_until and _COPIED.fullmatch(path) is not None

    def leave_alone(self, why: object) -> None:
        logger.warning("the local copies in %s are left alone for %.0f s: %s", self.near.url, OUT_SECONDS, why)
        self._out_until = time.monotonic() + OUT_SECONDS

    # -- files of parts: both --------------------------------------------------------------------------------------

    async def put_if_absent(self, path: str, data: Data) -> None:
        await self.far.put_if_absent(path, data)
        await self._copy(path, data)

    async def write(self, path: str, data: Data, *, progress: Progress | None = None) -> None:
        await _beside(self.far.write(path, data, progress=progress), self._copy(path, data))

    async def _copy(self, path: str, data: Data) -> None:
        if self._is_copied(path):
            try:
                await self.near.write(path, data)
            except StorageError as error:
                self.leave_alone(error)

    def open_writer(
        self, path: str, *, size: int | None = None, progress: Progress | None = None
    ) -> AbstractAsyncContextManager[StorageWriter]:
        if self._is_copied(path):
            return self._writer(path, size, progress)
        return self.far.open_writer(path, size=size, progress=progress)

    @asynccontextmanager
    async def _writer(self, path: str, size: int | None, progress: Progress | None) -> AsyncIterator[StorageWriter]:
        """What is behind comes first: a copy without it would be of no use, but do no harm either."""
        copy = _Copy(self, path, size)
        try:
            async with self.far.open_writer(path, size=size, progress=progress) as writer:
                yield _Both(writer, copy)
        except BaseException as error:
            await copy.abort(error)
            raise
        await copy.commit()

    async def read(self, path: str, *, progress: Progress | None = None) -> bytes:
        return await self._nearest(path, lambda storage: storage.read(path, progress=progress))

    async def size(self, path: str) -> int:
        return await self._nearest(path, lambda storage: storage.size(path))

    async def read_range(self, path: str, start: int, length: int) -> memoryview:
        return await self._nearest(path, lambda storage: storage.read_range(path, start, length))

    async def read_ranges(
        self, path: str, ranges: Sequence[tuple[int, int]], *, version: str | None = None
    ) -> list[memoryview]:
        return await self._nearest(path, lambda storage: storage.read_ranges(path, ranges, version=version))

    async def read_into(self, path: str, start: int, targets: Sequence[Data]) -> None:
        async def behind(storage: StorageBackend) -> None:
            if storage is self.near:
                await storage.read_into(path, start, targets)
            else:
                await self._once(path, start, targets)

        await self._nearest(path, behind)

    async def _nearest(self, path: str, use: Callable[[StorageBackend], Awaitable[T]]) -> T:
        if self._is_copied(path):
            try:
                found = await use(self.near)
            except StorageError as error:
                logger.debug("%s is read from behind: %s", path, error)
            else:
                self.hits += 1
                return found
        return await use(self.far)

    # -- what has to come from behind: once --------------------------------------------------------------------------

    async def _once(self, path: str, start: int, targets: Sequence[Data]) -> None:
        size = sum(byte_view(target).nbytes for target in targets)
        if size < SHARED_BYTES or not self._is_copied(path):
            await self.far.read_into(path, start, targets)
            return
        piece = f"{path}@{start}-{size}"
        if not await self._is_mine_to_fetch(piece) and await self._is_read_here(piece, targets):
            self.hits += 1
        else:
            await self._fetch(piece, path, start, targets)

    async def _is_read_here(self, piece: str, targets: Sequence[Data]) -> bool:
        """One that is cut short, or that another rank has removed since it was seen, says nothing of what is behind."""
        try:
            await self.near.read_into(piece, 0, targets)
        except StorageError as error:
            logger.debug("%s is read from behind: %s", piece, error)
            return False
        return True

    async def _is_mine_to_fetch(self, piece: str) -> bool:
        """Whether no copy of it is here, nor anybody on this machine who fetches it."""
        ends = time.monotonic() + FETCH_SECONDS
        try:
            while not await self.near.exists(piece):
                if time.monotonic() > ends:
                    logger.warning("%s was not fetched in %g s by who claimed it: now here", piece, FETCH_SECONDS)
                    return True
                try:
                    await self.near.put_if_absent(f"{piece}{CLAIM}", own_name().encode())
                    return True
                except ObjectExists:
                    if not await self._is_being_fetched(piece):
                        return True
                await asyncio.sleep(POLL_SECONDS)
        except StorageError as error:
            self.leave_alone(error)
            return True
        return False

    async def _is_being_fetched(self, piece: str) -> bool:
        try:
            return is_alive((await self.near.read(f"{piece}{CLAIM}")).decode(errors="replace"))
        except ObjectNotFound:
            return True  # it was, until now: look again

    async def _fetch(self, piece: str, path: str, start: int, targets: Sequence[Data]) -> None:
        try:
            await self.far.read_into(path, start, targets)
            if time.monotonic() >= self._out_until:
                async with self.near.open_writer(piece, size=sum(byte_view(each).nbytes for each in targets)) as copy:
                    for target in targets:
                        await copy.write(target)
        except StorageError as error:
            if error.storage != self.near.url:
                raise
            self.leave_alone(error)
        finally:
            with suppress(StorageError):
                await self.near.delete(f"{piece}{CLAIM}")

    async def delete(self, path: str) -> None:
        await self.far.delete(path)
        await self._drop([path])

    async def delete_many(self, paths: Iterable[str]) -> None:
        gone = list(paths)
        await self.far.delete_many(gone)
        await self._drop(gone)

    async def _drop(self, paths: Iterable[str]) -> None:
        copied = [path for path in paths if self._is_copied(path)]
        if copied:
            try:
                await self.near.delete_many(copied)
            except StorageError as error:
                self.leave_alone(error)

    # -- everything else: behind -------------------------------------------------------------------------------------

    async def exists(self, path: str) -> bool:
        return await self.far.exists(path)

    def list_all(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        return self.far.list_all(prefix)

    def list_folder(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        return self.far.list_folder(prefix)

    async def read_versioned(self, path: str) -> tuple[bytes, str]:
        return await self.far.read_versioned(path)

    async def version(self, path: str) -> str:
        return await self.far.version(path)

    async def compare_and_swap(self, path: str, data: Data, version: str | None) -> str:
        return await self.far.compare_and_swap(path, data, version)

    async def close(self) -> None:
        """They are whoever's opened them."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- keeping -----------------------------------------------------------------------------------------------------

    async def keep(self, prefix: str, count: int) -> None:
        """Copies of the latest checkpoints, so many, by the run that saved them and their steps; no others."""
        found: dict[tuple[int, int, str], list[str]] = {}
        try:
            async for entry in self.near.list_all(prefix):
                told = _COPIED.fullmatch(entry.path)
                if told is not None:
                    step = int(re.sub(r"\D.*", "", told[1].removeprefix("step_")))
                    found.setdefault((int(told[2]), step, told[1]), []).append(entry.path)
            for key in sorted(found)[:-count]:
                await self.near.delete_many(found[key])
        except StorageError as error:
            self.leave_alone(error)


class _Copy:
    """Of one file that is being written. Once it has failed, nothing more is tried."""

    def __init__(self, copies: LocalCopies, path: str, size: int | None) -> None:
        self._copies, self._path, self._size = copies, path, size
        self._opened = AsyncExitStack()
        self._writer: StorageWriter | None = None
        self._is_over = False

    async def write(self, data: Data) -> None:
        async def work() -> None:
            if self._writer is None:
                opening = self._copies.near.open_writer(self._path, size=self._size)
                self._writer = await self._opened.enter_async_context(opening)
            await self._writer.write(data)

        await self._tried(work)

    async def commit(self) -> None:
        await self._tried(self._opened.aclose)

    async def abort(self, error: BaseException) -> None:
        if not self._is_over:
            self._is_over = True
            with suppress(StorageError):  # what is left of it is removed with the copies of its checkpoint
                await self._opened.__aexit__(type(error), error, error.__traceback__)

    async def _tried(self, work: Callable[[], Awaitable[None]]) -> None:
        if self._is_over:
            return
        try:
            await work()
        except StorageError as error:
            self._copies.leave_alone(error)
            await self.abort(error)


class _Both:
    """A writer behind, and the copy."""

    def __init__(self, far: StorageWriter, copy: _Copy) -> None:
        self._far, self._copy = far, copy

    async def write(self, data: Data) -> None:
        await _beside(self._far.write(data), self._copy.write(data))

    async def commit(self) -> None:
        await self._far.commit()

    async def abort(self) -> None:
        await self._far.abort()


async def _beside(work: Coroutine[Any, Any, None], copy: Coroutine[Any, Any, None]) -> None:
    """Both at once, and both are over when this is: the memory that they read may be used again."""
    copying = asyncio.ensure_future(copy)
    try:
        await work
    finally:
        await asyncio.wait({copying})
    copying.result()


class CopiedCheckpoints(Checkpoints):
    """The checkpoints of a job, read from local copies where these are whole."""

    def __init__(self, store: Store, copies: LocalCopies) -> None:
        super().__init__(store)
        self.copies = copies

    async def load(
        self, folder: Folder, load: Load, progress: Callable[[int], None] = lambda count: None
    ) -> tuple[Any, LoadReport]:
        return await self._or_from_behind(folder, lambda tier: Checkpoints.load(tier, folder, load, progress))

    async def load_slice(self, folder: Folder, name: str, index: Index) -> Any:
        return await self._or_from_behind(folder, lambda tier: Checkpoints.load_slice(tier, folder, name, index))

    async def open(self, folder: Folder) -> Opened:
        opened = await self._or_from_behind(folder, lambda tier: Checkpoints.open(tier, folder))
        return NearestOpened(opened, partial(self._instead, folder))

    async def _instead(self, folder: Folder, error: Exception) -> Opened:
        await self._drop(folder, error)
        return await self._behind().open(folder)

    async def _or_from_behind(self, folder: Folder, use: Callable[[Checkpoints], Awaitable[T]]) -> T:
        hits = self.copies.hits
        try:
            return await use(self)
        except CheckpointDamaged as error:
            if self.copies.hits == hits:
                raise
            await self._drop(folder, error)
        return await use(self._behind())

    def _behind(self) -> Checkpoints:
        """Without the copies."""
        behind = Checkpoints(Store(self.copies.far.inner, self.store.job))
        behind.act_as(self.rank, self.size)
        return behind

    async def _drop(self, folder: Folder, error: Exception) -> None:
        """Remove this checkpoint's copies: one of them is not what was written."""
        logger.warning("step %d is taken from %s instead of the local copy: %s", folder.step, self.where, error)
        near, prefix = self.copies.near, self.store.key(folder.name)
        try:
            await near.delete_many([entry.path async for entry in near.list_all(prefix)])
        except StorageError as failure:
            self.copies.leave_alone(failure)

    async def verify(self, folder: Folder, progress: Callable[[int], None] = lambda count: None) -> int:
        """What is behind: a copy that is not as it should be is found when it is read."""
        return await self._behind().verify(folder, progress)

    async def keep_copies(self, count: int) -> None:
        await self.copies.keep(self.store.root, count)
