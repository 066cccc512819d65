"""The columns of a block, as batches are made of them: numbers as numpy arrays, everything else as Arrow has it.

Columnar from the file to the batch: no row is ever a Python object, unless its type is one.
"""

from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strata.data.columnar import plain_type
from strata.data.files import File, Reading
from strata.data.formats.places import Places
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


class Kept(Loose):
    """Anything, for batches that are Arrow's again: of its own type, with what is missing."""

    __slots__ = ()

    def taken(self, rows: Rows) -> "pa.Array":
        return self.values.take(_places(rows))

    def none(self) -> "pa.Array":
        return self.values[:0]


class Lying:
    """Large values that are in their file still, of the block of these samples: read when a batch wants them."""

    __slots__ = ("_lengths", "_starts", "file", "nbytes", "samples")

    def __init__(self, file: File, places: Places, samples: tuple[int, int]) -> None:
        self.file, self.samples = file, samples
        self.nbytes = int(places.lengths[places.lengths > 0].sum())
        """As if they were held: so much of the file should stay in the system's cache."""
        self._starts, self._lengths = places.starts.tolist(), places.lengths.tolist()
        keep_freed_memory()

    def room(self, count: int) -> NDArray[Any]:
        return np.empty(count, object)

    def take(self, rows: Rows, out: NDArray[Any]) -> None:
        with self.file.reading() as reading:
            self.read(reading, rows).take(rows, out)

    def read(self, reading: Reading, rows: Rows) -> "Taken":
        read, starts, lengths = reading.read, self._starts, self._lengths
        return Taken([None if lengths[row] < 0 else read(starts[row], lengths[row]) for row in rows.tolist()])


class Taken:
    """The values of just the rows that are wanted of a block."""

    __slots__ = ("_values",)

    def __init__(self, values: list[bytes | None]) -> None:
        self._values = values

    @property
    def nbytes(self) -> int:
        return sum(len(each) for each in self._values if each is not None)

    def room(self, count: int) -> NDArray[Any]:
        return np.empty(count, object)

    def take(self, rows: Rows, out: NDArray[Any]) -> None:
        for place, value in enumerate(self._values):
            out[place] = value


Column: TypeAlias = Fixed | Loose | Kept | Lying | Taken

KEPT_FREE_BYTES = 31 << 20


@cache
def keep_freed_memory() -> None:
    """Batch after batch of large values is made and let go. glibc gives what is free at the end of a heap back to the
    system at once, from 128 KiB on, and to get it again page by page takes longer than to read values into it. That
    limit grows to twice the largest piece that was ever freed (of at most 32 MiB): so one is, which nobody has touched.
    Who has set the limit (MALLOC_TRIM_THRESHOLD_) keeps it."""
    np.empty(KEPT_FREE_BYTES, np.uint8)


def columns_of(table: "pa.Table", what: str, *, kept: bool = False) -> dict[str, Column]:
    """Of a block; `what` says which, for errors. `kept`: as Arrow has them, numbers too."""
    make = _kept if kept else _column
    return {name: make(_whole(table.column(name)), name, what) for name in table.column_names}


def _whole(values: "pa.ChunkedArray") -> "pa.Array":
    """In one piece, and of a type that rows can be taken of."""
    import pyarrow as pa

    chunks = [_plain(each) for each in values.chunks] or [pa.nulls(0, plain_type(values.type))]
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def _plain(values: "pa.Array") -> "pa.Array":
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        return values.dictionary_decode()
    if pa.types.is_run_end_encoded(values.type):
        import pyarrow.compute as pc

        return pc.run_end_decode(values)
    return values if (kind := plain_type(values.type)) == values.type else values.cast(kind)


def joined(parts: "list[pa.Array]", order: Rows) -> "pa.Array":
    """One behind the other, and then in this order."""
    import pyarrow as pa

    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts).take(_places(order))


def _kept(whole: "pa.Array", name: str, what: str) -> Column:
    return Kept(whole)


def _column(whole: "pa.Array", name: str, what: str) -> Column:
    if not _is_numbers(whole.type):
        return Loose(whole)
    missing = _missing(whole)
    if missing:
        raise InvalidInput(
            f"column {name!r} has {missing:,} values that are missing in {what}, and numpy has no number for that: "
            "leave it out of columns=, or store it with numbers there, or as floats, which have NaN"
        )
    return Fixed(_fixed(whole))


def _is_numbers(kind: "pa.DataType") -> bool:
    """By the type alone: a column is the same in all blocks, whatever is in them."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(kind):
        return _is_numbers(kind.value_type)
    if pa.types.is_temporal(kind):
        return not (pa.types.is_interval(kind) or pa.types.is_time(kind))
    return bool(pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _missing(values: "pa.Array") -> int:
    import pyarrow as pa

    if pa.types.is_fixed_size_list(values.type):
        return int(values.null_count) or _missing(values.flatten())
    return 0 if pa.types.is_floating(values.type) else int(values.null_count)


def _fixed(values: "pa.Array") -> NDArray[Any]:
    """Without a copy, but for what Arrow keeps as bits. Plain numbers are taken from where they lie: Arrow's own way
    imports pandas, if that is there; see `columnar.texts`."""
    import pyarrow as pa

    kind = values.type
    if (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and not values.null_count:
        letter = "f" if pa.types.is_floating(kind) else "i" if pa.types.is_signed_integer(kind) else "u"
        number = np.dtype(f"{letter}{kind.bit_width // 8}")
        if not len(values):
            return np.empty(0, number)
        return np.frombuffer(values.buffers()[1], number, values.offset + len(values))[values.offset :]
    if not pa.types.is_fixed_size_list(kind):
        return np.asarray(values.to_numpy(zero_copy_only=False))
    elements = _fixed(values.flatten())
    return elements.reshape(len(values), values.type.list_size, *elements.shape[1:])


def _places(rows: Rows) -> "pa.Array":
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows, np.int64))])


def _reader(values: "pa.Array") -> Any:
    import pyarrow as pa

    if values.null_count or not (pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)):
        return lambda rows: values.take(_places(rows)).to_pylist()
    width = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, width)[values.offset : values.offset + len(values) + 1]
    view = memoryview(data) if data is not None else memoryview(b"")

    def read(rows: Rows) -> list[bytes]:
        starts, stops = ends[rows].tolist(), ends[rows + 1].tolist()
        return [bytes(view[start:stop]) for start, stop in zip(starts, stops, strict=True)]

    return read
