"""Where each tensor goes: which file, from which byte on. Pure, and kept while the shapes of a state stay the same.

A file is what the safetensors library reads: a header that ends at a multiple of 4096, then the tensors without a gap.
Within a file those with larger elements come first, so that every tensor is aligned to its own. A tensor that does not
fit into one file is cut into pieces, which are entries of bytes named `name@offset`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.checkpoint.dtypes import dtype_of
from strata.checkpoint.manifest import CHUNK_BYTES

ALIGNMENT = 4096
FILE_BYTES = 4 << 30
HEADER_MOST = 100_000_000
"""The longest header that the safetensors library reads."""
PIECE = "@"
"""Between a tensor's name, in which there is none, and where a piece of it begins."""
_ENTRY_BYTES = 120
"""Of a header, at most for each tensor: all but its name and its shape."""
_OPENING_BYTES = 64
"""Of a header, at most: its length, and what stands before the first tensor."""


class Wanted(NamedTuple):
    """Bytes to be written: a tensor, or a piece of one from `start` on."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    tensor: int
    start: int = 0

    @classmethod
    def piece(cls, name: str, start: int, size: int, tensor: int) -> "Wanted":
        """Of the tensor of this name, from a multiple of a chunk on."""
        return cls(f"{name}{PIECE}{start}", "uint8", (size,), size, tensor, start)

    @property
    def chunks(self) -> slice:
        """Which of the tensor's."""
        return slice(self.start // CHUNK_BYTES, -(-(self.start + self.size) // CHUNK_BYTES))


class Placed(NamedTuple):
    """Where in the file it is."""

    wanted: Wanted
    at: int


@dataclass(frozen=True)
class FilePlan:
    """One file: its header, and what comes after it."""

    header: bytes
    placed: list[Placed]
    size: int

    @property
    def room(self) -> int:
        """In whole blocks, as it lies in memory."""
        return _whole_blocks(self.size)

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """What is placed, as numbers, for what is done with all of it: tensor, start, where in the file, size."""
        rows = [(wanted.tensor, wanted.start, at, wanted.size) for wanted, at in self.placed]
        return np.array(rows, np.int64).reshape(-1, 4)

    @cached_property
    def counts(self) -> list[tuple[int, int]]:
        """Of what is placed, in its order: the tensor, and how many chunks it has here."""
        return [(wanted.tensor, -(-wanted.size // CHUNK_BYTES)) for wanted, _ in self.placed]

    @cached_property
    def chunks(self) -> list[tuple[int, int]]:
        """From where to where in the file each chunk lies, in its order."""
        found: list[tuple[int, int]] = []
        for wanted, at in self.placed:
            if 0 < wanted.size <= CHUNK_BYTES:
                found.append((at, at + wanted.size))
            else:
                found += [(at + start, at + start + size) for start, size in chunks_of(wanted.size)]
        return found


def plan_files(wanted: Iterable[Wanted], file_bytes: int = FILE_BYTES) -> list[FilePlan]:
    """All of it, in order, in as few files as hold it: none is longer than `file_bytes`."""
    files: list[FilePlan] = []
    gathered: list[Wanted] = []
    size, header = 0, _OPENING_BYTES
    for each in _cut(wanted, file_bytes):
        entry = _entry_bytes(each)
        padded = _whole_blocks(header + entry)
        if gathered and (size + each.size + padded > file_bytes or padded > HEADER_MOST):
            files.append(planned_file(gathered))
            gathered, size, header = [], 0, _OPENING_BYTES
        gathered.append(each)
        size += each.size
        header += entry
    if gathered:
        files.append(planned_file(gathered))
    return files


def _cut(wanted: Iterable[Wanted], file_bytes: int) -> Iterable[Wanted]:
    """Pieces of whole chunks, of what does not fit into a file with its header."""
    for each in wanted:
        # Most are so short that nobody need ask how long the header is.
        if each.size <= file_bytes // 2 or each.size + _header_bytes(each) <= file_bytes:
            yield each
            continue
        name = each.name.partition(PIECE)[0]
        last = Wanted.piece(name, each.start + each.size, each.size, each.tensor)  # no piece has a longer entry
        most = max(CHUNK_BYTES, (file_bytes - _header_bytes(last)) // CHUNK_BYTES * CHUNK_BYTES)
        for start in range(0, each.size, most):
            yield Wanted.piece(name, each.start + start, min(most, each.size - start), each.tensor)


def _entry_bytes(wanted: Wanted) -> int:
    """At most: a name may hold what JSON escapes, and a shape many numbers."""
    return _ENTRY_BYTES + len(msgspec.json.encode((wanted.name, wanted.shape)))


def _header_bytes(wanted: Wanted) -> int:
    """Of a file that holds nothing else, at most."""
    return _whole_blocks(_OPENING_BYTES + _entry_bytes(wanted))


def _whole_blocks(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def planned_file(gathered: Sequence[Wanted]) -> FilePlan:
    """All of these in one."""
    ordered = sorted(gathered, key=lambda each: -dtype_of(each.dtype).bytes)
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for each in ordered:
        entries[each.name] = _entry(each, at)
        at += each.size
    header = _padded(msgspec.json.encode(entries))
    placed, at = [], len(header)
    for each in ordered:
        placed.append(Placed(each, at))
        at += each.size
    return FilePlan(header, placed, at)


def _entry(wanted: Wanted, at: int) -> dict[str, object]:
    dtype = dtype_of(wanted.dtype)
    is_bytes = dtype.stored == "U8" and dtype.name != "uint8"
    return {
        "dtype": dtype.stored,
        "shape": (wanted.size,) if is_bytes else wanted.shape,
        "data_offsets": (at, at + wanted.size),
    }


def _padded(entries: bytes) -> bytes:
    """With its length before it, and blanks behind."""
    length = _whole_blocks(len(entries) + 8) - 8
    return length.to_bytes(8, "little") + entries + b" " * (length - len(entries))


def chunks_of(size: int) -> list[tuple[int, int]]:
    """Start and length of each chunk of a tensor."""
    return [(start, min(CHUNK_BYTES, size - start)) for start in range(0, size, CHUNK_BYTES)]
