"""Reading a file past the page cache and through it gives the same bytes."""

import os
from pathlib import Path

import numpy as np
import pytest

from strata.storage import direct

SIZE = (20 << 20) + 777


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("direct") / "file"
    path.write_bytes(np.random.default_rng(1).bytes(SIZE))
    return path


def read(file: Path, offset: int, sizes: list[int]) -> tuple[int, bytes]:
    targets = [memoryview(bytearray(size)) for size in sizes]
    fd = os.open(file, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        done = direct.read_scattered(fd, targets, offset, lambda count: None)
    finally:
        os.close(fd)
    return done, b"".join(targets)


@pytest.mark.parametrize("offset", [0, 1, 4095, 4096, 5000, (1 << 20) + 3])
@pytest.mark.parametrize("sizes", [[2 << 20], [1, 4096, 3 << 20, 7], [1 << 20] * 17, [100] * 15_000])
def test_a_cold_file_is_read_to_any_memory_from_any_place(file: Path, offset: int, sizes: list[int]) -> None:
    done, found = read(file, offset, sizes)
    assert done == sum(sizes)
    assert found == file.read_bytes()[offset : offset + done]


@pytest.mark.parametrize("offset", [SIZE - (2 << 20), SIZE - (1 << 20) - 1, SIZE, SIZE + 5000])
def test_the_end_of_a_cold_file_is_told(file: Path, offset: int) -> None:
    done, found = read(file, offset, [1 << 20, 1 << 20, 4096])
    assert done == max(0, SIZE - offset)
    assert found[:done] == file.read_bytes()[offset:]


def test_where_it_cannot_be_told_or_done_the_cache_does(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(fd: int, *_: object) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(direct, "read_direct", refuses)
    assert read(file, 17, [3 << 20])[1] == file.read_bytes()[17 : 17 + (3 << 20)]
    monkeypatch.setattr(direct, "set_direct", lambda fd, on: not on)
    assert read(file, 17, [3 << 20])[1] == file.read_bytes()[17 : 17 + (3 << 20)]
