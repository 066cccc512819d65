"""HPACK (RFC 7541), the reading half: a header block to its fields, with the table that blocks leave behind.

The hpack package takes three to seven times as long, which counts where clients send a trace header that differs in
every call. The tests hold both against each other over any blocks.
"""

from typing import TypeAlias

from strata.rpc.huffman import BadCode, decode
from strata.rpc.rfc7541 import STATIC_TABLE

Field: TypeAlias = tuple[bytes, bytes]

TABLE_BYTES = 4096
"""What a peer may keep in the table: the default, which is never changed here."""
ENTRY_BYTES = 32
"""That each entry counts beyond its name and value."""
SIZE_UPDATES = 2
"""In one block."""
NUMBER_BYTES = 4
"""Beyond the first, as many as four bytes of a number need."""

_STATIC_COUNT = len(STATIC_TABLE)


class BadBlock(Exception):
    """It cannot be decoded, so nothing after it can be either: the connection ends with COMPRESSION_ERROR."""


class TooLong(Exception):
    """More than anybody needs to say: the connection ends with ENHANCE_YOUR_CALM."""


class Decompressor:
    """What one peer has said so far, as far as later blocks refer to it.

    After each block, `changed` says whether the table is another, and `size` how long its list of fields was.
    """

    __slots__ = ("_list_bytes", "_most", "_size", "changed", "entries", "size")

    def __init__(self, list_bytes: int) -> None:
        self._list_bytes = list_bytes
        self.entries: list[Field] = []  # the newest first; a hundred at most, and an empty deque is large
        self._size, self._most = 0, TABLE_BYTES
        self.changed = False
        self.size = 0

    def fields(self, block: bytes) -> list[Field]:
        self.changed = False
        try:
            return self._fields(block)
        except (IndexError, BadCode) as error:
            raise BadBlock(f"a header block that cannot be decoded ({error})") from None

    def _fields(self, block: bytes) -> list[Field]:
        found: list[Field] = []
        at, end, size, updates = 0, len(block), 0, 0
        while at < end:
            first = block[at]
            if first & 0x80:
                index, at = _number(block, at, 0x7F)
                field = self._entry(index)
            elif first & 0x40:
                field, at = self._literal(block, at, 0x3F)
                self._add(field)
            elif first & 0x20:
                updates += 1
                if found or updates > SIZE_UPDATES:
                    raise BadBlock("a header block resizes its table late, or again and again")
                room, at = _number(block, at, 0x1F)
                self._resize(room)
                continue
            else:
                field, at = self._literal(block, at, 0x0F)
            found.append(field)
            size += len(field[0]) + len(field[1]) + ENTRY_BYTES
            if size > self._list_bytes:
                raise TooLong(f"a header list of more than {self._list_bytes:,} bytes")
        self.size = size
        return found

    def _literal(self, block: bytes, at: int, mask: int) -> tuple[Field, int]:
        index, at = _number(block, at, mask)
        if index:
            name = self._entry(index)[0]
        else:
            name, at = _string(block, at)
        value, at = _string(block, at)
        return (name, value), at

    def _entry(self, index: int) -> Field:
        if index > _STATIC_COUNT:
            return self.entries[index - _STATIC_COUNT - 1]
        if not index:
            raise BadBlock("a header block refers to entry 0, which does not exist")
        return STATIC_TABLE[index - 1]

    def _add(self, field: Field) -> None:
        """One that is larger than the table empties it, and is not kept."""
        self.changed = True
        self.entries.insert(0, field)
        self._size += len(field[0]) + len(field[1]) + ENTRY_BYTES
        self._evict()

    def _resize(self, room: int) -> None:
        if room > TABLE_BYTES:
            raise BadBlock(f"a table of {room:,} bytes; {TABLE_BYTES:,} are allowed")
        self.changed = True
        self._most = room
        self._evict()

    def _evict(self) -> None:
        while self._size > self._most:
            name, value = self.entries.pop()
            self._size -= len(name) + len(value) + ENTRY_BYTES


def _number(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Of as many bits as the mask, and of 7 in each byte that follows if they are all ones."""
    number = block[at] & mask
    at += 1
    if number < mask:
        return number, at
    for shift in range(0, 7 * (NUMBER_BYTES + 1), 7):
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise BadBlock("a header block has a number without end")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    coded = block[at] & 0x80
    length, at = _number(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise BadBlock("a header block ends within a string")
    raw = block[at:end]
    return (decode(raw) if coded else raw), end
