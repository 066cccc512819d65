"""One checkpoint from the local disk to the storage behind: the same files under the same names.

manifests of parts    first: whoever looks sees that the folder is taken
files                 read in stretches, each verified before it goes on; what is there already is not sent again
metadata.json         last, where none is: the commit

What a crash leaves is taken up again: a file's name says which attempt wrote it, and an object is there whole or not at
all. Damage on the local disk goes nowhere: a file appears only once all of it was verified.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import NamedTuple, TypeAlias

from strata.checkpoint.frameworks import Block
from strata.checkpoint.manifest import METADATA, File, Metadata, Part, PartRef, digest_of, encode_metadata
from strata.checkpoint.readers import claimed, marked
from strata.checkpoint.store import Folder, Store, folder_named, folders_of
from strata.errors import CheckpointDamaged, Conflict, ObjectCorrupt, ObjectExists, ObjectNotFound
from strata.storage.direct import aligned
from strata.storage.threads import DaemonThreads

STRETCH_BYTES = 32 << 20
PART = "part-"
"""So begin the names of files that carry the attempt."""


class Taken(Conflict):
    """Another checkpoint has its place."""


class Span(NamedTuple):
    """Some bytes of a file, and their digest."""

    at: int
    size: int
    digest: str
    what: str = ""

    @property
    def end(self) -> int:
        return self.at + self.size


Proven: TypeAlias = dict[str, set[Span]]
"""By the file's path."""


class Stretch(NamedTuple):
    """What is read at once: spans are in it whole. Between them may be bytes that nobody refers to."""

    start: int
    end: int
    spans: list[Span]


class Upload:
    """Of one checkpoint. `check` raises if it must not be there any more; `done` counts the bytes of its files.

    `proven` is what is known of files in the storage behind: spans that were verified when they went there, or since.
    """

    def __init__(
        self, near: Store, far: Store, folder: Folder, check: Callable[[], Awaitable[object]], proven: Proven
    ) -> None:
        self._near, self._far, self.folder, self._check, self._proven = near, far, folder, check, proven
        self.bytes = 0
        self.done = 0

    async def run(self) -> None:
        metadata = await self._near.metadata(self.folder)
        names = sorted({self.folder.name, *folders_of(metadata.references)})
        async with marked(self._near, self.folder), claimed(self._far, names):
            if await self._is_committed(metadata):
                return
            parts = await self._near.parts(self.folder)
            self.bytes, self.done = sum(file.size for part in parts for file in part.files), 0
            for reference in metadata.parts:
                await self._put_part(reference)
            await self._check()
            for part in parts:
                spans = spans_of(part)
                for file in part.files:
                    await self._put_file(file, spans[file.path])
            await self._check()
            await self._commit(metadata)
        for path in self._proven.keys() - {file.path for part in parts for file in part.files}:
            del self._proven[path]

    async def _put_part(self, reference: PartRef) -> None:
        key = self._far.key(reference.path)
        data = await self._near.storage.read(self._near.key(reference.path))
        if digest_of(data) != reference.digest:
            raise CheckpointDamaged(f"{self._near.storage.url}/{key} changed while it was read")
        try:
            await self._far.storage.put_if_absent(key, data)
        except ObjectExists:
            if await self._far.storage.read(key) != data:
                await self._far.storage.write(key, data)

    async def _put_file(self, file: File, spans: list[Span]) -> None:
        done = self.done
        if not await self._is_there(file, spans):
            await self._check()
            async with (
                self._far.storage.open_writer(self._far.key(file.path), size=file.size) as writer,
                aclosing(verified(self._near, file, spans)) as pieces,
            ):
                async for piece in pieces:
                    await writer.write(piece)
                    self.done += len(piece)
        self._proven.setdefault(file.path, set()).update(spans)
        self.done = done + file.size

    async def _is_there(self, file: File, spans: list[Span]) -> bool:
        """By name and size, since the name says who wrote it; where it does not, by what is in it."""
        try:
            size = await self._far.storage.size(self._far.key(file.path))
        except ObjectNotFound:
            return False
        if size != file.size:
            return False
        if file.path.rpartition("/")[2].startswith(PART):
            await self._prove(file, spans)
            return True
        try:
            await _read_through(self._far, file, spans)
        except CheckpointDamaged:
            return False
        return True

    async def _prove(self, file: File, spans: list[Span]) -> None:
        """Another checkpoint that refers to the file may have sent it, and verified no more of it than it needs. What
        is sound on the local disk now was so then."""
        if not self._proven.get(file.path, set()).issuperset(spans) and not await self._owner_is_there(file):
            await _read_through(self._near, file, spans)

    async def _owner_is_there(self, file: File) -> bool:
        """All of the file was verified when its own checkpoint went there."""
        folder = folder_named(file.path.partition("/")[0])
        if folder is None or folder == self.folder:
            return False
        try:
            return (await self._far.metadata(folder)).attempt in file.path
        except (ObjectNotFound, CheckpointDamaged):
            return False

    async def _commit(self, metadata: Metadata) -> None:
        key = self._far.key(self.folder.name, METADATA)
        try:
            await self._far.storage.put_if_absent(key, encode_metadata(metadata))
        except ObjectExists:
            await self._is_committed(metadata)

    async def _is_committed(self, metadata: Metadata) -> bool:
        """Taken if it is another one."""
        self._far.forget(self.folder)
        try:
            there = await self._far.metadata(self.folder)
        except ObjectNotFound:
            return False
        if there.attempt != metadata.attempt:
            await self._check()
            raise Taken(
                f"{self._far.storage.url}/{self._far.key(self.folder.name)} is another checkpoint of step "
                f"{self.folder.step}: this one stays on the local disk alone"
            )
        return True


