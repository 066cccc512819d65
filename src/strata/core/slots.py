"""slots-v1: which slot owns which shard, exactly balanced and with the fewest moves.

The law. Shards stand in a pseudo-random order, sorted by `mix.keys(seed, shard_count)`. Of n live slots the j-th owns
`S // n + (j < S % n)` shards, as a list. When a slot joins, every list gives up its tail down to the new quota, and
what was given up, in slot order, is the newcomer's list. A leave hands the leaver's list out again in the same order,
so it undoes a join exactly. A world of U slots is grown from one slot in U - 1 joins; then the vacated ones leave in
the order of the stack.

So loads differ by at most one, a leave moves the leaver's shards and no others, and a join moves only into the
newcomer. Golden vectors in the tests pin the result: another result is another algorithm and needs another name.
Integers only.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from strata.core import mix
from strata.core.ids import check_int
from strata.core.views import View
from strata.errors import InvalidInput

ALGORITHM = "slots-v1"

MAX_SHARDS = 2**31 - 1
"""Shard ids are kept in 32 bits; a dataset with more shards wants larger ones."""

WARM_STEPS = 64
"""A view this many joins and leaves away is derived step by step; one further off is quicker to compute afresh."""

Shards = NDArray[np.int32]
Slots = NDArray[np.int64]


class Ownership:
    """Which live slot owns which shards, for one dataset in one view. Immutable; its arrays are read-only."""

    __slots__ = ("_flat", "_live", "_owners", "seed", "shard_count", "slot_count", "vacated")

    def __init__(self, shard_count: int, seed: int, slot_count: int, vacated: tuple[int, ...], flat: Shards) -> None:
        """Use `Ownership.of`. `flat` is every live slot's list in slot order (all shards, if no slot is live)."""
        flat.setflags(write=False)
        self.shard_count = shard_count
        self.seed = seed
        self.slot_count = slot_count
        self.vacated = vacated
        self._flat = flat
        self._live = _live_slots(slot_count, vacated)
        self._owners: Slots | None = None

    @classmethod
    def of(cls, shard_count: int, seed: int, view: View) -> "Ownership":
        """The ownership in a view, computed from nothing."""
        check_int(shard_count, "shard_count", most=MAX_SHARDS)
        flat = _grown(_shuffled(shard_count, mix.check_seed(seed)), view.slot_count)
        ownership = cls(shard_count, seed, view.slot_count, (), flat)
        for slot in view.vacated:
            ownership = ownership._vacate(slot)
        return ownership

    def leave(self, slot: int) -> "Ownership":
        """The ownership after a live slot left, as `View.leave` has it."""
        if not self.vacated and slot == self.slot_count - 1:
            return self._next(slot, (), self._handed_out(slot))
        return self._vacate(slot)

    def join(self, slot: int) -> "Ownership":
        """The ownership after a slot was filled: the one vacated last or, if none is vacant, a new one."""
        due = self.vacated[-1] if self.vacated else self.slot_count
        if slot != due:
            raise InvalidInput(f"slot {slot} cannot be filled now: the next one to be filled is {due}")
        return self._next(max(self.slot_count, slot + 1), self.vacated[:-1], self._collected(slot))

    def moved_to(self, view: View) -> "Ownership":
        """The ownership in another view, derived from this one when the two are near each other."""
        # Slots are added and removed with nothing vacated, so a change of their number starts from an empty stack.
        kept = _common_prefix(self.vacated, view.vacated) if self.slot_count == view.slot_count else 0
        steps = len(self.vacated) + len(view.vacated) - 2 * kept + abs(self.slot_count - view.slot_count)
        if steps > WARM_STEPS:
            return Ownership.of(self.shard_count, self.seed, view)
        return self._walk(view, kept)

    def shards_of(self, slot: int) -> Shards:
        """The shards a live slot owns, in the order of its list (not of any epoch)."""
        index = self._index(slot)
        return self._flat[self._start(index) : self._start(index + 1)]

    def owners(self) -> Slots:
        """The owning slot of every shard, by shard id; -1 where no slot is live."""
        if self._owners is None:
            owners = np.full(self.shard_count, -1, dtype=np.int64)
            if len(self._live):
                owners[self._flat] = np.repeat(self._live, self.loads())
            owners.setflags(write=False)
            self._owners = owners
        return self._owners

    def loads(self) -> NDArray[np.int64]:
        """How many shards each live slot owns, in slot order."""
        return np.diff(_starts(self.shard_count, len(self._live)))

    @property
    def live_slots(self) -> Slots:
        """The live slots, ascending."""
        return self._live

    def _walk(self, view: View, kept: int) -> "Ownership":
        """Fill what this view vacated beyond the common part, grow or shrink, vacate what the other one vacated."""
        ownership = self
        for slot in reversed(self.vacated[kept:]):
            ownership = ownership.join(slot)
        for slot in range(self.slot_count, view.slot_count):
            ownership = ownership.join(slot)
        for slot in reversed(range(view.slot_count, self.slot_count)):
            ownership = ownership.leave(slot)
        for slot in view.vacated[kept:]:
            ownership = ownership._vacate(slot)
        return ownership

    def _vacate(self, slot: int) -> "Ownership":
        flat = self._handed_out(slot)
        return self._next(self.slot_count, (*self.vacated, slot), flat)

    def _next(self, slot_count: int, vacated: tuple[int, ...], flat: Shards) -> "Ownership":
        return Ownership(self.shard_count, self.seed, slot_count, vacated, flat)

    def _handed_out(self, slot: int) -> Shards:
        """The lists once the slot's own list has been appended, in slot order, to the others."""
        index = self._index(slot)
        leaver = self.shards_of(slot)
        if len(self._live) == 1:
            return leaver
        flat = np.empty_like(self._flat)
        taken = 0
        for run in _runs(self.shard_count, len(self._live) - 1, index):
            long = run.cut_smaller(flat)
            long[:, : run.short] = run.cut_larger(self._flat)
            long[:, run.short :] = leaver[taken : taken + run.moved].reshape(run.slots, run.long - run.short)
            taken += run.moved
        return flat

    def _collected(self, slot: int) -> Shards:
        """The lists once every slot has given up its tail to the newcomer."""
        count = len(self._live)
        if count == 0:
            return self._flat
        index = int(np.searchsorted(self._live, slot))
        flat = np.empty_like(self._flat)
        start = _start(self.shard_count, count + 1, index)
        for run in _runs(self.shard_count, count, index):
            long = run.cut_smaller(self._flat)
            run.cut_larger(flat)[:] = long[:, : run.short]
            flat[start : start + run.moved] = long[:, run.short :].ravel()
            start += run.moved
        return flat

    def _index(self, slot: int) -> int:
        index = int(np.searchsorted(self._live, slot))
        if index == len(self._live) or self._live[index] != slot:
            raise InvalidInput(f"slot {slot} is not one of the {len(self._live)} live slots")
        return index

    def _start(self, index: int) -> int:
        return _start(self.shard_count, len(self._live), index)


