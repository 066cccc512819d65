"""However text is cut into blocks, its rows are those of the whole."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.data.formats import format_of
from strata.data.formats.csv import Csv
from strata.data.formats.lines import CsvRows
from strata.data.indexing import index_dataset
from strata.errors import DataDamaged, DataError, DataMismatch
from tests.unit.data.making import blocks, outcome, read_all

WILD = st.text(alphabet='a",\n\r;é ', max_size=8)
ROWS = st.lists(st.lists(WILD, min_size=3, max_size=3), max_size=20)
BLOCKS = st.integers(1, 60)


def index_of(folder: Path, name: str, data: bytes, **options: object) -> pa.Table:
    (folder / name).write_bytes(data)
    return read_all(index_dataset(folder / name, format_of(name.rpartition(".")[2], **options)))


@given(rows=ROWS, block_bytes=BLOCKS, line_end=st.sampled_from(["\n", "\r\n"]))
def test_csv_that_python_wrote(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], block_bytes: int, line_end: str
) -> None:
    sink = io.StringIO(newline="")
    writer = csv.writer(sink, lineterminator=line_end, quoting=csv.QUOTE_ALL)
    writer.writerow("abc")
    writer.writerows(rows)
    types = dict.fromkeys("abc", "string")
    found = index_of(
        tmp_path_factory.mktemp("csv"), "x.csv", sink.getvalue().encode(), block_bytes=block_bytes, types=types
    )
    assert [[*row.values()] for row in found.to_pylist()] == rows


@given(body=st.text(alphabet='a",\n\r', max_size=60), block_bytes=BLOCKS)
def test_csv_of_any_kind_is_cut_as_arrow_reads_it(
    tmp_path_factory: pytest.TempPathFactory, body: str, block_bytes: int
) -> None:
    """Also where quotes stand inside of values that have none around them, as nobody should write."""
    data = f"a,b\n{body}".encode()
    types = dict.fromkeys("ab", "string")
    try:
        whole = pa.csv.read_csv(
            io.BytesIO(data),
            pa.csv.ReadOptions(use_threads=False, block_size=1 << 20),
            pa.csv.ParseOptions(newlines_in_values=True),
            pa.csv.ConvertOptions(column_types={name: pa.string() for name in "ab"}),
        )
    except pa.ArrowInvalid:
        whole = None
    folder = tmp_path_factory.mktemp("csv")
    found = outcome(lambda: index_of(folder, "x.csv", data, block_bytes=block_bytes, types=types))
    if isinstance(found, DataError):
        # Arrow takes the end of the file for the end of a quoted value; that is a file cut short.
        assert whole is None or "ends within a quoted value" in str(found)
    else:
        assert whole is not None
        assert found.to_pylist() == whole.to_pylist()


@given(data=st.binary(max_size=40).map(lambda data: bytes(b'a",\n\r'[each % 5] for each in data)))
def test_the_quick_way_to_find_row_ends_is_the_exact_one(data: bytes) -> None:
    rows = CsvRows(",", '"')
    view = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(view == ord('"'))
    if len(quotes) and rows.alternate(view, quotes):
        quick = rows.outside_quotes(view)
        exact = rows.scanned(data, ends_behind_cr=False)
        assert quick[1] == exact[1]
        # Where both kinds of line ends stand, the exact way may see a later one; each is an end.
        assert quick[0] <= exact[0]
        assert rows.scanned(data[: quick[0]], ends_behind_cr=True) == (quick[0], False)


@given(
    rows=st.lists(
        st.dictionaries(st.sampled_from("abc"), st.none() | st.text(max_size=6).map(lambda text: f"_{text}")),
        max_size=20,
    ),
    block_bytes=BLOCKS,
    blank=st.booleans(),
)
def test_json_lines(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, str | None]], block_bytes: int, blank: bool
) -> None:
    data = "".join(json.dumps(row) + "\n" * (1 + blank) for row in rows).encode()
    path = tmp_path_factory.mktemp("jsonl") / "x.jsonl"
    path.write_bytes(data)
    index = index_dataset(path, format_of("jsonl", block_bytes=block_bytes))
    assert index.rows == len(rows)
    assert {*index.schema.names} == {name for row in rows for name in row}
    found = [row for block in blocks(index) for row in block.to_pylist()]
    if index.schema.names:
        assert found == [{name: row.get(name) for name in index.schema.names} for row in rows]


@pytest.mark.parametrize(
    ("texts", "kind", "values"),
    [
        (["1", "2.5"], "double", [1.0, 2.5]),
        (["1", "x"], "string", ["1", "x"]),
        (["true", "1"], "string", ["true", "1"]),
        (["2020-01-01", "2020-01-01 10:00:00"], "timestamp[s]", None),
        (["2020-01-01", "soon"], "string", ["2020-01-01", "soon"]),
        (["", "7"], "int64", [None, 7]),
    ],
)
def test_a_csv_column_is_of_a_type_that_holds_all_its_values(
    tmp_path: Path, texts: list[str], kind: str, values: list[object] | None
) -> None:
    """Whether they differ between blocks or between files."""
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.csv").write_text(f"k,v\n0,{text}\n")
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "x.csv").write_text("k,v\n" + "".join(f"0,{text}\n" for text in texts))
    for path in (str(tmp_path / "*.csv"), str(tmp_path / "all")):
        index = index_dataset(path, Csv(block_bytes=1))
        assert str(index.schema.field("v").type) == kind
        assert values is None or read_all(index)["v"].to_pylist() == values


def test_a_type_that_is_given_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("k,v\n1,2\n")
    index = index_dataset(tmp_path, Csv(types={"v": "float32"}))
    assert index.schema.field("v").type == pa.float32()
    (tmp_path / "x.csv").write_text("k,v\n1,two\n")
    with pytest.raises(DataDamaged, match=r"x\.csv"):
        index_dataset(tmp_path, Csv(types={"v": "float32"}))


def test_csv_without_a_header_and_with_a_mark_at_its_start(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"\xef\xbb\xbf\r\n1,2\n3,4")
    assert read_all(index_dataset(tmp_path, Csv(header=False))).to_pydict() == {"f0": [1, 3], "f1": [2, 4]}
    assert read_all(index_dataset(tmp_path, Csv(header=False, names=("p", "q")))).to_pydict() == {
        "p": [1, 3],
        "q": [2, 4],
    }
    with pytest.raises(DataDamaged, match="2 values, and 1 names"):
        index_dataset(tmp_path, Csv(header=False, names=("p",)))


def test_columns_may_come_in_another_order_but_not_under_other_names(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("a,b\n1,x\n")
    (tmp_path / "2.csv").write_text("b,a\ny,2\n")
    assert read_all(index_dataset(tmp_path, "csv")).to_pydict() == {"a": [1, 2], "b": ["x", "y"]}
    (tmp_path / "3.csv").write_text("a,c\n1,x\n")
    with pytest.raises(
        DataMismatch, match=r"1\.csv and .*3\.csv differ: 'b' \(there / absent\), 'c' \(absent / there\)"
    ):
        index_dataset(tmp_path, "csv")


def test_json_of_one_name_and_kinds_that_do_not_fit_is_told(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "2.jsonl").write_text('{"a": "one"}\n')
    with pytest.raises(DataMismatch, match=r"1\.jsonl and .*2\.jsonl differ: 'a' \(int64 / string\)"):
        index_dataset(tmp_path, "jsonl")


def test_nested_json_is_merged(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text('{"a": {"x": 1, "l": [1]}}\n')
    (tmp_path / "2.jsonl").write_text('{"a": {"y": "t", "l": [2.5]}, "b": null}\n')
    found = read_all(index_dataset(tmp_path, "jsonl"))
    assert found.to_pylist() == [
        {"a": {"x": 1, "l": [1.0], "y": None}, "b": None},
        {"a": {"x": None, "l": [2.5], "y": "t"}, "b": None},
    ]


@pytest.mark.parametrize("depth", [101, 100_000])
def test_json_nested_too_deeply_is_refused_and_takes_no_process_with_it(tmp_path: Path, depth: int) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": ' + "[" * depth + "]" * depth + "}\n")
    with pytest.raises(DataDamaged, match="nested"):
        index_dataset(tmp_path, "jsonl")


def test_json_with_many_brackets_that_are_not_deep_is_read(tmp_path: Path) -> None:
    rows = [{"a": [[number]] * 500, "t": "[{" * 500 + '"\\'} for number in range(3)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_all(index_dataset(tmp_path, "jsonl")).to_pylist() == rows


def test_csv_that_is_not_utf8_is_told_or_read_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes("a,b\n1,caf\xe9\n".encode("latin-1"))
    with pytest.raises(DataDamaged, match="column 'b' is not valid UTF-8"):
        index_dataset(tmp_path, "csv")
    assert read_all(index_dataset(tmp_path, Csv(types={"b": "binary"})))["b"].to_pylist() == [b"caf\xe9"]
