"""Shares of an epoch for ranks that meet in every step: each reads the shards that it owns, but for the ends, which are
evened out by sample.

    owned, in the order of the epoch   ████████████████████████░░░░     kept │ lent
    lent by others                                             ░░░░     is read last

The law: shares follow from who was there, who owned what and what was consumed when all of them began, and from
nothing that happens later. They have no place in common, they are all that was left, and they differ by one sample at
most. A share is read front to back, so one number says how far. Nothing here knows who asks, or when.
"""

from collections.abc import Sequence

import numpy as np

from strata.core.consumption import Consumption
from strata.core.orders import EpochOrder, Indexes, Transfer, level
from strata.core.ranges import RangeSet


class Stretches:
    """Half-open ranges of places, in the order in which they are read."""

    __slots__ = ("_ends_after", "ends", "starts")

    def __init__(self, starts: Indexes, ends: Indexes) -> None:
        self.starts, self.ends = starts, ends
        self._ends_after = np.cumsum(ends - starts)

    @property
    def count(self) -> int:
        """How many places that are."""
        return int(self._ends_after[-1]) if len(self._ends_after) else 0

    def part(self, first: int, last: int) -> "Stretches":
        """From the first-th place to before the last-th."""
        before = self._ends_after - (self.ends - self.starts)
        starts = self.starts + np.maximum(first - before, 0)
        ends = self.ends - np.maximum(self._ends_after - last, 0)
        return Stretches(starts[starts < ends], ends[starts < ends])

    def places(self) -> RangeSet:
        found = RangeSet()
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            found.add(start, end)
        return found

    def to_flat(self) -> list[int]:
        """start, end, start, end, … as they are read."""
        flat: list[int] = np.stack([self.starts, self.ends], axis=1).ravel().tolist()
        return flat


def joined(parts: Sequence[Stretches]) -> Stretches:
    return Stretches(np.concatenate([part.starts for part in parts]), np.concatenate([part.ends for part in parts]))


class Levels:
    """The shares of one epoch, each worked out when it is first asked for."""

    def __init__(self, order: EpochOrder, owners: Indexes, ranks: Sequence[int], consumed: RangeSet) -> None:
        """`owners`: the rank of each shard, negative where it is nobody's. `consumed` must stay as it is."""
        self._order, self._consumed = order, consumed
        self.ranks = tuple(sorted(ranks))
        # What nobody owns, as where all ranks are about to leave, is the first one's to lend.
        self._owners = np.where(owners < 0, 0, np.searchsorted(np.array(self.ranks, np.int64), owners))
        counts = self._counts()
        self.left = sum(counts)
        self._kept = counts
        self._lent: dict[int, list[Transfer]] = {}
        for transfer in level(counts):
            self._kept[transfer.giver] = min(self._kept[transfer.giver], transfer.start)
            self._lent.setdefault(transfer.taker, []).append(transfer)
        self._lines: dict[int, Stretches] = {}
        self._shares: dict[int, Stretches] = {}

    def share(self, rank: int) -> Stretches:
        """What this one of the ranks reads."""
        share = self._shares.get(rank)
        if share is None:
            at = self.ranks.index(rank)
            kept = self._line(at).part(0, self._kept[at])
            lent = [self._line(each.giver).part(each.start, each.end) for each in self._lent.get(at, ())]
            share = self._shares[rank] = joined([kept, *lent])
        return share

    def _counts(self) -> list[int]:
        """How many samples each rank has left."""
        layout = self._order.layout
        shards = np.arange(layout.shard_count, dtype=np.int64)
        starts, sizes = shards * layout.shard_size, layout.sizes(shards)
        counts = np.zeros(len(self.ranks), np.int64)
        np.add.at(counts, self._owners, sizes - Consumption(self._consumed).within(starts, starts + sizes))
        found: list[int] = counts.tolist()
        return found

    def _line(self, at: int) -> Stretches:
        """What is left of the shards of the rank that comes at this place among them, in the order of the epoch."""
        line = self._lines.get(at)
        if line is None:
            owned = np.flatnonzero(self._owners == at).astype(np.int64)
            ordered = owned[np.argsort(self._order.positions_of(owned))].tolist()
            bounds = map(self._order.layout.bounds, ordered)
            gaps = [gap for start, end in bounds for gap in self._consumed.missing(start, end)]
            table = np.array(gaps, np.int64).reshape(-1, 2)
            line = self._lines[at] = Stretches(table[:, 0], table[:, 1])
        return line
