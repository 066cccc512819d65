"""Stretches of shards one after the other, cut into batches: what `strata.data.making` makes batches of, for one worker
alone. Samples are found when they are asked for, however many there are."""

from collections.abc import Sequence

import numpy as np

from strata.core.ids import check_int
from strata.core.orders import EpochOrder, Indexes
from strata.core.permutation import MAX_SIZE
from strata.data.grants import Piece


class Stretches:
    """An order of so many batches, `least` or more: the last one may be short, or empty if there are to be as many."""

    def __init__(self, order: EpochOrder, pieces: Sequence[Piece], batch_size: int, least: int = 0) -> None:
        self.global_batch_size = check_int(batch_size, "batch_size", least=1, most=MAX_SIZE)
        self._order, self._least = order, least
        table = np.array(pieces, np.int64).reshape(-1, 3)
        self._shards, self._starts, lengths = table[:, 0], table[:, 1], table[:, 2] - table[:, 1]
        self._ends = np.cumsum(lengths)
        self._before = self._ends - lengths
        self.count = int(self._ends[-1]) if len(self._ends) else 0

    @property
    def batches(self) -> int:
        return max(self._least, -(-self.count // self.global_batch_size))

    def batch_size(self, batch: int) -> int:
        start, end = self._bounds(batch, batch + 1)
        return end - start

    def run(self, first: int, last: int, position: int, world: int, step: int = 1) -> Indexes:
        """The samples of these batches, one after the other."""
        assert (position, world, step) == (0, 1, 1), "a worker's own batches are shared with nobody"
        places = np.arange(*self._bounds(first, last), dtype=np.int64)
        index = np.searchsorted(self._ends, places, side="right")
        return self._order.samples_in(self._shards[index], self._starts[index] + places - self._before[index])

    def pieces(self, batch: int) -> list[Piece]:
        """What a batch is made of."""
        start, end = self._bounds(batch, batch + 1)
        found: list[Piece] = []
        index = int(np.searchsorted(self._ends, start, side="right"))
        while start < end:
            stop = min(end, int(self._ends[index]))
            offset = int(self._starts[index] - self._before[index])
            found.append(Piece(int(self._shards[index]), start + offset, stop + offset))
            start, index = stop, index + 1
        return found

    def _bounds(self, first: int, last: int) -> tuple[int, int]:
        size = self.global_batch_size
        return min(first * size, self.count), min(last * size, self.count)
