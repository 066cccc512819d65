"""Whatever is wrong with a file is an error that names it, and the samples: never a crash, and never other rows."""

import gzip
import os
import random
import re
from pathlib import Path

import pyarrow as pa
import pytest

from strata.data.damage import Damage
from strata.data.formats.base import Block, file_index
from strata.data.formats.ipcmessages import message_at
from strata.data.formats.window import Held
from strata.data.indexing import index_dataset
from strata.errors import DataChanged, DataDamaged, DataError
from strata.storage import BlockingStorage, open_storage
from tests.unit.data.making import KINDS, Made, outcome, read_all, table, written

CUT = ["parquet", "arrow-file", "arrow-stream", "arrow-zstd", "webdataset-small-blocks", "tfrecord-small-blocks"]
LINES = ["csv-small-blocks", "jsonl-small-blocks"]


def lengths(size: int) -> list[int]:
    """Many of them, and all near the ends."""
    return sorted({*range(1, min(size, 40)), *range(1, size, max(1, size // 150)), *range(max(1, size - 40), size)})


@pytest.mark.parametrize("kind", CUT)
def test_a_file_that_was_cut_short_is_told_wherever_it_was(kind: str, tmp_path: Path) -> None:
    made = KINDS[kind]
    whole = made.write(table(12))
    path = tmp_path / f"x{made.suffix}"
    # Behind the first block of zeros nothing of a tar is missing.
    end = whole.rstrip(b"\0") if kind.startswith("webdataset") else whole
    needed = -(-len(end) // 512) * 512 + 512 if kind.startswith("webdataset") else len(whole)
    boundaries = 0
    for length in lengths(needed):
        path.write_bytes(whole[:length])
        if kind.startswith("tfrecord") and _is_record_end(whole, length):
            boundaries += 1  # this format says nowhere how many records there are
            continue
        with pytest.raises(DataDamaged, match=re.escape(str(path))):
            read_all(index_dataset(path, made.format))
    assert boundaries < 12
    path.write_bytes(whole[:needed])
    assert read_all(index_dataset(path, made.format)).num_rows == 12


def _is_record_end(data: bytes, length: int) -> bool:
    at = 0
    while at < length:
        at += 16 + int.from_bytes(data[at : at + 8], "little")
    return at == length


def read_at(path: Path, made: Made) -> pa.Table:
    index = index_dataset(path, made.format)
    found = read_all(index)
    assert found.num_rows == index.rows
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", LINES)
def test_text_that_was_cut_short_is_told_or_is_the_rows_before(kind: str, tmp_path: Path) -> None:
    made = KINDS[kind]
    data = table(12)
    whole = made.write(data)
    path = tmp_path / f"x{made.suffix}"
    told = 0
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        found = outcome(lambda: read_at(path, made))
        if isinstance(found, DataError):
            told += 1
            assert str(path) in str(found)
            continue
        # The last value of CSV may have lost its end: nothing in the file says so. It may be of another type then.
        sure = max(0, found.num_rows - kind.startswith("csv"))
        for name in found.column_names if sure else []:
            assert found[name].to_pylist()[:sure] == data[name].to_pylist()[:sure]
    assert told > len(whole) / 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bytes_are_an_error_or_rows_in_the_same_number(kind: str, tmp_path: Path) -> None:
    made = KINDS[kind]
    rng = random.Random(kind)
    whole = made.write(table(30))
    path = tmp_path / f"x{made.suffix}"
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 1, 3])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        found = outcome(lambda: read_at(path, made))
        assert not isinstance(found, DataError) or found.file == str(path)


@pytest.mark.parametrize("kind", ["parquet", "tfrecord-small-blocks"])
def test_formats_with_checksums_never_give_wrong_values(kind: str, tmp_path: Path) -> None:
    made = KINDS[kind]
    rng = random.Random(kind)
    data = table(30)
    whole = made.write(data)
    expected = made.expected(data)
    path = tmp_path / f"x{made.suffix}"
    path.write_bytes(whole)
    index = index_dataset(path, made.format)
    stat = path.stat()
    told = 0
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[rng.randrange(4, len(damaged) // 2)] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        found = outcome(lambda: read_all(index))
        if not isinstance(found, DataError):
            assert found.equals(expected)
            continue
        told += 1
        assert found.file == str(path)
        assert found.samples is not None
        first, end = found.samples
        assert 0 <= first < end <= 30
        assert f"(samples {first} to {end - 1})" in str(found)
    assert told > 50


@pytest.fixture(params=["parquet", "arrow-stream", "csv", "jsonl", "webdataset", "tfrecord"])
def made(request: pytest.FixtureRequest) -> Made:
    return KINDS[request.param]


def test_a_file_that_changed_after_indexing_is_told(made: Made, tmp_path: Path) -> None:
    written(made, tmp_path, [10, 10])
    index = index_dataset(tmp_path, made.format)
    path = tmp_path / f"part-001{made.suffix}"
    before = path.read_bytes()
    stat = path.stat()

    path.write_bytes(made.write(table(10, 5000)))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    with pytest.raises(DataChanged, match=r"part-001.* changed after") as told:
        read_all(index)
    assert told.value.file == str(path)

    path.write_bytes(before[:-1])
    with pytest.raises(DataChanged, match=f"it had {len(before)} bytes and has {len(before) - 1}"):
        read_all(index)

    path.unlink()
    with pytest.raises(DataChanged, match="it is gone"):
        read_all(index)

    path.write_bytes(before)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert read_all(index).num_rows == 20


def test_a_remote_file_that_changed_is_told(made: Made, tmp_path: Path) -> None:
    url = f"memory://damage-{tmp_path.name}"
    storage = BlockingStorage(open_storage(url))
    storage.write(f"x{made.suffix}", made.write(table(10)))
    index = index_dataset(url, made.format)
    assert read_all(index).num_rows == 10
    storage.write(f"x{made.suffix}", made.write(table(10)))
    with pytest.raises(DataChanged, match="written again"):
        read_all(index)
    storage.write(f"x{made.suffix}", made.write(table(10))[:-30])
    with pytest.raises(DataChanged):
        read_all(index)
    storage.delete(f"x{made.suffix}")
    with pytest.raises(DataChanged, match="gone"):
        read_all(index)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "webdataset", "tfrecord"])
def test_gzip_is_refused_with_what_to_do(kind: str, tmp_path: Path) -> None:
    made = KINDS[kind]
    path = tmp_path / f"x{made.suffix}.gz"
    path.write_bytes(gzip.compress(made.write(table(3))))
    (tmp_path / "README.md").write_text("not data")
    with pytest.raises(DataDamaged, match="unpack it"):
        index_dataset(tmp_path, made.format)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "junk", [b"\0" * 4096, b"\xff" * 4096, b"ARROW1\0\0" + b"\xff" * 4096 + b"ARROW1", b"PAR1" * 9]
)
def test_junk_is_told(kind: str, junk: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(junk)
    found = outcome(lambda: read_at(path, KINDS[kind]))
    if isinstance(found, DataError):
        assert found.file == str(path)
    else:
        assert found.num_rows < 10


@pytest.mark.parametrize("kind", ["arrow-zstd", "arrow-stream-lz4"])
def test_a_buffer_that_claims_absurd_memory_is_refused_before_any_is_taken(kind: str, tmp_path: Path) -> None:
    made = KINDS[kind]
    whole = bytearray(made.write(table(12)))
    path = tmp_path / f"x{made.suffix}"
    path.write_bytes(whole)
    index = index_dataset(path, made.format)
    stat = path.stat()
    block = index.block(0)
    batch = bytes(whole[block.start : block.start + block.length])
    message = message_at(Held(memoryview(batch)), 0)
    assert message is not None
    place = block.start + message.body + next(start for start, length in message.compressed if length)
    whole[place : place + 8] = (1 << 50).to_bytes(8, "little")
    path.write_bytes(whole)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(DataDamaged, match=r"samples 0 to 11.* says that it needs 1125899906"):
        index.read(0)


@pytest.mark.parametrize("block", [Block(0, 5 << 30, 1), Block(0, -1, 1), Block(0, 1, 1 << 31), Block(0, 1, -5)])
def test_a_block_that_says_what_cannot_be_is_refused(block: Block) -> None:
    with pytest.raises(Damage, match="says it"):
        file_index([block], None)
