"""New memory for what is loaded: small tensors side by side, large ones each in a block of its own."""

import numpy as np

from strata.checkpoint.dtypes import dtype_of
from strata.checkpoint.frameworks import Block
from strata.checkpoint.manifest import Tensor
from strata.checkpoint.runs import SMALL_BYTES, Run
from strata.storage.direct import aligned

ALIGNED = 64
SLAB_BYTES = 1 << 20
"""What a small tensor may keep from being freed, unless its neighbours in the file are loaded with it."""


class Memory:
    """Gives each tensor its place, aligned as it was."""

    def __init__(self) -> None:
        self._slab: Block = np.empty(0, np.uint8)
        self._used = 0

    def take(self, tensor: Tensor) -> Block:
        size = dtype_of(tensor.dtype).bytes
        for length in tensor.shape:
            size *= length
        return self._take(size, tensor.shift)

    def take_run(self, run: Run) -> Block:
        """For all of its tensors, as they lie in the file."""
        return self._take(run.end - run.start, run.start % ALIGNED)

    def _take(self, size: int, shift: int) -> Block:
        if size > SMALL_BYTES:
            return aligned(size + shift)[shift:]
        if self._used + shift + size > len(self._slab):
            self._slab, self._used = aligned(SLAB_BYTES), 0
        start = self._used + shift
        self._used = -(-(start + size) // ALIGNED) * ALIGNED
        return self._slab[start : start + size]
