"""What a format has to do: say which blocks a file has, and read one.

A *block* is the unit of reading and decoding: a row group, a record batch, a stretch of lines, of records or of members
of a tar. A format takes every number that a file says of itself for a lie until it is checked against the file's size
and the limits here, before memory is taken for it. What is wrong with a file it says as `Damage`; where the damage is,
and for whom, its callers add (`data.index`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from strata.core.ids import check_int
from strata.core.permutation import MAX_SIZE
from strata.data.damage import Damage
from strata.data.files import File

if TYPE_CHECKING:
    import pyarrow as pa

MIB = 1 << 20
BLOCK_BYTES = 4 * MIB
"""About how much of a file without blocks of its own is one block."""
MAX_BLOCK_BYTES = 4 << 30
"""The most memory that a block may say it needs when it is decoded."""
MAX_BLOCK_ROWS = (1 << 31) - 1
END_BYTES = 64 << 10
"""Of either end of a file, for its seal."""
MAX_VALUE_BYTES = (1 << 31) - 1 - BLOCK_BYTES
"""Of one sample in a format of raw bytes: Arrow counts the bytes of a column in 32 bits."""

Numbers = NDArray[np.int64]


class Block(NamedTuple):
    """`rows` rows of a file. Where they are is for its format: a byte or a number of a row group, and a length."""

    start: int
    length: int
    rows: int


@dataclass(frozen=True, slots=True)
class FileIndex:
    """The blocks of one file, in its order, and its columns; no schema where nothing in the file says one.

    length: in bytes, about what the block takes in memory. Blocks without rows are left out.
    seal: 64 bits of what it holds, as far as indexing sees that: of everything, or of what tells files apart best for
        their format. The same for each copy of the file, wherever it is.
    """

    starts: Numbers
    lengths: Numbers
    rows: Numbers
    schema: "pa.Schema | None"
    seal: int


class Format(Protocol):
    """One format. Instances hold only their options, and are safe between threads."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """How names of such files end, in small letters; those that are refused, too."""
        ...

    def merge(self, found: "Iterable[tuple[str, pa.Schema]]") -> "pa.Schema":
        """The columns of a dataset, from those of its files (with their paths); DataMismatch if they do not fit."""
        ...

    def index(self, file: File) -> FileIndex: ...

    def read(self, file: File, block: Block, schema: "pa.Schema") -> "pa.Table":
        """These columns, which are some or all of those of the dataset, in that order and of those types."""
        ...


def file_index(blocks: Iterable[Block], schema: "pa.Schema | None", seal: int = 0) -> FileIndex:
    """Checked: what a block says of itself can be."""
    kept = []
    for block in blocks:
        if not 0 <= block.rows <= MAX_BLOCK_ROWS:
            raise Damage(f"a block in it says it has {block.rows} rows; at most {MAX_BLOCK_ROWS} can be")
        if not 0 <= block.length <= MAX_BLOCK_BYTES:
            raise Damage(
                f"a block in it says it needs {block.length} bytes; at most {MAX_BLOCK_BYTES} are read at once"
            )
        if block.rows:
            kept.append(block)
    starts, lengths, rows = np.array(kept, np.int64).reshape(-1, 3).T.copy()
    if sum(block.rows for block in kept) > MAX_SIZE:
        raise Damage(f"it says it has more than {MAX_SIZE} rows")
    return FileIndex(starts, lengths, rows, schema, seal)


def seal_of_ends(file: File) -> int:
    """For files of which only parts are read when they are indexed: of how they begin, and of how they end."""
    head = min(END_BYTES, file.size)
    tail = min(END_BYTES, file.size - head)
    return xxh3_64_intdigest(b"".join(file.read_ranges([(0, head), (file.size - tail, tail)])))


def check_block_bytes(block_bytes: int) -> None:
    """InvalidInput for what no block can be."""
    check_int(block_bytes, "block_bytes", least=1, most=MAX_VALUE_BYTES)


def check_gzip(head: bytes) -> None:
    """Compressed as a whole, a file has no blocks: nobody could start in the middle."""
    if head[:2] == b"\x1f\x8b":
        raise Damage("it is compressed with gzip, and cannot be read in parts: unpack it, or write Parquet")


def selected(table: "pa.Table", schema: "pa.Schema") -> "pa.Table":
    """The table's columns of this schema, or Damage: what a block holds is what its file says."""
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise Damage(f"the columns {', '.join(map(repr, missing))} are missing")
    table = table.select(schema.names)
    for field in schema:
        if table.schema.field(field.name).type != field.type:
            raise Damage(f"column {field.name!r} is {table.schema.field(field.name).type}, not {field.type}")
    return table
