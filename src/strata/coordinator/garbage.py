"""How a coordinator looks for cycles of dead objects: often, among the few that are new, and rarely among all.

Nearly everything that a coordinator keeps, it keeps for long, and is no cycle. To look at all of it again and again
stops the loop for milliseconds each time, which its slowest answers wait for. So what was looked at once is put aside,
and looked at again when it has become much more, and then not for a while.
"""

import asyncio
import gc
from typing import Any, Self

NEW = 1_000
"""Objects more than before, and those are looked at."""
MANY = 200_000
"""So many more put aside, and at least a quarter more, and all are looked at again."""
PAUSE_SECONDS = 60.0
"""How often it is asked whether they are so many."""
OLDEST = 2
"""The generation of the collector that has all of them."""


class Garbage:
    """Of one process, for as long as this lasts."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._aside = 0
        """How many there were when all were last looked at."""
        self._is_looking = self._has_looked = False

    def __enter__(self) -> Self:
        gc.callbacks.append(self._after)
        gc.set_threshold(NEW, 10, 10)
        self._look_at_all()
        self._ask_later()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        gc.callbacks.remove(self._after)
        gc.unfreeze()

    def _after(self, phase: str, info: dict[str, Any]) -> None:
        """In whichever thread made one object too many."""
        if phase != "stop":
            return
        if not self._is_looking:
            gc.freeze()
        elif info["generation"] == OLDEST:
            self._has_looked = True

    def _ask_later(self) -> None:
        self._timer = self._loop.call_later(PAUSE_SECONDS, self._ask)

    def _ask(self) -> None:
        if gc.get_freeze_count() >= self._aside + max(MANY, self._aside // 4):
            self._look_at_all()
        self._ask_later()

    def _look_at_all(self) -> None:
        """Unless another thread is just at it among those that are new: then the next time."""
        self._is_looking, self._has_looked = True, False
        gc.unfreeze()
        gc.collect(OLDEST)
        self._is_looking = False
        gc.freeze()
        if self._has_looked:
            self._aside = gc.get_freeze_count()
