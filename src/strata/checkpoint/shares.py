"""Which part of an array a rank writes.

An array that lies in pieces on many ranks says itself who has what. Of a piece that several have, each writes some rows
of its own; a piece that is too small for that is written by one of them, and who that is differs from name to name. So
work is spread evenly, and nobody has to ask anybody.
"""

from collections.abc import Container
from typing import Any, NamedTuple
from zlib import crc32

from strata.checkpoint.boxes import Box
from strata.checkpoint.frameworks import Described, Framework
from strata.checkpoint.frameworks.base import Piece, Shards

SPLIT_BYTES = 1 << 20
"""A share that is shorter is not worth a piece of its own."""


class Share(NamedTuple):
    """What this rank writes of an array: where in it that lies, and the array that it is."""

    at: tuple[int, ...]
    value: Any
    described: Described

    @property
    def box(self) -> Box:
        return Box(self.at, self.described.shape)


class Crew(NamedTuple):
    """Who saves: this rank of so many. `led` are the names of arrays that the first rank has, and writes."""

    rank: int = 0
    size: int = 1
    led: Container[str] = frozenset()

    def leaves_out(self, name: str) -> bool:
        """Whether another writes an array that is not marked, and lies in no pieces."""
        return self.rank > 0 and name in self.led


ALONE = Crew()


class Everything:
    """What rank 0 has, as long as it has not said."""

    def __contains__(self, name: object) -> bool:
        return True


def shares_of(name: str, framework: Framework, shards: Shards) -> list[Share]:
    found = []
    for piece in shards.pieces:
        at, value = piece.at, piece.value
        if piece.copies > 1:
            rows = _rows(framework.describe(value), piece)
            if rows is not None:
                at, value = (at[0] + rows.start, *at[1:]), value[rows]
            elif crc32(name.encode()) % piece.copies != piece.copy:
                continue
        described = framework.describe(value)
        if described.size:
            found.append(Share(at, value, described))
    return found


def _rows(described: Described, piece: Piece) -> slice | None:
    """Those that are this rank's; None if the piece stays in one."""
    length = described.shape[0] if described.shape else 0
    if length < piece.copies or described.size < piece.copies * SPLIT_BYTES:
        return None
    return slice(length * piece.copy // piece.copies, length * (piece.copy + 1) // piece.copies)
