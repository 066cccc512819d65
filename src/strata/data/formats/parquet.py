"""Parquet. A block is a row group; `start` is its number, `length` what its columns take uncompressed."""

from typing import TYPE_CHECKING, Any

import msgspec
from xxhash import xxh3_64_intdigest

from strata.data.columnar import arrow
from strata.data.damage import Damage
from strata.data.files import File
from strata.data.formats.base import MAX_BLOCK_BYTES, Block, FileIndex, file_index, selected
from strata.data.remembering import Remembered
from strata.data.schemas import Found, plain, row_bytes, same

if TYPE_CHECKING:
    import pyarrow as pa

TAIL_BYTES = 64 << 10
"""Of a remote file, read in one go: most footers are no longer."""
FOOTERS_BYTES = 64 << 20

_FOOT_BYTES = 8
"""Behind the footer: its length, and a mark."""

_footers: Remembered[tuple[Any, int]] = Remembered(FOOTERS_BYTES)


class Parquet(msgspec.Struct, frozen=True, tag="parquet"):
    """Parquet. Pages that have a checksum are checked against it."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        return (".parquet", ".parq", ".pq")

    def merge(self, found: Found) -> "pa.Schema":
        return same(found)

    def index(self, file: File) -> FileIndex:
        footer, seal = _footer(file)
        schema = plain(footer.schema.to_arrow_schema())
        width = row_bytes(schema)
        blocks = []
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            block = Block(number, group.total_byte_size, group.num_rows)
            if block.rows > 0 and block.rows * width > MAX_BLOCK_BYTES:
                raise Damage(
                    f"row group {number} says it has {block.rows} rows, which need more than {MAX_BLOCK_BYTES} bytes"
                )
            blocks.append(block)
        if sum(block.rows for block in blocks) != footer.num_rows:
            raise Damage(f"its footer says it has {footer.num_rows} rows, and its row groups say otherwise")
        return file_index(blocks, schema, seal)

    def read(self, file: File, block: Block, schema: "pa.Schema") -> "pa.Table":
        footer, _ = _footer(file)
        if block.start >= footer.num_row_groups:
            raise Damage(f"there is no row group {block.start}")
        with file.opened() as source:
            # Where columns lie is left to Arrow, which reads them in few pieces: asking it for the places of columns in
            # a damaged footer would end the process.
            opened = arrow("parquet").ParquetFile(
                source, metadata=footer, pre_buffer=not file.is_local, page_checksum_verification=True
            )
            table = opened.read_row_group(block.start, columns=schema.names, use_threads=False)
            # Without columns, a table does not know how many rows it has.
            return selected(table, schema) if schema.names else table.select([])


def _footer(file: File) -> tuple[Any, int]:
    """And the file's seal: of the end of it, where the footer is, with the places and the least and largest values of
    all columns, in most files."""
    return _footers.get((file.path, file.version), lambda: _read_footer(file))


def _read_footer(file: File) -> tuple[tuple[Any, int], int]:
    tail = min(TAIL_BYTES, file.size)
    with file.opened([(file.size - tail, tail)]) as source:
        footer = arrow("parquet").ParquetFile(source).metadata
        tail = min(max(tail, footer.serialized_size + _FOOT_BYTES), file.size)
        source.seek(file.size - tail)
        seal = xxh3_64_intdigest(source.read_buffer(tail))
    return (footer, seal), footer.serialized_size
