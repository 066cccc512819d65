"""CRC-32C of many stretches of a buffer: by google-crc32c, which has the processor's own instruction for it; where that
is not there, in numpy, some forty times slower.

In numpy, all stretches are summed at once. A CRC without its usual start and end is linear: that of a stretch follows
from those of two prefixes of the buffer. The prefixes are taken at every 32nd byte, all at once by tables for each
position, then joined pairwise up and down.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.data.formats.base import Numbers

Sums = NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78
_ALL = np.uint32(0xFFFFFFFF)
_LANE = 32


def crc32c(data: Any, starts: Numbers, lengths: Numbers) -> Sums:
    """Of each stretch of the buffer."""
    sum_of = compiled()
    if sum_of is None:
        return crc32c_in_numpy(data, starts, lengths)
    view = np.frombuffer(data, np.uint8)
    bounds = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    return np.fromiter((sum_of(view[start:end]) for start, end in bounds), np.uint32, len(starts))


@cache
def compiled() -> Callable[[Any], int] | None:
    """The sum of a buffer, or None where the package is not there, or only in Python."""
    try:
        import google_crc32c
    except ImportError:
        return None
    return google_crc32c.value if google_crc32c.implementation == "c" else None


def crc32c_in_numpy(data: Any, starts: Numbers, lengths: Numbers) -> Sums:
    """The same with nothing to compile, off the GIL."""
    view = np.frombuffer(data, np.uint8)
    prefixes = _prefixes(view)
    begins = _prefix_at(view, prefixes, starts)
    ends = _prefix_at(view, prefixes, starts + lengths)
    return ends ^ _followed(begins ^ _ALL, lengths) ^ _ALL


def crc32c_of_few(data: bytes) -> int:
    """Of a few bytes, for which arrays are not worth while."""
    table, found = _byte_numbers(), 0xFFFFFFFF
    for byte in data:
        found = table[(found ^ byte) & 0xFF] ^ (found >> 8)
    return found ^ 0xFFFFFFFF


def crc32c_of_lengths(lengths: Numbers) -> Sums:
    """Of the eight bytes of each of these numbers, the lowest first. They are below 2**32."""
    numbers = lengths.astype(np.uint32)
    sums = np.full(len(numbers), _ALL)
    for shift in range(0, 32, 8):
        sums = _next(sums, numbers >> np.uint32(shift))
    return _applied(_zeros(2), sums) ^ _ALL  # four zeros are left


def masked(sums: Sums) -> Sums:
    """As TFRecord stores them, so that a CRC of what holds a CRC is not a trivial one."""
    return ((sums >> np.uint32(15)) | (sums << np.uint32(17))) + np.uint32(0xA282EAD8)


@cache
def _byte_table() -> Sums:
    sums = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        sums = np.where(sums & 1, (sums >> 1) ^ np.uint32(_POLYNOMIAL), sums >> 1).astype(np.uint32)
    return sums


@cache
def _byte_numbers() -> list[int]:
    return [int(each) for each in _byte_table()]


def _next(sums: Sums, byte: Any) -> Sums:
    found: Sums = _byte_table()[(sums ^ byte) & 0xFF] ^ (sums >> np.uint32(8))
    return found


@cache
def _lane_tables() -> list[Sums]:
    """What two bytes at each place of a lane add to the lane's CRC: half as many look-ups as for one."""
    tables = [_byte_table()]
    for _ in range(_LANE - 1):
        tables.append(_next(tables[-1], 0))
    tables.reverse()
    return [(first ^ second[:, None]).reshape(-1) for first, second in zip(tables[::2], tables[1::2], strict=True)]


@cache
def _zeros(power: int) -> list[Sums]:
    """Four tables, one for each byte of a CRC, of what 2**power zeros behind it make of it."""
    values = np.arange(256, dtype=np.uint32)
    tables = [values << np.uint32(8 * place) for place in range(4)]
    if power == 0:
        return [_next(table, 0) for table in tables]
    half = _zeros(power - 1)
    return [_applied(half, _applied(half, table)) for table in tables]


def _applied(tables: list[Sums], sums: Sums) -> Sums:
    first, second, third, fourth = tables
    found: Sums = first[sums & 0xFF] ^ second[(sums >> 8) & 0xFF] ^ third[(sums >> 16) & 0xFF] ^ fourth[sums >> 24]
    return found


def _followed(sums: Sums, zeros: Numbers) -> Sums:
    """Each followed by so many zeros."""
    sums = sums.copy()
    for power in range(int(zeros.max(initial=0)).bit_length()):
        chosen = (zeros >> power) & 1 == 1
        sums[chosen] = _applied(_zeros(power), sums[chosen])
    return sums


def _prefixes(view: NDArray[np.uint8]) -> Sums:
    """Of the first 0, 32, 64, … bytes."""
    pairs = view[: len(view) // _LANE * _LANE].view("<u2").reshape(-1, _LANE // 2)
    sums = np.zeros(len(pairs), np.uint32)
    found = np.empty_like(sums)
    for column, table in zip(np.ascontiguousarray(pairs.T), _lane_tables(), strict=True):
        np.take(table, column, out=found, mode="wrap")  # else it would be copied once more, lest an index is wrong
        sums ^= found
    return np.concatenate([np.zeros(1, np.uint32), _joined(sums, _LANE.bit_length() - 1)])


def _joined(sums: Sums, power: int) -> Sums:
    """From the CRC of each lane of 2**power bytes, that of everything up to its end."""
    if len(sums) < 2:
        return sums
    pairs = len(sums) // 2
    behind = _zeros(power)
    odd = _joined(_applied(behind, sums[0 : 2 * pairs : 2]) ^ sums[1 : 2 * pairs : 2], power + 1)
    joined = sums.copy()
    joined[1 : 2 * pairs : 2] = odd
    joined[2::2] ^= _applied(behind, odd[: len(joined[2::2])])
    return joined


def _prefix_at(view: NDArray[np.uint8], prefixes: Sums, ends: Numbers) -> Sums:
    lane, rest = np.divmod(ends, _LANE)
    sums = prefixes[lane]
    for place in range(int(rest.max(initial=0))):
        chosen = np.flatnonzero(rest > place)
        sums[chosen] = _next(sums[chosen], view[ends[chosen] - rest[chosen] + place])
    return sums
