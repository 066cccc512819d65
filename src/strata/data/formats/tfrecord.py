"""TFRecord: records as they are, in one column `record`. What is in them is for the reader; `tfexample` takes records
that are tf.train.Examples apart.

A block is a run of records; `start` and `length` are its bytes.
"""

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from strata.data.columnar import arrow
from strata.data.files import File
from strata.data.formats.base import BLOCK_BYTES, Block, FileIndex, check_block_bytes, file_index
from strata.data.formats.records import SUFFIXES, read_records, record_blocks
from strata.data.formats.values import Values
from strata.data.schemas import Found, same

if TYPE_CHECKING:
    import pyarrow as pa

RECORD = "record"


class TFRecord(msgspec.Struct, frozen=True, tag="tfrecord"):
    """Records of TensorFlow. Compressed files are refused."""

    block_bytes: int = BLOCK_BYTES

    def __post_init__(self) -> None:
        check_block_bytes(self.block_bytes)

    @property
    def suffixes(self) -> tuple[str, ...]:
        return SUFFIXES

    def merge(self, found: Found) -> "pa.Schema":
        return same(found)

    def index(self, file: File) -> FileIndex:
        schema = arrow().schema([(RECORD, arrow().binary())])
        blocks, seal = record_blocks(file, self.block_bytes)
        return file_index(blocks, schema, seal)

    def read(self, file: File, block: Block, schema: "pa.Schema") -> "pa.Table":
        records = Values(*(found := read_records(file, block))).take(np.arange(len(found.starts), dtype=np.int64))
        return arrow().table({RECORD: records}).select(schema.names)
