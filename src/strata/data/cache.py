"""What was read from remote storages, on a disk of this machine: for all its processes, within a limit.

    {root}/{dataset}/shards/ab/abcd…        an entry: a digest, then the bytes of one request
    {root}/{dataset}/shards/ab/abcd….part   one that is being written, locked by who does
    {root}/.strata-cache                    how many bytes there are at most; locked by who changes that

The law: an entry appears whole, by its renaming, and is believed only if its length and digest are right. So a process
may be killed at any instant. What it leaves is an entry or a part that nobody has locked: the next to want that entry
writes it again, and whoever makes room removes it.

Room is taken before it is used. A part has its full length, as a hole, before it is counted, and is counted before it
is written: so the number in the file is never less than what the disk has. It may be more, which counting again
corrects. Whatever the disk refuses means that something is not kept, and nothing else.
"""

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import NamedTuple

from strata.core.ids import check_int, check_path
from strata.errors import InvalidInput
from strata.storage import filelock

CACHE_BYTES = 64 << 30
WAIT_SECONDS = 30.0
"""For another process that is fetching the same. Then it is fetched here as well, and not kept."""
ROOM_SHARE = 8
"""When there is no room, entries go until one in so many bytes of the limit is free."""

_LEDGER = ".strata-cache"
_MAGIC = b"strata-cache-1\n\0"
_DIGEST_BYTES = 32
HEAD_BYTES = len(_MAGIC) + _DIGEST_BYTES
_FULL = {errno.ENOSPC, errno.EDQUOT}
_POLL_SECONDS = 0.005
_PART = ".part"
_NAME = re.compile(r"[0-9a-f]{64}(\.part)?")


class _Found(NamedTuple):
    """A file of the cache."""

    used_ns: int
    path: str
    size: int


class Cache:
    """See the module. Safe between threads and processes; goes from one to the other.

    root: a folder, best on a local disk. Several datasets may share it, and its limit.
    limit_bytes: of all entries together. One that is larger than an eighth of it is not kept.
    """

    def __init__(self, root: str | os.PathLike[str], limit_bytes: int = CACHE_BYTES) -> None:
        self._root = os.path.abspath(os.path.expanduser(check_path(root, "cache")))
        self._limit = check_int(limit_bytes, "cache_bytes", least=1)
        try:
            os.makedirs(self._root, exist_ok=True)
        except OSError as error:
            if error.errno in _FULL:
                return
            raise InvalidInput(f"cannot cache data in {self._root}: {error.strerror}. Give another folder") from error

    def __repr__(self) -> str:
        return f"Cache({self._root!r}, {self._limit})"

    def get(self, dataset: str, key: bytes, length: int, fetch: Callable[[], bytes]) -> bytes:
        """The bytes of that key, so many: from here, or what `fetch` gives, which is kept if that can be."""
        name = blake2b(key, digest_size=32).hexdigest()
        path = os.path.join(self._root, dataset, "shards", name[:2], name)
        if (found := _read(path, key, length)) is not None:
            return found
        if HEAD_BYTES + length > self._limit // ROOM_SHARE:
            return fetch()
        with _part(path + _PART) as part:
            if (found := _read(path, key, length)) is not None:  # another process was quicker
                return found
            data = fetch()
            if part is not None:
                with suppress(OSError):
                    self._keep(part, path, key, data)
            return data

    def _keep(self, part: int, path: str, key: bytes, data: bytes) -> None:
        os.ftruncate(part, HEAD_BYTES + len(data))
        with self._ledger() as ledger:
            self._take(ledger, HEAD_BYTES + len(data))
        _write(part, _MAGIC + _digest(key, data), 0)
        _write(part, data, HEAD_BYTES)
        with self._ledger():  # who counts must not miss it because it changes its name
            os.replace(path + _PART, path)

    # -- room --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _ledger(self) -> Iterator[int]:
        """The file with the number, locked."""
        ledger = filelock.keep(os.open(os.path.join(self._root, _LEDGER), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        try:
            if not filelock.lock(ledger):
                raise OSError("files cannot be locked there")
            yield ledger
        finally:
            filelock.close(ledger)

    def _take(self, ledger: int, size: int) -> None:
        """Count so many bytes more, which a part has already; where there is no room for it, make some."""
        used = _number(os.pread(ledger, 64, 0))
        used = self._make_room() if used is None or used + size > self._limit else used + size
        os.pwrite(ledger, b"%020d\n" % used, 0)
        if used > self._limit:
            raise OSError("there is no room, and none can be made")

    def _make_room(self) -> int:
        """Count everything, and remove what was not used for longest if that is too much. What is left."""
        found = sorted(_entries(self._root))
        found = [each for each in found if not (each.path.endswith(_PART) and _removed_if_left(each.path))]
        used = sum(each.size for each in found)
        enough = self._limit if used <= self._limit else self._limit - self._limit // ROOM_SHARE
        for each in found:
            if used > enough and not each.path.endswith(_PART):
                with suppress(FileNotFoundError):
                    os.unlink(each.path)
                used -= each.size
        return used


def _digest(key: bytes, data: bytes) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES, key=blake2b(key, digest_size=32).digest()).digest()


def _read(path: str, key: bytes, length: int) -> bytes | None:
    """An entry, if it is there and right; from now on the last to go."""
    try:
        with open(path, "rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != HEAD_BYTES + length:
                return None
            head, data = file.read(HEAD_BYTES), file.read(length)
        if len(data) != length or head != _MAGIC + _digest(key, data):
            return None
        with suppress(OSError):
            os.utime(path)
    except OSError:
        return None
    return data


def _write(file: int, data: bytes, place: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, place)
        view, place = view[written:], place + written


@contextmanager
def _part(path: str) -> Iterator[int | None]:
    """A part, locked, and at the end removed if it became no entry. None if there can be none, or another process does
    the same for too long."""
    part = None
    with suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        part = _locked(path, time.monotonic() + WAIT_SECONDS)
    try:
        yield part
    finally:
        if part is not None:
            with suppress(OSError):
                if _is_at(part, path):
                    os.unlink(path)
            filelock.close(part)


def _locked(path: str, until: float) -> int | None:
    """Whoever had it may have made it the entry, and who makes room may have taken it for one that was left: what was
    opened here must not be written to then, and it is made anew."""
    while True:
        part = filelock.keep(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        try:
            while (locked := filelock.try_lock(part)) is False and time.monotonic() < until:
                time.sleep(_POLL_SECONDS)
            is_own = bool(locked) and _is_at(part, path)
        except BaseException:
            filelock.close(part)
            raise
        if is_own:
            return part
        filelock.close(part)
        if not locked or time.monotonic() >= until:
            return None


def _is_at(file: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _entries(root: str) -> Iterator[_Found]:
    """Only what has the names of this cache: whatever else lies there is somebody's."""
    for dataset in _folders(root):
        for folder in _folders(os.path.join(dataset, "shards")):
            with os.scandir(folder) as entries:
                for entry in entries:
                    if _NAME.fullmatch(entry.name):
                        with suppress(FileNotFoundError):
                            stat = entry.stat(follow_symlinks=False)
                            yield _Found(stat.st_mtime_ns, entry.path, stat.st_size)


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _removed_if_left(path: str) -> bool:
    """Whether this was a part that nobody writes any more."""
    try:
        part = filelock.keep(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return False
    try:
        if not filelock.try_lock(part) or not _is_at(part, path):
            return False
        os.unlink(path)
    finally:
        filelock.close(part)
    return True


def _number(text: bytes) -> int | None:
    return int(text) if re.fullmatch(rb"[0-9]{20}\n", text) else None
