"""SQLite's write-ahead log as a file: whether something is missing from the middle of it.

    head    magic, version, page size, number, two salts, checksum
    frame   page number, size of the database if this commits (else 0), the head's salts, checksum; then the page

A frame's checksum goes on from that of the frame before. SQLite reads until the first frame whose salts or checksum are
wrong, and takes that for the end of an unfinished write, which a power cut may leave. But each commit is flushed before
the next frame is written: a frame that goes on from a commit proves that this commit was durable, and all before it.
Such a frame behind the end is proof of damage. Frames of an earlier use of the log have other salts; those of a write
that was cut off and written over do not go on from what is there now.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HEAD_BYTES = 32
_HEAD = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC = 0x377F0682
"""One more where checksums take the words of a page as big-endian."""

_Sum = tuple[int, int]


class _Frame(NamedTuple):
    offset: int
    commits: bool
    is_own: bool
    summed: bytes
    checksum: _Sum


def damaged_at(log: Path) -> int | None:
    """Where the first byte is that cannot be read, if more was made durable behind it."""
    data = log.read_bytes()
    if len(data) < HEAD_BYTES:
        return None
    magic, _, page_bytes, _, *salts, first, second = _HEAD.unpack_from(data)
    order = "<" if magic == _MAGIC else ">"
    head_sum = _add((0, 0), data[:24], order)
    if magic & ~1 != _MAGIC or head_sum != (first, second):
        return None  # what no head begins is not read, and it is written before each use of the log
    end: int | None = None
    commits, goes_on_from = True, [head_sum]
    for frame in _frames(data, page_bytes, (salts[0], salts[1])):
        sums = [_add(before, frame.summed, order) for before in goes_on_from if frame.is_own]
        if end is not None and commits and frame.checksum in sums:
            return end
        if end is None and frame.checksum not in sums:
            end = frame.offset
            goes_on_from = [frame.checksum, *sums]  # it may be the checksum that is damaged
        else:
            goes_on_from = [frame.checksum]
        commits = frame.commits
    return None


def _frames(data: bytes, page_bytes: int, salts: _Sum) -> Iterator[_Frame]:
    for offset in range(HEAD_BYTES, len(data) - _FRAME.size - page_bytes + 1, _FRAME.size + page_bytes):
        _, size, *own, first, second = _FRAME.unpack_from(data, offset)
        page = offset + _FRAME.size
        summed = data[offset : offset + 8] + data[page : page + page_bytes]
        yield _Frame(offset, size != 0, (own[0], own[1]) == salts, summed, (first, second))


def _add(before: _Sum, data: bytes, order: str) -> _Sum:
    one, two = before
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for word, next_word in zip(words, words, strict=True):
        one = (one + word + two) & 0xFFFFFFFF
        two = (two + next_word + one) & 0xFFFFFFFF
    return one, two
