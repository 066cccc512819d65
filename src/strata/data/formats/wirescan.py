"""Protobuf's wire format, read at many places of a buffer at once, in numpy.

Every place has a bound that nothing is read behind, and every answer says where it may be believed: what a message says
of its own length is taken for a lie until it is seen to end within what holds it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from strata.data.damage import Damage
from strata.data.formats.base import MAX_BLOCK_BYTES, Numbers

Octets = NDArray[np.uint8]
Flags = NDArray[np.bool_]

LENGTH_BYTES = 5
"""Of a length at most: no message has 2**32 bytes."""
VARINT_BYTES = 10
CHUNK = 1 << 18

_FIRST_OCTETS = np.array([(1 << 8 * min(count, 8)) - 1 for count in range(1, VARINT_BYTES + 1)], np.uint64)
"""Masks of the first byte, the first two, and so on."""
_SQUEEZED = [
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000)),
]
"""What stays in its place, and what moves down over 1, 2 and 4 bits: pairs of 7 bits become 14, 28 and 56."""


class Stretches(NamedTuple):
    """From each start to before its end; `good` where that can be."""

    starts: Numbers
    ends: Numbers
    good: Flags


def octet_at(view: Octets, places: Numbers) -> Octets:
    """The byte at each of these; any byte for a place that is behind the buffer."""
    if not len(view):
        return np.zeros(len(places), np.uint8)
    found: Octets = view[np.minimum(places, len(view) - 1)]
    return found


def delimited(view: Octets, places: Numbers, bounds: Numbers, tag: int | None) -> Stretches:
    """Fields with a length, which begin there: good if they have this tag (None: any), and end within the bounds."""
    good = places < bounds
    if tag is not None:
        good &= octet_at(view, places) == tag
    at = places + 1
    octets = octet_at(view, at)
    good &= at < bounds
    lengths = (octets & 0x7F).astype(np.int64)
    at += 1
    longer = np.flatnonzero(good & (octets >= 0x80))
    for place in range(1, LENGTH_BYTES):
        if not len(longer):
            break
        octets = octet_at(view, at[longer])
        good[longer] &= at[longer] < bounds[longer]
        lengths[longer] |= (octets & 0x7F).astype(np.int64) << (7 * place)
        at[longer] += 1
        longer = longer[octets >= 0x80]
    good[longer] = False
    ends = at + lengths
    good &= ends <= bounds
    return Stretches(at, ends, good)


def varints(octets: Octets, ends: Numbers) -> tuple[Numbers, Numbers]:
    """All the numbers of which the buffer consists, and how many of them lie before each of these places, which ascend.
    The last number must end where the buffer does."""
    count = int(np.count_nonzero(octets < 0x80))
    if 8 * count > MAX_BLOCK_BYTES:
        raise Damage(f"a block in it has {count} whole numbers, which is more than are read at once")
    values, before = np.empty(count, np.int64), np.zeros(len(ends), np.int64)
    done = start = told = 0
    while start < len(octets):
        # One that is cut by the end of a piece is wanted with the next.
        lasts = np.flatnonzero(octets[start : start + CHUNK] < 0x80)
        if not len(lasts):
            raise Damage(f"a number in it has more than {VARINT_BYTES} bytes")
        piece = octets[start : start + int(lasts[-1]) + 1]
        behind = int(np.searchsorted(ends, start + len(piece), side="right"))
        before[told:behind] = done + np.searchsorted(lasts, ends[told:behind] - start)
        values[done : done + len(lasts)] = _varints(piece, lasts)
        done, start, told = done + len(lasts), start + len(piece), behind
    return values, before


def _varints(octets: Octets, lasts: Numbers) -> Numbers:
    """The first eight bytes of each as one number, out of which every eighth bit is taken; then those of the few that
    are longer."""
    if len(lasts) == len(octets):
        return octets.astype(np.int64)
    firsts = np.concatenate([np.zeros(1, np.int64), lasts[:-1] + 1])
    more = lasts - firsts
    most = int(more.max())
    if most >= VARINT_BYTES:
        raise Damage(f"a number in it has more than {VARINT_BYTES} bytes")
    padded = np.concatenate([octets, np.zeros(8, np.uint8)])
    values = np.ndarray(len(octets), "<u8", padded, strides=(1,))[firsts] & _FIRST_OCTETS[more]
    for shift, (kept, moved) in enumerate(_SQUEEZED):
        values = (values & kept) | ((values & moved) >> np.uint64(1 << shift))
    for place in range(8, most + 1):
        longer = np.flatnonzero(more >= place)
        values[longer] |= (octets[firsts[longer] + place] & 0x7F).astype(np.uint64) << np.uint64(7 * place)
    signed: Numbers = values.astype(np.uint64, copy=False).view(np.int64)
    return signed
