"""What places say to each other: the letter of any place to place 0, and the answer to it.

letter ── number, weight, digest of the layout, how many bytes ──, then the arrays
answer ── number, verdict, the place that it is about, how many bytes ──, then the mean
"""

import math
import struct

from strata.demo.layout import DIGEST_BYTES, Layout
from strata.demo.wires import PeersLost, Wire
from strata.errors import InvalidInput

_LETTER = struct.Struct(f"<Qd{DIGEST_BYTES}sQ")
_ANSWER = struct.Struct("<QBIQ")
_MEAN, _DIFFERS, _WEIGHTLESS, _LOST = range(4)

ANSWER_BYTES = _ANSWER.size


class ArraysDiffer(InvalidInput):
    """A place gives arrays of other shapes or types than place 0 does."""

    def __init__(self, message: str, place: int = 0) -> None:
        super().__init__(message)
        self.place = place


class NoWeight(InvalidInput):
    """All weights are zero."""

    def __init__(self, message: str = "no place gives its arrays a weight, so they have no mean") -> None:
        super().__init__(message)


class Letter:
    """What place 0 takes from another: it knows its own arrays, and takes no others."""

    def __init__(self, wire: Wire, layout: Layout, number: int) -> None:
        self._wire, self._layout, self._number = wire, layout, number
        self._head = bytearray(_LETTER.size)
        self._is_open = self.is_complete = False
        self.body = bytearray(layout.total_bytes)
        self.weight = 0.0
        wire.expect(self._head)

    def take(self) -> None:
        """All has come that was expected: first the head, then the arrays."""
        if not self._is_open:
            self._open()
            self._wire.expect(self.body)
        self.is_complete = not self._wire.is_receiving

    def _open(self) -> None:
        number, self.weight, digest, size = _LETTER.unpack(self._head)
        place = self._wire.place
        if number != self._number or not is_weight(self.weight):
            raise PeersLost.at(place, f"place {place} is gone: what it says is no letter")
        if (digest, size) != (self._layout.digest, self._layout.total_bytes):
            raise ArraysDiffer(
                f"place {place} gives other arrays ({size:,} bytes) than place 0, which gives {self._layout}", place
            )
        self._is_open = True


def is_weight(number: float) -> bool:
    return math.isfinite(number) and number >= 0


def send_letter(wire: Wire, number: int, layout: Layout, arrays: bytearray, weight: float) -> None:
    wire.send(_LETTER.pack(number, weight, layout.digest, len(arrays)))
    wire.send(arrays)


def send_mean(wire: Wire, number: int, mean: bytearray) -> None:
    wire.send(_ANSWER.pack(number, _MEAN, 0, len(mean)))
    wire.send(mean)


def farewell(number: int, error: BaseException) -> bytes:
    """The answer that tells the others why there is no mean."""
    if isinstance(error, NoWeight):
        return _ANSWER.pack(number, _WEIGHTLESS, 0, 0)
    if isinstance(error, ArraysDiffer):
        return _ANSWER.pack(number, _DIFFERS, error.place, 0)
    return _ANSWER.pack(number, _LOST, error.place if isinstance(error, PeersLost) else 0, 0)


def check_answer(answer: bytearray, number: int, layout: Layout) -> None:
    """That the mean follows; or raise what place 0 raised."""
    told, verdict, place, size = _ANSWER.unpack(answer)
    if verdict == _LOST:
        raise PeersLost.at(place, f"place {place} is gone or was silent for too long, as place 0 says")
    if verdict == _DIFFERS:
        raise ArraysDiffer(f"place {place} gives other arrays than place 0; this place gives {layout}", place)
    if verdict == _WEIGHTLESS:
        raise NoWeight
    if (told, verdict, size) != (number, _MEAN, layout.total_bytes):
        raise PeersLost("place 0 is gone: what it says is no answer")
