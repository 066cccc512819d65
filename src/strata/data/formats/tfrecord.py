"""TFRecord: records as they are, in one column `record`. What is in them (mostly tf.train.Example) is for the reader.

A block is a run of records; `start` and `length` are its bytes. The CRC of each length is checked when a file is
indexed, that of each record when it is read.
"""

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.data.columnar import arrow
from strata.data.damage import Damage
from strata.data.files import File
from strata.data.formats.base import (
    BLOCK_BYTES,
    MAX_VALUE_BYTES,
    Block,
    FileIndex,
    Numbers,
    check_block_bytes,
    check_gzip,
    file_index,
)
from strata.data.formats.crc32c import crc32c, crc32c_of_few, masked
from strata.data.formats.values import Values
from strata.data.formats.window import Window
from strata.data.schemas import Found, same

if TYPE_CHECKING:
    import pyarrow as pa

RECORD = "record"

_HEAD = struct.Struct("<QI")
_FOOT = 4


class TFRecord(msgspec.Struct, frozen=True, tag="tfrecord"):
    """Records of TensorFlow. Compressed files are refused."""

    block_bytes: int = BLOCK_BYTES

    def __post_init__(self) -> None:
        check_block_bytes(self.block_bytes)

    @property
    def suffixes(self) -> tuple[str, ...]:
        return (".tfrecord", ".tfrecords", ".tfrec", ".tfrecord.gz")

    def merge(self, found: Found) -> "pa.Schema":
        return same(found)

    def index(self, file: File) -> FileIndex:
        source = Window(file)
        check_gzip(bytes(source.at(0, min(2, file.size))))
        blocks: list[Block] = []
        start = at = rows = 0
        while at < file.size:
            length, said = _HEAD.unpack(source.at(at, _HEAD.size))
            if said != _length_sum(length):
                raise Damage(f"no record begins at byte {at}: the checksum of its length is wrong")
            end = at + _HEAD.size + length + _FOOT
            if length > MAX_VALUE_BYTES:
                raise Damage(f"the record at byte {at} has {length} bytes; at most {MAX_VALUE_BYTES} are read")
            if end > file.size:
                raise Damage(f"the record at byte {at} should end at byte {end}, and the file ends at {file.size}")
            at, rows = end, rows + 1
            if at - start >= self.block_bytes:
                blocks.append(Block(start, at - start, rows))
                start, rows = at, 0
        blocks.append(Block(start, at - start, rows))
        return file_index(blocks, arrow().schema([(RECORD, arrow().binary())]))

    def read(self, file: File, block: Block, schema: "pa.Schema") -> "pa.Table":
        pa = arrow()
        data = file.read(block.start, block.length)
        view = memoryview(data)
        places, at = [], 0
        while at < len(view):
            # Bounded by what is there, so that the sums below are taken of nothing else.
            length = _HEAD.unpack_from(view, at)[0] if at + _HEAD.size <= len(view) else len(view)
            places.append(at)
            at += _HEAD.size + length + _FOOT
        if at != len(view):
            raise Damage(f"the record at byte {block.start + places[-1]} has no end where one should be")
        heads = np.array(places, np.int64)
        ends = np.append(heads[1:], len(view)) - _FOOT
        _check_sums(data, heads, ends, block.start)
        records = Values(data, heads + _HEAD.size, ends).take(np.arange(len(heads), dtype=np.int64))
        return pa.table({RECORD: records}).select(schema.names)


def _check_sums(data: "pa.Buffer", heads: Numbers, ends: Numbers, offset: int) -> None:
    starts = heads + _HEAD.size
    found = masked(
        crc32c(data, np.concatenate([heads, starts]), np.concatenate([np.full(len(heads), 8), ends - starts]))
    )
    words = np.frombuffer(data, np.uint8)
    said = np.concatenate([_words(words, heads + 8), _words(words, ends)])
    wrong = np.flatnonzero(found != said)
    if len(wrong):
        at = int(heads[wrong[0] % len(heads)]) + offset
        raise Damage(f"the checksum of the record at byte {at} is wrong")


def _words(view: NDArray[np.uint8], places: Numbers) -> NDArray[Any]:
    """The 32 bits at each of these bytes."""
    return np.ascontiguousarray(view[places[:, None] + np.arange(4)]).view("<u4").reshape(-1)


@lru_cache(1 << 16)
def _length_sum(length: int) -> int:
    """The masked CRC of a length. Lengths repeat."""
    return int(masked(np.array([crc32c_of_few(length.to_bytes(8, "little"))], np.uint32))[0])
