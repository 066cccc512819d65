"""Fingerprints: what they tell apart, that copies have the same, and how well they say what changed."""

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from strata.core.datasets import MAX_FINGERPRINT_CHARS
from strata.data.fingerprints import UNKNOWN, Difference, columns_told, difference
from strata.data.formats.base import END_BYTES
from strata.data.index import DatasetIndex
from strata.data.indexing import index_dataset
from tests.unit.data.making import of_arrow, of_csv, of_jsonl, of_parquet, of_tar, of_tfrecord, table

MADE: dict[str, Any] = {
    "parquet": of_parquet,
    "arrow": of_arrow,
    "csv": of_csv,
    "jsonl": of_jsonl,
    "webdataset": of_tar,
    "tfrecord": of_tfrecord,
}
SIZES = [5, 6, 7]


def indexed(folder: Path, format: str, first: dict[int, int] | None = None) -> DatasetIndex:
    """Of three files, each with rows from a number on that may be another than it was."""
    folder.mkdir(exist_ok=True)
    for number, rows in enumerate(SIZES):
        (folder / f"{number}.{format}").write_bytes(MADE[format](table(rows, (first or {}).get(number, 0))))
    return index_dataset(folder, format)


@pytest.mark.parametrize("format", MADE)
def test_a_file_with_as_many_rows_of_something_else_is_told_with_its_samples(tmp_path: Path, format: str) -> None:
    then = indexed(tmp_path / "data", format)
    now = indexed(tmp_path / "data", format, {1: 50})
    found = difference(then.fingerprint, now)
    path = str(tmp_path / "data" / f"1.{format}")
    assert found is not None
    assert (found.file, found.samples) == (path, (5, 11))
    assert found.how.startswith(f"{path}, which has samples 5 to 10, is not what was there")


@pytest.mark.parametrize("format", MADE)
def test_a_copy_has_the_same_whenever_it_was_written(tmp_path: Path, format: str) -> None:
    then = indexed(tmp_path / "data", format)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    for path in (tmp_path / "copy").iterdir():
        os.utime(path, (1, 1))
    copied = index_dataset(tmp_path / "copy", format)
    assert copied.fingerprint == then.fingerprint
    assert difference(then.fingerprint, copied) is None


@pytest.mark.parametrize(
    ("format", "is_seen"), [("csv", True), ("jsonl", True), ("tfrecord", True), ("webdataset", False)]
)
def test_what_changed_far_from_both_ends_is_seen_where_indexing_sees_it(
    tmp_path: Path, format: str, is_seen: bool
) -> None:
    """One value, in a file of as many bytes."""
    path, rows = tmp_path / f"a.{format}", [f"{number:0100}" for number in range(4 * END_BYTES // 100)]
    fingerprints = []
    for middle in ("5", "6"):
        rows[len(rows) // 2] = middle * 100
        numbers = range(len(rows))
        path.write_bytes(MADE[format](pa.table({"id": numbers, "value": numbers, "text": rows})))
        fingerprints.append(index_dataset(path, format).fingerprint)
    assert (fingerprints[0] != fingerprints[1]) == is_seen


def test_columns_that_differ_are_named(tmp_path: Path) -> None:
    then = indexed(tmp_path, "parquet")
    for number, rows in enumerate(SIZES):
        data = table(rows)
        data = data.set_column(0, "id", data["id"].cast(pa.int32())).append_column("more", data["id"])
        (tmp_path / f"{number}.parquet").write_bytes(MADE["parquet"](data))
    now = index_dataset(tmp_path, "parquet")
    named = "their columns differ: 'id' (int64 / int32), 'more' (absent / int64)"
    assert difference(then.fingerprint, now, columns_told(then.schema)) == Difference(named)
    assert difference(then.fingerprint, now) == Difference("their columns differ")


def test_files_that_came_or_went_are_counted(tmp_path: Path) -> None:
    then = indexed(tmp_path, "csv")
    (tmp_path / "1.csv").unlink()
    assert difference(then.fingerprint, index_dataset(tmp_path, "csv")) == Difference("there were 3 of them, and are 2")


def test_of_many_files_the_few_are_told_among_which_one_changed(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"{number:03}.csv").write_bytes(b"id\n1\n2\n")
    then = index_dataset(tmp_path, "csv")
    (tmp_path / "101.csv").write_bytes(b"id\n1\n3\n")
    found = difference(then.fingerprint, index_dataset(tmp_path, "csv"))
    assert found is not None
    assert found.file is None
    assert found.samples == (200, 208)
    assert f"of the 4 files from {tmp_path / '100.csv'} to {tmp_path / '103.csv'}" in found.how
    assert len(then.fingerprint) <= MAX_FINGERPRINT_CHARS


def test_one_that_somebody_else_made_up_says_only_that_it_differs(tmp_path: Path) -> None:
    assert difference("sha256:ab", indexed(tmp_path, "csv")) == Difference(UNKNOWN)


def test_raw_files_are_known_by_their_sizes(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"abc")
    then = index_dataset(tmp_path, "files").fingerprint
    (tmp_path / "a.jpg").write_bytes(b"xyz")
    assert index_dataset(tmp_path, "files").fingerprint == then
    (tmp_path / "a.jpg").write_bytes(b"wxyz")
    assert index_dataset(tmp_path, "files").fingerprint != then
