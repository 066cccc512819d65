"""The blocking twin of a storage: the same methods without `await`, from any thread."""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import Self

from strata import background
from strata.errors import InvalidInput
from strata.storage.backend import Data, ObjectInfo, Progress, StorageBackend, StorageWriter, checked_keys

LISTED_AT_ONCE = 500


class BlockingWriter:
    """The blocking twin of a streaming writer."""

    def __init__(self, writer: StorageWriter) -> None:
        self._writer = writer

    def write(self, data: Data) -> None:
        background.run(self._writer.write(data))

    def commit(self) -> None:
        background.run(self._writer.commit())

    def abort(self) -> None:
        background.run(self._writer.abort())


class BlockingStorage:
    """`BlockingStorage(storage).write(…)` does what `await storage.write(…)` does."""

    def __init__(self, storage: StorageBackend) -> None:
        if not isinstance(storage, StorageBackend):
            raise InvalidInput(
                f"BlockingStorage takes a storage, such as open_storage gives, not {type(storage).__name__}"
            )
        self.storage = storage

    def __repr__(self) -> str:
        return f"BlockingStorage({self.storage!r})"

    @property
    def url(self) -> str:
        return self.storage.url

    def write(self, path: str, data: Data, *, progress: Progress | None = None) -> None:
        background.run(self.storage.write(path, data, progress=progress))

    def read(self, path: str, *, progress: Progress | None = None) -> bytes:
        return background.run(self.storage.read(path, progress=progress))

    def exists(self, path: str) -> bool:
        return background.run(self.storage.exists(path))

    def delete(self, path: str) -> None:
        background.run(self.storage.delete(path))

    def delete_many(self, paths: Iterable[str]) -> None:
        background.run(self.storage.delete_many(checked_keys(paths)))

    def size(self, path: str) -> int:
        return background.run(self.storage.size(path))

    def read_range(self, path: str, start: int, length: int) -> memoryview:
        return background.run(self.storage.read_range(path, start, length))

    def read_ranges(
        self, path: str, ranges: Sequence[tuple[int, int]], *, version: str | None = None
    ) -> list[memoryview]:
        return background.run(self.storage.read_ranges(path, ranges, version=version))

    def read_into(self, path: str, start: int, targets: Sequence[Data]) -> None:
        background.run(self.storage.read_into(path, start, targets))

    def list_all(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return _drain(self.storage.list_all(prefix))

    def list_folder(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return _drain(self.storage.list_folder(prefix))

    def put_if_absent(self, path: str, data: Data) -> None:
        background.run(self.storage.put_if_absent(path, data))

    def read_versioned(self, path: str) -> tuple[bytes, str]:
        return background.run(self.storage.read_versioned(path))

    def version(self, path: str) -> str:
        return background.run(self.storage.version(path))

    def compare_and_swap(self, path: str, data: Data, version: str | None) -> str:
        return background.run(self.storage.compare_and_swap(path, data, version))

    @contextmanager
    def open_writer(
        self, path: str, *, size: int | None = None, progress: Progress | None = None
    ) -> Iterator[BlockingWriter]:
        opened = self.storage.open_writer(path, size=size, progress=progress)
        writer = background.run(_enter(opened))
        try:
            yield BlockingWriter(writer)
        except BaseException as error:
            background.run_while_alive(partial(_leave, opened, error))
            raise
        background.run(_leave(opened, None))

    def close(self) -> None:
        background.run_while_alive(self.storage.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _enter(opened: AbstractAsyncContextManager[StorageWriter]) -> StorageWriter:
    return await opened.__aenter__()


async def _leave(opened: AbstractAsyncContextManager[StorageWriter], error: BaseException | None) -> None:
    await opened.__aexit__(type(error) if error else None, error, error.__traceback__ if error else None)


def _drain(listing: AsyncIterator[ObjectInfo]) -> Iterator[ObjectInfo]:
    """Page by page: neither a hop between threads for each entry, nor everything at once."""
    try:
        while page := background.run(_page(listing)):
            yield from page
    finally:
        background.run_while_alive(partial(_stop, listing))


async def _page(listing: AsyncIterator[ObjectInfo]) -> list[ObjectInfo]:
    page: list[ObjectInfo] = []
    async for entry in listing:
        page.append(entry)
        if len(page) >= LISTED_AT_ONCE:
            break
    return page


async def _stop(listing: AsyncIterator[ObjectInfo]) -> None:
    close = getattr(listing, "aclose", None)
    if close is not None:
        await close()
