"""The one suite that every storage passes. Subclass it for a storage of your own:

    class TestMyStorage(StorageTests):
        @pytest.fixture
        def storage(self, tmp_path):
            return MyStorage(tmp_path)

Each test gets a storage that is empty, or a prefix that is.
"""

import array
import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest

from strata import background
from strata.errors import (
    InvalidInput,
    ObjectChanged,
    ObjectCorrupt,
    ObjectExists,
    ObjectNotFound,
    StorageError,
    StorageUnavailable,
)
from strata.storage.backend import ObjectInfo, StorageBackend
from strata.storage.blocking import BlockingStorage

BAD_KEYS = [
    "",
    "/absolute",
    "../outside",
    "a/../b",
    "a/..",
    "./a",
    "a//b",
    "a/",
    "nul\0",
    "new\nline",
    "back\\slash",
    ".strata-tmp/x",
    "\ud800",
    "x" * 241,
    "/".join(["folder"] * 200),
]
ODD_NAMES = [
    "with space",
    "per%20cent",
    "hash#",
    "question?",
    "plus+",
    "é-漢",
    "a:b",
    "a&b=c",
    "~tilde",
    "star*",
    "'\"",
    ".",
]
RACERS = 8
LARGE_BYTES = 37 * (1 << 20) + 12345
MANY = 1100


