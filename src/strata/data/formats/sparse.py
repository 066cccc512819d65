"""A record batch of Arrow whose large values are left in the file: its description says where each column's buffers
are, and only those are read that are needed to know where each value is, and those of the other columns.

What is read is validated as a whole batch would be. A column of a kind that is not known here means that the batch is
read whole.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from strata.data.columnar import arrow
from strata.data.damage import Damage
from strata.data.files import File
from strata.data.formats.base import Block, Numbers, selected
from strata.data.formats.ipcmessages import BatchLayout, Pair, batch_layout
from strata.data.formats.places import LARGE_BYTES, Parts, Places
from strata.data.formats.window import Part, Window

if TYPE_CHECKING:
    import pyarrow as pa

HEAD_BYTES = 4 << 10
"""Most descriptions of batches are no longer."""


class _Values(NamedTuple):
    """What a batch has of a field, or of a child of one: buffers are (start, length), of the batch's body."""

    kind: Any
    rows: int
    nulls: int
    buffers: list[Pair]
    children: "list[_Values]"


def sparse_batch(file: File, block: Block, whole: "pa.Schema", wanted: "pa.Schema") -> Parts | None:
    """The columns that are wanted of a batch without dictionaries; `whole` is the schema of its file."""
    if block.length < LARGE_BYTES * block.rows or not any(map(_is_bytes, wanted.types)):
        return None
    with file.reading() as reading:
        part = Part(reading, block.start, block.length)
        layout = batch_layout(Window(part, HEAD_BYTES))
        if layout.length != block.length:
            raise Damage("a message in it is not as long as it was")
        columns = None if layout.is_compressed else _columns(layout, whole)
        left = [] if columns is None else [name for name in wanted.names if _is_large(columns.get(name))]
        if columns is None or not left:
            return None
        body = Part(reading, block.start + layout.body, block.length - layout.body)
        found = {name: _read(body, columns[name]) for name in wanted.names if name in columns and name not in left}
        places = {name: _places(body, columns[name], block.start + layout.body) for name in left}
        reading.soon(block.start, block.length)
    rest = arrow().schema([field for field in wanted if field.name not in left])
    return Parts(selected(arrow().table(found), rest), places)


def _columns(layout: BatchLayout, schema: "pa.Schema") -> dict[str, _Values] | None:
    """By name; None if there is a kind whose buffers are not known."""
    nodes, buffers = iter(layout.nodes), iter(layout.buffers)
    try:
        return {field.name: _values(field.type, nodes, buffers) for field in schema}
    except LookupError:
        return None
    except StopIteration:
        raise Damage("a batch in it has fewer buffers than its columns need") from None


def _values(kind: Any, nodes: Iterator[Pair], buffers: Iterator[Pair]) -> _Values:
    count, children = _shape(kind)
    rows, nulls = next(nodes)
    own = [next(buffers) for _ in range(count)]
    return _Values(kind, rows, nulls, own, [_values(each, nodes, buffers) for each in children])


def _shape(kind: Any) -> tuple[int, list[Any]]:
    """How many buffers a kind has, and its children; LookupError if that is not known."""
    kinds = arrow().types
    if _is_bytes(kind) or kinds.is_string(kind) or kinds.is_large_string(kind):
        return 3, []
    if kinds.is_primitive(kind) or kinds.is_decimal(kind) or kinds.is_fixed_size_binary(kind):
        return 2, []
    if kinds.is_list(kind) or kinds.is_large_list(kind):
        return 2, [kind.value_type]
    if kinds.is_fixed_size_list(kind):
        return 1, [kind.value_type]
    if kinds.is_struct(kind):
        return 1, [field.type for field in kind]
    raise LookupError(str(kind))


def _is_bytes(kind: Any) -> bool:
    return bool(arrow().types.is_binary(kind) or arrow().types.is_large_binary(kind))


def _is_large(values: _Values | None) -> bool:
    return values is not None and _is_bytes(values.kind) and values.buffers[2][1] >= max(1, LARGE_BYTES * values.rows)


def _read(body: Part, values: _Values) -> Any:
    made = _made(body, values)
    made.validate(full=True)
    return made


def _made(body: Part, values: _Values) -> Any:
    pa = arrow()
    buffers = [pa.py_buffer(body.read(*place)) for place in values.buffers]
    if not values.nulls:
        buffers[0] = None
    children = [_made(body, each) for each in values.children]
    return pa.Array.from_buffers(values.kind, values.rows, buffers, values.nulls, children=children or None)


def _places(body: Part, values: _Values, start: int) -> Places:
    """`start` is where the body is in the file."""
    edges = _edges(body, values)
    at, size = values.buffers[2]
    lengths = np.diff(edges)
    if edges[0] < 0 or edges[-1] > size or (lengths < 0).any():
        raise Damage("a value in it does not end where it should")
    if values.nulls:
        there = arrow().py_buffer(body.read(*values.buffers[0]))
        flags = arrow().Array.from_buffers(arrow().bool_(), values.rows, [None, there])
        flags.validate(full=True)
        lengths[~flags.to_numpy(zero_copy_only=False)] = -1
    return Places(edges[:-1] + (start + at), lengths)


def _edges(body: Part, values: _Values) -> Numbers:
    """Where each value begins among all, and at the end where the last one ends."""
    width = np.dtype("<i8" if arrow().types.is_large_binary(values.kind) else "<i4")
    at, size = values.buffers[1]
    needed = width.itemsize * (values.rows + 1)
    if size < needed:
        raise Damage(f"{values.rows} values in it have no places")
    return np.frombuffer(body.read(at, needed), width).astype(np.int64)
