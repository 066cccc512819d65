"""Virtual time: callbacks in the order of their instants, ties in the order they were asked for."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class VirtualLoop:
    """A clock that jumps from one callback to the next."""

    __slots__ = ("_heap", "_sequence", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0

    def after(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        self._sequence += 1
        heappush(self._heap, (self.now + seconds, self._sequence, call, args))

    def run(self, until: float) -> None:
        """Everything that is due up to and including this instant."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, call, args = heappop(heap)
            call(*args)
        self.now = until
