"""A folder as a storage: atomic, durable, and as fast as its disk.

A write goes to a staged file under `.strata-tmp`, is synced, and then takes its name by rename (replacing) or link
(excluding); the folders up to the root are synced before the call returns. So a process that dies, or power that fails,
leaves the old object or the new one, and at worst a staged file. Its writer holds a lock on it as long as it lives: a
staged file that can be locked is a leftover, and goes when the next storage on this root first writes.
"""

import asyncio
import errno
import os
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from stat import S_ISREG
from typing import NoReturn, Self, TypeVar

import numpy as np

from strata.errors import (
    AccessDenied,
    InvalidInput,
    ObjectChanged,
    ObjectCorrupt,
    ObjectExists,
    ObjectNotFound,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from strata.storage import filelock
from strata.storage.backend import Data, ObjectInfo, Progress, StorageOptions, byte_view, check_ranges
from strata.storage.direct import DIRECT_FROM_BYTES, FileSink, read_into, sync
from strata.storage.keys import STAGING, check_key, check_prefix, join
from strata.storage.staging import Job, LocalWriter, Staged

T = TypeVar("T")

LISTED_AT_ONCE = 500
LEFTOVER_SECONDS = 86_400
"""Where files cannot be locked, a staged file this old is taken for a leftover."""
FOLDER_TRIES = 16

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


class LocalStorage:
    """The folder `root`, made by the first write if it is not there."""

    def __init__(self, root: str | os.PathLike[str], *, options: StorageOptions | None = None) -> None:
        given: object = os.fspath(root)
        if not isinstance(given, str) or not given or "\0" in given:
            raise InvalidInput(f"root must be the path of a folder, not {given!r}")
        self.options = options or StorageOptions()
        self._root = os.path.realpath(Path(given).expanduser())
        self._staging = os.path.join(self._root, STAGING)
        self._direct = True
        self._closed = False
        self._pools: dict[int, ThreadPoolExecutor] = {}
        self._ready_in = 0

    @property
    def url(self) -> str:
        return Path(self._root).as_uri()

    @property
    def root(self) -> Path:
        return Path(self._root)

    # -- objects -----------------------------------------------------------------------------------------------------

    async def write(self, path: str, data: Data, *, progress: Progress | None = None) -> None:
        view = byte_view(data)
        await self.run(path, "write", lambda job: self._write(path, view, job, self.replace), progress)

    async def put_if_absent(self, path: str, data: Data) -> None:
        view = byte_view(data)
        await self.run(path, "write", lambda job: self._write(path, view, job, self._link))

    async def compare_and_swap(self, path: str, data: Data, version: str | None) -> str:
        view = byte_view(data)

        def swap(staged: Staged, target: str) -> None:
            if self._version(path) != version:
                raise ObjectChanged(
                    f"{path!r} in {self.url} is no longer the version that was read: read it again, then decide",
                    storage=self.url,
                    key=path,
                )
            os.replace(staged.path, target)

        await self.run(path, "replace", lambda job: self._write(path, view, job, swap, swaps=True))
        return _digest(view)

    async def read(self, path: str, *, progress: Progress | None = None) -> bytes:
        def read(job: Job) -> bytes:
            with self._opened(path) as fd:
                target = np.empty(os.fstat(fd).st_size, np.uint8)
                return target[: read_into(fd, target, 0, job.tick)].tobytes()

        return await self.run(path, "read", read, progress)

    async def read_versioned(self, path: str) -> tuple[bytes, str]:
        data = await self.read(path)
        return data, _digest(memoryview(data))

    async def read_range(self, path: str, start: int, length: int) -> memoryview:
        (view,) = await self.read_ranges(path, [(start, length)])
        return view

    async def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        check_ranges(ranges)
        lanes = min(self.options.concurrency, len(ranges)) or 1

        def read(lane: int) -> Callable[[Job], list[memoryview]]:
            return lambda job: self._read(path, ranges[lane::lanes], job)

        parts = await asyncio.gather(*(self.run(path, "read", read(lane)) for lane in range(lanes)))
        return [parts[number % lanes][number // lanes] for number in range(len(ranges))]

    async def exists(self, path: str) -> bool:
        return await self.run(path, "look for", lambda _: self._exists(path))

    async def size(self, path: str) -> int:
        def size(_: Job) -> int:
            with self._opened(path) as fd:
                return os.fstat(fd).st_size

        return await self.run(path, "look at", size)

    async def delete(self, path: str) -> None:
        await self.delete_many([path])

    async def delete_many(self, paths: Iterable[str]) -> None:
        keys = [check_key(path) for path in paths]
        if keys:
            await self.run(keys[0], "delete", lambda job: self._delete(keys, job))

    @asynccontextmanager
    async def open_writer(
        self, path: str, *, size: int | None = None, progress: Progress | None = None
    ) -> AsyncIterator["LocalWriter"]:
        check_key(path)
        writer = LocalWriter(self, path, progress)
        try:
            yield writer
            await writer.commit()
        except BaseException:
            await writer.abort()
            raise

    # -- listings ----------------------------------------------------------------------------------------------------

    async def list_all(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        async for entry in self._paged(prefix, self._walk):
            yield entry

    async def list_folder(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        async for entry in self._paged(prefix, self._folder):
            yield entry

    async def _paged(self, prefix: str, entries: Callable[[str], Iterator[ObjectInfo]]) -> AsyncIterator[ObjectInfo]:
        listing = entries(check_prefix(prefix))
        while True:
            page = await self.run(prefix, "list", lambda _: list(islice(listing, LISTED_AT_ONCE)))
            for entry in page:
                yield entry
            if len(page) < LISTED_AT_ONCE:
                return

    def _walk(self, folder: str) -> Iterator[ObjectInfo]:
        for entry in self._scan(folder):
            key = join(folder, entry.name)
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(key)
            elif found := self._info(key, entry):
                yield found

    def _folder(self, folder: str) -> Iterator[ObjectInfo]:
        for entry in self._scan(folder):
            key = join(folder, entry.name)
            if not entry.is_dir(follow_symlinks=False):
                if found := self._info(key, entry):
                    yield found
            elif next(self._walk(key), None):
                yield ObjectInfo(f"{key}/", 0, 0.0)

    def _scan(self, folder: str) -> list["os.DirEntry[str]"]:
        """Sorted as their keys are; a folder that is not there, or went meanwhile, is empty."""
        try:
            with os.scandir(os.path.join(self._root, folder)) as entries:
                found = [entry for entry in entries if folder or entry.name != STAGING]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(found, key=lambda entry: f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name)

    def _info(self, key: str, entry: "os.DirEntry[str]") -> ObjectInfo | None:
        try:
            if entry.is_symlink() and not self._inside(os.path.realpath(entry.path)):
                return None
            stat = entry.stat()
        except FileNotFoundError:
            return None
        return ObjectInfo(key, stat.st_size, stat.st_mtime) if S_ISREG(stat.st_mode) else None

    # -- the end -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        self._closed = True
        pool = self._pools.pop(os.getpid(), None)
        if pool is not None:
            # Joined from a thread of its own: what still runs may take a while, and the loop must not wait.
            loop, joined = asyncio.get_running_loop(), asyncio.Event()

            def join() -> None:
                pool.shutdown()
                loop.call_soon_threadsafe(joined.set)

            joiner = threading.Thread(target=join)
            joiner.start()
            await joined.wait()
            joiner.join()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- threads -----------------------------------------------------------------------------------------------------

    async def run(self, key: str, doing: str, work: Callable[[Job], T], progress: Progress | None = None) -> T:
        """Do it in a thread; give up if it makes no step for the whole timeout; clean up before a cancellation."""
        job = Job(progress)
        future = asyncio.get_running_loop().run_in_executor(self._threads(key), self._attempt, key, doing, work, job)
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        steps = -1
        try:
            while not future.done():
                await asyncio.wait({future}, timeout=self.options.timeout_seconds)
                if not future.done() and job.started and job.steps == steps:
                    job.stopped = True
                    raise StorageUnavailable(
                        f"cannot {doing} {key!r} in {self.url}: the filesystem did nothing for "
                        f"{self.options.timeout_seconds:g} seconds. Is it a network mount whose server is gone?",
                        storage=self.url,
                        key=key,
                    )
                steps = job.steps
        except asyncio.CancelledError:
            job.stopped = True
            await asyncio.wait({future}, timeout=self.options.timeout_seconds)
            raise
        return future.result()

    def _attempt(self, key: str, doing: str, work: Callable[[Job], T], job: Job) -> T:
        job.started = True
        try:
            return work(job)
        except OSError as error:
            self._translate(error, key, doing)

    def _threads(self, key: str) -> ThreadPoolExecutor:
        if self._closed:
            raise StorageError(f"{self.url} was closed; open it again", storage=self.url, key=key)
        # By process, since a forked child has none of its parent's threads.
        pool = self._pools.get(os.getpid())
        if pool is None:
            fresh = ThreadPoolExecutor(self.options.concurrency, thread_name_prefix="strata-local")
            pool = self._pools.setdefault(os.getpid(), fresh)
        return pool

    def _translate(self, error: OSError, key: str, doing: str) -> NoReturn:
        where, number = f"cannot {doing} {key!r} in {self.url}", error.errno
        why = os.strerror(number) if number else str(error)
        kind: type[StorageError] = StorageError
        if isinstance(error, FileNotFoundError):
            kind, why = ObjectNotFound, "there is no such object"
        elif number in _FULL:
            kind, why = StorageFull, f"{why}. Make room, then try again: nothing was changed"
        elif number in _DENIED:
            kind, why = AccessDenied, f"{why}. Who runs this (user {_user()}) must be allowed to"
        elif number == errno.EIO:
            why = f"{why}: the disk failed. What was being written is not there; look at the kernel's log (dmesg)"
        elif number in (errno.ENOTDIR, errno.EEXIST):
            raise InvalidInput(f"{where}: a part of its path is an object, which cannot be a folder as well") from error
        elif number == errno.EISDIR:
            raise InvalidInput(f"{where}: there is a folder of that name") from error
        elif number == errno.EXDEV:
            why = "its folder is on another filesystem than the root. Open a storage in that folder itself"
        elif number in (errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN):
            kind, why = StorageUnavailable, f"{why}: the server behind this folder does not answer"
        raise kind(f"{where}: {why}", storage=self.url, key=key) from error

    # -- files -------------------------------------------------------------------------------------------------------

    def _write(
        self, path: str, view: memoryview, job: Job, place: Callable[["Staged", str], None], *, swaps: bool = False
    ) -> None:
        target = self.target(path)
        with self._stage(path, direct=view.nbytes >= DIRECT_FROM_BYTES) as staged:
            staged.sink.write(view, job.tick)
            staged.sink.finish(job.tick)
            self.publish(staged, target, place, job, swaps=swaps)

    def publish(
        self,
        staged: "Staged",
        target: str,
        place: Callable[["Staged", str], None],
        job: Job,
        *,
        swaps: bool = False,
    ) -> None:
        """Give it its name, and make that durable: the names of the folders above as well, whoever made them."""
        job.tick(0)
        folder = os.path.dirname(target)
        for left in reversed(range(FOLDER_TRIES)):
            try:
                with self._exclusive(needed=swaps):
                    os.makedirs(folder, exist_ok=True)
                    place(staged, target)
                break
            except FileNotFoundError:  # without locks, whoever deletes its last object removes the folder meanwhile
                if not left:
                    raise
        while self._inside(folder):
            with suppress(FileNotFoundError):  # deleted again already
                _sync_folder(folder)
            job.steps += 1
            folder = os.path.dirname(folder)

    def replace(self, staged: "Staged", target: str) -> None:
        os.replace(staged.path, target)

    def _link(self, staged: "Staged", target: str) -> None:
        try:
            os.link(staged.path, target)
        except FileExistsError:
            # A network filesystem may have done it and lost the answer.
            if not os.path.samestat(os.fstat(staged.fd), os.lstat(target)):
                path = os.path.relpath(target, self._root)
                raise ObjectExists(
                    f"{path!r} is already in {self.url}: another writer was first", storage=self.url, key=path
                ) from None

    def _read(self, path: str, ranges: Sequence[tuple[int, int]], job: Job) -> list[memoryview]:
        found = []
        with self._opened(path) as fd:
            for start, length in ranges:
                target = np.empty(length, np.uint8)
                count = read_into(fd, target, start, job.tick)
                if count < length:
                    raise ObjectCorrupt(
                        f"{path!r} in {self.url} has {os.fstat(fd).st_size} bytes, and {length} from {start} were "
                        "asked for",
                        storage=self.url,
                        key=path,
                    )
                found.append(target.data.toreadonly())
        return found

    def _delete(self, keys: list[str], job: Job) -> None:
        errors: list[Exception] = []
        folders: dict[str, None] = {}
        for key in keys:
            target = self.target(key)
            try:
                job.tick(0)
                with self._exclusive(made=False):
                    os.unlink(target)
                folders[os.path.dirname(target)] = None
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                if os.path.isdir(target):
                    continue
                errors.append(error)
        for folder in folders:
            self._prune(folder)
        if errors:
            raise errors[0]

    def _prune(self, folder: str) -> None:
        """Sync it, and remove it and those above as long as they are empty: an empty folder is no object."""
        while self._inside(folder):
            with suppress(FileNotFoundError):
                _sync_folder(folder)
            if folder == self._root:
                return
            try:
                with self._exclusive(made=False):
                    os.rmdir(folder)
            except OSError:
                return
            folder = os.path.dirname(folder)

    @contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        real = os.path.realpath(os.path.join(self._root, check_key(path)))
        if not self._inside(real):
            raise self._outside(path)
        try:
            fd = os.open(real, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        except NotADirectoryError as error:
            raise FileNotFoundError(errno.ENOENT, "a part of the path is an object") from error
        try:
            if not S_ISREG(os.fstat(fd).st_mode):
                raise FileNotFoundError(errno.ENOENT, "not a file")
            yield fd
        finally:
            os.close(fd)

    def _exists(self, path: str) -> bool:
        try:
            with self._opened(path):
                return True
        except FileNotFoundError:
            return False

    def _version(self, path: str) -> str | None:
        try:
            with self._opened(path) as fd, os.fdopen(fd, "rb", closefd=False) as file:
                return _digest(memoryview(file.read()))
        except FileNotFoundError:
            return None

    # -- names -------------------------------------------------------------------------------------------------------

    def target(self, path: str) -> str:
        """Where a write of this key goes. A link in the place of the object itself is replaced, not followed."""
        folder, _, name = check_key(path).rpartition("/")
        real = os.path.realpath(os.path.join(self._root, folder))
        if not self._inside(real):
            raise self._outside(path)
        return os.path.join(real, name)

    def _inside(self, real: str) -> bool:
        return real == self._root or real.startswith(self._root.rstrip(os.sep) + os.sep)

    def _outside(self, path: str) -> InvalidInput:
        return InvalidInput(f"{path!r} leads out of {self.url} through a symbolic link")

    # -- staging -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _stage(self, path: str, *, direct: bool) -> Iterator["Staged"]:
        staged = self.open_staged(path, direct=direct)
        try:
            yield staged
        finally:
            if staged.sink.refused:
                self._direct = False
            staged.close()

    def open_staged(self, path: str, *, direct: bool) -> "Staged":
        self._make_ready()
        while True:
            name = os.path.join(self._staging, f"{secrets.token_hex(12)}.part")
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
            fd = os.open(name, flags, 0o666)
            filelock.try_lock(fd)
            if os.fstat(fd).st_nlink:
                return Staged(name, fd, FileSink(fd, direct=direct and self._direct))
            os.close(fd)  # it was taken for a leftover before it was locked

    def _make_ready(self) -> None:
        """Once in each process: the folders, durably, and away with what dead processes left."""
        if self._ready_in == os.getpid() and os.path.isdir(self._staging):
            return
        made = []
        folder = self._staging
        while not os.path.isdir(folder):
            made.append(folder)
            folder = os.path.dirname(folder)
        os.makedirs(self._staging, exist_ok=True)
        for folder in made:
            _sync_folder(os.path.dirname(folder))
        self._sweep()
        self._ready_in = os.getpid()

    def _sweep(self) -> None:
        with os.scandir(self._staging) as entries:
            for entry in entries:
                if entry.name.endswith(".part"):
                    with suppress(FileNotFoundError, PermissionError):
                        _remove_if_left(entry.path)

    @contextmanager
    def _exclusive(self, *, needed: bool = False, made: bool = True) -> Iterator[None]:
        """One change of names at a time, in all processes: else compare-and-swap could not compare and swap at once."""
        try:
            fd = os.open(os.path.join(self._staging, "lock"), os.O_RDWR | (os.O_CREAT if made else 0), 0o666)
        except FileNotFoundError:
            if made:
                raise
            yield  # nothing was ever written here by Strata
            return
        try:
            if not filelock.lock(fd) and needed:
                raise StorageError(
                    f"{self.url} cannot compare and swap: its filesystem has no file locks", storage=self.url
                )
            yield
        finally:
            os.close(fd)


def _digest(view: memoryview) -> str:
    return blake2b(view, digest_size=16).hexdigest()


def _user() -> str:
    return str(os.geteuid()) if hasattr(os, "geteuid") else "?"


def _sync_folder(folder: str) -> None:
    """Make the names in it durable. Windows cannot open a folder, and needs no such thing."""
    if os.name == "nt":
        return
    fd = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        sync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network filesystems have no such call
            raise
    finally:
        os.close(fd)


def _remove_if_left(path: str) -> None:
    fd = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    try:
        locked = filelock.try_lock(fd)
        if locked or (locked is None and time.time() - os.fstat(fd).st_mtime > LEFTOVER_SECONDS):
            os.unlink(path)
    finally:
        os.close(fd)
