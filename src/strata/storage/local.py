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
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import islice
from pathlib import Path
from stat import S_ISREG
from typing import Self, TypeVar

import numpy as np

from strata.core.ids import check_instance, check_path, check_texts
from strata.errors import (
    AccessDenied,
    InvalidInput,
    ObjectCorrupt,
    ObjectNotFound,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from strata.storage import filelock
from strata.storage.backend import (
    Data,
    ObjectInfo,
    Progress,
    StorageOptions,
    byte_view,
    checked_keys,
    checked_ranges,
    checked_targets,
)
from strata.storage.direct import DIRECT_FROM_BYTES, read_all_into, read_scattered, read_whole, sync
from strata.storage.keys import STAGING, check_key, check_prefix
from strata.storage.refusals import changed_meanwhile, exists_already, was_closed
from strata.storage.staging import Job, LocalWriter, Pulse, Staged
from strata.storage.threads import DaemonThreads
from strata.storage.tree import Tree, remove_if_empty
from strata.texts import readable_bytes

T = TypeVar("T")

LISTED_AT_ONCE = 500
LEFTOVER_SECONDS = 86_400
"""Where files cannot be locked, a staged file this old is taken for a leftover."""
FOLDER_TRIES = 16

_OPEN_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)

_ROOM = ". Make room, then try again: nothing was changed"
_RIGHTS = f". Whoever runs this (user {os.geteuid() if hasattr(os, 'geteuid') else '?'}) must be allowed to"
_GONE = ": the server behind this folder does not answer"
_KINDS: dict[int, tuple[type[StorageError], str]] = {
    errno.ENOSPC: (StorageFull, _ROOM),
    errno.EDQUOT: (StorageFull, _ROOM),
    errno.EFBIG: (StorageFull, _ROOM),
    errno.EACCES: (AccessDenied, _RIGHTS),
    errno.EPERM: (AccessDenied, _RIGHTS),
    errno.EROFS: (AccessDenied, ". It is mounted for reading only: mount it anew, or choose another folder"),
    errno.ESTALE: (StorageUnavailable, _GONE),
    errno.ETIMEDOUT: (StorageUnavailable, _GONE),
    errno.EHOSTDOWN: (StorageUnavailable, _GONE),
    errno.EIO: (StorageError, ": the disk failed. What was being written is not there; see the kernel's log (dmesg)"),
    errno.EXDEV: (StorageError, ": its folder is another filesystem than the root. Open a storage there"),
}


