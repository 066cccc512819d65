"""Arrow's messages, as far as an index needs them: where each is, what kind it is, how many rows it has.

The few tables of FlatBuffers that matter are read here, since Arrow itself would read, and decompress, a whole batch to
tell its rows. Every place is checked before it is looked at.
"""

import struct
from typing import NamedTuple, Protocol, TypeAlias

from strata.data.damage import Damage
from strata.data.formats.base import MAX_BLOCK_BYTES

SCHEMA, DICTIONARY, BATCH = 1, 2, 3

MAX_METADATA_BYTES = 256 << 20
_CONTINUATION = 0xFFFFFFFF
_FOOTER_BLOCK = struct.Struct("<qi4xq")
_PAIR = struct.Struct("<qq")

Pair: TypeAlias = tuple[int, int]


class Source(Protocol):
    """Bytes by their place."""

    def at(self, start: int, length: int) -> memoryview: ...


class Message(NamedTuple):
    """`rows` of a batch; `dictionary` is a dictionary's id, and `is_delta` whether it adds to the one before."""

    start: int
    length: int
    kind: int
    rows: int = 0
    dictionary: int = 0
    is_delta: bool = False
    compressed: tuple[Pair, ...] = ()
    """Where in the body its buffers are (start, length), if they are compressed."""
    body: int = 0

    @property
    def end(self) -> int:
        return self.start + self.length


class _Table:
    """A table of FlatBuffers: fields by number."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data, self._at = data, at
        back = self._number("<i", at)
        self._fields = at - back
        self._size = self._number("<H", self._fields)

    def _number(self, kind: str, at: int) -> int:
        if at < 0 or at + struct.calcsize(kind) > len(self._data):
            raise Damage("a message in it points outside of itself")
        return int(struct.unpack_from(kind, self._data, at)[0])

    def _place(self, field: int) -> int:
        """0 if the field is not there."""
        entry = 4 + 2 * field
        offset = self._number("<H", self._fields + entry) if entry + 2 <= self._size else 0
        return self._at + offset if offset else 0

    def number(self, field: int, kind: str) -> int:
        place = self._place(field)
        return self._number(kind, place) if place else 0

    def table(self, field: int) -> "_Table | None":
        place = self._place(field)
        return _Table(self._data, place + self._number("<I", place)) if place else None

    def structs(self, field: int, kind: struct.Struct) -> list[tuple[int, ...]]:
        place = self._place(field)
        if not place:
            return []
        start = place + self._number("<I", place)
        count = self._number("<I", start)
        if count * kind.size > len(self._data) - start - 4:
            raise Damage("a message in it says that it is longer than it is")
        return [*kind.iter_unpack(self._data[start + 4 : start + 4 + count * kind.size])]

    def pairs(self, field: int) -> list[Pair]:
        return [(first, second) for first, second in self.structs(field, _PAIR)]


def _root(data: memoryview) -> _Table:
    if len(data) < 4:
        raise Damage("a message in it is too short")
    return _Table(data, int.from_bytes(data[:4], "little"))


def message_at(source: Source, start: int) -> Message | None:
    """The message that begins there; None where the stream says that it ends."""
    metadata, head = _metadata(source, start)
    return _parsed(metadata, start, head) if metadata else None


def _metadata(source: Source, start: int) -> tuple[memoryview, int]:
    """What describes a message, and how many bytes of it are before its body. Nothing where the stream ends."""
    (size,) = struct.unpack("<I", source.at(start, 4))
    prefix = 4  # as Arrow wrote before 0.15
    if size == _CONTINUATION:
        (size,), prefix = struct.unpack("<I", source.at(start + 4, 4)), 8
    if size > MAX_METADATA_BYTES:
        raise Damage(f"the message at byte {start} is not one: it says that {size} bytes describe it")
    return source.at(start + prefix, size), prefix + size


def _parsed(metadata: memoryview, start: int, head: int) -> Message:
    root = _root(metadata)
    kind, header, body = root.number(1, "<B"), root.table(2), root.number(3, "<q")
    if header is None or kind not in (SCHEMA, DICTIONARY, BATCH) or not 0 <= body <= MAX_BLOCK_BYTES:
        raise Damage(f"the message at byte {start} is of kind {kind} with {body} bytes, which no dataset has")
    length = head + body
    if kind == SCHEMA:
        return Message(start, length, kind)
    batch = header.table(1) if kind == DICTIONARY else header
    if batch is None:
        raise Damage(f"the dictionary at byte {start} is empty")
    buffers = tuple(batch.pairs(2)) if batch.table(3) is not None else ()
    if any(at < 0 or size < 0 or at + size > body for at, size in buffers):
        raise Damage(f"the message at byte {start} points outside of itself")
    dictionary = (header.number(0, "<q"), bool(header.number(2, "<B"))) if kind == DICTIONARY else (0, False)
    return Message(start, length, kind, batch.number(0, "<q"), *dictionary, buffers, head)


class BatchLayout(NamedTuple):
    """Where everything of a batch is: nodes are (rows, nulls) of each array, buffers (start, length) in its body."""

    length: int
    body: int
    nodes: list[Pair]
    buffers: list[Pair]
    is_compressed: bool


def batch_layout(source: Source) -> BatchLayout:
    """Of the batch that begins at the first byte."""
    metadata, head = _metadata(source, 0)
    message = _parsed(metadata, 0, head)
    batch = _root(metadata).table(2)
    if message.kind != BATCH or batch is None:
        raise Damage("there is no batch where one should be")
    nodes, buffers = batch.pairs(1), batch.pairs(2)
    body = message.length - head
    if any(at < 0 or size < 0 or at + size > body for at, size in buffers):
        raise Damage("a batch in it points outside of itself")
    if any(rows < 0 or not 0 <= nulls <= rows for rows, nulls in nodes):
        raise Damage("a batch in it says that it has less than no rows")
    return BatchLayout(message.length, head, nodes, buffers, batch.table(3) is not None)


def footer_blocks(footer: memoryview) -> tuple[list[int], list[int]]:
    """Where the dictionaries and the batches of a file are, as its footer says."""
    root = _root(footer)
    dictionaries, batches = (root.structs(field, _FOOTER_BLOCK) for field in (2, 3))
    return [block[0] for block in dictionaries], [block[0] for block in batches]


def check_decompressed(message: Message, data: memoryview) -> None:
    """Damage if the buffers of a message say that they need more memory, decompressed, than a block may."""
    total = 0
    for start, length in message.compressed:
        if length >= 8:
            (size,) = struct.unpack_from("<q", data, message.body + start)
            if size < -1:
                raise Damage(f"the message at byte {message.start} says that a buffer has {size} bytes")
            total += max(0, size)
    if total > MAX_BLOCK_BYTES:
        raise Damage(
            f"the message at byte {message.start} says that it needs {total} bytes; {MAX_BLOCK_BYTES} are read"
        )