# -- reading what is verified ------------------------------------------------------------------------------------------


async def verified(store: Store, file: File, spans: Iterable[Span]) -> AsyncGenerator[Block, None]:
    """The file's bytes, in order. Each stretch is overwritten by the next. CheckpointDamaged names what is wrong."""
    key = store.key(file.path)
    where = f"{store.storage.url}/{key}"
    stretches = list(_stretches(file.size, spans))
    memory = aligned(max((each.end - each.start for each in stretches), default=0))
    loop, threads = asyncio.get_running_loop(), DaemonThreads(1, "strata-verify")
    try:
        if await store.storage.size(key) != file.size:
            raise CheckpointDamaged(f"{where} is not {file.size:,} bytes long, as it was written")
        for stretch in stretches:
            block = memory[: stretch.end - stretch.start]
            await store.storage.read_into(key, stretch.start, [block])
            bad = await loop.run_in_executor(threads, _first_bad, stretch, block)
            if bad is not None:
                raise CheckpointDamaged(
                    f"{where} is damaged: {bad.what}, {bad.size:,} bytes at {bad.at:,}, is not what was written"
                )
            yield block
    except (ObjectNotFound, ObjectCorrupt) as error:
        raise CheckpointDamaged(f"{where} is missing or too short: {error}") from error
    finally:
        threads.shutdown(wait=False)


async def _read_through(store: Store, file: File, spans: Iterable[Span]) -> None:
    async for _ in verified(store, file, spans):
        pass


def _first_bad(stretch: Stretch, block: Block) -> Span | None:
    for span in stretch.spans:
        if digest_of(block[span.at - stretch.start : span.end - stretch.start]) != span.digest:
            return span
    return None


def spans_of(part: Part) -> dict[str, list[Span]]:
    """What the part says of the bytes of each of its files."""
    found = [
        [Span(0, file.header_size, file.header_digest, "its header")] if file.header_size else [] for file in part.files
    ]
    for tensor in part.tensors:
        for chunk in tensor.chunks:
            found[chunk.file].append(Span(chunk.at, chunk.size, chunk.digest, f"tensor {tensor.name!r}"))
    return {file.path: spans for file, spans in zip(part.files, found, strict=True)}


def _stretches(size: int, spans: Iterable[Span]) -> Iterator[Stretch]:
    """All of the file, in stretches of a fair size that cut no span."""
    start = end = 0
    inside: list[Span] = []
    for span in _gapless(size, spans):
        if span.at >= end > start and span.end - start > STRETCH_BYTES:
            yield Stretch(start, end, inside)
            start, inside = end, []
        end = max(end, span.end)
        if span.digest:
            inside.append(span)
    if end > start:
        yield Stretch(start, end, inside)


def _gapless(size: int, spans: Iterable[Span]) -> Iterator[Span]:
    """In order, with spans that have no digest for what is between them."""
    at = 0
    for span in [*sorted(spans), Span(size, 0, "")]:
        for start in range(at, span.at, STRETCH_BYTES):
            yield Span(start, min(STRETCH_BYTES, span.at - start), "")
        at = max(at, span.end)
        if span.size:
            yield span
