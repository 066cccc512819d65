"""What S3, Google Cloud Storage and Azure have in common, on obstore.

obstore retries what failed in transit, each part by itself, and aborts an upload whose source fails. What it leaves to
its caller is done here: cancelling is turned into a failing source, so that no parts stay behind; an answer that was
lost is looked up, since a repeated conditional write would take its own first try for another writer; large reads go in
parallel; and its errors become Strata's.
"""

import asyncio
import io
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from itertools import chain
from typing import Any, Self, TypeVar

import msgspec
import numpy as np

from strata.core.ids import check_instance, check_texts
from strata.errors import (
    InvalidInput,
    ObjectCorrupt,
    ObjectNotFound,
    StorageError,
    StorageUnavailable,
)
from strata.storage.backend import (
    Data,
    ObjectInfo,
    Progress,
    StorageOptions,
    byte_view,
    checked_keys,
    checked_progress,
    checked_ranges,
    checked_targets,
)
from strata.storage.client import obstore
from strata.storage.keys import check_key, check_prefix, join
from strata.storage.obstore_errors import Hints, LostRace, is_obstores, translated
from strata.storage.parts import Aborted, Block, Feed, Loans, Upload, part_bytes_for
from strata.storage.partwriter import PartWriter
from strata.storage.refusals import changed_meanwhile, exists_already, was_closed

T = TypeVar("T")

WRITER = "stratawriter"
"""The attribute that says which request wrote an object."""
LISTED_AT_ONCE = 1000
CONFLICT_TRIES = 10
READ_TRIES = 3


