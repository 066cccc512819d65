"""How a list of arrays lies in bytes, and the mean of several such lists.

Shapes and types do not travel. Every place works out the layout from its own arrays, and so knows how many bytes it
takes from others before one of them has come; layouts that differ are told apart by their digests.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.errors import InvalidInput

Array = NDArray[Any]

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape and type of each array. In bytes they follow one another without gaps, in C order and little-endian."""

    shapes: tuple[tuple[int, ...], ...]
    types: tuple[np.dtype[Any], ...]

    @classmethod
    def of(cls, arrays: Sequence[Array]) -> "Layout":
        for number, array in enumerate(arrays):
            kind = getattr(array, "dtype", None)
            if not isinstance(kind, np.dtype) or kind.kind != "f" or kind.itemsize > 8:
                said = kind or type(array).__name__
                raise InvalidInput(f"array {number} is {said}: give numpy arrays of floats of 16, 32 or 64 bits")
        return cls(tuple(array.shape for array in arrays), tuple(array.dtype.newbyteorder("<") for array in arrays))

    @property
    def total_bytes(self) -> int:
        return sum(self._sizes())

    @property
    def digest(self) -> bytes:
        said = [(shape, kind.str) for shape, kind in self._items()]
        return blake2b(repr(said).encode(), digest_size=DIGEST_BYTES).digest()

    def pack(self, arrays: Sequence[Array]) -> bytearray:
        """Arrays of this layout, or of these shapes and another type, as bytes."""
        packed = bytearray(self.total_bytes)
        for view, array in zip(self.views(packed), arrays, strict=True):
            view[...] = array
        return packed

    def views(self, buffer: bytearray) -> list[Array]:
        """The arrays that lie in these bytes."""
        views: list[Array] = []
        start = 0
        for shape, kind, size in zip(self.shapes, self.types, self._sizes(), strict=True):
            views.append(np.ndarray(shape, kind, buffer, start))
            start += size
        return views

    def _sizes(self) -> list[int]:
        return [math.prod(shape) * kind.itemsize for shape, kind in self._items()]

    def _items(self) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        return list(zip(self.shapes, self.types, strict=True))

    def __str__(self) -> str:
        first = ", ".join(f"{kind.name}{list(shape)}" for shape, kind in self._items()[:3])
        more = ", …" if len(self.shapes) > 3 else ""
        return f"{len(self.shapes)} arrays of {self.total_bytes:,} bytes ({first}{more})"


class Total:
    """Adds in float64, in the order in which it is given: the same order gives the same bits."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._sums = [np.zeros(shape) for shape in layout.shapes]
        self.weight = 0.0

    def add(self, packed: bytearray, weight: float) -> None:
        """What has no weight is left out, also where it is not a number."""
        if not weight:
            return
        self.weight += weight
        # What overflows is infinite on every place: that is for the training to look at, not for a warning on one.
        with np.errstate(over="ignore", invalid="ignore"):
            for total, part in zip(self._sums, self._layout.views(packed), strict=True):
                np.add(total, np.multiply(part, weight, dtype=np.float64), out=total)

    def mean(self) -> bytearray:
        with np.errstate(over="ignore", invalid="ignore"):
            return self._layout.pack([total / self.weight for total in self._sums])
