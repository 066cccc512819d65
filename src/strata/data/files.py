"""A file of a dataset and its bytes, wherever it is.

A file is known by its size and version as they were when it was found. Whenever it is read it must still be that file:
another one in its place, one cut short or one that is gone is DataChanged. Locally that is looked at on every reading,
since it costs nothing; on an object store, where it is a request, again after `LOOK_AGAIN_SECONDS`.

Local files are read, not mapped: a mapped file that is cut short kills the process that looks at it.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from strata.data.columnar import arrow
from strata.data.damage import Damage
from strata.errors import AccessDenied, DataChanged, NotFound, ObjectCorrupt, StorageError
from strata.storage.backend import StorageOptions
from strata.storage.blocking import BlockingStorage
from strata.storage.urls import open_storage

if TYPE_CHECKING:
    import pyarrow as pa

LOOK_AGAIN_SECONDS = 60.0

Ranges = Sequence[tuple[int, int]]
"""(start, length) each."""


class Seen(NamedTuple):
    """What a file looks like from outside."""

    size: int
    version: str


class Folder(Protocol):
    """The place that the names of files are relative to."""

    @property
    def url(self) -> str:
        """A path, or a URL: what `folder_at` makes the same folder of."""
        ...

    def path_of(self, name: str) -> str:
        """Where a file is, as people say it."""
        ...

    def look(self, name: str) -> Seen:
        """FileNotFoundError or NotFound if it is not there."""
        ...

    def may_have_changed(self, file: "File") -> bool:
        """Whether it is time to look at it again."""
        ...

    def read_ranges(self, file: "File", ranges: Ranges) -> "list[pa.Buffer]":
        """Each exactly so long, or EOFError."""
        ...

    def open(self, file: "File", soon: Ranges) -> Any:
        """For libraries that read here and there. Of a remote file, what is wanted `soon` is read in one go."""
        ...


@dataclass(frozen=True, slots=True)
class File:
    """One file, as it was found: `name` is relative to its folder, with slashes."""

    folder: Folder
    name: str
    size: int
    version: str

    @property
    def path(self) -> str:
        return self.folder.path_of(self.name)

    @property
    def is_local(self) -> bool:
        return isinstance(self.folder, LocalFolder)

    def __str__(self) -> str:
        return self.path

    def check(self) -> None:
        """DataChanged unless the file is still the one that was found."""
        with self._told():
            self._compare(self.folder.look(self.name))

    def read(self, start: int, length: int) -> "pa.Buffer":
        """So many bytes from there, off the GIL."""
        return self.read_ranges([(start, length)])[0]

    def read_ranges(self, ranges: Ranges) -> "list[pa.Buffer]":
        """Many (start, length) at once, in the order asked for."""
        for start, length in ranges:
            # Whoever asks for more has believed the file what it says of itself.
            if start < 0 or length < 0 or start + length > self.size:
                raise Damage(f"it has {self.size} bytes, and {length} from {start} should be there")
        with self._told():
            found = self.folder.read_ranges(self, ranges)
            if self.folder.may_have_changed(self):
                self._compare(self.folder.look(self.name))
            return found

    @contextmanager
    def opened(self, soon: Ranges = ()) -> Iterator[Any]:
        """The file for a library of Arrow's. Of a remote one, what is wanted `soon` is read in one go."""
        with self._told():
            source = self.folder.open(self, soon)
            try:
                if self.folder.may_have_changed(self):
                    self._compare(self.folder.look(self.name))
                yield source
            finally:
                source.close()

    def _compare(self, now: Seen) -> None:
        if now.size != self.size:
            self._changed(f"it had {self.size} bytes and has {now.size}")
        if now.version != self.version:
            self._changed("it was written again")

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, NotFound):
            self._changed("it is gone")
        except PermissionError as error:
            why = f"cannot read {self.path}: {error.strerror}. Whoever runs this must be allowed to"
            raise AccessDenied(why, storage=self.folder.url, key=self.name) from error
        except OSError as error:
            if not error.errno:  # Arrow's word for a file that makes no sense
                raise
            why = f"cannot read {self.path}: {error.strerror}"
            raise StorageError(why, storage=self.folder.url, key=self.name) from error
        except EOFError as error:
            self.check()
            self._changed(f"it was cut short: {error}")

    def _changed(self, how: str) -> NoReturn:
        raise DataChanged(
            f"{self.path} changed after the dataset was indexed: {how}. Put back what was there, or index it again "
            f"under another name: a dataset must not change under a running job",
            file=self.path,
        )


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __repr__(self) -> str:
        return f"LocalFolder({self._path!r})"

    @property
    def url(self) -> str:
        return self._path

    def path_of(self, name: str) -> str:
        return os.path.join(self._path, *name.split("/"))

    def look(self, name: str) -> Seen:
        return seen_locally(os.stat(self.path_of(name)))

    def may_have_changed(self, file: File) -> bool:
        return True

    def read_ranges(self, file: File, ranges: Ranges) -> "list[pa.Buffer]":
        found = []
        with arrow().OSFile(self.path_of(file.name), "rb") as source:
            for start, length in ranges:
                source.seek(start)
                piece = source.read_buffer(length)
                if piece.size < length:
                    raise EOFError(f"{piece.size} of {length} bytes from {start} are left")
                found.append(piece)
        return found

    def open(self, file: File, soon: Ranges) -> Any:
        return arrow().OSFile(self.path_of(file.name), "rb")