class StorageTests:
    """What a storage promises. `store` is its blocking twin, which the tests mostly use."""

    enforces_conditions = True
    """Whether put-if-absent and compare-and-swap exclude. Every storage must; some test servers do not."""

    forgets_empty_folders = True
    """Whether a folder goes with its last object. Every storage should; a test server may take its time."""

    writes_at_once = False
    """Whether a piece is written before anything else can happen, as in memory."""

    outlives_the_process = True
    """Whether another process sees the objects."""

    @pytest.fixture
    def storage(self) -> StorageBackend:
        raise NotImplementedError("override the fixture `storage`")

    @pytest.fixture
    def store(self, storage: StorageBackend) -> Iterator[BlockingStorage]:
        store = BlockingStorage(storage)
        yield store
        store.close()

    @pytest.fixture
    def large(self) -> bytes:
        """More than two parts, and no whole number of blocks."""
        return _large()

    def needs_conditions(self) -> None:
        if not self.enforces_conditions:
            pytest.skip("this test server does not enforce conditional writes")

    # -- objects -----------------------------------------------------------------------------------------------------

    def test_it_is_a_storage_backend(self, storage: StorageBackend) -> None:
        assert isinstance(storage, StorageBackend)
        assert "://" in storage.url

    @pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 100_000])
    def test_what_is_written_is_read(self, store: BlockingStorage, size: int) -> None:
        data = os.urandom(size)
        store.write("folder/object", data)
        found = store.read("folder/object")
        assert isinstance(found, bytes)
        assert found == data
        assert store.size("folder/object") == size
        assert store.exists("folder/object")

    def test_a_large_object_is_written_and_read(self, store: BlockingStorage, large: bytes) -> None:
        store.write("large", large)
        assert store.size("large") == len(large)
        assert store.read("large") == large

    def test_a_write_replaces(self, store: BlockingStorage) -> None:
        store.write("a", b"first, and longer")
        store.write("a", b"second")
        assert store.read("a") == b"second"

    @pytest.mark.parametrize(
        "data",
        [
            bytearray(b"abcdefgh"),
            memoryview(b"abcdefgh"),
            array.array("H", [1, 2, 3, 4]),
            np.arange(6, dtype=np.float64).reshape(2, 3),
            np.arange(8, dtype=np.uint8)[2:],
            np.float32(1.5).reshape(()),
            np.empty((0, 3), np.int64),
        ],
        ids=lambda data: type(data).__name__,
    )
    def test_any_buffer_can_be_written(self, store: BlockingStorage, data: Any) -> None:
        store.write("a", data)
        assert store.read("a") == memoryview(data).tobytes()

    @pytest.mark.parametrize(
        "data",
        ["text", 7, None, np.arange(10)[::2], np.array([object()])],
        ids=["text", "number", "nothing", "strided", "objects"],
    )
    def test_what_is_not_a_contiguous_buffer_is_refused(self, store: BlockingStorage, data: Any) -> None:
        for write in (store.write, store.put_if_absent):
            with pytest.raises(InvalidInput, match="data must be"):
                write("a", data)
        assert not store.exists("a")

    def test_what_is_not_there_is_not_found(self, store: BlockingStorage) -> None:
        store.write("folder/object", b"x")
        for path in ("missing", "folder", "folder/object/below", "folder/objec"):
            assert not store.exists(path)
            for call in (store.read, store.size, store.read_versioned):
                with pytest.raises(ObjectNotFound) as raised:
                    call(path)
                assert raised.value.key == path
                assert raised.value.storage == store.url
                assert path in str(raised.value)
            with pytest.raises(ObjectNotFound):
                store.read_range(path, 0, 1)

    @pytest.mark.parametrize("key", BAD_KEYS, ids=lambda key: repr(key)[:20])
    def test_a_bad_key_is_refused_everywhere(self, store: BlockingStorage, key: str) -> None:
        calls: list[Callable[[], object]] = [
            lambda: store.write(key, b"x"),
            lambda: store.read(key),
            lambda: store.exists(key),
            lambda: store.size(key),
            lambda: store.delete(key),
            lambda: store.delete_many(["fine", key]),
            lambda: store.read_range(key, 0, 1),
            lambda: store.put_if_absent(key, b"x"),
            lambda: store.read_versioned(key),
            lambda: store.compare_and_swap(key, b"x", None),
            lambda: self._stream(store, key, [b"x"]),
        ]
        for call in calls:
            with pytest.raises(InvalidInput, match="key"):
                call()
        assert list(store.list_all()) == []

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_an_odd_name_is_a_name(self, store: BlockingStorage, name: str) -> None:
        key = f"odd/{name}x/y{name}" if name == "." else f"odd/{name}/{name}"
        store.write(key, name.encode())
        assert store.read(key) == name.encode()
        assert [entry.path for entry in store.list_all("odd")] == [key]
        store.delete(key)
        assert not store.exists(key)

    # -- deleting ----------------------------------------------------------------------------------------------------

    def test_deleting_may_be_repeated(self, store: BlockingStorage) -> None:
        store.write("folder/a", b"x")
        store.write("folder/b", b"y")
        store.delete("folder/a")
        store.delete("folder/a")
        store.delete("never")
        store.delete("folder/b/below")
        assert not store.exists("folder/a")
        assert store.read("folder/b") == b"y"

    def test_many_are_deleted_at_once(self, store: BlockingStorage) -> None:
        for number in range(5):
            store.write(f"f/{number % 2}/{number}", b"x")
        store.delete_many(["f/0/0", "f/1/1", "missing", "f/0/2"])
        store.delete_many([])
        assert sorted(entry.path for entry in store.list_all()) == ["f/0/4", "f/1/3"]

    def test_a_folder_without_objects_is_none(self, store: BlockingStorage) -> None:
        store.write("a/b/c", b"x")
        store.write("a/d", b"x")
        store.delete("a/b/c")
        if self.forgets_empty_folders:
            assert [entry.path for entry in store.list_folder("a")] == ["a/d"]
        store.write("a/b", b"now an object")
        assert store.read("a/b") == b"now an object"

    # -- ranges ------------------------------------------------------------------------------------------------------

    def test_ranges_are_read(self, store: BlockingStorage) -> None:
        data = os.urandom(100_000)
        store.write("a", data)
        assert store.read_range("a", 0, 100_000) == data
        assert store.read_range("a", 99_999, 1) == data[-1:]
        assert len(store.read_range("a", 5, 0)) == 0
        ranges = [(50_000, 10), (0, 1), (99_990, 10), (50_005, 20), (0, 100_000), (3, 0), *((n, 7) for n in range(40))]
        found = store.read_ranges("a", ranges)
        assert [bytes(piece) for piece in found] == [data[start : start + length] for start, length in ranges]
        assert all(isinstance(piece, memoryview) for piece in found)
        assert store.read_ranges("a", []) == []

    def test_a_range_beyond_the_end_is_damage(self, store: BlockingStorage) -> None:
        store.write("a", b"0123456789")
        for start, length in ((5, 6), (10, 1), (100, 5)):
            with pytest.raises(ObjectCorrupt) as raised:
                store.read_range("a", start, length)
            assert raised.value.key == "a"
        with pytest.raises(ObjectCorrupt):
            store.read_ranges("a", [(0, 5), (5, 50)])

    def test_ranges_of_another_version_than_was_asked_for_are_refused(self, store: BlockingStorage) -> None:
        store.write("a", b"0123456789")
        version = store.version("a")
        ranges = [(0, 2), (8, 2)]
        assert [bytes(found) for found in store.read_ranges("a", ranges, version=version)] == [b"01", b"89"]
        store.write("a", b"9876543210")
        for wanted in (ranges, []):
            with pytest.raises(ObjectChanged):
                store.read_ranges("a", wanted, version=version)

    def test_ranges_may_come_from_anywhere(self, store: BlockingStorage) -> None:
        store.write("data", b"0123456789")
        ranges: Any = iter([(0, 2), (8, 2), (10, 0), (99, 0)])
        assert [bytes(found) for found in store.read_ranges("data", ranges)] == [b"01", b"89", b"", b""]

    def test_bytes_are_read_into_memory_that_is_there(self, store: BlockingStorage) -> None:
        data = os.urandom(3_000_000)
        store.write("a", data)
        pieces = [bytearray(size) for size in (0, 1, 7, *[1000] * 1500, 1_000_000, 0, 5)]
        store.read_into("a", 11, pieces)
        assert b"".join(pieces) == data[11 : 11 + sum(map(len, pieces))]
        array = np.zeros((10, 3), np.uint16)
        store.read_into("a", 0, [array])
        assert array.tobytes() == data[:60]
        store.read_into("a", 3_000_000, [])

    def test_memory_is_read_into_only_from_what_is_there(self, store: BlockingStorage) -> None:
        store.write("a", b"0123456789")
        with pytest.raises(ObjectCorrupt):
            store.read_into("a", 5, [bytearray(3), bytearray(3)])
        with pytest.raises(ObjectNotFound):
            store.read_into("b", 0, [bytearray(3)])
        with pytest.raises(InvalidInput, match="read-only"):
            store.read_into("a", 0, [bytes(3)])
        with pytest.raises(InvalidInput, match="no object has"):
            store.read_into("a", -1, [bytearray(3)])

    @pytest.mark.parametrize("bad", [(-1, 5), (0, -1), (1 << 70, 1)])
    def test_a_range_that_no_object_has_is_refused(self, store: BlockingStorage, bad: tuple[int, int]) -> None:
        store.write("a", b"0123456789")
        with pytest.raises(InvalidInput, match="no object has"):
            store.read_range("a", *bad)

    # -- listings ----------------------------------------------------------------------------------------------------

    def test_listings(self, store: BlockingStorage) -> None:
        sizes = {"a/b/1": 1, "a/b/2": 2, "a/c": 3, "ab": 4, "a-b": 5, "z/y/x/w": 6}
        for key, size in sizes.items():
            store.write(key, b"x" * size)
        assert {entry.path: entry.size for entry in store.list_all()} == sizes
        assert sorted(entry.path for entry in store.list_all("a")) == ["a/b/1", "a/b/2", "a/c"]
        assert sorted(entry.path for entry in store.list_all("a/")) == ["a/b/1", "a/b/2", "a/c"]
        assert sorted(entry.path for entry in store.list_all("a/b")) == ["a/b/1", "a/b/2"]
        assert list(store.list_all("nowhere")) == []
        assert list(store.list_all("a/c")) == []
        assert sorted(entry.path for entry in store.list_folder()) == ["a-b", "a/", "ab", "z/"]
        assert sorted(entry.path for entry in store.list_folder("a")) == ["a/b/", "a/c"]
        assert [entry.path for entry in store.list_folder("z/y")] == ["z/y/x/"]
        assert list(store.list_folder("nowhere")) == []
        (found,) = (entry for entry in store.list_folder("a") if not entry.is_folder)
        assert found == ObjectInfo("a/c", 3, found.modified)
        assert found.modified > 1.7e9

    @pytest.mark.parametrize("prefix", ["/a", "..", "a//b", "\0", None])
    def test_a_bad_prefix_is_refused(self, store: BlockingStorage, prefix: str) -> None:
        for listing in (store.list_all, store.list_folder):
            with pytest.raises(InvalidInput):
                list(listing(prefix))

    def test_any_number_is_listed_as_it_comes(self, storage: StorageBackend, store: BlockingStorage) -> None:
        async def fill() -> None:
            lanes = asyncio.Semaphore(16)

            async def put(number: int) -> None:
                async with lanes:
                    await storage.write(f"many/{number:05}", b"x")

            await asyncio.gather(*(put(number) for number in range(MANY)))

        background.run(fill())
        expected = [f"many/{number:05}" for number in range(MANY)]
        assert sorted(entry.path for entry in store.list_all("many")) == expected
        assert sorted(entry.path for entry in store.list_folder("many")) == expected
        first = next(iter(store.list_all()))
        assert first.path in expected
        store.delete_many(expected)
        assert list(store.list_all()) == []

    # -- conditions --------------------------------------------------------------------------------------------------

    def test_put_if_absent_does_not_replace(self, store: BlockingStorage) -> None:
        store.put_if_absent("a/b", b"first")
        assert store.read("a/b") == b"first"
        self.needs_conditions()
        with pytest.raises(ObjectExists) as raised:
            store.put_if_absent("a/b", b"second")
        assert raised.value.key == "a/b"
        store.write("plain", b"written")
        with pytest.raises(ObjectExists):
            store.put_if_absent("plain", b"written")
        assert store.read("a/b") == b"first"
        store.delete("a/b")
        store.put_if_absent("a/b", b"third")
        assert store.read("a/b") == b"third"

    @pytest.mark.parametrize("same", [True, False], ids=["equal bytes", "different bytes"])
    def test_of_racing_writers_one_wins(self, store: BlockingStorage, same: bool) -> None:
        self.needs_conditions()
        for round_number in range(5):
            start = threading.Barrier(RACERS)

            def race(racer: int, key: str = f"race/{round_number}", start: threading.Barrier = start) -> int | None:
                start.wait()
                try:
                    store.put_if_absent(key, b"the same" if same else f"racer {racer}".encode())
                except ObjectExists:
                    return None
                return racer

            with ThreadPoolExecutor(RACERS) as racers:
                winners = [racer for racer in racers.map(race, range(RACERS)) if racer is not None]
            assert len(winners) == 1
            expected = b"the same" if same else f"racer {winners[0]}".encode()
            assert store.read(f"race/{round_number}") == expected

    def test_compare_and_swap(self, store: BlockingStorage) -> None:
        first = store.compare_and_swap("a", b"1", None)
        assert store.read_versioned("a") == (b"1", first)
        self.needs_conditions()
        second = store.compare_and_swap("a", b"2", first)
        assert second != first
        for stale in (first, None):
            with pytest.raises(ObjectChanged) as raised:
                store.compare_and_swap("a", b"3", stale)
            assert raised.value.key == "a"
        assert store.read_versioned("a") == (b"2", second)
        store.write("a", b"by hand")
        with pytest.raises(ObjectChanged):
            store.compare_and_swap("a", b"3", second)
        store.delete("a")
        with pytest.raises(ObjectChanged):
            store.compare_and_swap("a", b"3", second)
        assert not store.exists("a")

    def test_swaps_do_not_overwrite_each_other(self, store: BlockingStorage) -> None:
        self.needs_conditions()
        store.write("counter", b"0")

        def count(times: int) -> None:
            while times:
                value, version = store.read_versioned("counter")
                try:
                    store.compare_and_swap("counter", str(int(value) + 1).encode(), version)
                except ObjectChanged:
                    continue
                times -= 1

        with ThreadPoolExecutor(4) as counters:
            list(counters.map(count, [5] * 4))
        assert store.read("counter") == b"20"

    # -- streams -----------------------------------------------------------------------------------------------------

    @staticmethod
    def _stream(store: BlockingStorage, key: str, pieces: list[bytes]) -> None:
        with store.open_writer(key) as writer:
            for piece in pieces:
                writer.write(piece)

    @pytest.mark.parametrize("pieces", [[], [b""], [b"abc"], [b"abc", b"", b"defg"], [b"x" * 4096, b"y"]], ids=len)
    def test_a_stream_is_its_pieces(self, store: BlockingStorage, pieces: list[bytes]) -> None:
        self._stream(store, "folder/stream", pieces)
        assert store.read("folder/stream") == b"".join(pieces)

    def test_a_large_stream(self, store: BlockingStorage, large: bytes) -> None:
        piece_bytes, piece = 3_000_001, bytearray(3_000_001)
        with store.open_writer("stream", size=len(large)) as writer:
            for start in range(0, len(large), piece_bytes):
                part = large[start : start + piece_bytes]
                piece[: len(part)] = part
                writer.write(memoryview(piece)[: len(part)])
                piece[:] = bytes(piece_bytes)  # the writer must not look at it any more
            assert not store.exists("stream")
        assert store.read("stream") == large

    def test_pieces_written_at_once_are_all_kept(self, storage: StorageBackend, store: BlockingStorage) -> None:
        pieces = [bytes([number]) * 1000 for number in range(32)]

        async def write_all() -> None:
            async with storage.open_writer("stream") as writer:
                await asyncio.gather(*(writer.write(piece) for piece in pieces))

        background.run(write_all())
        assert store.size("stream") == 32_000
        assert (
            sorted(bytes(part) for part in store.read_ranges("stream", [(n * 1000, 1000) for n in range(32)])) == pieces
        )

    def test_a_stream_replaces_only_at_its_end(self, store: BlockingStorage, large: bytes) -> None:
        store.write("a", b"old")
        with store.open_writer("a") as writer:
            writer.write(large)
            assert store.read("a") == b"old"
        assert store.size("a") == len(large)

    @pytest.mark.parametrize("written", [0, 10, LARGE_BYTES])
    def test_a_stream_that_fails_leaves_nothing(self, store: BlockingStorage, large: bytes, written: int) -> None:
        store.write("kept", b"old")
        for key in ("kept", "fresh"):
            with pytest.raises(ZeroDivisionError), store.open_writer(key) as writer:  # noqa: PT012
                writer.write(large[:written])
                raise ZeroDivisionError
        assert store.read("kept") == b"old"
        assert [entry.path for entry in store.list_all()] == ["kept"]
        self.assert_nothing_is_left(store)

    def test_a_stream_that_lost_a_piece_is_never_committed(self, storage: StorageBackend, large: bytes) -> None:
        """Whoever gives up a piece and goes on would make an object with a hole in it."""

        async def lose_one() -> None:
            async with storage.open_writer("a") as writer:
                lost = asyncio.ensure_future(writer.write(large))
                await asyncio.sleep(0)
                lost.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await lost
                await writer.write(b"the rest")

        if not self.writes_at_once:
            with pytest.raises(StorageError, match="hole"):
                background.run(lose_one())
            store = BlockingStorage(storage)
            assert not store.exists("a")
            self.assert_nothing_is_left(store)

    def test_an_aborted_stream_leaves_nothing(self, store: BlockingStorage, large: bytes) -> None:
        with store.open_writer("a") as writer:
            writer.write(large)
            writer.abort()
            with pytest.raises(StorageError, match="ended"):
                writer.write(b"more")
        assert list(store.list_all()) == []
        self.assert_nothing_is_left(store)

    def test_a_cancelled_write_leaves_nothing(self, storage: StorageBackend, store: BlockingStorage) -> None:
        async def cancel() -> None:
            begun = asyncio.Event()

            async def write() -> None:
                async with storage.open_writer("a") as writer:
                    for _ in range(1000):
                        await writer.write(bytes(1 << 20))
                        begun.set()
                        await asyncio.sleep(0.001)

            task = asyncio.create_task(write())
            await begun.wait()
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        background.run(cancel())
        assert list(store.list_all()) == []
        self.assert_nothing_is_left(store)

    def assert_nothing_is_left(self, store: BlockingStorage) -> None:
        """Override it to look where only this kind of storage can: staged files, unfinished uploads."""

    # -- progress ----------------------------------------------------------------------------------------------------

    def test_progress_grows_to_the_whole(self, store: BlockingStorage, large: bytes) -> None:
        for data in (b"small", large):
            for call in (
                lambda seen, data=data: store.write("a", data, progress=seen.append),
                lambda seen: store.read("a", progress=seen.append),
                lambda seen, data=data: self._stream_with_progress(store, data, seen),
            ):
                seen: list[int] = []
                call(seen)
                assert seen == sorted(seen)
                assert seen[-1] == len(data)

    @staticmethod
    def _stream_with_progress(store: BlockingStorage, data: bytes, seen: list[int]) -> None:
        with store.open_writer("b", progress=seen.append) as writer:
            writer.write(data)

    # -- sharing and the end -----------------------------------------------------------------------------------------

    def test_threads_and_loops_share_it(self, storage: StorageBackend, store: BlockingStorage) -> None:
        def use(number: int) -> bytes:
            async def there_and_back() -> bytes:
                await storage.write(f"t/{number}", str(number).encode())
                return await storage.read(f"t/{number}")

            if number % 2:
                return asyncio.run(there_and_back())
            store.write(f"t/{number}", str(number).encode())
            return store.read(f"t/{number}")

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(use, range(32))) == [str(number).encode() for number in range(32)]
        assert len(list(store.list_all("t"))) == 32

    def test_readers_see_one_write_or_another(self, store: BlockingStorage) -> None:
        size, done = 300_000, threading.Event()
        store.write("a", bytes(size))
        seen: list[bytes] = []

        def read() -> None:
            while not done.is_set():
                seen.append(store.read("a"))

        with ThreadPoolExecutor(1) as reader:
            future = reader.submit(read)
            for number in range(1, 20):
                store.write("a", bytes([number]) * size)
            done.set()
            future.result()
        assert seen
        assert all(len(found) == size and found == found[:1] * size for found in seen)

    def test_ranges_are_of_one_version(self, store: BlockingStorage) -> None:
        size, done = 400_000, threading.Event()
        store.write("a", bytes(size))

        def replace() -> None:
            number = 0
            while not done.is_set():
                number += 1
                store.write("a", bytes([number % 256]) * size)

        with ThreadPoolExecutor(1) as writer:
            future = writer.submit(replace)
            try:
                for _ in range(15):
                    try:
                        found = store.read_ranges("a", [(start, 1000) for start in range(0, size, size // 8)])
                    except StorageUnavailable:  # replaced again and again
                        continue
                    assert len({bytes(piece) for piece in found}) == 1
            finally:
                done.set()
                future.result()

    def test_versions_tell_writes_apart(self, store: BlockingStorage) -> None:
        versions = []
        for number in range(3):
            store.write("a", str(number).encode())
            versions.append(store.version("a"))
            assert store.read_versioned("a") == (str(number).encode(), versions[-1])
        assert len(set(versions)) == 3
        with pytest.raises(ObjectNotFound):
            store.version("b")

    def test_one_string_is_not_many_keys(self, store: BlockingStorage) -> None:
        store.write("a", b"kept")
        with pytest.raises(InvalidInput, match="put it in a list"):
            store.delete_many("a")
        assert store.read("a") == b"kept"

    def test_many_may_be_named_by_a_listing(self, store: BlockingStorage) -> None:
        for number in range(3):
            store.write(f"x/{number}", b"x")
        store.delete_many(entry.path for entry in store.list_all("x"))
        assert list(store.list_all()) == []

    def test_a_blocking_call_works_under_a_running_loop(self, store: BlockingStorage) -> None:
        async def main() -> bytes:
            store.write("a", b"x")
            return store.read("a")

        assert asyncio.run(main()) == b"x"

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_forked_child_can_use_it(self, store: BlockingStorage) -> None:
        store.write("a", b"from the parent")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with ThreadPoolExecutor(4) as threads:  # its first calls come from several at once
                    assert all(threads.map(store.exists, ["a"] * 4))
                store.write("b", store.read("a") + b", by the child")
                grandchild = os.fork()
                if grandchild == 0:
                    os._exit(0 if store.exists("a") and store.read("a") == b"from the parent" else 1)
                code = os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1])
            finally:
                os._exit(code)
        _wait_for(child)
        if self.outlives_the_process:
            assert store.read("b") == b"from the parent, by the child"

    def test_after_close_it_says_so(self, storage: StorageBackend, store: BlockingStorage) -> None:
        store.write("a", b"x")
        store.close()
        with pytest.raises(StorageError, match="closed"):
            store.read("a")
        store.close()

    def test_close_leaves_no_thread(self, storage: StorageBackend, store: BlockingStorage, large: bytes) -> None:
        background.loop()
        before = set(threading.enumerate())
        store.write("a", large)
        store.read("a")
        store.close()
        left = set(threading.enumerate()) - before
        assert [thread.name for thread in left if thread.name.startswith("strata-")] == []


@cache
def _large() -> bytes:
    return np.random.default_rng(7).integers(0, 256, LARGE_BYTES, np.uint8).tobytes()


def _wait_for(child: int, seconds: float = 30.0) -> None:
    """A child that hangs is a failure, and not the end of the tests."""
    timer = threading.Timer(seconds, os.kill, (child, 9))
    timer.start()
    try:
        _, status = os.waitpid(child, 0)
    finally:
        timer.cancel()
    assert os.waitstatus_to_exitcode(status) == 0
