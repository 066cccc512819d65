"""What one worker may read of an epoch in the affinity order, what of it was given out, and what is consumed.

    granted ──given out in a batch──▶ in hand ──the next batch is asked for──▶ consumed ──▶ reported
       └──revoked: nothing more of it is given out──▶ given up, once nothing of it is in hand

The law: a shard is read front to back, so a cursor says how far it is consumed; what is reported, or told when a shard
is given up, was consumed; and what was consumed is never given out again by this worker. What was only prepared counts
for nothing. When the epoch, the recovery point, the version or this worker's incarnation is another, all of it begins
anew with what the coordinator says. No I/O, no threads, no clock: whoever uses it sees to those.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from strata.core.orders import EpochOrder, ShardLayout
from strata.core.ranges import RangeSet


class Standing(NamedTuple):
    """What reading is about. When any of it is another, everything that was read before is of the past."""

    incarnation: int
    version: int
    point: int
    epoch: int


class Share(NamedTuple):
    """What is this worker's where ends are evened out: `edges` of places, flat, in the order in which they are read, of
    which the first `read` are consumed. So many `ranks` share what was `left` when all began."""

    ranks: int
    left: int
    edges: Sequence[int]
    read: int


class Told(NamedTuple):
    """What the coordinator says of this worker's shards: the answer of GetAssignments, to this incarnation. `share`
    where ends are evened out: see `strata.data.levelled`."""

    standing: Standing
    generation: int
    granted: Sequence[int]
    awaited: Sequence[int]
    revoked: Sequence[int]
    cursors: Mapping[int, int]
    beyond: Mapping[int, Sequence[int]]
    share: Share | None = None


class Piece(NamedTuple):
    """The places [start, end) of a shard, counted in its own order."""

    shard: int
    start: int
    end: int


class Release(NamedTuple):
    """Shards that this worker has stopped reading, in answer to what was told in this generation."""

    generation: int
    shards: list[int]
    cursors: dict[int, int]


class Grants:
    """See the module."""

    level = ""
    """Ends differ: whoever is through waits for the others."""
    steps_left = 0

    def __init__(self, layout: ShardLayout, seed: int, shuffle: bool) -> None:
        self._layout, self._seed, self._shuffle = layout, seed, shuffle
        self.standing: Standing | None = None
        self.generation = -1
        """The one that the shards were last told in."""
        self.changes = 0
        """Grows whenever other places are left than were: what was prepared before is of no use."""
        self._begin(0)

    def _begin(self, epoch: int) -> None:
        self.order = EpochOrder(self._layout, self._seed, epoch, self._shuffle)
        self._granted: list[int] = []
        self.awaited: frozenset[int] = frozenset()
        self._revoked: set[int] = set()
        self._released: set[int] = set()
        self._given: dict[int, int] = {}
        self._consumed: dict[int, int] = {}
        self._known: dict[int, int] = {}
        self._beyond: dict[int, RangeSet] = {}
        self._in_hand: tuple[Piece, ...] = ()
        self._own: dict[int, RangeSet] = {}

    # -- what the coordinator says -----------------------------------------------------------------------------------

    def told(self, told: Told) -> None:
        """Answers must come in the order in which they were asked for."""
        if told.standing != self.standing:
            self.standing = told.standing
            self._begin(told.standing.epoch)
            self.changes += 1
        before = self._granted, self._given.copy()
        self.generation = told.generation
        self.awaited, self._revoked = frozenset(told.awaited), set(told.revoked)
        self._released = set()
        for shard in (*told.granted, *told.revoked):
            self._take_up(shard, told.cursors.get(shard, 0), told.beyond.get(shard, ()))
        self._granted = self._in_order(told.granted)
        if before != (self._granted, self._given):
            self.changes += 1

    def _take_up(self, shard: int, cursor: int, beyond: Sequence[int]) -> None:
        """A shard may come back before anybody heard how far this worker had read it: then its own cursor stands."""
        self._known[shard] = cursor
        self._beyond.pop(shard, None)
        if beyond:
            self._beyond[shard] = RangeSet.from_flat(beyond)
        self._given[shard] = max(cursor, self._given.get(shard, 0))
        self._consumed[shard] = max(cursor, self._consumed.get(shard, 0))

    def _in_order(self, shards: Sequence[int]) -> list[int]:
        found = np.array(shards, np.int64)
        ordered: list[int] = found[np.argsort(self.order.positions_of(found))].tolist()
        return ordered

    # -- reading -----------------------------------------------------------------------------------------------------

    def left(self) -> list[Piece]:
        """What was not given out yet, in the order in which it is to be."""
        found: list[Piece] = []
        for shard in self._granted:
            start, size = self._given[shard], self._size(shard)
            if start < size:
                found.extend(Piece(shard, *gap) for gap in self._gaps(shard, start, size))
        return found

    def _gaps(self, shard: int, start: int, end: int) -> list[tuple[int, int]]:
        """What nobody read of these places, as far as it was told; mostly that is all of them."""
        beyond = self._beyond.get(shard)
        return [(start, end)] if beyond is None else beyond.missing(start, end)

    def give(self, pieces: Sequence[Piece]) -> None:
        """These, which were the first of what is left, are in the hands of whoever trains; what was before is not."""
        self.consume()
        self._in_hand = tuple(pieces)
        for shard, start, end in self._in_hand:
            assert start >= self._given[shard], "a shard is read front to back"
            self._given[shard] = end
            self._own.setdefault(shard, RangeSet()).add(start, end)

    def consume(self) -> None:
        """What is in hand was trained on."""
        for shard, _, end in self._in_hand:
            # What others read beyond it is consumed, too: a cursor is told as far as it can be.
            gaps = self._gaps(shard, end, self._size(shard))
            self._consumed[shard] = gaps[0][0] if gaps else self._size(shard)
        self._in_hand = ()

    @property
    def own(self) -> list[int]:
        """The places that this worker gave out in this standing, as flat ranges of the epoch's places."""
        places = RangeSet()  # put together when it is wanted: one set of all shards would be slow to add to
        for shard in sorted(self._own):
            first = shard * self._layout.shard_size
            for start, end in self._own[shard]:
                places.add(first + start, first + end)
        return places.to_flat()

    # -- what the coordinator is to know -----------------------------------------------------------------------------

    def news(self) -> dict[str, Any]:
        """Cursors of shards that are still this worker's to report of, where the coordinator does not know them. What
        was given up is another's from then on."""
        mine = (*self._granted, *(self._revoked - self._released))
        cursors = {shard: self._consumed[shard] for shard in mine if self._consumed[shard] > self._known[shard]}
        return {"cursors": cursors} if cursors else {}

    def reported(self, standing: Standing, news: Mapping[str, Any]) -> None:
        """The coordinator has these. An answer may come when they are of the past."""
        if standing == self.standing:
            for shard, cursor in news["cursors"].items():
                self._known[shard] = max(cursor, self._known.get(shard, 0))

    def release(self) -> Release | None:
        """What can be given up now. What of it is in hand is consumed first: somebody trains on that, and whoever reads
        on must not."""
        in_hand = {piece.shard for piece in self._in_hand}
        shards = sorted(self._revoked - in_hand - self._released)
        if not shards:
            return None
        cursors = {shard: self._consumed[shard] for shard in shards if self._consumed[shard]}
        return Release(self.generation, shards, cursors)

    def released(self, standing: Standing, release: Release) -> None:
        """The coordinator answered. If it did not count, since the world has changed, shards are told to be given up
        again."""
        if (standing, release.generation) == (self.standing, self.generation):
            self._released.update(release.shards)

    def _size(self, shard: int) -> int:
        size = self._layout.shard_size
        return min(size, self._layout.total_samples - shard * size)
