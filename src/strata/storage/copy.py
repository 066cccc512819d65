"""Objects from one storage to another, in pieces, so that memory stays bounded whatever their size."""

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from typing import TypeAlias

from strata import background
from strata.errors import InvalidInput, ObjectNotFound, StorageError
from strata.storage.backend import MIB, ObjectInfo, StorageBackend, StorageOptions
from strata.storage.keys import join
from strata.storage.traces import leaving_no_trace
from strata.storage.urls import open_storage, split_object_url

PIECE_BYTES = 8 * MIB
PIECES_AHEAD = 3
OBJECTS_AT_ONCE = 8
LARGE_AT_ONCE = 3
"""Of more than one piece: each takes the memory of its pieces and of its writer."""
LISTED_AHEAD = 10_000
"""How far the listing of a folder may run ahead, so that the total is known early."""

OPTIONS = StorageOptions(part_bytes=8 * MIB, concurrency=4)
"""Smaller than usual, since several objects travel at once."""


@dataclass(slots=True)
class Tally:
    """How far a copy is. What was found grows while the source is still being listed."""

    objects: int = 0
    bytes: int = 0
    objects_found: int = 0
    bytes_found: int = 0


Watch: TypeAlias = Callable[[Tally], None]
"""Called when the tally has changed. From any thread; it must return at once and not raise."""


async def copy(
    source: str, target: str, *, recursive: bool = False, options: StorageOptions = OPTIONS, watch: Watch | None = None
) -> Tally:
    """Copy the object at a URL, or with `recursive` all under it, to another URL.

    Below a target that ends in a slash, the copy keeps the source's name; an object does so below any folder. A folder
    is copied to the very target otherwise, so that to copy again is to go on. Each object appears whole or not at all;
    the first error stops the rest, and what was copied by then stays.
    """
    parent, name = split_object_url(source)
    if recursive and await holds_objects(source, options):
        async with open_storage(source, options=options) as origin, open_storage(target, options=options) as goal:
            with leaving_no_trace(goal):
                return await _copy_folder(origin, goal, name if target.endswith("/") else "", watch)
    into = await _is_folder(target, options)
    folder, key = (target, name) if into else split_object_url(target)
    async with open_storage(parent, options=options) as origin, open_storage(folder, options=options) as goal:
        size = await size_of_object(origin, name, source)
        _refuse_same(join(origin.url, name), join(goal.url, key))
        with leaving_no_trace(goal):
            counter = _Counter(watch)
            counter.found(size)
            await _copy_object(origin, ObjectInfo(name, size, 0.0), goal, key, counter)
            return counter.tally


async def holds_objects(url: str, options: StorageOptions | None = None) -> bool:
    """Whether there is a folder there, with anything in it."""
    async with open_storage(url, options=options) as storage:
        async for _ in storage.list_all():
            return True
    return False


async def size_of_object(folder: StorageBackend, key: str, url: str, instead: str = "-r takes all in it") -> int:
    """The object's bytes; where there is none, an error that says so, or that it is a folder and what to do instead."""
    if key and not url.endswith("/"):
        try:
            return await folder.size(key)
        except ObjectNotFound:
            pass
    if not key or await holds_objects(url):
        raise InvalidInput(f"{url} is a folder: {instead}")
    raise nothing_at(url)


def nothing_at(url: str) -> ObjectNotFound:
    folder, key = split_object_url(url)
    return ObjectNotFound(f"there is nothing at {url}: no such object, and no folder with any", storage=folder, key=key)


async def read_pieces(storage: StorageBackend, key: str, size: int) -> AsyncGenerator[memoryview, None]:
    """The object in order, with a few pieces under way at a time."""
    if size <= PIECE_BYTES:
        yield memoryview(await storage.read(key))
        return
    version = await storage.version(key)
    ahead: deque[asyncio.Task[memoryview]] = deque()
    try:
        for start in range(0, size, PIECE_BYTES):
            if len(ahead) == PIECES_AHEAD:
                yield await ahead.popleft()
            piece = storage.read_range(key, start, min(PIECE_BYTES, size - start))
            ahead.append(asyncio.ensure_future(piece))
        while ahead:
            yield await ahead.popleft()
    finally:
        for task in ahead:
            task.cancel()
        await asyncio.gather(*ahead, return_exceptions=True)
    if await storage.version(key) != version or await storage.size(key) != size:
        raise StorageError(
            f"{key!r} in {storage.url} was replaced while it was read: read it again", storage=storage.url, key=key
        )


def read_pieces_blocking(storage: StorageBackend, key: str, size: int) -> Iterator[memoryview]:
    """The blocking twin; pieces keep coming while the caller is busy with one."""
    pieces = read_pieces(storage, key, size)
    try:
        while (piece := background.run(_next(pieces))) is not None:
            yield piece
    finally:
        background.run(pieces.aclose())


async def _next(pieces: AsyncGenerator[memoryview, None]) -> memoryview | None:
    return await anext(pieces, None)


class _Counter:
    """Keeps the tally, and tells whoever watches."""

    def __init__(self, watch: Watch | None) -> None:
        self.tally = Tally()
        self._watch = watch

    def found(self, size: int) -> None:
        self.tally.objects_found += 1
        self.tally.bytes_found += size
        self._tell()

    def moved(self, count: int, objects: int = 0) -> None:
        self.tally.bytes += count
        self.tally.objects += objects
        self._tell()

    def _tell(self) -> None:
        if self._watch:
            self._watch(self.tally)


async def _copy_folder(origin: StorageBackend, goal: StorageBackend, prefix: str, watch: Watch | None) -> Tally:
    _refuse_same(origin.url, join(goal.url, prefix) if prefix else goal.url)
    counter = _Counter(watch)
    waiting: asyncio.Queue[ObjectInfo | None] = asyncio.Queue(LISTED_AHEAD)

    async def find() -> None:
        async for entry in origin.list_all():
            counter.found(entry.size)
            await waiting.put(entry)
        for _ in range(OBJECTS_AT_ONCE):
            await waiting.put(None)

    large = asyncio.Semaphore(LARGE_AT_ONCE)

    async def work() -> None:
        while (entry := await waiting.get()) is not None:
            async with large if entry.size > PIECE_BYTES else nullcontext():
                await _copy_object(origin, entry, goal, join(prefix, entry.path), counter)

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(find())
            for _ in range(OBJECTS_AT_ONCE):
                group.create_task(work())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return counter.tally


async def _copy_object(
    origin: StorageBackend, entry: ObjectInfo, goal: StorageBackend, key: str, counter: _Counter
) -> None:
    told = 0

    def progress(done: int) -> None:
        nonlocal told
        counter.moved(done - told)
        told = done

    copied = 0
    async with (
        goal.open_writer(key, size=entry.size, progress=progress) as writer,
        aclosing(read_pieces(origin, entry.path, entry.size)) as pieces,
    ):
        async for piece in pieces:
            await writer.write(piece)
            copied += len(piece)
    # A writer need not have told of its last bytes when it is done.
    counter.moved(copied - told, objects=1)


async def _is_folder(url: str, options: StorageOptions) -> bool:
    folder, key = split_object_url(url)
    if url.endswith("/") or not key:
        return True
    return os.path.isdir(os.path.join(folder, key)) if "://" not in folder else await holds_objects(url, options)


def _refuse_same(source: str, target: str) -> None:
    if f"{target}/".startswith(f"{source}/"):
        raise InvalidInput(f"cannot copy {source} to {target}: it would be copied onto or into itself")
