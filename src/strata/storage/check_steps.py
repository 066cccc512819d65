"""What a storage promises, each tried for real in a folder of its own. A step returns a remark, or raises."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter

from strata.errors import ObjectChanged, ObjectCorrupt, ObjectExists
from strata.storage.backend import MIB, StorageBackend
from strata.storage.check_local import Broken, Remark
from strata.storage.keys import join
from strata.texts import readable_bytes

SMALL = bytes(range(256)) * 16
PIECE_BYTES = 4 * MIB
PIECES = 6
RACERS = 8
REMOVED_AT_ONCE = 1000

_UNSAFE = "two writers could both believe that they committed. Use a store, or a version of this one, that honours it"


class _Unwanted(Exception):
    """Ends a stream that is to be aborted."""


class Trial:
    """The steps, in the order in which each relies on those before."""

    def __init__(self, storage: StorageBackend, folder: str) -> None:
        self.storage = storage
        self.folder = folder
        self.wrote = False

    async def write(self) -> Remark:
        await self.storage.write(self._key("small"), SMALL)
        self.wrote = True
        return Remark()

    async def read_back(self) -> Remark:
        await self._expect("small", SMALL)
        return Remark()

    async def read_a_range(self) -> Remark:
        key = self._key("small")
        first, last = await self.storage.read_ranges(key, [(100, 500), (len(SMALL) - 7, 7)])
        if first != SMALL[100:600] or last != SMALL[-7:]:
            raise Broken("the bytes of a range are not those that were written there")
        try:
            await self.storage.read_range(key, len(SMALL) - 7, 8)
        except ObjectCorrupt:
            return Remark()
        raise Broken("a range beyond the object's end was answered: an object cut short would not be noticed")

    async def list_everything(self) -> Remark:
        await self.storage.write(self._key("tree/one"), b"1")
        await self.storage.write(self._key("tree/deep/two"), b"22")
        found = {entry.path: entry.size async for entry in self.storage.list_all(self._key("tree"))}
        self._compare(found, {"tree/one": 1, "tree/deep/two": 2})
        return Remark()

    async def list_one_folder(self) -> Remark:
        found = {entry.path: entry.size async for entry in self.storage.list_folder(self._key("tree"))}
        self._compare(found, {"tree/one": 1, "tree/deep/": 0})
        return Remark()

    async def overwrite(self) -> Remark:
        await self.storage.write(self._key("small"), SMALL[:99])
        await self._expect("small", SMALL[:99])
        return Remark()

    async def stream_large(self) -> Remark:
        pieces = [bytes([number]) * PIECE_BYTES for number in range(PIECES)]
        began = perf_counter()
        await self._stream("large", pieces)
        written = perf_counter()
        for number, piece in enumerate(pieces):
            found = await self.storage.read_range(self._key("large"), number * PIECE_BYTES, PIECE_BYTES)
            if bytes(found) != piece:  # views are compared item by item
                raise Broken("a large object is not what was written: do not keep anything here")
        size = PIECES * PIECE_BYTES
        speeds = (readable_bytes(size / seconds) for seconds in (written - began, perf_counter() - written))
        return Remark("written at {}/s, read at {}/s".format(*speeds))

    async def abort_a_stream(self) -> Remark:
        with suppress(_Unwanted):
            await self._stream("aborted", [bytes(PIECE_BYTES)] * (PIECES // 2), abort=True)
        if await self.storage.exists(self._key("aborted")):
            raise Broken("a write that was given up left an object: what is found here need not be whole")
        return Remark("left nothing")

    async def put_if_absent(self) -> Remark:
        await self.storage.put_if_absent(self._key("once"), b"first")
        try:
            await self.storage.put_if_absent(self._key("once"), b"second")
        except ObjectExists:
            await self._expect("once", b"first")
            return Remark()
        raise Broken(f"an object was replaced that was to be put only if absent: {_UNSAFE}")

    async def race(self) -> Remark:
        async def put(racer: int) -> bool:
            try:
                await self.storage.put_if_absent(self._key("race"), b"%d" % racer)
            except ObjectExists:
                return False
            return True

        won = await asyncio.gather(*(put(racer) for racer in range(RACERS)))
        if sum(won) != 1:
            raise Broken(f"{sum(won)} of {RACERS} racing writers were told that they were first: {_UNSAFE}")
        await self._expect("race", b"%d" % won.index(True))
        return Remark("one winner")

    async def compare_and_swap(self) -> Remark:
        key = self._key("swapped")
        first = await self.storage.compare_and_swap(key, b"1", None)
        await self.storage.compare_and_swap(key, b"2", first)
        _, version = await self.storage.read_versioned(key)
        await self.storage.compare_and_swap(key, b"3", version)
        for stale in (first, None):
            try:
                await self.storage.compare_and_swap(key, b"stale", stale)
            except ObjectChanged:
                continue
            raise Broken(f"a version was replaced that was no longer there: {_UNSAFE}")
        await self._expect("swapped", b"3")
        return Remark("a stale version was refused")

    async def delete(self) -> Remark:
        for _ in range(2):  # what is not there is as good as deleted
            await self.storage.delete(self._key("small"))
        if await self.storage.exists(self._key("small")):
            raise Broken("a deleted object is still there")
        return Remark()

    async def clean_up(self) -> Remark:
        batch: list[str] = []
        async for entry in self.storage.list_all(self.folder):
            batch.append(entry.path)
            if len(batch) == REMOVED_AT_ONCE:
                await self.storage.delete_many(batch)
                batch.clear()
        await self.storage.delete_many(batch)
        return Remark()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _key(self, name: str) -> str:
        return join(self.folder, name)

    async def _expect(self, name: str, expected: bytes) -> None:
        found = await self.storage.read(self._key(name))
        if found != expected:
            what = f"{len(found)} bytes instead of {len(expected)}" if len(found) != len(expected) else "other bytes"
            raise Broken(f"what was read is not what was written ({what}): do not keep anything here")

    def _compare(self, found: dict[str, int], expected: dict[str, int]) -> None:
        wanted = {self._key(name): size for name, size in expected.items()}
        if found != wanted:
            raise Broken(f"the listing says {found} where {wanted} was written")

    async def _stream(self, name: str, pieces: Sequence[bytes], *, abort: bool = False) -> None:
        size = sum(map(len, pieces))
        async with self.storage.open_writer(self._key(name), size=size) as writer:
            for piece in pieces:
                await writer.write(piece)
            if abort:
                raise _Unwanted
