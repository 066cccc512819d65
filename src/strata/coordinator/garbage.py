"""How a coordinator looks for cycles of dead objects: often, among the few that are new, and rarely among all.

Nearly everything that a coordinator keeps, it keeps for long, and is no cycle. To look at all of it again and again
stops the loop for milliseconds each time, which its slowest answers wait for. So what was looked at once is put aside,
and looked at again when much was, and then not for a while.
"""

import asyncio
import gc
import time
from typing import Any

NEW = 1_000
"""Objects more than before, and those are looked at."""
MANY = 200_000
"""So many put aside, and all are looked at again."""
PAUSE_SECONDS = 60.0
"""But not sooner than that after the last time."""


class Garbage:
    """Of one process, from `begin` on until it ends."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._aside, self._looked = 0, time.monotonic()
        self._is_due = False

    def begin(self) -> None:
        gc.callbacks.append(self._after)
        gc.set_threshold(NEW, 10, 10)
        self._look_at_all()

    def _after(self, phase: str, info: dict[str, Any]) -> None:
        """In whichever thread made one object too many."""
        if phase != "stop":
            return
        gc.freeze()
        self._aside += NEW
        if self._aside >= MANY and not self._is_due and time.monotonic() >= self._looked + PAUSE_SECONDS:
            self._is_due = True
            self._loop.call_soon_threadsafe(self._look_at_all)

    def _look_at_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        self._aside, self._looked, self._is_due = 0, time.monotonic(), False
