"""A remote dataset that is kept on a disk of this machine: read once, and never taken for another."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata.data.cache import Cache
from strata.data.fingerprints import whole
from strata.data.index import DatasetIndex
from strata.data.indexing import index_dataset
from strata.data.loader import Loader
from strata.errors import DataChanged, StorageUnavailable
from strata.storage.blocking import BlockingStorage
from strata.storage.memory import MemoryStorage, named_space
from strata.testing.faulty import Faults, FaultyStorage
from tests.unit.data.making import of_arrow, of_csv, of_jsonl, of_parquet, of_tar, of_tfrecord, table

pa = pytest.importorskip("pyarrow")

ROWS = 60
MADE: dict[str, Any] = {
    "parquet": of_parquet,
    "arrow": of_arrow,
    "csv": of_csv,
    "jsonl": of_jsonl,
    "webdataset": of_tar,
    "tfrecord": of_tfrecord,
}


def remote(name: str, data: bytes, file: str) -> BlockingStorage:
    storage = BlockingStorage(MemoryStorage(space=named_space(name), name=name))
    storage.write(file, data)
    return storage


@pytest.fixture
def name() -> str:
    return f"cached-{os.urandom(8).hex()}"


@pytest.fixture
def faulty(name: str, monkeypatch: pytest.MonkeyPatch) -> FaultyStorage:
    """The storage that datasets are read from."""
    made = FaultyStorage(MemoryStorage(space=named_space(name), name=name))
    monkeypatch.setattr("strata.data.files.open_storage", lambda *_, **__: made)
    return made


UNREADABLE = Faults(before=1.0, only=frozenset({"read", "read_range", "read_ranges", "read_into"}))
"""Nothing can be read; what files look like can be asked."""


def rows(index: DatasetIndex) -> list[Any]:
    return [row for block in range(index.blocks) for row in index.read(block).to_pylist()]


@pytest.mark.parametrize("format", MADE)
def test_what_was_read_once_needs_no_storage(tmp_path: Path, name: str, faulty: FaultyStorage, format: str) -> None:
    remote(name, MADE[format](table(ROWS)), f"a.{format}")
    index = index_dataset(f"memory://{name}", format)
    expected = rows(index)
    cached = index.cached(Cache(tmp_path))
    assert rows(cached) == expected
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [whole(index.fingerprint)]
    faulty.faults = UNREADABLE
    assert rows(cached) == expected
    with pytest.raises(StorageUnavailable):
        rows(index)


def test_a_loader_reads_what_another_one_kept(tmp_path: Path, name: str, faulty: FaultyStorage) -> None:
    remote(name, of_parquet(table(ROWS)), "a.parquet")
    with Loader(f"memory://{name}", 8, format="parquet", cache=tmp_path, columns=["id"]) as first:
        expected = [batch["id"].tolist() for batch in first]
    index = index_dataset(f"memory://{name}", "parquet")
    with Loader(index, 8, cache=tmp_path, cache_bytes=1 << 24, columns=["id"]) as one:
        second = pickle.loads(pickle.dumps(one))
    with second:
        faulty.faults = UNREADABLE
        assert [batch["id"].tolist() for batch in second] == expected


def test_a_file_that_was_written_again_is_told_and_not_kept(tmp_path: Path, name: str) -> None:
    storage = remote(name, of_csv(table(ROWS)), "a.csv")
    cached = index_dataset(f"memory://{name}", "csv").cached(Cache(tmp_path))
    cached.file(0).check()
    storage.write("a.csv", of_csv(table(ROWS)))
    with pytest.raises(DataChanged, match="written again"):
        rows(cached)
    assert not [*tmp_path.glob("*/shards/*/*")]


def test_a_file_that_is_written_again_after_it_was_kept_is_another(tmp_path: Path, name: str) -> None:
    storage = remote(name, b"id\n" + b"1\n" * ROWS, "a.csv")
    first = index_dataset(f"memory://{name}", "csv")
    assert rows(first.cached(Cache(tmp_path))) == [{"id": 1}] * ROWS
    storage.write("a.csv", b"id\n" + b"2\n" * ROWS)
    again = index_dataset(f"memory://{name}", "csv")
    assert rows(again.cached(Cache(tmp_path))) == [{"id": 2}] * ROWS


def test_files_of_this_machine_are_not_kept(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.parquet").write_bytes(of_parquet(table(ROWS)))
    with Loader(tmp_path / "data", 8, format="parquet", cache=tmp_path / "cache") as one:
        assert sum(len(batch["id"]) for batch in one) == ROWS // 8 * 8
    assert not [*(tmp_path / "cache").iterdir()]


def test_a_disk_that_refuses_everything_costs_only_the_cache(tmp_path: Path, name: str) -> None:
    remote(name, of_parquet(table(ROWS)), "a.parquet")
    index = index_dataset(f"memory://{name}", "parquet")
    cached = index.cached(Cache(tmp_path / "cache"))
    (tmp_path / "cache").rmdir()
    (tmp_path / "cache").write_bytes(b"")
    assert rows(cached) == rows(index)
    assert np.all(cached.file_rows() == [ROWS])