class _Run(NamedTuple):
    """Neighbouring slots with equal quotas in the smaller world (`long`) and in the one with the mover (`short`)."""

    slots: int
    long: int
    short: int
    smaller_start: int
    larger_start: int

    @property
    def moved(self) -> int:
        return self.slots * (self.long - self.short)

    def cut_smaller(self, flat: Shards) -> Shards:
        end = self.smaller_start + self.slots * self.long
        return flat[self.smaller_start : end].reshape(self.slots, self.long)

    def cut_larger(self, flat: Shards) -> Shards:
        end = self.larger_start + self.slots * self.short
        return flat[self.larger_start : end].reshape(self.slots, self.short)


def _runs(shard_count: int, smaller: int, mover: int) -> Iterator[_Run]:
    """How `smaller` slots compare with the world of one more, where the additional one stands at index `mover`.

    Quotas fall by one at a single index in each world, and the mover shifts the indexes behind it, so there are at
    most four runs: each is a matrix, and a whole join or leave is a few slice copies.
    """
    fall = shard_count % (smaller + 1)
    cuts = sorted((0, smaller, mover, shard_count % smaller, fall - (fall > mover)))
    for first, last in pairwise(cuts):
        if first < last:
            index = first + (first >= mover)
            long, short = _quota(shard_count, smaller, first), _quota(shard_count, smaller + 1, index)
            starts = _start(shard_count, smaller, first), _start(shard_count, smaller + 1, index)
            yield _Run(last - first, long, short, *starts)


