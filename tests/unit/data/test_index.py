"""The index: samples and blocks, fingerprints, and the file it is kept in."""

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from strata.data import Loader
from strata.data.finding import find_files
from strata.data.formats import FORMATS, AnyFormat, format_of
from strata.data.formats.csv import Csv
from strata.data.index import BlockTable, Change, DatasetIndex, FileTable
from strata.data.indexfile import from_bytes, load_index, save_index, to_bytes
from strata.data.indexing import index_dataset, index_files
from strata.errors import DataDamaged, DataMismatch, InvalidInput, ObjectNotFound
from tests.unit.data.making import KINDS, of_parquet, read_all, table, written


def made_of(rows: list[int], format: AnyFormat | None = None) -> DatasetIndex:
    """An index of a file with blocks of so many rows, which nobody reads."""
    counts = np.array(rows, np.int64)
    return DatasetIndex(
        format or format_of("parquet"),
        pa.schema([("a", pa.int64())]),
        FileTable(
            ("/x",), np.zeros(1, np.int32), pa.array(["f"]), np.array([7]), pa.array(["v"]), np.zeros(1, np.uint64)
        ),
        BlockTable(np.array([len(rows)]), np.arange(len(rows)), np.full(len(rows), 5), counts),
    )


def test_samples_are_located_among_millions_of_blocks() -> None:
    rng = np.random.default_rng(1)
    rows = rng.integers(1, 9, 2_000_000)
    index = made_of([*rows])
    samples = rng.integers(0, index.rows, 10_000)
    blocks, within = index.locate(samples)
    assert (index.first_row[blocks] + within == samples).all()
    assert (within >= 0).all()
    assert (within < rows[blocks]).all()
    assert index.first_row.nbytes + index.starts.nbytes + index.lengths.nbytes + index.file_of.nbytes < 60_000_000
    for outside in (-1, index.rows):
        with pytest.raises(InvalidInput, match="samples"):
            index.locate(np.array([outside]))


def test_blocks_and_samples_that_are_not_there_are_refused(tmp_path: Path) -> None:
    written(KINDS["parquet-one-group"], tmp_path, [10])
    index = index_dataset(tmp_path, "parquet")
    blocks, rows = index.locate(np.array([3]))
    assert index.read(blocks[0]).num_rows == 10  # numpy's numbers do, as locate gives them
    assert rows.tolist() == [3]
    for wrong in (-1, index.blocks, 0.0, True, "0"):
        with pytest.raises(InvalidInput, match="number"):
            index.read(wrong)  # type: ignore[arg-type]
    for samples in ([3], np.array([3.0]), np.array([-1]), np.array([10])):
        with pytest.raises(InvalidInput, match="samples must be"):
            index.locate(samples)  # type: ignore[arg-type]


def test_progress_is_told_and_files_are_indexed_in_parallel(tmp_path: Path) -> None:
    written(KINDS["parquet"], tmp_path, [5] * 30)
    told: list[tuple[int, int, int]] = []
    threads = set()

    def progress(done: int, of: int, rows: int) -> None:
        told.append((done, of, rows))
        threads.add(threading.current_thread().name)

    index_dataset(tmp_path, "parquet", progress=progress, threads=4)
    assert told == [(number, 30, 5 * number) for number in range(1, 31)]
    assert all(name.startswith("strata-index") for name in threads)


def test_the_first_file_that_is_wrong_is_the_one_that_is_told(tmp_path: Path) -> None:
    written(KINDS["parquet"], tmp_path, [5] * 30)
    for number in (11, 17, 23):
        (tmp_path / f"part-{number:03}.parquet").write_bytes(b"PAR1 junk PAR1")
    with pytest.raises(DataDamaged, match="part-011"):
        index_dataset(tmp_path, "parquet", threads=1)


def test_a_file_whose_columns_differ_is_told_with_both_names(tmp_path: Path) -> None:
    written(KINDS["parquet"], tmp_path, [5, 5])
    other = table(3).set_column(1, "value", pa.array([1, 2, 3], pa.int32())).rename_columns(["id", "value", "txt"])
    (tmp_path / "part-002.parquet").write_bytes(of_parquet(other))
    with pytest.raises(DataMismatch) as told:
        index_dataset(tmp_path, "parquet")
    assert "part-000.parquet" in str(told.value)
    assert "part-002.parquet" in str(told.value)
    assert "'value' (double / int32), 'text' (string / absent), 'txt' (absent / string)" in str(told.value)
    assert told.value.file.endswith("part-002.parquet")


