"""Filling an arena: whole, or in turns, the images are the same."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint.digests import FileDigests
from strata.checkpoint.manifest import Chunk, digest_of
from strata.checkpoint.plan import Wanted, chunks_of, plan_files
from strata.checkpoint.snapshot import Snapshot
from strata.checkpoint.sources import HostMemory, Room
from strata.errors import InvalidInput


def host(array: np.ndarray) -> HostMemory:
    return HostMemory(array.ctypes.data, len(array), array)


def filled(sizes: list[int], room: int) -> tuple[Snapshot, list[bytes], list[np.ndarray]]:
    """The images as a writer sees them."""
    arrays = [np.random.default_rng(n).integers(0, 256, size, np.uint8) for n, size in enumerate(sizes)]
    files = plan_files([Wanted(f"t{n}", "uint8", (size,), size, n) for n, size in enumerate(sizes)])
    snapshot = Snapshot(files, np.zeros(room, np.uint8))
    images = [bytearray() for _ in files]
    ready: list[int] = []
    seen = threading.Semaphore(0)

    def write() -> None:
        for number, segment in enumerate(snapshot.segments):
            seen.acquire()
            assert ready[number] == number
            images[segment.file] += snapshot.memory(segment).tobytes()
            snapshot.release()

    def tell(number: int) -> None:
        ready.append(number)
        seen.release()

    writer = threading.Thread(target=write)
    writer.start()
    snapshot.fill([host(array) for array in arrays], tell)
    writer.join()
    return snapshot, [bytes(image) for image in images], arrays


@given(st.lists(st.integers(0, 60_000), min_size=1, max_size=12), st.integers(2, 40))
def test_every_byte_is_where_the_plan_says(sizes: list[int], blocks: int) -> None:
    snapshot, images, arrays = filled(sizes, blocks * 4096)
    for file, image in zip(snapshot.files, images, strict=True):
        assert len(image) == file.size
        assert image.startswith(file.header)
        for wanted, at in file.placed:
            assert image[at : at + wanted.size] == arrays[wanted.tensor].tobytes()


@given(st.lists(st.integers(0, 60_000), min_size=1, max_size=6), st.integers(1, 9000))
def test_digests_do_not_depend_on_how_the_bytes_come(sizes: list[int], stretch: int) -> None:
    snapshot, images, arrays = filled(sizes, 1 << 20)
    for file, image in zip(snapshot.files, images, strict=True):
        digests = FileDigests(0, file)
        for start in range(0, len(image), stretch):
            digests.feed(start, np.frombuffer(image[start : start + stretch], np.uint8))
        expected = [
            Chunk(0, at + start, size, digest_of(arrays[wanted.tensor][start : start + size].tobytes()))
            for wanted, at in file.placed
            for start, size in chunks_of(wanted.size)
        ]
        assert digests.found == expected


def test_large_tensors_are_shared_out() -> None:
    _, images, arrays = filled([30 << 20, 5, 9 << 20], 64 << 20)
    assert images[0].endswith(arrays[0].tobytes() + arrays[1].tobytes() + arrays[2].tobytes())


class Fails:
    address, size = 0, 20_000
    on_device = is_cuda = False

    def read(self, start: int, size: int, room: Room, at: int) -> None:
        raise RuntimeError("the device is gone")


@pytest.mark.parametrize("room", [1 << 20, 3 * 4096])
def test_a_copy_that_fails_is_raised_to_the_caller(room: int) -> None:
    files = plan_files([Wanted("a", "uint8", (20_000,), 20_000, 0)])
    with pytest.raises(RuntimeError, match="the device is gone"):
        Snapshot(files, np.zeros(room, np.uint8)).fill([Fails()], lambda number: None)


def test_whoever_fills_is_told_that_nobody_writes() -> None:
    files = plan_files([Wanted("a", "uint8", (100_000,), 100_000, 0)])
    snapshot = Snapshot(files, np.zeros(2 * 4096, np.uint8))
    told = threading.Timer(0.1, lambda: snapshot.give_up(OSError("the disk is full")))
    told.start()
    with pytest.raises(OSError, match="the disk is full"):
        snapshot.fill([host(np.zeros(100_000, np.uint8))], lambda number: None)


def test_too_little_memory_is_said() -> None:
    files = plan_files([Wanted("a", "uint8", (20_000,), 20_000, 0)])
    with pytest.raises(InvalidInput, match="too little"):
        Snapshot(files, np.zeros(4096, np.uint8))
