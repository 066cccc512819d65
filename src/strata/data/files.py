"""A file of a dataset and its bytes, wherever it is.

A file is known by its size and version as they were when it was found. Whenever it is read it must still be that file:
another one in its place, one cut short or one that is gone is DataChanged. Locally that is looked at on every reading,
since it costs nothing. Of a remote storage only bytes of that version are read; where none are, since they are in a
cache, it is looked at again after `LOOK_AGAIN_SECONDS`.

Local files are read, not mapped: a mapped file that is cut short kills the process that looks at it.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, Self

from strata.data.columnar import arrow
from strata.data.damage import Damage
from strata.errors import AccessDenied, DataChanged, NotFound, ObjectChanged, ObjectCorrupt, StorageError
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

    def look_again(self, file: "File") -> Seen:
        """What it looks like now. That it is as it was may be known from then on, for a while."""
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
            self._compare(self.folder.look_again(self))

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
                self._compare(self.folder.look_again(self))
            return found

    @contextmanager
    def opened(self, soon: Ranges = ()) -> Iterator[Any]:
        """The file for a library of Arrow's. Of a remote one, what is wanted `soon` is read in one go."""
        with self._told():
            source = self.folder.open(self, soon)
            try:
                if self.folder.may_have_changed(self):
                    self._compare(self.folder.look_again(self))
                yield source
            finally:
                source.close()

    def reading(self) -> "Reading":
        """A file of this machine, for values that are read one by one. Whether it is still the one that was found is
        looked at in the end: nothing that was read counts before."""
        return Reading(self)

    def _compare(self, now: Seen) -> None:
        if now.size != self.size:
            self._changed(f"it had {self.size} bytes and has {now.size}")
        if now.version != self.version:
            self._changed("it was written again")

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (OSError, NotFound, EOFError, ObjectChanged) as error:
            self.tell(error)
            raise

    def tell(self, error: BaseException) -> None:
        """What went wrong in reading it, as an error that says so. Nothing if it says enough itself."""
        if isinstance(error, FileNotFoundError | NotADirectoryError | NotFound):
            self._changed("it is gone")
        if isinstance(error, PermissionError):
            why = f"cannot read {self.path}: {error.strerror}. Whoever runs this must be allowed to"
            raise AccessDenied(why, storage=self.folder.url, key=self.name) from error
        if isinstance(error, OSError) and error.errno:  # Arrow's word for a file that makes no sense has none
            why = f"cannot read {self.path}: {error.strerror}"
            raise StorageError(why, storage=self.folder.url, key=self.name) from error
        if isinstance(error, ObjectChanged):
            self.check()
            self._changed("it was written again")
        if isinstance(error, EOFError):
            self.check()
            self._changed(f"it was cut short: {error}")

    def _changed(self, how: str) -> NoReturn:
        raise DataChanged(
            f"{self.path} changed after the dataset was indexed: {how}. Put back what was there, or index it again "
            f"under another name: a dataset must not change under a running job",
            file=self.path,
        )


class Reading:
    """An open file. Each value is read into the object that is given out, off the GIL, and copied nowhere else."""

    __slots__ = ("_descriptor", "_file")

    def __init__(self, file: File) -> None:
        self._file = file
        try:
            self._descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            file.tell(error)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        os.close(self._descriptor)
        if error is not None:
            self._file.tell(error)
        else:
            self._file.check()

    def read(self, start: int, length: int) -> bytes:
        """Exactly so many bytes from there, or EOFError."""
        found = os.pread(self._descriptor, length, start)
        return found if len(found) == length else found + self._rest(start + len(found), length - len(found))

    def soon(self, start: int, length: int) -> None:
        """That much will be read from there, in pieces: the system is to fetch it in one go, if it has not got it."""
        if hasattr(os, "posix_fadvise") and length and not self._is_cached(start + length - 1):
            os.posix_fadvise(self._descriptor, start, length, os.POSIX_FADV_WILLNEED)

    def _is_cached(self, place: int) -> bool:
        """Whether a byte can be had without waiting: to be told of what is there already takes the system longer."""
        try:
            return os.preadv(self._descriptor, [bytearray(1)], place, os.RWF_NOWAIT) > 0
        except (AttributeError, OSError):  # not here, or not this file system, or not without waiting
            return False

    def _rest(self, start: int, length: int) -> bytes:
        """The system reads at most 2 GiB at once, and less when it likes."""
        found = os.pread(self._descriptor, length, start)
        if not found:
            raise EOFError(f"{length} bytes from {start} are missing")
        return found if len(found) == length else found + self._rest(start + len(found), length - len(found))


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

    def look_again(self, file: File) -> Seen:
        return self.look(file.name)

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

    def look_again(self, file: File) -> Seen:
        """By one request, if it is as it was: of one version there is one size."""
        asked = time.monotonic()
        if self.storage.version(file.name) != file.version:
            return self.look(file.name)
        self._looked[file.name, file.version] = asked  # only then: what changed is told each time it is read
        return Seen(file.size, file.version)

    def may_have_changed(self, file: File) -> bool:
        looked = self._looked.get((file.name, file.version))
        return looked is None or time.monotonic() - looked >= LOOK_AGAIN_SECONDS

    def read_ranges(self, file: File, ranges: Ranges) -> "list[pa.Buffer]":
        asked = time.monotonic()
        try:
            found = self.storage.read_ranges(file.name, ranges, version=file.version)
        except ObjectCorrupt as error:
            raise EOFError(str(error)) from error
        self._looked[file.name, file.version] = asked
        return [arrow().py_buffer(piece) for piece in found]

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
