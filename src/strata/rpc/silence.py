"""How long a channel has found no server, on any of its addresses."""

import time
from collections.abc import Callable
from math import inf


class Silence:
    """Since when a channel reaches nobody."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._last = -inf

    def begins(self) -> None:
        """All addresses were tried, and none was there."""
        self._last = self._clock()
        self._since = self._last if self._since is None else self._since

    def ends(self) -> None:
        self._since = None

    @property
    def seconds(self) -> float:
        """For how long nobody was there; 0 if somebody is, as far as is known."""
        since = self._since
        return 0.0 if since is None else self._clock() - since

    @property
    def seconds_ago(self) -> float:
        """How long ago that was found last."""
        return self._clock() - self._last
