"""A file read forwards in small steps, as headers want it: a little more than asked for is kept, and more and more
where all of it is wanted, since each reading of a remote file is a request.
"""

from typing import TYPE_CHECKING, Protocol

from strata.data.damage import Damage
from strata.data.files import Reading

if TYPE_CHECKING:
    import pyarrow as pa

AHEAD_BYTES = 256 << 10
MOST_AHEAD_BYTES = 8 << 20


class Readable(Protocol):
    """A file, or part of one."""

    @property
    def size(self) -> int: ...

    def read(self, start: int, length: int) -> "bytes | pa.Buffer": ...


class Part:
    """Part of an open file, as if it were one by itself."""

    def __init__(self, reading: Reading, start: int, size: int) -> None:
        self._reading, self._start = reading, start
        self.size = size

    def read(self, start: int, length: int) -> bytes:
        return self._reading.read(self._start + start, length)


class Window:
    """Bytes of a file by their place. Going forwards, most of what is asked for has been read already."""

    def __init__(self, file: Readable, ahead_bytes: int = AHEAD_BYTES) -> None:
        self._file, self._ahead = file, ahead_bytes
        self._start = 0
        self._have = memoryview(b"")
        self.size = file.size

    def at(self, start: int, length: int) -> memoryview:
        """Exactly so many bytes from there, or Damage: the file has ended."""
        if start < 0 or length < 0 or start + length > self.size:
            raise Damage(f"it ends at byte {self.size}, where {start + length} should be")
        if not self._start <= start <= start + length <= self._start + len(self._have):
            if self._have:
                is_near = self._start <= start <= self._start + len(self._have) + self._ahead
                self._ahead = min(2 * self._ahead, MOST_AHEAD_BYTES) if is_near else AHEAD_BYTES
            self._have = memoryview(self._file.read(start, min(max(length, self._ahead), self.size - start)))
            self._start = start
        return self._have[start - self._start : start - self._start + length]


class Held:
    """The same for bytes that are in memory already."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.size = len(data)

    def at(self, start: int, length: int) -> memoryview:
        if start < 0 or length < 0 or start + length > self.size:
            raise Damage(f"{start + length - self.size} bytes are missing at its end")
        return self._data[start : start + length]
