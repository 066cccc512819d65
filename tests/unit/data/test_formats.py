"""Every format gives back the rows that other programs wrote, however they are cut into files and blocks."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from strata.data.indexing import index_dataset
from strata.errors import InvalidInput
from strata.storage import BlockingStorage, open_storage
from tests.unit.data.making import KINDS, Made, blocks, read_all, table, written

COUNTS = [[50], [0, 20, 0, 1, 29, 0], [1] * 40]


@pytest.fixture(params=KINDS, ids=str)
def made(request: pytest.FixtureRequest) -> Made:
    return KINDS[request.param]


@pytest.mark.slow
@pytest.mark.parametrize("counts", COUNTS, ids=str)
def test_rows_come_back_as_they_were_written(made: Made, tmp_path: Path, counts: list[int]) -> None:
    expected = written(made, tmp_path, counts)
    index = index_dataset(tmp_path, made.format)
    assert index.rows == sum(counts)
    assert index.files == len(counts)
    assert [*index.file_rows()] == counts
    assert index.schema.equals(expected.schema)
    assert read_all(index).equals(expected)
    assert [block.num_rows for block in blocks(index)] == [*np.diff(index.first_row)]


def test_every_sample_is_where_the_index_says(made: Made, tmp_path: Path) -> None:
    expected = written(made, tmp_path, [20, 0, 17]).to_pylist()
    index = index_dataset(tmp_path, made.format)
    samples = np.random.default_rng(5).permutation(37)
    for sample, block, row in zip(samples, *index.locate(samples), strict=True):
        assert index.read(int(block)).slice(int(row), 1).to_pylist() == [expected[sample]]


def test_only_the_columns_that_are_asked_for_come(made: Made, tmp_path: Path) -> None:
    expected = written(made, tmp_path, [30])
    index = index_dataset(tmp_path, made.format)
    for name in expected.column_names:
        assert read_all(index, [name]).equals(expected.select([name]))
    assert read_all(index, expected.column_names[::-1]).equals(expected)
    assert sum(block.num_rows for block in blocks(index, [])) == 30
    with pytest.raises(InvalidInput, match="nowhere"):
        index.read(0, ["nowhere"])


def test_a_dataset_of_empty_files_has_no_rows(made: Made, tmp_path: Path) -> None:
    written(made, tmp_path, [0, 0])
    index = index_dataset(tmp_path, made.format)
    assert (index.rows, index.blocks, index.files) == (0, 0, 2)


def test_remote_files_give_the_same(made: Made, tmp_path: Path) -> None:
    expected = written(made, tmp_path, [30, 0, 11])
    name = f"formats-{tmp_path.name}"
    storage = BlockingStorage(open_storage(f"memory://{name}"))
    for path in tmp_path.iterdir():
        storage.write(f"some/where/{path.name}", path.read_bytes())
    remote = index_dataset(f"memory://{name}/some/where", made.format)
    assert read_all(remote).equals(expected)
    assert read_all(remote, expected.column_names[:1]).equals(expected.select([0]))
    assert remote.fingerprint == index_dataset(tmp_path, made.format).fingerprint


@pytest.mark.parametrize("kind", ["csv", "jsonl", "arrow-file", "webdataset", "tfrecord", "tfexample"])
def test_a_file_without_a_byte_is_empty(kind: str, tmp_path: Path) -> None:
    made = KINDS[kind]
    expected = written(made, tmp_path, [9])
    (tmp_path / f"a{made.suffix}").touch()
    (tmp_path / f"z{made.suffix}").touch()
    index = index_dataset(tmp_path, made.format)
    assert [*index.file_rows()] == [0, 9, 0]
    assert read_all(index).equals(expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "arrow-zstd", "csv", "jsonl", "webdataset", "tfrecord", "tfexample"])
def test_one_large_file_has_many_blocks(kind: str, tmp_path: Path) -> None:
    made = KINDS[kind]
    big = table(9000)
    texts = [f"n{number}" * (1 + number % 600) for number in range(9000)]
    data = big.set_column(2, "text", pa.array(texts))
    (tmp_path / f"big{made.suffix}").write_bytes(made.write(data))
    index = index_dataset(tmp_path, made.format)
    assert index.rows == 9000
    assert index.blocks > 2
    assert read_all(index).equals(made.expected(data))


def test_a_folder_of_raw_files_is_a_dataset(tmp_path: Path) -> None:
    contents = {"a/x.png": b"\x89PNG", "a/y.bin": b"", "b.txt": b"text" * 1000}
    for name, data in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    (tmp_path / ".hidden").write_bytes(b"no")
    index = index_dataset(tmp_path, "files")
    assert read_all(index).to_pylist() == [{"path": name, "data": data} for name, data in contents.items()]
    assert index.read(0, ["path"]).to_pylist() == [{"path": "a/x.png"}]
    assert index.read(2, ["data"]).to_pylist() == [{"data": b"text" * 1000}]


def test_a_format_that_is_not_known_is_told() -> None:
    with pytest.raises(InvalidInput, match="parquet, arrow"):
        index_dataset("/nowhere", "xlsx")
    with pytest.raises(InvalidInput, match="block_bytes"):
        index_dataset("/nowhere", KINDS["csv"].format.__class__(block_bytes=0))
