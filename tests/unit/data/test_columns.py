"""Columns of a block: rows of every type of Arrow's come out as they went in."""

from datetime import date, datetime
from typing import Any

import numpy as np
import pytest

from strata.data.columns import Fixed, Loose, columns_of
from strata.errors import InvalidInput

pa = pytest.importorskip("pyarrow")

ROWS = np.array([3, 0, 2, 2])
PLACES = np.array([1, 0, 3, 2])


def put(values: Any) -> Any:
    """Rows 3, 0, 2 and 2, put to places 1, 0, 3 and 2."""
    column = columns_of(pa.table({"x": values}), "a test")["x"]
    found, out = column.room(4), column.room(4)
    column.take(ROWS, found)
    out[PLACES] = found
    return out


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float16", "float32", "float64", "bool"])
@pytest.mark.parametrize("chunks", [1, 2])
def test_numbers_are_arrays_of_their_type(dtype: str, chunks: int) -> None:
    values = np.array([1, 0, 3, 4]).astype(dtype)
    column = pa.chunked_array([pa.array(part) for part in np.split(values, chunks)])
    found = put(column)
    assert found.dtype == np.dtype(dtype)
    assert found.tolist() == values[[0, 3, 2, 2]].tolist()


def test_numbers_are_taken_from_where_they_lie_in_what_they_are_a_part_of() -> None:
    whole = pa.array(np.arange(10, dtype=np.uint16))
    for part in (whole, whole[3:], whole[2:6], whole[4:4], pa.array([], pa.uint16()), pa.array([1.5, None])[:1]):
        column = columns_of(pa.table({"x": part}), "a test")["x"]
        assert isinstance(column, Fixed)
        assert column.values.tolist() == part.to_pylist()
    buffers = [None, pa.py_buffer(np.arange(5, dtype=np.int32).tobytes() + b"odd")]
    column = columns_of(pa.table({"x": pa.Array.from_buffers(pa.int32(), 3, buffers, offset=1)}), "a test")["x"]
    assert isinstance(column, Fixed)
    assert column.values.tolist() == [1, 2, 3]


def test_vectors_are_arrays_of_two_dimensions() -> None:
    values = pa.FixedSizeListArray.from_arrays(np.arange(12, dtype=np.float32), 3)
    found = put(values)
    assert found.shape == (4, 3)
    assert found.tolist() == np.arange(12).reshape(4, 3)[[0, 3, 2, 2]].tolist()


@pytest.mark.parametrize(
    "values",
    [
        ["a", "bb", "", "dddd"],
        [b"a", b"bb", b"", b"dddd"],
        [[1], [], [2, 3], [4]],
        [{"a": 1}, {"a": 2}, {"a": 3}, {"a": 4}],
        [b"a", None, b"c", b"d"],
        [None, "b", "c", "d"],
    ],
)
def test_everything_else_is_objects(values: list[Any]) -> None:
    found = put(pa.array(values))
    assert found.dtype == object
    assert found.tolist() == [values[0], values[3], values[2], values[2]]


def test_large_and_sliced_bytes() -> None:
    values = pa.array([b"no", b"a", b"bb", b"", b"dddd"], pa.large_binary()).slice(1)
    assert put(values).tolist() == [b"a", b"dddd", b"", b""]


def test_times_are_numpys() -> None:
    days = [date(2026, 1, day) for day in (1, 2, 3, 4)]
    assert put(pa.array(days)).tolist() == [days[0], days[3], days[2], days[2]]
    hours = [datetime(2026, 1, 1, hour) for hour in (1, 2, 3, 4)]
    assert put(pa.array(hours)).tolist() == [hours[0], hours[3], hours[2], hours[2]]


def test_words_of_a_dictionary_are_words() -> None:
    assert put(pa.array(["a", "b", "a", "c"]).dictionary_encode()).tolist() == ["a", "c", "a", "a"]


def test_missing_floats_are_nan_and_missing_integers_are_told() -> None:
    assert np.isnan(put(pa.array([None, 1.0, 2.0, 3.0]))[0])
    with pytest.raises(InvalidInput, match=r"column 'x' has 1 values that are missing in a test"):
        put(pa.array([None, 1, 2, 3]))


@pytest.mark.parametrize("values", [[[1, 2], None], [[1, 2], [3, None]], [[1, 2], [3, 4]]])
@pytest.mark.parametrize("element", ["int32", "float32"])
def test_vectors_with_missing_values_are_never_something_else(values: list[Any], element: str) -> None:
    """Else the blocks of a dataset would not go into one batch."""
    vectors = pa.table({"x": pa.array(values, pa.list_(pa.type_for_alias(element), 2))})
    if None in values or (element == "int32" and values[1][1] is None):
        with pytest.raises(InvalidInput, match=r"column 'x' has 1 values that are missing in a test"):
            columns_of(vectors, "a test")
    else:
        found = columns_of(vectors, "a test")["x"].room(3)
        assert (found.dtype, found.shape) == (np.dtype(element), (3, 2))


def test_a_block_without_rows_has_its_columns() -> None:
    found = columns_of(pa.table({"x": pa.array([], pa.int32()), "t": pa.array([], pa.string())}), "a test")
    assert isinstance(found["x"], Fixed)
    assert isinstance(found["t"], Loose)
    assert found["x"].room(0).dtype == np.int32