class ObjectStorage:
    """A bucket, or a prefix in one. Subclasses say how to make obstore's store, and what its errors mean."""

    deletes_in_bulk = False
    hints: Hints = ()
    """What to do about an error, by a pattern of its words."""

    def __init__(
        self, url: str, prefix: str, make: Callable[[Any, dict[str, Any]], Any], options: StorageOptions | None
    ):
        check_instance(options, StorageOptions, "options")
        self.options = StorageOptions() if options is None else options
        self._prefix = check_prefix(prefix)
        self._url = join(url, self._prefix) if self._prefix else url
        self._make = make
        self._stores: dict[int, Any] = {}
        self.spare: list[Block] = []
        self.closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    @property
    def url(self) -> str:
        return self._url

    # -- objects -----------------------------------------------------------------------------------------------------

    @property
    def stream_bytes(self) -> int:
        """What a writer of `open_writer` holds in memory."""
        return self.options.part_bytes * self.options.concurrency

    async def write(self, path: str, data: Data, *, progress: Progress | None = None) -> None:
        checked_progress(progress)
        key, view = self._key(path), byte_view(data)
        if view.nbytes <= self.options.part_bytes:
            with self.told(path, "write"):
                await obstore().put_async(self._store(path), key, view, use_multipart=False)
            if progress:
                progress(view.nbytes)
            return
        await self._write_parts(path, key, view, progress)

    async def _write_parts(self, path: str, key: str, view: memoryview, progress: Progress | None) -> None:
        source = np.frombuffer(view, np.uint8)
        part_bytes = part_bytes_for(view.nbytes, self.options.part_bytes)
        done = 0

        def uploaded(part: Block) -> None:
            nonlocal done
            done += len(part)
            if progress:
                progress(done)

        loans, feed = Loans(uploaded), Feed(1)
        upload = self.start_upload(path, key, feed, part_bytes)

        async def lend() -> None:
            try:
                for start in range(0, len(source), part_bytes):
                    await feed.put(loans.lend(source[start : start + part_bytes]))
                await feed.end()
            except Exception as error:  # noqa: BLE001  the upload raises it
                feed.fail(error)

        lending = asyncio.ensure_future(lend())
        try:
            await self.finish_upload(upload)
        finally:
            lending.cancel()

    async def put_if_absent(self, path: str, data: Data) -> None:
        try:
            await self._put_conditionally(path, byte_view(data), "create")
        except LostRace:
            raise exists_already(self.url, path) from None

    async def read_versioned(self, path: str) -> tuple[bytes, str]:
        with self.told(path, "read"):
            found = await obstore().get_async(self._store(path), self._key(path))
            return bytes(await found.bytes_async()), _version(found.meta)

    async def version(self, path: str) -> str:
        return _version(await self._head(path))

    async def compare_and_swap(self, path: str, data: Data, version: str | None) -> str:
        check_texts(version=version)
        try:
            mode = "create" if version is None else msgspec.json.decode(version, type=dict[str, str])
        except msgspec.DecodeError:
            raise InvalidInput(f"{version!r} is not a version: take it from read_versioned") from None
        try:
            return await self._put_conditionally(path, byte_view(data), mode)
        except (LostRace, ObjectNotFound):
            raise changed_meanwhile(self.url, path) from None

    async def _put_conditionally(self, path: str, view: memoryview, mode: str | dict[str, str]) -> str:
        key, writer = self._key(path), secrets.token_hex(16)
        for left in reversed(range(CONFLICT_TRIES)):
            try:
                with self.told(path, "write"):
                    mark = {WRITER: writer}
                    return _version(await obstore().put_async(self._store(path), key, view, mode=mode, attributes=mark))
            except (LostRace, StorageUnavailable) as error:
                # An earlier try of this very request may have been it, and its answer lost.
                seen, version = await self._writer_of(path, key)
                if seen == writer:
                    return version
                if isinstance(error, StorageUnavailable) or seen is not None or mode != "create" or not left:
                    raise
            # Nobody's object is there: a store may say so while another request is under way.
            await asyncio.sleep(0.05 * (CONFLICT_TRIES - left) * (0.5 + secrets.randbelow(100) / 100))
        raise AssertionError("unreachable")

    async def _writer_of(self, path: str, key: str) -> tuple[str | None, str]:
        """Which request wrote what is there, "" for a plain write, None for no object; and its version."""
        try:
            found = await self._get(path, key, {"head": True})
            return str(found.attributes.get(WRITER, "")), _version(found.meta)
        except ObjectNotFound:
            return None, ""

    async def read(self, path: str, *, progress: Progress | None = None) -> bytes:
        checked_progress(progress)
        return await self._of_one_version(path, lambda: self._read_whole(path, progress))

    async def _read_whole(self, path: str, progress: Progress | None) -> bytes:
        key, part = self._key(path), self.options.part_bytes
        try:
            first = await self._get(path, key, {"range": (0, part)})
        except ObjectCorrupt:  # an empty object has no first byte
            first = await self._get(path, key, {})
        size, tag = first.meta["size"], first.meta["e_tag"]
        count = _Count(progress)
        # Pieces take their places as they come: joined at the end, they would need the memory twice.
        whole = io.BytesIO()

        def place(start: int, piece: Any) -> None:
            whole.seek(start)
            whole.write(count.add(piece))

        async def place_first() -> None:
            with self.told(path, "read"):
                piece = await first.bytes_async()
            if len(piece) < min(part, size):
                raise self._too_short(path, 0, min(part, size))
            place(0, piece)

        ranges = [(start, min(part, size - start)) for start in range(part, size, part)]
        await _all([place_first(), self._get_ranges(path, ranges, tag, place)])
        return whole.getvalue()

    async def read_range(self, path: str, start: int, length: int) -> memoryview:
        (view,) = await self.read_ranges(path, [(start, length)])
        return view

    async def read_ranges(
        self, path: str, ranges: Sequence[tuple[int, int]], *, version: str | None = None
    ) -> list[memoryview]:
        ranges = checked_ranges(ranges)
        check_texts(version=version)
        part = self.options.part_bytes
        pieces = [
            [(at, min(part, start + length - at)) for at in range(start, start + length, part)]
            for start, length in ranges
        ]
        found = iter(await self._of_one_version(path, lambda: self._read_pieces(path, [*chain(*pieces)], version)))
        taken = [[next(found) for _ in mine] for mine in pieces]
        return [memoryview(mine[0] if len(mine) == 1 else b"".join(mine)) for mine in taken]

    async def read_into(self, path: str, start: int, targets: Sequence[Data]) -> None:
        views = checked_targets(start, targets)
        found = await self.read_range(path, start, sum(map(len, views)))
        done = 0
        for view in views:
            view[:] = found[done : done + len(view)]
            done += len(view)

    async def _read_pieces(self, path: str, ranges: list[tuple[int, int]], version: str | None) -> list[Any]:
        """The first one tells the version; the others must be of the same."""
        if not ranges:
            self._check_version(path, await self._head(path), version)
            return []
        (start, length), *rest = ranges
        first = await self._get(path, self._key(path), {"range": (start, start + length)})
        self._check_version(path, first.meta, version)
        with self.told(path, "read"):
            piece = await first.bytes_async()
        if len(piece) < length:
            raise self._too_short(path, start, length)
        return [piece, *await self._get_ranges(path, rest, first.meta["e_tag"], lambda _, piece: piece)]

    def _check_version(self, path: str, meta: Any, wanted: str | None) -> None:
        if wanted not in (None, _version(meta)):
            raise changed_meanwhile(self.url, path)

    async def _of_one_version(self, path: str, read: Callable[[], Awaitable[T]]) -> T:
        """Read again if the object is replaced meanwhile; not for ever."""
        for _ in range(READ_TRIES):
            try:
                return await read()
            except LostRace:
                continue
        raise StorageUnavailable(
            f"cannot read {path!r} from {self.url}: it is replaced again and again meanwhile",
            storage=self.url,
            key=path,
        )

    async def _get_ranges(
        self, path: str, ranges: Sequence[tuple[int, int]], tag: str | None, done: Callable[[int, Any], Any]
    ) -> list[Any]:
        key, lanes = self._key(path), asyncio.Semaphore(self.options.concurrency)
        condition = {} if tag is None else {"if_match": tag}

        async def get(start: int, length: int) -> Any:
            async with lanes:
                found = await self._get(path, key, {"range": (start, start + length), **condition})
                with self.told(path, "read"):
                    piece = await found.bytes_async()
            if len(piece) < length:
                raise self._too_short(path, start, length)
            return done(start, piece)

        return await _all([get(start, length) for start, length in ranges])

    async def _get(self, path: str, key: str, options: dict[str, Any]) -> Any:
        with self.told(path, "read"):
            return await obstore().get_async(self._store(path), key, options=options)

    def _too_short(self, path: str, start: int, length: int) -> ObjectCorrupt:
        return ObjectCorrupt(
            f"{path!r} in {self.url} ends before the {length} bytes from {start} that were asked for",
            storage=self.url,
            key=path,
        )

    async def exists(self, path: str) -> bool:
        try:
            await self._head(path)
        except ObjectNotFound:
            return False
        return True

    async def size(self, path: str) -> int:
        return int((await self._head(path))["size"])

    async def _head(self, path: str) -> Any:
        key = self._key(path)
        with self.told(path, "look at"):
            return await obstore().head_async(self._store(path), key)

    async def delete(self, path: str) -> None:
        key = self._key(path)
        try:
            with self.told(path, "delete"):
                await obstore().delete_async(self._store(path), key)
        except ObjectNotFound:
            return

    async def delete_many(self, paths: Iterable[str]) -> None:
        wanted = checked_keys(paths)
        keys = [self._key(path) for path in wanted]
        if not keys:
            return
        if self.deletes_in_bulk:
            with self.told(wanted[0], "delete"):
                await obstore().delete_async(self._store(wanted[0]), keys)
            return
        lanes = asyncio.Semaphore(self.options.concurrency)

        async def delete(path: str) -> None:
            async with lanes:
                await self.delete(path)

        await _all([delete(path) for path in wanted])

    # -- listings ----------------------------------------------------------------------------------------------------

    async def list_all(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        folder = self._folder(prefix)
        with self.told(prefix, "list"):
            stream = obstore().list(self._store(prefix), prefix=folder or None, chunk_size=LISTED_AT_ONCE)
        while True:
            with self.told(prefix, "list"):
                try:
                    page = await stream.__anext__()
                except StopAsyncIteration:
                    return
            for entry in page:
                if entry["path"] != folder:  # what some tools put in the place of a folder
                    yield self._info(entry)

    async def list_folder(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        folder = self._folder(prefix)
        with self.told(prefix, "list"):
            found = await obstore().list_with_delimiter_async(self._store(prefix), folder or None)
        for name in found["common_prefixes"]:
            yield ObjectInfo(f"{self._own(str(name))}/", 0, 0.0)
        for entry in found["objects"]:
            if entry["path"] != folder:
                yield self._info(entry)

    def _info(self, entry: Any) -> ObjectInfo:
        return ObjectInfo(self._own(entry["path"]), entry["size"], entry["last_modified"].timestamp())

    # -- streams -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def open_writer(
        self, path: str, *, size: int | None = None, progress: Progress | None = None
    ) -> AsyncIterator["PartWriter"]:
        writer = PartWriter(self, path, self._key(path), part_bytes_for(size, self.options.part_bytes), progress)
        try:
            yield writer
            await writer.commit()
        except BaseException:
            await writer.abort()
            raise

    def start_upload(self, path: str, key: str, feed: Feed, part_bytes: int) -> "Upload":
        """Begin to pull parts from the feed."""
        writer = secrets.token_hex(16)
        with self.told(path, "write"):
            put = obstore().put_async(
                self._store(path),
                key,
                feed.parts(),
                attributes={WRITER: writer},
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=self.options.concurrency,
            )
        return Upload(path, key, feed, asyncio.ensure_future(_awaited(put)), writer)

    async def finish_upload(self, upload: "Upload") -> None:
        """Wait for it. A cancellation makes its source fail, so that the client removes the parts: wait for that."""
        try:
            with self.told(upload.path, "write"):
                await asyncio.shield(upload.ending)
        except asyncio.CancelledError:
            await self.abort_upload(upload)
            raise
        except ObjectNotFound as error:
            # A store that completed it, and whose answer was lost, knows nothing of it when asked again.
            if (await self._writer_of(upload.path, upload.key))[0] != upload.writer:
                raise StorageUnavailable(
                    f"cannot write {upload.path!r} in {self.url}: the upload is gone. Write it again",
                    storage=self.url,
                    key=upload.path,
                ) from error

    async def abort_upload(self, upload: "Upload") -> None:
        upload.feed.fail(Aborted("the upload is not wanted any more", storage=self.url, key=upload.path))
        await asyncio.wait({upload.ending}, timeout=self.options.timeout_seconds + self.options.retry_seconds)
        if upload.ending.done() and not upload.ending.cancelled():
            upload.ending.exception()

    # -- the end -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        self.closed = True
        self._stores.clear()
        self.spare.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _store(self, path: str) -> Any:
        if self.closed:
            raise was_closed(self.url, path)
        store = self._stores.get(os.getpid())
        if store is None:
            store = self._stores.setdefault(os.getpid(), self._make(obstore(), _client(self.options)))
        return store

    def _key(self, path: str) -> str:
        return join(self._prefix, check_key(path))

    def _folder(self, prefix: str) -> str:
        folder = check_prefix(prefix)
        return join(self._prefix, folder) if folder else self._prefix

    def _own(self, key: str) -> str:
        return key[len(self._prefix) + 1 :] if self._prefix else key

    @contextmanager
    def told(self, path: str, doing: str) -> Iterator[None]:
        """What obstore raises inside, in Strata's terms."""
        try:
            yield
        except (StorageError, InvalidInput):
            raise
        except Exception as error:
            if not is_obstores(error):
                raise
            raise translated(error, self.url, path, doing, self.hints) from error


class _Count:
    """Bytes done, told as they come."""

    def __init__(self, progress: Progress | None) -> None:
        self._done = 0
        self._progress = progress

    def add(self, piece: Any) -> Any:
        self._done += len(piece)
        if self._progress:
            self._progress(self._done)
        return piece


def _client(options: StorageOptions) -> dict[str, Any]:
    return {
        "client_options": {
            "timeout": timedelta(seconds=options.timeout_seconds),
            "connect_timeout": timedelta(seconds=options.connect_seconds),
        },
        "retry_config": {
            "max_retries": options.retries,
            "retry_timeout": timedelta(seconds=options.retry_seconds),
            "backoff": {
                "init_backoff": timedelta(seconds=0.1),
                "max_backoff": timedelta(seconds=10),
                "base": 2,
            },
        },
    }


def _version(meta: Any) -> str:
    told = {name: meta[name] for name in ("e_tag", "version") if meta.get(name)}
    return msgspec.json.encode(told).decode()


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _all(coroutines: Sequence[Awaitable[T]]) -> list[T]:
    """All of them, however some end; then the first error, if any."""
    results = await asyncio.gather(*coroutines, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
