"""New memory for what is loaded: small tensors side by side, large ones each in a block of its own."""

import numpy as np

from strata.checkpoint.dtypes import dtype_of
from strata.checkpoint.frameworks import Block
from strata.checkpoint.manifest import Tensor
from strata.storage.direct import aligned

ALIGNED = 64
SMALL_BYTES = 64 << 10
SLAB_BYTES = 1 << 20
"""What a small tensor may keep from being freed."""


class Memory:
    """Gives each tensor its place, aligned as it was."""

    def __init__(self) -> None:
        self._slab: Block = np.empty(0, np.uint8)
        self._used = 0

    def take(self, tensor: Tensor) -> Block:
        size = dtype_of(tensor.dtype).bytes
        for length in tensor.shape:
            size *= length
        if size > SMALL_BYTES:
            return aligned(size + tensor.shift)[tensor.shift :]
        if self._used + tensor.shift + size > len(self._slab):
            self._slab, self._used = aligned(SLAB_BYTES), 0
        start = self._used + tensor.shift
        self._used = -(-(start + size) // ALIGNED) * ALIGNED
        return self._slab[start : start + size]