def test_what_else_writers_leave_in_a_schema_makes_no_difference(tmp_path: Path) -> None:
    data = table(4)
    (tmp_path / "1.parquet").write_bytes(of_parquet(data))
    (tmp_path / "2.parquet").write_bytes(of_parquet(data.replace_schema_metadata({"huggingface": "x"})))
    shuffled = data.select(["text", "id", "value"])
    (tmp_path / "3.parquet").write_bytes(of_parquet(shuffled))
    assert read_all(index_dataset(tmp_path, "parquet")).equals(pa.concat_tables([data] * 3))


def test_columns_of_one_name_are_told(tmp_path: Path) -> None:
    twice = pa.table([[1], [2]], names=["a", "a"])
    (tmp_path / "x.parquet").write_bytes(of_parquet(twice))
    with pytest.raises(DataDamaged, match="several columns are named 'a'"):
        index_dataset(tmp_path, "parquet")


def test_nested_and_dictionary_columns(tmp_path: Path) -> None:
    data = pa.table(
        {
            "list": [[1, 2], [], None, [3]],
            "struct": [{"x": 1, "y": "a"}, None, {"x": 2, "y": "b"}, {"x": 3, "y": None}],
            "word": pa.array(["a", "b", "a", None]).dictionary_encode(),
            "struct.x": [1.0, 2.0, 3.0, 4.0],
        }
    )
    for kind in ("parquet", "arrow-file", "arrow-stream", "arrow-zstd"):
        made = KINDS[kind]
        (tmp_path / kind).mkdir()
        (tmp_path / kind / f"x{made.suffix}").write_bytes(made.write(data))
        index = index_dataset(tmp_path / kind, made.format)
        assert read_all(index).to_pylist() == data.to_pylist()
        for name in data.column_names:
            assert read_all(index, [name]).to_pylist() == data.select([name]).to_pylist()


@pytest.mark.parametrize("stream", [False, True])
def test_dictionaries_that_grow_or_are_replaced(tmp_path: Path, stream: bool) -> None:
    schema = pa.schema([("word", pa.dictionary(pa.int32(), pa.string()))])
    words = [["a", "b"], ["a", "b", "c"], ["x", "y"]] if stream else [["a", "b"], ["a", "b", "c"]]
    path = tmp_path / "x.arrow"
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(path, schema, options=options) as writer:
        for each in words:
            column = pa.DictionaryArray.from_arrays(pa.array(range(len(each)), pa.int32()), pa.array(each))
            writer.write_batch(pa.record_batch([column], schema=schema))
    index = index_dataset(path, "arrow")
    for number in reversed(range(len(words))):
        assert index.read(number)["word"].to_pylist() == words[number]


# -- fingerprints and changes ----------------------------------------------------------------------------------------


def test_a_fingerprint_is_of_names_contents_rows_and_columns(tmp_path: Path) -> None:
    def fingerprint(name: str, files: dict[str, pa.Table], **options: object) -> str:
        for path, data in files.items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_bytes(of_parquet(data, **options))
        return index_dataset(tmp_path / name, "parquet").fingerprint

    one = fingerprint("1", {"a.parquet": table(3), "s/b.parquet": table(4)})
    assert one == fingerprint("1a", {"a.parquet": table(3), "s/b.parquet": table(4)})
    assert one != fingerprint("2", {"a.parquet": table(3, 99), "s/b.parquet": table(4)})
    assert one != fingerprint("3", {"a.parquet": table(3), "b.parquet": table(4)})
    assert one != fingerprint("4", {"a.parquet": table(4), "s/b.parquet": table(3)})
    narrow = {"a.parquet": table(3).select(["id"]), "s/b.parquet": table(4).select(["id"])}
    assert one != fingerprint("5", narrow)


