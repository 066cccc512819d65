"""Host memory for snapshots: aligned, allocated once, used again. Fresh memory costs more than the copy into it."""

import threading

import numpy as np

from strata.checkpoint.frameworks import Block
from strata.checkpoint.plan import ALIGNMENT
from strata.logs import get_logger

logger = get_logger("strata.checkpoint")

GRAIN_BYTES = 2 << 20
"""Sizes are rounded up to this, and memory begins at a multiple of it."""
TOUCHING_THREADS = 4


class Arena:
    """One block that grows to what is asked for, never beyond the budget. One user at a time: see `Saver`."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._block: Block | None = None
        self._was_to_be_pinned = False
        """Whether that was tried for this block, which is done once: what failed would fail again."""
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """What is allocated now."""
        return 0 if self._block is None else len(self._block)

    def take(self, size: int, *, pinned: bool = False) -> Block:
        """As much, or the whole budget if that is less. The same memory as last time where it suffices.

        `pinned`: GPUs copy into it by themselves, at their full speed.
        """
        size = min(-(-size // GRAIN_BYTES) * GRAIN_BYTES, self.budget_bytes // ALIGNMENT * ALIGNMENT)
        with self._lock:
            if self._block is None or len(self._block) < size:
                self._block, self._was_to_be_pinned = None, False  # before the next is there: both may be too much
                self._block = _touched(size)
            if pinned and not self._was_to_be_pinned and size:
                _pin(self._block)
                self._was_to_be_pinned = True
            return self._block[:size]

    def release(self) -> None:
        """Give the memory back to the system."""
        with self._lock:
            self._block, self._was_to_be_pinned = None, False


def _touched(size: int) -> Block:
    raw = np.empty(size + GRAIN_BYTES, np.uint8)
    start = -raw.ctypes.data % GRAIN_BYTES
    block = raw[start : start + size]
    share = -(-size // TOUCHING_THREADS // GRAIN_BYTES) * GRAIN_BYTES
    parts = [block[at : at + share] for at in range(0, size, share)] if size else []
    threads = [threading.Thread(target=_touch, args=(part,), name="strata-arena", daemon=True) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return block


def _touch(part: Block) -> None:
    part[::ALIGNMENT] = 0


def _pin(block: Block) -> None:
    """If it can be: a copy into other memory is right, too, and slower."""
    from strata.checkpoint.frameworks.gpu import pin

    problem = pin(block)
    if problem:
        logger.warning("snapshots from GPUs are slower than they could be: memory could not be pinned (%s)", problem)