class RemoteFolder:
    """A prefix of a storage. Opened when first used, so that it goes from process to process."""

    def __init__(self, url: str, options: StorageOptions | None = None) -> None:
        self._url, self._options = url, options
        self._opened: BlockingStorage | None = None
        self._looked: dict[tuple[str, str], float] = {}

    def __repr__(self) -> str:
        return f"RemoteFolder({self._url!r})"

    def __reduce__(self) -> Any:
        return type(self), (self._url, self._options)

    @property
    def url(self) -> str:
        return self._url

    @property
    def storage(self) -> BlockingStorage:
        if self._opened is None:
            self._opened = BlockingStorage(open_storage(self._url, options=self._options))
        return self._opened

    def path_of(self, name: str) -> str:
        return f"{self._url.rstrip('/')}/{name}"

    def look(self, name: str) -> Seen:
        return Seen(self.storage.size(name), self.storage.version(name))

    def may_have_changed(self, file: File) -> bool:
        now, key = time.monotonic(), (file.name, file.version)
        if now - self._looked.get(key, -LOOK_AGAIN_SECONDS) < LOOK_AGAIN_SECONDS:
            return False
        self._looked[key] = now
        return True

    def read_ranges(self, file: File, ranges: Ranges) -> "list[pa.Buffer]":
        try:
            return [arrow().py_buffer(piece) for piece in self.storage.read_ranges(file.name, ranges)]
        except ObjectCorrupt as error:
            raise EOFError(str(error)) from error

    def open(self, file: File, soon: Ranges) -> Any:
        return arrow().PythonFile(RangeReader(file, soon), mode="r")


class RangeReader:
    """A remote file as Python's own look: what is asked for comes out of what was read before, or by a request."""

    closed = False

    def __init__(self, file: File, soon: Ranges) -> None:
        self._file = file
        self._at = 0
        ranges = [(start, length) for start, length in soon if length]
        read = file.folder.read_ranges(file, ranges) if ranges else []
        self._have = [(start, start + length, data) for (start, length), data in zip(ranges, read, strict=True)]

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        self._at = base + offset
        return self._at

    def read(self, length: int = -1) -> "pa.Buffer":
        left = max(0, self._file.size - self._at)
        length = left if length < 0 else min(length, left)
        start, self._at = self._at, self._at + length
        for begins, ends, data in self._have:
            if begins <= start and start + length <= ends:
                return data.slice(start - begins, length)
        return self._file.folder.read_ranges(self._file, [(start, length)])[0]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        """There is nothing to flush; Arrow asks when it closes."""

    def close(self) -> None:
        self.closed = True


def folder_at(url: str, options: StorageOptions | None = None) -> Folder:
    """The folder whose `url` this is."""
    return RemoteFolder(url, options) if "://" in url else LocalFolder(url)


def seen_locally(stat: os.stat_result) -> Seen:
    """By the nanosecond of the last change; copies that keep no times are taken for changed."""
    return Seen(stat.st_size, f"{stat.st_mtime_ns:x}-{stat.st_size:x}")
