"""Columns of raw bytes, made of a block as it lies in the file: copied once, by Arrow, off the GIL."""

from typing import TYPE_CHECKING, Any

import numpy as np

from strata.data.columnar import arrow
from strata.data.formats.base import Numbers

if TYPE_CHECKING:
    import pyarrow as pa


class Values:
    """Values that lie in a buffer one after the other, with something else between them."""

    def __init__(self, data: "pa.Buffer", starts: Numbers, ends: Numbers) -> None:
        pa = arrow()
        # Every other value of this array is what lies between two, and is never taken.
        offsets = np.stack([starts, ends], axis=1).reshape(-1).astype(np.int32)
        count = max(0, len(offsets) - 1)
        buffers = [None, pa.py_buffer(offsets if count else np.zeros(1, np.int32)), data]
        self._all = pa.Array.from_buffers(pa.binary(), count, buffers)

    def take(self, numbers: Numbers) -> Any:
        """A column of those with these numbers; null where the number is negative."""
        pa = arrow()
        return self._all.take(pa.array(2 * numbers, mask=numbers < 0))
