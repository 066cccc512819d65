"""JSON lines: an object on each line. A block is a stretch of whole lines; `start` and `length` are its bytes.

As with CSV, indexing parses everything, and the types are those that all values of the dataset can be read as. An
object without a field has null there.
"""

import re
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from xxhash import xxh3_64

from strata.data.columnar import arrow
from strata.data.damage import Damage
from strata.data.files import File
from strata.data.formats.base import BLOCK_BYTES, Block, FileIndex, check_block_bytes, check_gzip, file_index, selected
from strata.data.formats.lines import cut, last_line_end
from strata.data.schemas import Found, plain, union

if TYPE_CHECKING:
    import pyarrow as pa

MAX_DEPTH = 100
"""Of objects in objects: Arrow's parser would run out of stack, and take the process with it."""

_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BLANK = b" \t\r\n"


class Jsonl(msgspec.Struct, frozen=True, tag="jsonl"):
    """JSON lines, also called NDJSON."""

    block_bytes: int = BLOCK_BYTES

    def __post_init__(self) -> None:
        check_block_bytes(self.block_bytes)

    @property
    def suffixes(self) -> tuple[str, ...]:
        return (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")

    def merge(self, found: Found) -> "pa.Schema":
        return union(found)

    def index(self, file: File) -> FileIndex:
        check_gzip(file.read(0, min(2, file.size)).to_pybytes())
        blocks, schemas, seal = [], [], xxh3_64()
        for start, data in cut(file, 0, self.block_bytes, last_line_end):
            seal.update(data)
            if (table := _parsed(data, None)) is not None:
                blocks.append(Block(start, data.size, table.num_rows))
                schemas.append((file.path, plain(table.schema)))
        return file_index(blocks, union(schemas) if schemas else None, seal.intdigest())

    def read(self, file: File, block: Block, schema: "pa.Schema") -> "pa.Table":
        data = file.read(block.start, block.length)
        table = _parsed(data, schema if schema.names else None)
        if table is None:
            raise Damage("its lines are blank")
        return selected(table, schema)


def _parsed(data: "pa.Buffer", schema: "pa.Schema | None") -> Any:
    """None for blank lines alone, of which Arrow would make an error."""
    json = arrow("json")
    if not bytes(memoryview(data)[:4096]).strip(_BLANK) and not data.to_pybytes().strip(_BLANK):
        return None
    _check_depth(data)
    table = json.read_json(
        arrow().BufferReader(data),
        json.ReadOptions(use_threads=False, block_size=data.size + 1),
        json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore" if schema else "infer"),
    )
    table.validate(full=True)  # texts need not be valid UTF-8 until now
    return table


def _check_depth(data: "pa.Buffer") -> None:
    """Damage if any line is nested too deeply. Only a line with that many brackets is looked at more closely."""
    view = np.frombuffer(data, np.uint8)
    opening = (view == ord("{")) | (view == ord("["))
    starts = np.concatenate([[0], np.flatnonzero(view == ord("\n"))])
    suspects = np.flatnonzero(np.add.reduceat(opening, starts, dtype=np.int64) > MAX_DEPTH)
    for suspect in suspects:
        end = starts[suspect + 1] if suspect + 1 < len(starts) else len(view)
        bare = np.frombuffer(_TEXTS.sub(b"", view[starts[suspect] : end].tobytes()), np.uint8)
        steps = ((bare == ord("{")) | (bare == ord("["))).astype(np.int64)
        steps -= (bare == ord("}")) | (bare == ord("]"))
        if len(steps) and np.cumsum(steps).max() > MAX_DEPTH:
            raise Damage(f"a line is nested more than {MAX_DEPTH} deep")
