"""Arrow IPC: files (which Feather version 2 is, too) and streams. A block is a record batch; `start` and `length` are
its bytes, its description included.

Arrow trusts what it reads: a text whose end is said to be elsewhere would be read from there. So every batch is
validated before anybody else sees it.
"""

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from strata.data.columnar import arrow
from strata.data.damage import Damage
from strata.data.files import File
from strata.data.formats.base import Block, FileIndex, file_index, seal_of_ends, selected
from strata.data.formats.ipcmessages import (
    BATCH,
    DICTIONARY,
    MAX_METADATA_BYTES,
    SCHEMA,
    Message,
    check_decompressed,
    footer_blocks,
    message_at,
)
from strata.data.formats.places import Parts, remembered
from strata.data.formats.sparse import sparse_batch
from strata.data.formats.window import Held, Window
from strata.data.remembering import Remembered
from strata.data.schemas import Found, plain, same

if TYPE_CHECKING:
    import pyarrow as pa

HEADS_BYTES = 64 << 20

_MARK = b"ARROW1"
_FILE_START = 8
_EMPTY = b"\0" * 8

_heads: Remembered["_Head"] = Remembered(HEADS_BYTES)


class _Head(NamedTuple):
    """What is needed to read any batch of a file."""

    schema: "pa.Schema"
    schema_message: "pa.Buffer"
    dictionaries: list[Message]
    batches: list[Message]
    is_file: bool


class Arrow(msgspec.Struct, frozen=True, tag="arrow"):
    """Arrow IPC files and streams, and Feather version 2."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        return (".arrow", ".arrows", ".feather", ".ipc")

    def merge(self, found: Found) -> "pa.Schema":
        return same(found)

    def index(self, file: File) -> FileIndex:
        if not file.size:
            return file_index([], None)
        head = _head(file)
        blocks = [Block(each.start, each.length, each.rows) for each in head.batches]
        return file_index(blocks, plain(head.schema), seal_of_ends(file))

    def read(self, file: File, block: Block, schema: "pa.Schema") -> "pa.Table":
        pa, ipc = arrow(), arrow("ipc")
        head = _head(file)
        needed = _needed(head, block.start)
        data, *dictionaries = file.read_ranges(
            [(block.start, block.length), *((each.start, each.length) for each in needed)]
        )
        message = _checked(data)
        for each in dictionaries:
            _checked(each)
        if not dictionaries and not message.compressed:
            batch = ipc.read_record_batch(ipc.read_message(data), head.schema)
        else:
            # A stream made of just what this batch needs: only columns that are asked for are decompressed.
            parts = [head.schema_message, *dictionaries, data, _EMPTY]
            wanted = [number for number, name in enumerate(head.schema.names) if name in schema.names]
            options = ipc.IpcReadOptions(included_fields=wanted or [0], use_threads=False)
            with ipc.open_stream(pa.BufferReader(b"".join(map(memoryview, parts))), options=options) as reader:
                batch = reader.read_next_batch()
        batch.validate(full=True)
        return selected(pa.Table.from_batches([batch]), schema)

    def parts(self, file: File, block: Block, schema: "pa.Schema") -> Parts | None:
        def find() -> Parts | None:
            head = _head(file)
            return None if _needed(head, block.start) else sparse_batch(file, block, head.schema, schema)

        return remembered(file, block, schema, find)


def _checked(data: "pa.Buffer") -> Message:
    message = message_at(Held(memoryview(data)), 0)
    if message is None or message.length != data.size:
        raise Damage("a message in it is not as long as it was")
    check_decompressed(message, memoryview(data))
    return message


def _needed(head: _Head, start: int) -> list[Message]:
    """The dictionaries of a batch: all in a file, those before it in a stream. A newer one replaces an older."""
    kept: dict[int, list[Message]] = {}
    for each in head.dictionaries:
        if head.is_file or each.start < start:
            kept[each.dictionary] = [*kept.get(each.dictionary, []), each] if each.is_delta else [each]
    return sorted((each for found in kept.values() for each in found), key=lambda each: each.start)


def _head(file: File) -> _Head:
    return _heads.get((file.path, file.version), lambda: _read_head(file))


def _read_head(file: File) -> tuple[_Head, int]:
    source = Window(file)
    mark = bytes(source.at(0, min(8, file.size)))
    if mark.startswith(b"FEA1"):
        raise Damage("it is Feather version 1, which is not read: write it again as version 2")
    is_file = mark.startswith(_MARK)
    start = _FILE_START if is_file else 0
    first = message_at(source, start)
    if first is None or first.kind != SCHEMA:
        raise Damage("it does not begin with a schema: is it Arrow?")
    message = file.read(first.start, first.length)
    schema = arrow("ipc").read_schema(message)
    found = _from_footer(file, source) if is_file else _from_stream(source, first.end)
    if any(each.end > file.size for each in found):
        raise Damage(f"a batch should end behind byte {file.size}, where the file ends")
    dictionaries = [each for each in found if each.kind == DICTIONARY]
    batches = [each._replace(compressed=()) for each in found if each.kind == BATCH]
    head = _Head(schema, message, dictionaries, batches, is_file)
    return head, message.size + 200 * len(found)


def _from_footer(file: File, source: Window) -> list[Message]:
    tail = bytes(file.read(file.size - 10, 10)) if file.size >= 18 else b""
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MARK or length > min(MAX_METADATA_BYTES, file.size - 18):
        raise Damage("its end is not that of an Arrow file: it was cut short")
    footer = memoryview(file.read(file.size - 10 - length, length))
    found = []
    for kind, starts in zip((DICTIONARY, BATCH), footer_blocks(footer), strict=True):
        for start in starts:
            message = message_at(source, start)
            if message is None or message.kind != kind:
                raise Damage(f"its footer says that a batch is at byte {start}, where none is")
            found.append(message)
    return found


def _from_stream(source: Window, start: int) -> list[Message]:
    found: list[Message] = []
    while True:
        message = message_at(source, start)
        if message is None:
            return found
        if message.kind == SCHEMA or message.end > source.size:
            raise Damage(f"a batch should end at byte {message.end}, and the file ends at {source.size}")
        found.append(message)
        start = message.end
