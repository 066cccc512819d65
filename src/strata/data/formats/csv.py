"""CSV. A block is a stretch of whole rows, line breaks in quotes included; `start` and `length` are its bytes.

A file says no types. Indexing parses all of it, and takes for each column the narrowest type that every value of the
dataset can be read as: whole numbers, numbers, dates, else text. So a file that does not parse is told when it is
indexed, and a block is read as the same types wherever it is.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from xxhash import xxh3_64

from strata.data.columnar import arrow
from strata.data.damage import Damage
from strata.data.files import File
from strata.data.formats.base import BLOCK_BYTES, Block, FileIndex, check_block_bytes, check_gzip, file_index, selected
from strata.data.formats.lines import CsvRows, cut
from strata.data.remembering import Remembered
from strata.data.schemas import Found, plain, same_names
from strata.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

MAX_HEADER_BYTES = 16 << 20
HEADS_BYTES = 16 << 20
_BOM = b"\xef\xbb\xbf"

_heads: Remembered["_Head"] = Remembered(HEADS_BYTES)


class _Head(NamedTuple):
    """The names of a file's columns, and where its first row of values begins."""

    names: list[str]
    start: int


class Csv(msgspec.Struct, frozen=True, tag="csv"):
    """CSV, or anything like it.

    header: whether the first row has the names of columns; else they are `names`, or `f0`, `f1` and so on.
    quote: what may stand around values, doubled inside of them; None: nothing.
    types: Arrow's names of types, for columns that are not to be guessed: `{"label": "int32"}`.
    """

    delimiter: str = ","
    quote: str | None = '"'
    header: bool = True
    names: tuple[str, ...] = ()
    types: dict[str, str] = {}
    block_bytes: int = BLOCK_BYTES

    def __post_init__(self) -> None:
        check_block_bytes(self.block_bytes)
        for what, mark in (("delimiter", self.delimiter), ("quote", self.quote)):
            if mark is not None and (len(mark) != 1 or not mark.isascii() or mark in "\r\n"):
                raise InvalidInput(f"{what} must be one ASCII character, not {mark!r}")
        if self.delimiter == self.quote:
            raise InvalidInput(f"delimiter and quote are both {self.quote!r}")

    @property
    def suffixes(self) -> tuple[str, ...]:
        return (".csv", ".tsv", ".csv.gz", ".tsv.gz")

    def merge(self, found: Found) -> "pa.Schema":
        return same_names(found)

    def index(self, file: File) -> FileIndex:
        head, given = self._head(file), self._given_types()
        blocks, schemas, seal = [], [], xxh3_64()
        for start, data in cut(file, head.start, self.block_bytes, self._rows.last_end):
            table = self._parsed(data, head.names, given)
            _check_texts(table, given)
            seal.update(data)
            blocks.append(Block(start, data.size, table.num_rows))
            schemas.append((file.path, plain(table.schema)))
        nothing = [(name, given.get(name, arrow().null())) for name in head.names]
        schema = same_names([*schemas, (file.path, arrow().schema(nothing))]) if head.names else None
        return file_index(blocks, schema, seal.intdigest())

    def read(self, file: File, block: Block, schema: "pa.Schema") -> "pa.Table":
        head = self._head(file)
        types = {field.name: field.type for field in schema}
        # Without columns the rows are counted all the same.
        wanted = schema.names or head.names[:1]
        return selected(self._parsed(file.read(block.start, block.length), head.names, types, wanted), schema)

    @property
    def _rows(self) -> CsvRows:
        return CsvRows(self.delimiter, self.quote)

    def _given_types(self) -> dict[str, Any]:
        try:
            return {name: arrow().type_for_alias(kind) for name, kind in self.types.items()}
        except ValueError as error:
            raise InvalidInput(f"types of CSV: {error}") from None

    def _parsed(
        self, data: "pa.Buffer", names: list[str], types: dict[str, Any], wanted: list[str] | None = None
    ) -> "pa.Table":
        csv = arrow("csv")
        return csv.read_csv(
            arrow().BufferReader(data),
            csv.ReadOptions(use_threads=False, block_size=data.size + 1, column_names=names),
            csv.ParseOptions(
                delimiter=self.delimiter,
                quote_char=self.quote or False,
                double_quote=self.quote is not None,
                newlines_in_values=self.quote is not None,
            ),
            csv.ConvertOptions(column_types=types, include_columns=wanted),
        )

    def _head(self, file: File) -> _Head:
        key = (file.path, file.version, self.delimiter, self.quote, self.header, self.names)
        return _heads.get(key, lambda: self._read_head(file))

    def _read_head(self, file: File) -> tuple[_Head, int]:
        length = 1 << 16
        while True:
            data = file.read(0, min(length, file.size)).to_pybytes()
            check_gzip(data)
            bare = data.removeprefix(_BOM).lstrip(b"\r\n")
            start = len(data) - len(bare)
            end = self._rows.first_end(np.frombuffer(bare, np.uint8))
            if end or len(data) == file.size:
                break
            if length >= MAX_HEADER_BYTES:
                raise Damage(f"its first row has no end within {MAX_HEADER_BYTES} bytes")
            length *= 4
        row = bare[: end or len(bare)]
        if not row:
            return _Head([*self.names], file.size), 0
        if not end:
            self._rows.last_end(np.frombuffer(row, np.uint8), True)  # Damage if it ends within quotes
        names = self._names(row)
        return _Head(names, start + len(row) if self.header else start), sum(map(len, names)) + 8 * len(names)

    def _names(self, row: bytes) -> list[str]:
        csv = arrow("csv")
        first = csv.read_csv(
            arrow().BufferReader(row.rstrip(b"\r\n") + b"\n"),
            csv.ReadOptions(use_threads=False, block_size=len(row) + 2, autogenerate_column_names=not self.header),
            csv.ParseOptions(delimiter=self.delimiter, quote_char=self.quote or False, newlines_in_values=True),
        ).column_names
        if not self.names:
            return [*first]
        if len(self.names) != len(first):
            raise Damage(f"its first row has {len(first)} values, and {len(self.names)} names of columns were given")
        return [*self.names]


def _check_texts(table: "pa.Table", given: dict[str, Any]) -> None:
    """Text that is not UTF-8 is bytes to Arrow. A column would be that for one wrong letter."""
    for field in table.schema:
        if field.type == arrow().binary() and field.name not in given:
            hint = f"convert the file, or give the types {{{field.name!r}: 'binary'}}"
            raise Damage(f"column {field.name!r} is not valid UTF-8: {hint}")