def _quota(shard_count: int, live: int, index: int) -> int:
    return shard_count // live + (index < shard_count % live)


def _start(shard_count: int, live: int, index: int) -> int:
    """Where the list of the index-th live slot begins in the flat array."""
    return shard_count // live * index + min(index, shard_count % live)


def _starts(shard_count: int, live: int) -> NDArray[np.int64]:
    if live == 0:
        return np.zeros(1, dtype=np.int64)
    index = np.arange(live + 1, dtype=np.int64)
    return shard_count // live * index + np.minimum(index, shard_count % live)


def _live_slots(slot_count: int, vacated: tuple[int, ...]) -> Slots:
    live = np.ones(slot_count, dtype=np.bool_)
    live[list(vacated)] = False
    slots = np.flatnonzero(live)
    slots.setflags(write=False)
    return slots


def _common_prefix(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))


def _shuffled(shard_count: int, seed: int) -> Shards:
    # The keys are a bijection of the index, so there are no ties and any sort gives the same order: take the fastest.
    return np.argsort(mix.keys(seed, shard_count)).astype(np.int32)


def _grown(order: Shards, slot_count: int) -> Shards:
    """Grow from one slot that owns all of `order` to `slot_count` slots: each slot's list, one after the other.

    While the world grows a list only loses its tail. So each list stays where it was first written, in a buffer with
    room for all of them at their first length, and one array of ends is all that changes.
    """
    shard_count = len(order)
    # From as many slots as shards on, each newcomer gets nothing from anybody.
    count = min(slot_count, shard_count)
    if count <= 1:
        return order
    first_lengths = shard_count // np.arange(1, count + 1, dtype=np.int64)
    ends = np.cumsum(first_lengths)
    buffer = np.empty(int(ends[-1]), dtype=np.int32)
    buffer[:shard_count] = order
    _fill(buffer, ends, shard_count, count)
    return _packed(buffer, ends, shard_count, count)


def _fill(buffer: Shards, ends: Slots, shard_count: int, count: int) -> None:
    """Let slots 1..count-1 join one after the other; leaves `ends` at the end of each slot's final list."""
    write, live = shard_count, 1
    while live < count:
        quota, fall = divmod(shard_count, live)
        steps = min(fall // quota, count - live)
        if steps:
            write = _pop_level(buffer, ends[fall - steps * quota : fall], quota, write)
            live += steps
        else:
            write = _pop_tails(buffer, ends, shard_count, live, write)
            live += 1


def _pop_level(buffer: Shards, ends: Slots, quota: int, write: int) -> int:
    """Several joins at once: while all keep `quota`, each newcomer takes one from the `quota` last slots with more."""
    ends -= 1
    return _move(buffer, ends.reshape(-1, quota)[::-1].ravel(), write)


def _pop_tails(buffer: Shards, ends: Slots, shard_count: int, live: int, write: int) -> int:
    """A single join: quotas fall by one at one index before it and at another after, so there are three pop counts."""
    long, before = divmod(shard_count, live)
    short, after = divmod(shard_count, live + 1)
    drop = long - short
    low, high, middle = (before, after, drop - 1) if before < after else (after, before, drop + 1)
    for first, last, pops in ((0, low, drop), (low, high, middle), (high, live, drop)):
        if pops and first < last:
            tails = ends[first:last]
            tails -= pops
            write = _move(buffer, tails if pops == 1 else (tails[:, None] + np.arange(pops)).ravel(), write)
    return write


def _move(buffer: Shards, index: Slots, write: int) -> int:
    """Append what the index points at to the newcomers' lists; answers where the next one goes."""
    until = write + len(index)
    # "wrap" only spares numpy a second buffer: every index is in range.
    buffer.take(index, out=buffer[write:until], mode="wrap")
    return until


def _packed(buffer: Shards, ends: Slots, shard_count: int, count: int) -> Shards:
    """The final lists without the gaps that lost tails have left."""
    quota, longer = divmod(shard_count, count)
    parts = []
    for part, length in ((ends[:longer], quota + 1), (ends[longer:], quota)):
        parts.append(buffer[(part[:, None] - np.arange(length, 0, -1)).ravel()])
    return np.concatenate(parts)
