"""The records of a TFRecord file: where they are, and that they are whole.

A file is records one after the other: a length of 8 bytes, its CRC, so many bytes, their CRC. The CRC of each length is
checked when a file is indexed, that of each record when it is read.
"""

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64

from strata.data.damage import Damage
from strata.data.files import File
from strata.data.formats.base import MAX_VALUE_BYTES, Block, Numbers, check_gzip
from strata.data.formats.crc32c import crc32c, crc32c_of_few, crc32c_of_lengths, masked
from strata.data.formats.window import Window

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec", ".tfrecord.gz")

_HEAD = struct.Struct("<QI")
_FOOT = 4


class Records(NamedTuple):
    """Records in a buffer: from each start to before its end."""

    data: "pa.Buffer"
    starts: Numbers
    ends: Numbers


def record_blocks(file: File, block_bytes: int) -> tuple[list[Block], int]:
    """Runs of records, of about so many bytes; the last may be empty. And the file's seal: of the lengths of all
    records, and of what they say that their checksums are."""
    source, seal = Window(file), xxh3_64()
    check_gzip(bytes(source.at(0, min(2, file.size))))
    blocks: list[Block] = []
    start = at = rows = 0
    while at < file.size:
        head = source.at(at, _HEAD.size)
        seal.update(head)
        length, said = _HEAD.unpack(head)
        if said != _length_sum(length):
            raise Damage(f"no record begins at byte {at}: the checksum of its length is wrong")
        end = at + _HEAD.size + length + _FOOT
        if length > MAX_VALUE_BYTES:
            raise Damage(f"the record at byte {at} has {length} bytes; at most {MAX_VALUE_BYTES} are read")
        if end > file.size:
            raise Damage(f"the record at byte {at} should end at byte {end}, and the file ends at {file.size}")
        seal.update(source.at(end - _FOOT, _FOOT))
        at, rows = end, rows + 1
        if at - start >= block_bytes:
            blocks.append(Block(start, at - start, rows))
            start, rows = at, 0
    blocks.append(Block(start, at - start, rows))
    return blocks, seal.intdigest()


def read_records(file: File, block: Block) -> Records:
    """Those of a block, checked."""
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
    return Records(data, heads + _HEAD.size, ends)


def _check_sums(data: "pa.Buffer", heads: Numbers, ends: Numbers, offset: int) -> None:
    starts = heads + _HEAD.size
    found = masked(np.concatenate([crc32c_of_lengths(ends - starts), crc32c(data, starts, ends - starts)]))
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
