"""How much of any stretch of places is consumed: for many stretches at once."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from strata.core.ranges import RangeSet


class Consumption:
    """Of a set as it is when this is made."""

    def __init__(self, consumed: RangeSet) -> None:
        self._flat = consumed.to_flat()

    @cached_property
    def _edges(self) -> NDArray[np.int64]:
        return np.array([0, *self._flat], np.int64)

    @cached_property
    def _below(self) -> NDArray[np.int64]:
        """How many are consumed below each edge."""
        lengths = np.diff(self._edges)
        lengths[::2] = 0
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])

    def below(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many places before each of these are consumed."""
        at = np.searchsorted(self._edges, places, side="right") - 1
        inside = at % 2 == 1
        return self._below[at] + np.where(inside, places - self._edges[at], 0)

    def within(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many are consumed from each start to before its end."""
        return self.below(ends) - self.below(starts)
