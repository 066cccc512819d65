"""Batches as Arrow tables: of the types that the files have, with what is missing in them; and types that Arrow itself
cannot take rows of."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from strata.data import Loader
from strata.data.indexing import index_dataset
from strata.errors import DataDamaged

pa = pytest.importorskip("pyarrow")

DAY = dt.date(2024, 2, 29)
MOMENT = dt.datetime(2024, 2, 29, 12, 30)
COLUMNS = {
    "int": pa.array([1, None, 3, 4, 5, None, 7]),
    "bool": pa.array([True, None, False, True, None, False, True]),
    "float": pa.array([1.5, None, float("inf"), 4, 5, None, 7]),
    "date64": pa.array([DAY, None] * 3 + [DAY], pa.date64()),
    "zoned": pa.array([MOMENT, None] * 3 + [MOMENT], pa.timestamp("us", "UTC")),
    "duration": pa.array([dt.timedelta(1), None] * 3 + [None], pa.duration("ms")),
    "decimal": pa.array([Decimal("1.10"), None] * 3 + [None]),
    "vector": pa.array([[1, 2], None, [3, None], [4, 5], [6, 7], [8, 9], None], pa.list_(pa.int32(), 2)),
    "struct": pa.array([{"x": 1, "y": ["a"]}, None] * 3 + [{"x": None, "y": []}]),
    "large": pa.array(["a", None, "b", "c", "d", "e", "f"], pa.large_string()),
}


def file_of(folder: Path, values: Any) -> Path:
    """In several blocks."""
    path, data = folder / "a.arrow", pa.table({"x": values, "id": range(len(values))})
    with pa.ipc.new_file(path, data.schema) as writer:
        writer.write_table(data, max_chunksize=3)
    return path


def read(path: Path, **how: Any) -> Any:
    with Loader(path, 2, format="arrow", tail="short", output="arrow", seed=1, **how) as loader:
        tables = list(loader)
    return pa.concat_tables(tables).sort_by("id")["x"].combine_chunks()


@pytest.mark.parametrize("kind", COLUMNS)
def test_what_is_missing_is_missing_in_tables_and_types_are_those_of_the_files(kind: str, tmp_path: Path) -> None:
    path = file_of(tmp_path, COLUMNS[kind])
    for how in ({}, {"shuffle": False}, {"rank": 0, "world_size": 1}):
        found = read(path, **how)
        assert found.type == COLUMNS[kind].type
        assert found.to_pylist() == COLUMNS[kind].to_pylist()


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_rank_without_a_sample_has_columns_of_the_same_types(kind: str, tmp_path: Path) -> None:
    path = file_of(tmp_path, COLUMNS[kind])
    with Loader(path, 1, format="arrow", output="arrow", rank=0, world_size=2) as loader:
        assert {(batch["x"].type, len(batch)) for batch in loader} == {(COLUMNS[kind].type, 0)}


@pytest.mark.parametrize("output", ["numpy", "arrow"])
@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array(["a", "b" * 40, None, "c", "d"], pa.string_view()), pa.string()),
        (pa.array([b"a", b"b" * 40, None, b"c", b"d"], pa.binary_view()), pa.binary()),
        (pa.RunEndEncodedArray.from_arrays([3, 5], ["x", "y"]), pa.string()),
        (pa.array(["x", "y", None, "x", "z"]).dictionary_encode(), pa.string()),
    ],
    ids=["texts", "bytes", "runs", "words"],
)
def test_views_and_encodings_are_read_as_what_they_stand_for(
    values: Any, kind: Any, output: str, tmp_path: Path
) -> None:
    path = file_of(tmp_path, values)
    if output == "arrow":
        assert read(path).type == kind
        assert read(path).to_pylist() == values.to_pylist()
    else:
        with Loader(path, 5, format="arrow", shuffle=False) as loader:
            (batch,) = loader
        assert batch["x"].tolist() == values.to_pylist()


def test_a_type_that_no_rows_can_be_taken_of_is_told_when_the_file_is_indexed(tmp_path: Path) -> None:
    path = file_of(tmp_path, pa.array([["a"], ["b"]], pa.list_(pa.string_view())))
    with pytest.raises(DataDamaged, match=r"column 'x' is of type list<item: string_view>, of which") as told:
        index_dataset(path, "arrow")
    assert told.value.file == str(path)
