"""Examples as columns: what the first records say, what files say together, and what does not fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata.data.formats import format_of
from strata.data.index import DatasetIndex
from strata.data.indexfile import load_index, save_index
from strata.data.indexing import index_dataset
from strata.data.loader import Loader
from strata.errors import DataDamaged, DataMismatch, InvalidInput
from tests.unit.data.exampleoracle import Feature, encoded
from tests.unit.data.making import of_records, read_all

pa = pytest.importorskip("pyarrow")

Record = dict[str, Feature]


def ints(*values: int) -> Feature:
    return "int64", [*values]


def floats(*values: float) -> Feature:
    return "float", [*values]


def texts(*values: bytes) -> Feature:
    return "bytes", [*values]


def put(folder: Path, *files: list[Record]) -> Path:
    for number, records in enumerate(files):
        (folder / f"part-{number}.tfrecord").write_bytes(of_records([*map(encoded, records)]))
    return folder


def types(index: DatasetIndex) -> dict[str, str]:
    return {field.name: str(field.type).replace("item: ", "") for field in index.schema}


def test_the_first_records_say_what_columns_there_are(tmp_path: Path) -> None:
    def record(number: int) -> Record:
        optional = {"sometimes": ints(number)} if number % 2 else {}
        return {
            "z/label": ints(number),
            "weight": floats(number / 2),
            "image": texts(b"%d" % number),
            "box": floats(number, 1, 2, 3),
            "pair": texts(b"a", b"b"),
            "tokens": ints(*range(number)),
            "nothing": ints(),
            **optional,
        }

    records = [record(number) for number in range(5)]
    index = index_dataset(put(tmp_path, records), "tfexample")
    assert types(index) == {
        "box": "fixed_size_list<float>[4]",
        "image": "binary",
        "nothing": "list<int64>",
        "pair": "fixed_size_list<binary>[2]",
        "sometimes": "list<int64>",
        "tokens": "list<int64>",
        "weight": "float",
        "z/label": "int64",
    }
    table = read_all(index)
    assert table["box"].to_pylist() == [[number, 1, 2, 3] for number in range(5)]
    assert table["tokens"].to_pylist() == [[*range(number)] for number in range(5)]
    assert table["sometimes"].to_pylist() == [[], [1], [], [3], []]
    assert table["nothing"].to_pylist() == [[]] * 5
    assert table["pair"].to_pylist() == [[b"a", b"b"]] * 5
    with Loader(index, 5, shuffle=False) as loader:
        (batch,) = loader
    assert (batch["box"].dtype, batch["box"].shape) == (np.float32, (5, 4))
    assert batch["z/label"].tolist() == [0, 1, 2, 3, 4]
    assert batch["image"].tolist() == [b"0", b"1", b"2", b"3", b"4"]
    assert batch["tokens"][3] == [0, 1, 2]


def test_files_say_it_together(tmp_path: Path) -> None:
    put(
        tmp_path,
        [{"same": ints(1), "differs": ints(1, 2), "here": floats(1)}] * 2,
        [],
        [{"same": ints(2), "differs": ints(3)}] * 2,
    )
    index = index_dataset(tmp_path, "tfexample")
    assert types(index) == {"differs": "list<int64>", "here": "list<float>", "same": "int64"}
    assert read_all(index).to_pydict() == {
        "differs": [[1, 2], [1, 2], [3], [3]],
        "here": [[1.0], [1.0], [], []],
        "same": [1, 1, 2, 2],
    }
    (tmp_path / "part-3.tfrecord").write_bytes(of_records([encoded({"same": floats(1)})]))
    with pytest.raises(DataMismatch, match=r"part-0.tfrecord and .*part-3.tfrecord differ: 'same' \(int64 / float\)"):
        index_dataset(tmp_path, "tfexample")


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"a": ints(1, 2), "b": floats(1, 2)}, r"has 2 values as 'a', and the first records have 1.*'a': 'int64\[\]'"),
        ({"a": ints(1), "b": floats(1)}, r"has 1 value as 'b', and the first records have 2.*'b': 'float\[\]'"),
        ({"a": ints(1)}, "has nothing as 'b', and the first records have 2"),
        ({"a": ints(), "b": floats(1, 2)}, "has nothing as 'a'"),
        ({"a": floats(1), "b": floats(1, 2)}, "has float as 'a', and others int64"),
        ({"a": ints(1), "b": floats(1, 2), "c": texts(b"")}, r"has 'c', which the first records have not.*'bytes\[\]'"),
    ],
)
def test_a_record_that_differs_is_named(tmp_path: Path, odd: Record, why: str) -> None:
    usual: Record = {"a": ints(1), "b": floats(1, 2)}
    put(tmp_path, [usual] * 300, [*[usual] * 299, odd])
    index = index_dataset(tmp_path, "tfexample")
    assert index.read(0).num_rows == 300
    with pytest.raises(DataMismatch, match=rf"^sample 599 in .*part-1.tfrecord {why}") as raised:
        index.read(1)
    assert (raised.value.file, raised.value.samples) == (f"{tmp_path}/part-1.tfrecord", (599, 600))


def test_kinds_that_differ_among_the_first_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataMismatch, match=r"^sample 2 in .* has bytes as 'a', and others int64") as raised:
        index_dataset(put(tmp_path, [{"a": ints(1)}, {}, {"a": texts(b"")}]), "tfexample")
    assert raised.value.samples == (2, 3)


def test_types_settle_what_the_first_records_do_not_show(tmp_path: Path) -> None:
    usual: Record = {"a": ints(7), "b": ints(1)}
    put(tmp_path, [*[usual] * 299, {"a": ints(), "b": ints(2), "c": floats(1.5), "d": texts(b"x", b"y")}])
    chosen = {"a": "int64[]", "c": "float[]", "d": "bytes[]"}
    index = index_dataset(tmp_path, format_of("tfexample", types=chosen))
    assert types(index) == {"a": "list<int64>", "b": "int64", "c": "list<float>", "d": "list<binary>"}
    assert read_all(index).slice(298).to_pydict() == {
        "a": [[7], []],
        "b": [1, 2],
        "c": [[], [1.5]],
        "d": [[], [b"x", b"y"]],
    }
    one = index_dataset(tmp_path, format_of("tfexample", types={**chosen, "b": "int64[1]"}))
    assert one.read(0, ["b"])["b"].to_pylist() == [[1]] * 299 + [[2]]


@pytest.mark.parametrize("said", ["int32", "int64[0]", "list<int64>", "float[-1]", "bytes[", "", "int64[4][4]"])
def test_types_that_cannot_be_are_refused(said: str) -> None:
    with pytest.raises(InvalidInput, match="'a' cannot be"):
        format_of("tfexample", types={"a": said})


def test_columns_that_are_not_asked_for_may_differ(tmp_path: Path) -> None:
    put(tmp_path, [*[{"a": ints(1), "b": ints(1)}] * 299, {"a": ints(2), "b": floats(1)}])
    index = index_dataset(tmp_path, "tfexample")
    assert index.read(0, ["a"])["a"].to_pylist() == [1] * 299 + [2]
    with pytest.raises(DataMismatch):
        index.read(0, ["b"])


def test_an_index_that_was_kept_knows_what_features_there_are(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    put(tmp_path / "data", [*[{"a": ints(1), "b": ints(1)}] * 299, {"a": ints(1), "b": ints(1), "new": ints(1)}])
    save_index(index_dataset(tmp_path / "data", format_of("tfexample", types={"b": "int64[]"})), tmp_path / "ix")
    index = load_index(tmp_path / "ix")
    assert index.format == format_of("tfexample", types={"b": "int64[]"})
    for columns in (None, ["a"]):
        with pytest.raises(DataMismatch, match=r"sample 299 .* has 'new'"):
            index.read(0, columns)


def test_what_is_no_example_is_told_and_can_be_read_as_records(tmp_path: Path) -> None:
    records: list[Any] = [encoded({"a": ints(1)})] * 300 + [b"no example", b"\x0a\x02\x0a"]
    (tmp_path / "a.tfrecord").write_bytes(of_records(records))
    index = index_dataset(tmp_path, "tfexample")
    with pytest.raises(DataMismatch, match=r"sample 300 in .*a.tfrecord is no tf.train.Example.*format='tfrecord'"):
        index.read(0)
    assert read_all(index_dataset(tmp_path, "tfrecord"))["record"].to_pylist() == records
    (tmp_path / "a.tfrecord").write_bytes(of_records(records[-2:]))
    with pytest.raises(DataMismatch, match="sample 0 in"):
        index_dataset(tmp_path, "tfexample")


def test_a_number_without_end_is_damage(tmp_path: Path) -> None:
    listed = b"\x0a\x0b" + b"\x80" * 10 + b"\x01"
    entry = b"\x0a\x01a\x12" + bytes([len(listed) + 2]) + b"\x1a" + bytes([len(listed)]) + listed
    record = b"\x0a" + bytes([len(entry) + 2]) + b"\x0a" + bytes([len(entry)]) + entry
    (tmp_path / "a.tfrecord").write_bytes(of_records([record]))
    with pytest.raises(DataDamaged, match="more than 10 bytes"):
        index_dataset(tmp_path, "tfexample")


def test_no_records_are_no_columns(tmp_path: Path) -> None:
    index = index_dataset(put(tmp_path, [], []), "tfexample")
    assert (index.rows, types(index)) == (0, {})
    empty = index_dataset(put(tmp_path, [{}, {}]), "tfexample")
    assert (empty.rows, types(empty), empty.read(0).num_rows) == (2, {}, 2)
