"""The columns of a block, as batches are made of them: numbers as numpy arrays, everything else as Arrow has it.

Columnar from the file to the batch: no row is ever a Python object, unless its type is one.
"""

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strata.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

Rows: TypeAlias = NDArray[np.int64]


class Fixed:
    """Numbers, or vectors of them: all elements lie side by side."""

    __slots__ = ("values",)

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def room(self, count: int) -> NDArray[Any]:
        return np.empty((count, *self.values.shape[1:]), self.values.dtype)

    def take(self, rows: Rows, out: NDArray[Any]) -> None:
        """These rows, one after the other. They must be there: nobody looks again, which takes half of the time."""
        self.values.take(rows, 0, out, "clip")


class Loose:
    """Text, bytes, lists and the like: one Python object each, made when a batch is."""

    __slots__ = ("_read", "values")

    def __init__(self, values: "pa.Array") -> None:
        self.values = values
        self._read = _reader(values)

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes)

    def room(self, count: int) -> NDArray[Any]:
        return np.empty(count, object)

    def take(self, rows: Rows, out: NDArray[Any]) -> None:
        for place, value in enumerate(self._read(rows)):
            out[place] = value


Column: TypeAlias = Fixed | Loose


def columns_of(table: "pa.Table", what: str) -> dict[str, Column]:
    """Of a block; `what` says which, for errors."""
    return {name: _column(table.column(name), name, what) for name in table.column_names}


def _column(values: "pa.ChunkedArray", name: str, what: str) -> Column:
    import pyarrow as pa

    chunks = values.chunks or [pa.array([], values.type)]
    whole = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    if pa.types.is_dictionary(whole.type):
        whole = whole.dictionary_decode()
    fixed = _fixed(whole)
    if fixed is None:
        return Loose(whole)
    if whole.null_count and not pa.types.is_floating(whole.type):
        raise InvalidInput(
            f"column {name!r} has {whole.null_count:,} values that are missing in {what}, and numpy has no number for "
            'that: leave it out of columns=, or take batches as Arrow tables (output="arrow")'
        )
    return Fixed(fixed)


def _fixed(values: "pa.Array") -> NDArray[Any] | None:
    """As numbers, if they are: without a copy, but for what Arrow keeps as bits."""
    import pyarrow as pa

    kind = values.type
    if pa.types.is_fixed_size_list(kind):
        inner = values.flatten() if not values.null_count else None
        elements = None if inner is None else _fixed(inner)
        return None if elements is None else elements.reshape(len(values), kind.list_size, *elements.shape[1:])
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.asarray(values.to_numpy(zero_copy_only=False))
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return np.asarray(values.to_numpy(zero_copy_only=False)) if not pa.types.is_time(kind) else None
    return None


def _reader(values: "pa.Array") -> Any:
    import pyarrow as pa

    if values.null_count or not (pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)):
        return lambda rows: values.take(pa.array(rows)).to_pylist()
    width = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, width)[values.offset : values.offset + len(values) + 1]
    view = memoryview(data) if data is not None else memoryview(b"")

    def read(rows: Rows) -> list[bytes]:
        starts, stops = ends[rows].tolist(), ends[rows + 1].tolist()
        return [bytes(view[start:stop]) for start, stop in zip(starts, stops, strict=True)]

    return read
