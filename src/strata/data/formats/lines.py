"""Text cut into blocks of whole rows: nothing is parsed here but what tells where a row ends.

Every block starts where a row does, so whether a line break is one or stands in quotes is decided inside the block. A
quote opens a value only at the value's start, and ends it unless it is doubled: exactly as Arrow reads CSV.
"""

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from strata.data.damage import Damage
from strata.data.files import File
from strata.data.formats.base import MAX_VALUE_BYTES, MIB

if TYPE_CHECKING:
    import pyarrow as pa

Bytes = NDArray[np.uint8]

_LF, _CR = 10, 13


def cut(
    file: File, start: int, block_bytes: int, last_end: Callable[[Bytes, bool], int]
) -> "Iterator[tuple[int, pa.Buffer]]":
    """The file from `start` on, as blocks of whole rows: where each begins, and its bytes.

    `last_end` says where the last row ends in a stretch that begins with a row (0: none does), given the stretch and
    whether the file ends with it.
    """
    while start < file.size:
        wanted = block_bytes
        while True:
            length = min(wanted, file.size - start)
            data = file.read(start, length)
            end = last_end(np.frombuffer(data, np.uint8), start + length == file.size)
            if end:
                break
            if length >= MAX_VALUE_BYTES:
                raise Damage(f"the row from byte {start} on has no end within {MAX_VALUE_BYTES} bytes")
            wanted = min(2 * wanted, MAX_VALUE_BYTES)
        yield start, data.slice(0, end)
        start += end


def last_line_end(data: Bytes, is_last: bool) -> int:
    """For `cut`: rows are lines."""
    return len(data) if is_last else _last_of(data, _LF)


def _last_of(data: Bytes, value: int) -> int:
    """Behind the last such byte; 0 if there is none."""
    for end in range(len(data), 0, -MIB):
        found = np.flatnonzero(data[max(0, end - MIB) : end] == value)
        if len(found):
            return max(0, end - MIB) + int(found[-1]) + 1
    return 0


class CsvRows:
    """Where rows of CSV end."""

    def __init__(self, delimiter: str, quote: str | None) -> None:
        self._delimiter = ord(delimiter)
        self._quote = None if quote is None else ord(quote)
        if quote is not None:
            mark, between = re.escape(quote.encode()), re.escape(delimiter.encode())
            self._opening = re.compile(b"[\r\n" + between + b"]" + mark)
            self._closing = re.compile(b"[^%b]*(?:%b%b[^%b]*)*%b(?!%b)" % ((mark,) * 6))

    def last_end(self, data: Bytes, is_last: bool) -> int:
        """For `cut`. Damage if the file ends in the middle of a quoted value."""
        end, is_open = self.outside_quotes(data)
        if not is_last:
            return end
        if is_open:
            raise Damage("it ends within a quoted value: it was cut short, or a quote is missing")
        return len(data)

    def first_end(self, data: Bytes) -> int:
        """Behind the first row; 0 if it has no end here."""
        for position in np.flatnonzero((data == _LF) | (data == _CR)):
            end = int(position) + 1
            if data[position] == _CR and end < len(data) and data[end] == _LF:
                continue
            if self.outside_quotes(data[:end], ends_behind_cr=True)[0] == end:
                return end
        return 0

    def outside_quotes(self, data: Bytes, *, ends_behind_cr: bool = False) -> tuple[int, bool]:
        """Behind the last row that ends here, and whether the rest ends within quotes."""
        quotes = np.flatnonzero(data == self._quote) if self._quote is not None else np.zeros(0, np.int64)
        if not len(quotes):
            return self._last_break(data, ends_behind_cr), False
        if not self.alternate(data, quotes):
            return self.scanned(data.tobytes(), ends_behind_cr)
        is_open = len(quotes) % 2 == 1
        for kind in (_LF, _CR):
            breaks = np.flatnonzero(data == kind)
            if kind == _CR and not ends_behind_cr:
                breaks = breaks[breaks < len(data) - 1]
            outside = breaks[np.searchsorted(quotes, breaks) % 2 == 0]
            if len(outside):
                return int(outside[-1]) + 1, is_open
        return 0, is_open

    def alternate(self, data: Bytes, quotes: NDArray[np.int64]) -> bool:
        """Whether every other quote opens a value, so that counting them is enough."""
        opening = quotes[::2]
        before = data[np.maximum(opening - 1, 0)]
        right = (
            (opening == 0) | (before == self._delimiter) | (before == _LF) | (before == _CR) | (before == self._quote)
        )
        return bool(right.all())

    def _last_break(self, data: Bytes, ends_behind_cr: bool) -> int:
        # A CR at the very end may be the first half of CRLF. Where there are LFs, CRs need not be looked at.
        return _last_of(data, _LF) or _last_of(data if ends_behind_cr else data[:-1], _CR)

    def scanned(self, data: bytes, ends_behind_cr: bool) -> tuple[int, bool]:
        """The same, one quoted value after the other: for text with quotes inside values that have none around."""
        position, end = 0, 0
        is_open = data[:1] == bytes([self._quote or 0])
        while True:
            if not is_open:
                found = self._opening.search(data, position)
                stretch_end = found.end() - 1 if found else len(data)
                stretch = np.frombuffer(data, np.uint8)[position:stretch_end]
                behind = self._last_break(stretch, ends_behind_cr or found is not None)
                end = position + behind if behind else end
                if found is None:
                    return end, False
                position = stretch_end
            closed = self._closing.match(data, position + 1)
            if closed is None:
                return end, True
            position, is_open = closed.end(), False
