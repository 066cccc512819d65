"""Blocks of which large values are not read with the rest: only where each lies in its file is found.

To read a whole block of such values would need room for all of them, though a batch wants a few; and each would be
copied once more into what is given out. Only of files of this machine, and only where nothing that a format promises
needs the bytes of the others: a checksum over a block does.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from strata.data.files import File
from strata.data.formats.base import Block, Numbers
from strata.data.remembering import Remembered

if TYPE_CHECKING:
    import pyarrow as pa

LARGE_BYTES = 16 << 10
"""Of the values of a column in a block, on average: smaller ones are read together in less time."""

FOUND_BYTES, OVERHEAD_BYTES = 64 << 20, 2 << 10

FOUND: Remembered["Parts | None"] = Remembered(FOUND_BYTES)


class Places(NamedTuple):
    """Where each value of a column is in the file. A length below zero: there is none."""

    starts: Numbers
    lengths: Numbers


class Parts(NamedTuple):
    """A block: the columns that were read, and where the values of the others are."""

    table: "pa.Table"
    places: dict[str, Places]

    @property
    def nbytes(self) -> int:
        return int(self.table.nbytes) + sum(each.starts.nbytes + each.lengths.nbytes for each in self.places.values())

    @property
    def rows(self) -> int:
        return next((len(each.starts) for each in self.places.values()), self.table.num_rows)


@runtime_checkable
class Leaving(Protocol):
    """A format that can leave large values where they are."""

    def parts(self, file: File, block: Block, schema: "pa.Schema") -> Parts | None:
        """A block of a local file; None if there is nothing large in it, or it can only be read whole."""
        ...


def remembered(file: File, block: Block, schema: "pa.Schema", find: Callable[[], Parts | None]) -> Parts | None:
    """What `find` finds, or found before in this file: that it is still this one is looked at with the values."""
    is_new = False

    def read() -> tuple[Parts | None, int]:
        nonlocal is_new
        is_new, found = True, find()
        return found, OVERHEAD_BYTES if found is None else OVERHEAD_BYTES + found.nbytes

    found = FOUND.get((file.path, file.version, block, tuple(schema.names)), read)
    if found is not None and not is_new:
        with file.reading() as reading:
            reading.soon(block.start, block.length)
    return found
