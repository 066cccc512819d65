"""Host memory for snapshots: aligned, allocated once, used again. Fresh memory costs more than the copy into it."""

import threading

import numpy as np

from strata.checkpoint.frameworks import Block
from strata.checkpoint.plan import ALIGNMENT

GRAIN_BYTES = 2 << 20
"""Sizes are rounded up to this, and touched in steps of it."""


class Arena:
    """One block that grows to what is asked for, never beyond the budget. One user at a time: see `Saver`."""

    def __init__(self, budget_bytes: int, *, pinned: bool = False) -> None:
        self.budget_bytes = budget_bytes
        self.pinned = pinned
        self._block: Block | None = None
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """What is allocated now."""
        return 0 if self._block is None else len(self._block)

    def take(self, size: int) -> Block:
        """As much, or the whole budget if that is less. The same memory as last time where it suffices."""
        size = min(-(-size // GRAIN_BYTES) * GRAIN_BYTES, self.budget_bytes // ALIGNMENT * ALIGNMENT)
        with self._lock:
            if self._block is None or len(self._block) < size:
                self._block = None  # before the next is there: both together may be too much
                self._block = _pinned(size) if self.pinned else _touched(size)
            return self._block[:size]

    def release(self) -> None:
        """Give the memory back to the system."""
        with self._lock:
            self._block = None


def _touched(size: int) -> Block:
    raw = np.empty(size + GRAIN_BYTES, np.uint8)
    start = -raw.ctypes.data % GRAIN_BYTES
    block = raw[start : start + size]
    block[::ALIGNMENT] = 0
    return block


def _pinned(size: int) -> Block:
    import torch

    raw = torch.empty(size + ALIGNMENT, dtype=torch.uint8, pin_memory=True).numpy()
    start = -raw.ctypes.data % ALIGNMENT
    found: Block = raw[start : start + size]
    return found
