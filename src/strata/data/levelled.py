"""What one rank reads of an epoch where ranks meet in every step: its share, in as many batches as every other rank's.

    share ──given out in a batch──▶ in hand ──the next batch is asked for──▶ consumed ──▶ reported

The law: a share is read front to back, so one number says how far it is consumed, and all ranks take the same number of
steps. All batches are full but the last, in which ranks have the same number of samples to one; where that is one or
none, some ranks have none. A share stays what it is until the epoch, the recovery point, the version or this worker's
incarnation is another: then all begins anew with what the coordinator says. No I/O, no threads, no clock.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from strata.core.ids import check_int
from strata.core.orders import EpochOrder, ShardLayout
from strata.core.permutation import MAX_SIZE
from strata.core.ranges import RangeSet
from strata.data.grants import Piece, Release, Share, Standing, Told


def steps_of(samples: int, ranks: int, batch_size: int) -> int:
    """So many steps so many ranks take to read so many samples, whose shares differ by at most one."""
    return -(-samples // (ranks * batch_size))


class Levelled:
    """As `strata.data.grants.Grants` for whoever keeps and reads it, but that nothing is taken away or handed over."""

    awaited: frozenset[int] = frozenset()

    def __init__(self, layout: ShardLayout, seed: int, shuffle: bool, batch_size: int) -> None:
        self._layout, self._seed, self._shuffle = layout, seed, shuffle
        self._batch_size = check_int(batch_size, "batch_size", least=1, most=MAX_SIZE)
        self.level = f"batch_size={batch_size}, tail=short"
        """All that the steps depend on: ranks that say something else cannot take them together."""
        self.standing: Standing | None = None
        self.generation = -1
        self.changes = 0
        """Grows whenever other places are left than were: what was prepared before is of no use."""
        self.ranks = 0
        """So many take the steps."""
        self._begin(0, Share(1, 0, (), 0))

    def _begin(self, epoch: int, share: Share) -> None:
        self.order = EpochOrder(self._layout, self._seed, epoch, self._shuffle)
        self._pieces = list(self._cut(share))
        self._steps = steps_of(share.left, share.ranks, self._batch_size)
        self._steps_given = -(-share.read // self._batch_size)
        self._given = self._consumed = self._known = share.read
        self._in_hand = 0
        self._own = RangeSet()
        self._add(self._part(0, share.read))

    def _cut(self, share: Share) -> Iterable[Piece]:
        """Stretches, shard by shard."""
        size = self._layout.shard_size
        for start, end in zip(share.edges[::2], share.edges[1::2], strict=True):
            inner = range((start // size + 1) * size, end, size)
            for left, right in pairwise([start, *inner, end]):
                shard = left // size
                yield Piece(shard, left - shard * size, right - shard * size)

    # -- what the coordinator says -----------------------------------------------------------------------------------

    def told(self, told: Told) -> None:
        """Answers must come in the order in which they were asked for."""
        assert told.share is not None, "a share was asked for"
        self.generation = told.generation
        if told.standing != self.standing and not self._owes_a_step(told.standing):
            self.standing, self.ranks = told.standing, told.share.ranks
            self._begin(told.standing.epoch, told.share)
            self.changes += 1

    def _owes_a_step(self, standing: Standing) -> bool:
        """Whether the next epoch has to wait: others may be through while this rank has the last step to take, in which
        it has no sample, and without which it would take one less than they do."""
        before = self.standing
        is_next = before is not None and standing[:-1] == before[:-1] and standing.epoch > before.epoch
        return is_next and self.steps_left > 0 and not self.left()

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def steps_left(self) -> int:
        """Of the epoch, for each rank."""
        return self._steps - self._steps_given

    def left(self) -> list[Piece]:
        """What was not given out yet, in the order in which it is to be."""
        return self._part(self._given, self._layout.total_samples)

    def _part(self, first: int, last: int) -> list[Piece]:
        """The samples of the share from the first-th to before the last-th."""
        found: list[Piece] = []
        passed = 0
        for shard, start, end in self._pieces:
            left, right = max(start, start + first - passed), min(end, start + last - passed)
            passed += end - start
            if left < right:
                found.append(Piece(shard, left, right))
        return found

    def _add(self, pieces: Iterable[Piece]) -> None:
        for shard, start, end in pieces:
            first = shard * self._layout.shard_size
            self._own.add(first + start, first + end)

    def give(self, pieces: Sequence[Piece]) -> None:
        """These, which were the first of what is left, are in the hands of whoever trains; what was before is not."""
        self.consume()
        assert self.steps_left > 0, "no rank takes more steps than the others"
        self._add(pieces)
        self._in_hand = sum(piece.end - piece.start for piece in pieces)
        self._given += self._in_hand
        self._steps_given += 1

    def consume(self) -> None:
        """What is in hand was trained on."""
        self._consumed += self._in_hand
        self._in_hand = 0

    @property
    def own(self) -> list[int]:
        """The places that this worker gave out in this standing, as flat ranges of the epoch's places."""
        return self._own.to_flat()

    # -- what the coordinator is to know -----------------------------------------------------------------------------

    def news(self) -> dict[str, Any]:
        """How far the share is consumed, where the coordinator does not know it."""
        return {"levelled": self._consumed} if self._consumed > self._known else {}

    def reported(self, standing: Standing, news: Mapping[str, Any]) -> None:
        """The coordinator has this. An answer may come when it is of the past."""
        if standing == self.standing:
            self._known = max(self._known, news["levelled"])

    def release(self) -> Release | None:
        """The world is fixed until everybody begins anew: nothing is given up before."""
        return None

    def released(self, standing: Standing, release: Release) -> None:
        raise AssertionError("nothing is given up")
