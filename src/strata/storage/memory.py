"""Objects in this process's memory: for tests and for trying things out. Nothing survives the process."""

import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, Self

from strata.core.ids import check_instance, check_texts
from strata.errors import ObjectCorrupt, ObjectNotFound
from strata.storage.backend import (
    Data,
    ObjectInfo,
    Progress,
    byte_view,
    checked_keys,
    checked_progress,
    checked_ranges,
    checked_targets,
)
from strata.storage.keys import check_key, check_prefix, join
from strata.storage.refusals import changed_meanwhile, exists_already, was_closed, writer_ended


class _Stored(NamedTuple):
    data: bytes
    version: int
    modified: float


class Space:
    """The objects and the lock that guards them; several storages may look at one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, _Stored] = {}
        self.versions = 0


_spaces: dict[str, Space] = {}
_spaces_lock = threading.Lock()


def named_space(name: str) -> Space:
    """What `memory://name` means: the same objects for everybody in this process who says it."""
    with _spaces_lock:
        return _spaces.setdefault(name, Space())


class MemoryStorage:
    """A storage that forgets everything with the process."""

    def __init__(self, *, space: Space | None = None, prefix: str = "", name: str = "") -> None:
        check_instance(space, Space, "space")
        self.space = Space() if space is None else space
        self._prefix = check_prefix(prefix)
        self._name = name
        self._closed = False

    def __repr__(self) -> str:
        return f"MemoryStorage({self.url!r})"

    @property
    def url(self) -> str:
        return f"memory://{join(self._name, self._prefix) if self._prefix else self._name}"

    async def write(self, path: str, data: Data, *, progress: Progress | None = None) -> None:
        view, progress = byte_view(data), checked_progress(progress)
        with self.space.lock:
            self._put(self._key(path), bytes(view))
        if progress:
            progress(view.nbytes)

    async def read(self, path: str, *, progress: Progress | None = None) -> bytes:
        data, progress = self._get(path).data, checked_progress(progress)
        if progress:
            progress(len(data))
        return data

    async def exists(self, path: str) -> bool:
        return self._key(path) in self.space.objects

    async def delete(self, path: str) -> None:
        with self.space.lock:
            self.space.objects.pop(self._key(path), None)

    async def delete_many(self, paths: Iterable[str]) -> None:
        for key in [self._key(path) for path in checked_keys(paths)]:
            with self.space.lock:
                self.space.objects.pop(key, None)

    async def size(self, path: str) -> int:
        return len(self._get(path).data)

    async def read_range(self, path: str, start: int, length: int) -> memoryview:
        (view,) = await self.read_ranges(path, [(start, length)])
        return view

    async def read_ranges(
        self, path: str, ranges: Sequence[tuple[int, int]], *, version: str | None = None
    ) -> list[memoryview]:
        check_texts(version=version)
        ranges, found = checked_ranges(ranges), self._get(path)
        if version not in (None, str(found.version)):
            raise changed_meanwhile(self.url, path)
        data = found.data
        for start, length in ranges:
            if length and start + length > len(data):
                raise ObjectCorrupt(
                    f"{path!r} in {self.url} has {len(data)} bytes, and {length} from {start} were asked for",
                    storage=self.url,
                    key=path,
                )
        return [memoryview(data)[start : start + length] for start, length in ranges]

    async def read_into(self, path: str, start: int, targets: Sequence[Data]) -> None:
        views = checked_targets(start, targets)
        found = await self.read_range(path, start, sum(map(len, views)))
        for view in views:
            view[:], found = found[: len(view)], found[len(view) :]

    async def list_all(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        for path, stored in self._under(prefix):
            yield ObjectInfo(path, len(stored.data), stored.modified)

    async def list_folder(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        folder = check_prefix(prefix)
        depth = len(folder) + 1 if folder else 0
        seen = ""
        for path, stored in self._under(prefix):
            first, slash, _ = path[depth:].partition("/")
            if not slash:
                yield ObjectInfo(path, len(stored.data), stored.modified)
            elif first != seen:
                seen = first
                yield ObjectInfo(f"{path[:depth]}{first}/", 0, 0.0)

    async def put_if_absent(self, path: str, data: Data) -> None:
        key, view = self._key(path), byte_view(data)
        with self.space.lock:
            if key in self.space.objects:
                raise exists_already(self.url, path)
            self._put(key, bytes(view))

    async def read_versioned(self, path: str) -> tuple[bytes, str]:
        stored = self._get(path)
        return stored.data, str(stored.version)

    async def version(self, path: str) -> str:
        return str(self._get(path).version)

    async def compare_and_swap(self, path: str, data: Data, version: str | None) -> str:
        check_texts(version=version)
        key, view = self._key(path), byte_view(data)
        with self.space.lock:
            now = self.space.objects.get(key)
            if (None if now is None else str(now.version)) != version:
                raise changed_meanwhile(self.url, path)
            return str(self._put(key, bytes(view)))

    @asynccontextmanager
    async def open_writer(
        self, path: str, *, size: int | None = None, progress: Progress | None = None
    ) -> AsyncIterator["_MemoryWriter"]:
        self._key(path)
        writer = _MemoryWriter(self, path, progress)
        yield writer
        await writer.commit()

    async def close(self) -> None:
        self._closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _key(self, path: str) -> str:
        self._check_open(path)
        return join(self._prefix, check_key(path))

    def _check_open(self, path: str) -> None:
        if self._closed:
            raise was_closed(self.url, path)

    def _get(self, path: str) -> _Stored:
        stored = self.space.objects.get(self._key(path))
        if stored is None:
            raise ObjectNotFound(f"there is no {path!r} in {self.url}", storage=self.url, key=path)
        return stored

    def _put(self, key: str, data: bytes) -> int:
        self.space.versions += 1
        self.space.objects[key] = _Stored(data, self.space.versions, time.time())
        return self.space.versions

    def _under(self, prefix: str) -> Iterator[tuple[str, _Stored]]:
        self._check_open(prefix)
        wanted = check_prefix(prefix)
        folder = join(self._prefix, wanted) if wanted else self._prefix
        start = f"{folder}/" if folder else ""
        with self.space.lock:
            found = sorted((key, stored) for key, stored in self.space.objects.items() if key.startswith(start))
        own = len(self._prefix) + 1 if self._prefix else 0
        return ((key[own:], stored) for key, stored in found)


class _MemoryWriter:
    def __init__(self, storage: MemoryStorage, path: str, progress: Progress | None) -> None:
        self._storage = storage
        self._path = path
        self._progress = checked_progress(progress)
        self._pieces: list[bytes] | None = []
        self._done = 0

    async def write(self, data: Data) -> None:
        if self._pieces is None:
            raise writer_ended(self._storage.url, self._path)
        piece = bytes(byte_view(data))
        self._pieces.append(piece)
        self._done += len(piece)
        if self._progress:
            self._progress(self._done)

    async def commit(self) -> None:
        if self._pieces is not None:
            pieces, self._pieces = self._pieces, None
            await self._storage.write(self._path, b"".join(pieces))

    async def abort(self) -> None:
        self._pieces = None