class LocalStorage:
    """The folder `root`, made by the first write if it is not there."""

    def __init__(self, root: str | os.PathLike[str], *, options: StorageOptions | None = None) -> None:
        given = check_path(root, "root")
        check_instance(options, StorageOptions, "options")
        self.options = StorageOptions() if options is None else options
        self._root = os.path.realpath(Path(given).expanduser())
        self._staging = os.path.join(self._root, STAGING)
        self._tree = Tree(self._root)
        self._pulse = Pulse()
        self._direct = True
        self.closed = False
        self._pools: dict[int, DaemonThreads] = {}
        self._ready_in = 0

    @property
    def url(self) -> str:
        return Path(self._root).as_uri()

    def __repr__(self) -> str:
        return f"LocalStorage({self._root!r})"

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
        check_texts(version=version)
        view = byte_view(data)
        made = ""

        def swap(staged: Staged, target: str) -> None:
            nonlocal made
            if self._version(path) != version:
                raise changed_meanwhile(self.url, path)
            made = _version_of(staged.fd)
            self.replace(staged, target)

        await self.run(path, "replace", lambda job: self._write(path, view, job, swap, swaps=True))
        return made

    async def read(self, path: str, *, progress: Progress | None = None) -> bytes:
        def read(job: Job) -> bytes:
            with self._opened(path) as fd:
                return read_whole(fd, job.tick)

        return await self.run(path, "read", read, progress)

    async def read_versioned(self, path: str) -> tuple[bytes, str]:
        def read(job: Job) -> tuple[bytes, str]:
            with self._opened(path) as fd:
                return read_whole(fd, job.tick), _version_of(fd)

        return await self.run(path, "read", read)

    async def version(self, path: str) -> str:
        def look(_: Job) -> str:
            with self._opened(path) as fd:
                return _version_of(fd)

        return await self.run(path, "look at", look)

    async def read_range(self, path: str, start: int, length: int) -> memoryview:
        (view,) = await self.read_ranges(path, [(start, length)])
        return view

    async def read_ranges(
        self, path: str, ranges: Sequence[tuple[int, int]], *, version: str | None = None
    ) -> list[memoryview]:
        wanted = checked_ranges(ranges)
        check_texts(version=version)
        return await self.run(path, "read", lambda job: self._read(path, wanted, job, version))

    async def read_into(self, path: str, start: int, targets: Sequence[Data]) -> None:
        views = checked_targets(start, targets)

        def read(job: Job) -> None:
            with self._opened(path) as fd:
                if read_scattered(fd, views, start, job.tick) < sum(map(len, views)):
                    raise self._too_short(path, fd, start, sum(map(len, views)))

        await self.run(path, "read", read)

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
        keys = [check_key(path) for path in checked_keys(paths)]
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
        async for entry in self._paged(prefix, self._tree.walk):
            yield entry

    async def list_folder(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        async for entry in self._paged(prefix, self._tree.folder):
            yield entry

    async def _paged(self, prefix: str, entries: Callable[[str], Iterator[ObjectInfo]]) -> AsyncIterator[ObjectInfo]:
        listing = entries(check_prefix(prefix))
        while True:
            page = await self.run(prefix, "list", lambda _: list(islice(listing, LISTED_AT_ONCE)))
            for entry in page:
                yield entry
            if len(page) < LISTED_AT_ONCE:
                return

    # -- the end -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        self.closed = True
        pool = self._pools.pop(os.getpid(), None)
        if pool is not None:
            # Joined from a thread of its own: what still runs may take a while, and the loop must not wait.
            loop, joined = asyncio.get_running_loop(), asyncio.Event()

            def join() -> None:
                pool.shutdown()
                with suppress(RuntimeError):  # the loop may have ended
                    loop.call_soon_threadsafe(joined.set)

            joiner = threading.Thread(target=join, daemon=True)
            joiner.start()
            try:
                await asyncio.wait_for(joined.wait(), self.options.timeout_seconds)
            except TimeoutError:
                raise StorageUnavailable(
                    f"{self.url} was closed while the filesystem hangs: some of its threads still wait for it",
                    storage=self.url,
                ) from None
            joiner.join()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- threads -----------------------------------------------------------------------------------------------------

    async def run(self, key: str, doing: str, work: Callable[[Job], T], progress: Progress | None = None) -> T:
        """Do it in a thread; give up if it makes no step for the whole timeout; clean up before a cancellation."""
        job = Job(progress, self._pulse)
        future = asyncio.get_running_loop().run_in_executor(self._threads(key), self._attempt, key, doing, work, job)
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        life = job.life
        try:
            while not future.done():
                await asyncio.wait({future}, timeout=self.options.timeout_seconds)
                if not future.done() and job.life == life:
                    raise self._hangs(key, doing)
                life = job.life
        except (asyncio.CancelledError, StorageUnavailable) as error:
            job.stopped = True
            if not job.started:
                future.cancel()
            elif isinstance(error, asyncio.CancelledError):
                await asyncio.wait({future}, timeout=self.options.timeout_seconds)
            raise
        try:
            return future.result()
        finally:
            del (
                future
            )  # its error refers to this frame, and would keep the storage for as long as that is not collected

    def _hangs(self, key: str, doing: str) -> StorageUnavailable:
        return StorageUnavailable(
            f"cannot {doing} {key!r} in {self.url}: the filesystem did nothing for "
            f"{self.options.timeout_seconds:g} seconds. Is it a network mount whose server is gone?",
            storage=self.url,
            key=key,
        )

    def _attempt(self, key: str, doing: str, work: Callable[[Job], T], job: Job) -> T:
        job.started = True
        job.tick(0)
        try:
            return work(job)
        except OSError as error:
            raise self._error(error, key, doing) from error

    def _threads(self, key: str) -> DaemonThreads:
        if self.closed:
            raise was_closed(self.url, key)
        # By process, since a forked child has none of its parent's threads.
        pool = self._pools.get(os.getpid())
        if pool is None:
            fresh = DaemonThreads(self.options.concurrency, "strata-local")
            pool = self._pools.setdefault(os.getpid(), fresh)
        return pool

    def _error(self, error: OSError, key: str, doing: str) -> StorageError | InvalidInput:
        what = "" if doing == "list" and not key else f" {key!r} in"
        where, number = f"cannot {doing}{what} {self.url}", error.errno
        why = os.strerror(number) if number else str(error)
        if number in (errno.ENOTDIR, errno.EEXIST):
            return InvalidInput(f"{where}: a part of its path is an object, which cannot be a folder as well")
        if number == errno.ENOENT:
            return ObjectNotFound(f"{where}: there is no such object", storage=self.url, key=key)
        if number == errno.EISDIR:
            return InvalidInput(f"{where}: there is a folder of that name")
        kind, hint = _KINDS.get(number or 0, (StorageError, ""))
        if number == errno.ENOSPC:
            why += self._room_told()
        if doing == "list" and isinstance(error.filename, str):
            where += f" at {os.path.relpath(error.filename, self._root)!r}"
        return kind(f"{where}: {why}{hint}", storage=self.url, key=key)

    def _room_told(self) -> str:
        """Of a full disk, as it is now: what a failed write had taken may be given back already."""
        try:
            usage = shutil.disk_usage(self._root)
        except OSError:
            return ""
        return f" ({readable_bytes(usage.free)} of {readable_bytes(usage.total)} are free)"

    # -- files -------------------------------------------------------------------------------------------------------

    def _write(
        self, path: str, view: memoryview, job: Job, place: Callable[["Staged", str], None], *, swaps: bool = False
    ) -> None:
        target = self.target(path)
        with self._stage(direct=view.nbytes >= DIRECT_FROM_BYTES) as staged:
            staged.sink.write(view, job.tick)
            staged.finish(job)
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
        folder = os.path.dirname(target)
        for left in reversed(range(FOLDER_TRIES)):
            try:
                with self._exclusive(needed=swaps):
                    job.tick(0)  # the last moment: whoever gave up must not find it there later
                    os.makedirs(folder, exist_ok=True)
                    place(staged, target)
                break
            except FileNotFoundError:  # without locks, whoever deletes its last object removes the folder meanwhile
                if not left:
                    raise
        try:
            self._sync_up(folder, job)
        except OSError as error:
            key = os.path.relpath(target, self._root)
            raise StorageError(
                f"{key!r} is in {self.url}, but its folder could not be synced ({error.strerror}): it may not survive "
                "a power cut. Write it again",
                storage=self.url,
                key=key,
            ) from error

    def _sync_up(self, folder: str, job: Job) -> None:
        """The folder and those above it, up to the root."""
        while True:
            with suppress(FileNotFoundError):  # deleted again already
                _sync_folder(folder)
            job.step()
            if folder == self._root:
                return
            folder = os.path.dirname(folder)

    def replace(self, staged: Staged, target: str) -> None:
        """Take the name, from whatever has it."""
        try:
            os.replace(staged.path, target)
        except IsADirectoryError:
            if not remove_if_empty(target):
                raise
            os.replace(staged.path, target)

    def _link(self, staged: Staged, target: str) -> None:
        """Take the name, if nothing has it."""
        try:
            os.link(staged.path, target)
        except FileExistsError:
            if os.path.isdir(target) and remove_if_empty(target):
                os.link(staged.path, target)
            # A network filesystem may have done it and lost the answer.
            elif not os.path.samestat(os.fstat(staged.fd), os.lstat(target)):
                path = os.path.relpath(target, self._root)
                raise exists_already(self.url, path) from None
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                raise
            raise StorageError(
                f"{self.url} cannot exclude other writers: its filesystem has no hard links", storage=self.url
            ) from error

    def _read(self, path: str, ranges: Sequence[tuple[int, int]], job: Job, version: str | None) -> list[memoryview]:
        """All from one open file, so that they are of one version."""
        targets = [np.empty(length, np.uint8) for _, length in ranges]
        with self._opened(path) as fd:
            if version not in (None, _version_of(fd)):
                raise changed_meanwhile(self.url, path)
            starts = [start for start, _ in ranges]
            for number, count in enumerate(read_all_into(fd, targets, starts, self.options.concurrency, job.tick)):
                if count < len(targets[number]):
                    raise self._too_short(path, fd, *ranges[number])
        return [target.data.toreadonly() for target in targets]

    def _too_short(self, path: str, fd: int, start: int, length: int) -> ObjectCorrupt:
        return ObjectCorrupt(
            f"{path!r} in {self.url} has {os.fstat(fd).st_size} bytes, and {length} from {start} were asked for",
            storage=self.url,
            key=path,
        )

    def _delete(self, keys: list[str], job: Job) -> None:
        errors: list[Exception] = []
        folders: dict[str, None] = {}
        for key in keys:
            try:
                folders[self._unlink(key, job)] = None
            except (OSError, StorageError, InvalidInput) as error:
                errors.append(self._error(error, key, "delete") if isinstance(error, OSError) else error)
        for folder in folders:
            self._prune(folder, job)
        if errors:
            raise errors[0]

    def _unlink(self, key: str, job: Job) -> str:
        """The folder to sync. Also for what is not there: whoever deleted it may not have come to syncing."""
        target = self.target(key)
        job.tick(0)
        try:
            with self._exclusive(made=False):
                os.unlink(target)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:
            if not os.path.isdir(target):
                raise
        return os.path.dirname(target)

    def _prune(self, folder: str, job: Job) -> None:
        """Remove it and those above as long as they are empty, since an empty folder is no object; sync the rest."""
        while folder != self._root:
            try:
                with self._exclusive(made=False):
                    os.rmdir(folder)
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError:
                break
            folder = os.path.dirname(folder)
        with suppress(FileNotFoundError, NotADirectoryError):
            self._sync_up(folder, job)

    @contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        real = os.path.realpath(os.path.join(self._root, check_key(path)))
        if not self._tree.holds(real):
            raise self._outside(path)
        try:
            fd = os.open(real, os.O_RDONLY | _OPEN_FLAGS | getattr(os, "O_NONBLOCK", 0))
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
            with self._opened(path) as fd:
                return _version_of(fd)
        except FileNotFoundError:
            return None

    # -- names -------------------------------------------------------------------------------------------------------

    def target(self, path: str) -> str:
        """Where a write of this key goes. A link in the place of the object itself is replaced, not followed."""
        folder, _, name = check_key(path).rpartition("/")
        real = os.path.realpath(os.path.join(self._root, folder))
        if not self._tree.holds(real):
            raise self._outside(path)
        return os.path.join(real, name)

    def _outside(self, path: str) -> InvalidInput:
        return InvalidInput(f"{path!r} leads out of {self.url} through a symbolic link")

    # -- staging -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _stage(self, *, direct: bool) -> Iterator[Staged]:
        staged = self.open_staged(direct=direct)
        try:
            yield staged
        finally:
            if staged.sink.refused:
                self._direct = False
            staged.close()

    def open_staged(self, *, direct: bool) -> Staged:
        """A new file under a name of its own, locked."""
        while True:
            self._make_ready()
            name = os.path.join(self._staging, f"{secrets.token_hex(12)}.part")
            try:
                fd = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | _OPEN_FLAGS, 0o666)
            except FileNotFoundError:  # somebody tidied up the folder
                continue
            # Before it is locked it looks like a leftover: somebody may be about to remove it, or have done so.
            if filelock.try_lock(fd) is not False and os.fstat(fd).st_nlink:
                return Staged(name, fd, direct=direct and self._direct)
            os.close(fd)

    def _make_ready(self) -> None:
        """Once in each process: the folders, durably, and away with what dead processes left."""
        if self._ready_in == os.getpid() and os.path.isdir(self._staging):
            return
        made = [self._staging, self._root]
        while not os.path.isdir(os.path.dirname(made[-1])):
            made.append(os.path.dirname(made[-1]))
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
            fd, locked = self._lock(os.O_CREAT if made else 0)
        except FileNotFoundError:
            if made:
                raise
            yield  # nothing was ever written here by Strata
            return
        try:
            if needed and not locked:
                raise StorageError(
                    f"{self.url} cannot compare and swap: its filesystem has no file locks", storage=self.url
                )
            yield
        finally:
            filelock.close(fd)

    def _lock(self, flags: int) -> tuple[int, bool]:
        """The lock's file, and whether it is ours. Not one that a short visitor removed while it was waited for."""
        path = os.path.join(self._staging, "lock")
        while True:
            fd = filelock.keep(os.open(path, os.O_RDWR | _OPEN_FLAGS | flags, 0o666))
            try:
                locked = filelock.lock(fd)
                if not locked or os.fstat(fd).st_nlink:
                    return fd, locked
            except BaseException:
                filelock.close(fd)
                raise
            filelock.close(fd)


def _version_of(fd: int) -> str:
    """Every write is a new file with a date of its own, to the nanosecond."""
    stat = os.fstat(fd)
    return f"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}"


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