def test_what_changed_is_found_without_reading(tmp_path: Path) -> None:
    written(KINDS["csv"], tmp_path, [3, 3, 3])
    index = index_dataset(tmp_path, "csv")
    assert index.check(find_files(tmp_path)) == []
    (tmp_path / "part-000.csv").write_text("id,value,text\n")
    (tmp_path / "part-001.csv").unlink()
    (tmp_path / "part-003.csv").write_text("id,value,text\n")
    paths = [str(tmp_path / f"part-{number:03}.csv") for number in (0, 1, 3)]
    kinds: list[Any] = ["changed", "missing", "added"]
    assert index.check(find_files(tmp_path)) == [Change(*each) for each in zip(paths, kinds, strict=True)]


# -- the index as a file ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_index_is_the_same_again(kind: str, tmp_path: Path) -> None:
    expected = written(KINDS[kind], tmp_path, [20, 0, 11])
    index = index_dataset(tmp_path, KINDS[kind].format)
    save_index(index, tmp_path / "kept" / "x.index")
    again = load_index(tmp_path / "kept" / "x.index")
    assert again.fingerprint == index.fingerprint
    assert again.format == index.format
    assert read_all(again).equals(expected)
    assert to_bytes(again) == to_bytes(index)


def test_an_index_is_saved_to_any_storage_and_small(tmp_path: Path) -> None:
    index = made_of([1000] * 100_000)
    url = f"memory://index-{tmp_path.name}/a/x.index"
    save_index(index, url)
    assert load_index(url).rows == 100_000_000
    assert len(to_bytes(index)) < 400_000
    with pytest.raises(ObjectNotFound):
        load_index(f"memory://index-{tmp_path.name}/a/y.index")


def test_an_index_that_was_damaged_is_told(tmp_path: Path) -> None:
    data = to_bytes(made_of([3, 4, 5], Csv(types={"a": "int64"})))
    assert from_bytes(data).format == Csv(types={"a": "int64"})
    for length in range(len(data)):
        with pytest.raises(DataDamaged, match="not a whole index"):
            from_bytes(data[:length])
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 4
        with pytest.raises((DataDamaged, InvalidInput)):
            from_bytes(bytes(damaged))
    with pytest.raises(InvalidInput, match="version 9"):
        from_bytes(data[:8] + b"\x09" + data[9:])


def test_a_dataset_needs_files() -> None:
    with pytest.raises(InvalidInput, match="at least one file"):
        index_files([], "parquet")


def test_an_index_goes_to_another_process(tmp_path: Path) -> None:
    expected = written(KINDS["jsonl"], tmp_path, [5])
    index = index_dataset(tmp_path, "jsonl")
    program = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()).read(0)['id'].to_pylist())"
    answer = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(index), capture_output=True, check=True)
    assert answer.stdout.decode().strip() == str(expected["id"].to_pylist())


def test_pyarrow_is_imported_when_it_is_needed_and_asked_for_where_it_is_missing() -> None:
    modules = "strata.data, strata.data.indexing, strata.data.indexfile, strata.data.finding"
    program = f"import sys, {modules}; assert 'pyarrow' not in sys.modules; sys.modules['pyarrow'] = None\n"
    program += "strata.data.indexing.index_dataset(sys.argv[1], 'parquet')"
    answer = subprocess.run([sys.executable, "-c", program, __file__], capture_output=True, text=True, check=False)
    assert "pip install 'strata-runtime[data]'" in answer.stderr


def test_a_loader_asks_for_torch_before_the_first_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(KINDS["jsonl"], tmp_path, [5])
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InvalidInput, match=r"pip install 'strata-runtime\[torch\]'"):
        Loader(tmp_path, 2, format="jsonl", output="torch")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "arrow", "feather", "csv", "jsonl"])
def test_pandas_is_not_imported_for_what_does_without_it(tmp_path: Path, kind: str) -> None:
    """Where it is installed Arrow does, for some of its functions, and the first batch comes 200 ms later."""
    (tmp_path / "data").mkdir()
    written(KINDS.get(kind) or KINDS[f"{kind}-file"], tmp_path / "data", [300])
    (tmp_path / "pandas.py").write_text("raise SystemExit('pandas is imported')")
    program = "import sys; from strata.data import Loader; next(iter(Loader(sys.argv[1], 16, format=sys.argv[2])))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", program, str(tmp_path / "data"), kind]
    subprocess.run(command, env=environment, check=True)


def test_every_format_has_a_name() -> None:
    names = ["arrow", "csv", "feather", "files", "jsonl", "parquet", "tfexample", "tfrecord", "webdataset"]
    assert sorted(FORMATS) == names
