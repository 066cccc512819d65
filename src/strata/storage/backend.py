"""The interface: the fewest methods that a checkpoint store and a data cache need.

Implementations are safe between threads and between event loops. Every method that changes something is atomic: it
happened whole or not at all, whatever dies meanwhile, and is durable once it returned.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol, Self, TypeAlias, cast, runtime_checkable

from numpy.typing import NDArray
from typing_extensions import Buffer

from strata.core.ids import check_callable, check_seconds
from strata.errors import InvalidInput

Data: TypeAlias = Buffer | NDArray[Any]
"""Bytes, or anything contiguous that has a buffer: arrays do, though numpy only says so from Python 3.12 on."""

Progress: TypeAlias = Callable[[int], None]
"""Called with the bytes done so far, which only grow. From any thread; it must return at once and not raise."""

MIB = 1 << 20
MOST_BYTES = (1 << 63) - 1
"""Of an object: no filesystem counts further."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object in a listing; or a folder, which is a prefix that objects share: its path ends in a slash."""

    path: str
    size: int
    modified: float
    """Seconds since 1970; 0 for a folder."""

    @property
    def is_folder(self) -> bool:
        return self.path.endswith("/")


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """How hard a storage tries, and how much memory it may use for it.

    timeout_seconds: the longest that one request to an object store may take, which carries a part at most; and the
        longest that a local filesystem may do nothing.
    retries, retry_seconds: how often a request that failed in transit is repeated, with jittered backoff, and for how
        long at most.
    part_bytes, concurrency: large objects travel in parts of this size, so many at a time. Their product bounds the
        memory of a streaming writer.
    """

    timeout_seconds: float = 60.0
    connect_seconds: float = 10.0
    retries: int = 8
    retry_seconds: float = 120.0
    part_bytes: int = 16 * MIB
    concurrency: int = 8

    def __post_init__(self) -> None:
        for name in ("timeout_seconds", "connect_seconds", "retry_seconds"):
            check_seconds(getattr(self, name), name)
        for name, least in (("retries", 0), ("part_bytes", 5 * MIB), ("concurrency", 2)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidInput(f"{name} must be an integer of at least {least}, not {value!r}")


class StorageWriter(Protocol):
    """An object being written piece by piece. It appears when it is committed, and not before."""

    async def write(self, data: Data) -> None:
        """Append. The buffer may be changed again once this returned. Of several at once, each is appended whole."""
        ...

    async def commit(self) -> None:
        """Make the object visible and durable."""
        ...

    async def abort(self) -> None:
        """Leave nothing behind. Does nothing after a commit or an abort."""
        ...


@runtime_checkable
class StorageBackend(Protocol):
    """A flat set of objects under keys (see `keys`).

    The first four are all that simple users need; the rest is what makes commits safe and loading fast.
    """

    @property
    def url(self) -> str:
        """Where this is, for people: never with a secret in it."""
        ...

    async def write(self, path: str, data: Data, *, progress: Progress | None = None) -> None:
        """Put an object, in place of any that is there. The buffer is not copied and must not change meanwhile."""
        ...

    async def read(self, path: str, *, progress: Progress | None = None) -> bytes:
        """The whole object, or ObjectNotFound."""
        ...

    async def exists(self, path: str) -> bool: ...

    async def delete(self, path: str) -> None:
        """Remove the object. One that is not there is as good as removed."""
        ...

    async def delete_many(self, paths: Iterable[str]) -> None:
        """Remove many at once. A key that is none is told before anything is removed; then all are tried, and the
        first error is raised."""
        ...

    async def size(self, path: str) -> int:
        """The object's bytes, or ObjectNotFound."""
        ...

    async def read_range(self, path: str, start: int, length: int) -> memoryview:
        """So many bytes from there. An object that ends before is ObjectCorrupt: it is not what was expected."""
        ...

    async def read_ranges(
        self, path: str, ranges: Sequence[tuple[int, int]], *, version: str | None = None
    ) -> list[memoryview]:
        """Many (start, length) at once, in the order asked for; ObjectChanged unless they are of this version, if one
        is said."""
        ...

    async def read_into(self, path: str, start: int, targets: Sequence[Data]) -> None:
        """The bytes from there on into this memory, one piece behind the other: what was allocated once need not be
        again. ObjectCorrupt for an object that ends before; the memory may be changed then, too."""
        ...

    def list_all(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """Every object under a folder, at any depth, as they come. The folder `a` holds `a/b` but not `ab`."""
        ...

    def list_folder(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """What is directly in a folder: its objects, and the folders in it."""
        ...

    async def put_if_absent(self, path: str, data: Data) -> None:
        """Put an object where none is. Of any number of racing writers one returns; the others get ObjectExists."""
        ...

    async def read_versioned(self, path: str) -> tuple[bytes, str]:
        """The object and its version, to be given to `compare_and_swap`."""
        ...

    async def version(self, path: str) -> str:
        """The object's version, or ObjectNotFound. It differs after every write, or at least after every change."""
        ...

    async def compare_and_swap(self, path: str, data: Data, version: str | None) -> str:
        """Replace this version (None: no object) and return the new one, or ObjectChanged."""
        ...

    def open_writer(
        self, path: str, *, size: int | None = None, progress: Progress | None = None
    ) -> AbstractAsyncContextManager[StorageWriter]:
        """Write an object larger than memory: committed at the end of the block, aborted if it raises.

        `size` is how large it will be, where that is known: an object store needs larger parts above 10,000 of them.
        """
        ...

    async def close(self) -> None:
        """Let go of threads and connections. The storage cannot be used afterwards."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


def byte_view(data: Data) -> memoryview:
    """The bytes of any contiguous buffer, without copying; InvalidInput for anything else."""
    try:
        view = memoryview(cast(Buffer, data))
    except TypeError:
        raise InvalidInput(f"data must be bytes or another buffer, not {type(data).__name__}") from None
    if "O" in view.format:
        raise InvalidInput(
            "data must be bytes or numbers, not an array of Python objects: their addresses mean nothing"
        )
    if not view.c_contiguous:
        raise InvalidInput("data must be contiguous in memory: make a copy of it first")
    if view.nbytes == 0:
        return memoryview(b"")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def checked_targets(start: int, targets: Iterable[Data]) -> list[memoryview]:
    """Their bytes; InvalidInput for memory that cannot be written, and for a place that no object has."""
    if not isinstance(targets, Iterable):
        raise InvalidInput(f"targets must be a list of buffers, not {type(targets).__name__}")
    views = [byte_view(target) for target in targets]
    checked_ranges([(start, sum(view.nbytes for view in views))])
    for view in views:
        if view.readonly and view.nbytes:
            raise InvalidInput("the memory to read into is read-only")
    return [view for view in views if view.nbytes]


def checked_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """InvalidInput for a range that no object could have."""
    try:
        found = [(start, length) for start, length in ranges]
    except (TypeError, ValueError):
        raise InvalidInput(f"ranges must be pairs of a start and a length, not {ranges!r}") from None
    for start, length in found:
        numbers: tuple[tuple[Any, str], ...] = (start, "start"), (length, "length")
        for value, what in numbers:
            if isinstance(value, bool) or not isinstance(value, Integral):
                raise InvalidInput(f"{what} must be an integer, not {type(value).__name__} ({value!r})")
        if start < 0 or length < 0 or start + length > MOST_BYTES:
            raise InvalidInput(f"no object has such a range: {length} bytes (length) from {start} (start)")
    return found


def checked_keys(paths: Iterable[str]) -> list[str]:
    """InvalidInput for a single string, whose letters would be taken for keys."""
    if isinstance(paths, str):
        raise InvalidInput(f"paths must be several keys, not the one string {paths!r}: put it in a list")
    if not isinstance(paths, Iterable):
        raise InvalidInput(f"paths must be several keys, not {type(paths).__name__}")
    return [*paths]


def checked_progress(progress: Progress | None) -> Progress | None:
    """InvalidInput for what cannot be called: before anything is done."""
    return None if progress is None else check_callable(progress, "progress")
