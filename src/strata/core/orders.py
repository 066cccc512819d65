"""The orders of an epoch: which sample comes when, as a pure function of dataset, seed and epoch.

    ShardLayout     how a dataset is cut into shards
    EpochOrder      the shards in permuted order, one after the other: the *line* of samples
    ElasticOrder    the line dealt out in global batches that are the same at every world size
    AffinityOrder   the samples of the shards that one worker owns; `level` evens out the ends

Everything is evaluated on demand, for just the places asked for, in closed form: no array of a whole epoch exists.
Nothing here knows what has been consumed. Integers only.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.core import mix
from strata.core.ids import MAX_COUNT, check_bool, check_choice, check_int
from strata.core.permutation import MAX_SIZE, Permutation, at_keys, check_inside
from strata.errors import InvalidInput

Indexes = NDArray[np.int64]
Tail = Literal["drop", "pad", "short"]

MAX_STREAMS = 64
"""The most streams taken by default."""

WINDOW_SHARDS = 8
"""The default number of shards over which the samples of a stream are shuffled."""

# What a key is for, so that the orders drawn from one seed and epoch have nothing to do with each other.
_SHARDS, _SAMPLES, _WINDOWS = 1, 2, 3


class ShardLayout(msgspec.Struct, frozen=True):
    """`total_samples` cut into shards of `shard_size`; the last shard has what is left."""

    total_samples: int
    shard_size: int

    def __post_init__(self) -> None:
        check_int(self.total_samples, "total_samples", most=MAX_SIZE)
        check_int(self.shard_size, "shard_size", least=1, most=MAX_SIZE)

    @property
    def shard_count(self) -> int:
        return -(-self.total_samples // self.shard_size)

    @property
    def last_size(self) -> int:
        """How many samples the last shard has (0 if there is none)."""
        return self.total_samples - max(0, self.shard_count - 1) * self.shard_size

    def bounds(self, shard: int) -> tuple[int, int]:
        """The first sample of a shard, and the one after its last."""
        _check_below(shard, "shard", self.shard_count)
        start = shard * self.shard_size
        return start, min(start + self.shard_size, self.total_samples)

    def sizes(self, shards: Indexes) -> Indexes:
        """How many samples each of these shards has."""
        return np.where(shards == self.shard_count - 1, self.last_size, self.shard_size)


class EpochOrder:
    """The permuted shards of one epoch, and the line of samples they form. `shuffle=False` is the natural order."""

    __slots__ = ("_last_position", "_permutation", "_sample_key", "epoch", "layout", "seed", "shuffle")

    def __init__(self, layout: ShardLayout, seed: int, epoch: int, shuffle: bool) -> None:
        self.layout = layout
        self.seed = mix.check_seed(seed)
        self.epoch = check_int(epoch, "epoch", most=MAX_COUNT)
        self.shuffle = check_bool(shuffle, "shuffle")
        self._permutation = Permutation(layout.shard_count, self.key(_SHARDS)) if shuffle else None
        self._sample_key = self.key(_SAMPLES)
        self._last_position: int | None = None

    def key(self, purpose: int) -> int:
        """The key of this epoch for one purpose."""
        return mix.subkey(self.seed, self.epoch, purpose)

    def shards_at(self, positions: Indexes) -> Indexes:
        """The shards at these positions of the epoch."""
        return self._permutation.at(positions) if self._permutation else positions

    def positions_of(self, shards: Indexes) -> Indexes:
        """The positions of these shards: the inverse of `shards_at`."""
        return self._permutation.position_of(shards) if self._permutation else shards

    def line(self, places: Indexes) -> Indexes:
        """The samples at these places of the line."""
        check_inside(places, "places of the line", self.layout.total_samples)
        size, gap = self.layout.shard_size, self._gap()
        # Behind the short shard everything stands as if that shard were full, less what it lacks.
        behind = places >= (self._find_last() + 1) * size - gap
        position, offset = np.divmod(places + gap * behind, size)
        return self.shards_at(position) * size + offset

    def line_places_of(self, samples: Indexes) -> Indexes:
        """The places of these samples in the line: the inverse of `line`."""
        check_inside(samples, "samples", self.layout.total_samples)
        size = self.layout.shard_size
        shard, offset = np.divmod(samples, size)
        position = self.positions_of(shard)
        return position * size + offset - self._gap() * (position > self._find_last())

    def samples_in(self, shards: Indexes, positions: Indexes) -> Indexes:
        """The samples at these positions inside these shards (pairwise), each shard in a permuted order of its own."""
        starts = shards * self.layout.shard_size
        if not self.shuffle:
            return starts + positions
        keys = mix.subkeys(self._sample_key, shards)
        last = shards == self.layout.shard_count - 1
        found = np.empty_like(positions)
        for chosen, size in ((~last, self.layout.shard_size), (last, self.layout.last_size)):
            found[chosen] = at_keys(size, keys[chosen], positions[chosen])
        return starts + found

    def _gap(self) -> int:
        """How many samples the last shard lacks."""
        return self.layout.shard_size - self.layout.last_size

    def _find_last(self) -> int:
        """The position of the last shard, the one that may be short; found when first needed."""
        if self._last_position is None:
            last = self.layout.shard_count - 1
            self._last_position = int(self.positions_of(np.array([last]))[0]) if last >= 0 else 0
        return self._last_position


class ElasticOrder:
    """The line dealt out in global batches of G samples, the same batches at every world size.

    The full batches take the first `N // G * G` places of the line, cut into C streams of equal length; batch b takes
    the next G / C samples of each stream, so its places are ordered by stream and each rank reads few shards. With
    `shuffle`, the samples of a stream are shuffled over blocks of `window_shards` shards. C is fixed with the order,
    never with the world: by default the largest divisor of G that is at most 64, and 1 without `shuffle`, so that
    batch b is then samples [bG, (b+1)G). The default window is 8 shards.

    The tail, the N % G samples that fill no batch, is the last batch: left out ("drop"), as it is ("short"), or
    filled up with places from the start of the line ("pad").
    """

    __slots__ = ("_full", "_per_stream", "_window", "_window_key", "global_batch_size", "order", "streams", "tail")

    def __init__(
        self,
        layout: ShardLayout,
        seed: int,
        epoch: int,
        shuffle: bool,
        global_batch_size: int,
        *,
        streams: int | None = None,
        window_shards: int = WINDOW_SHARDS,
        tail: Tail = "drop",
    ) -> None:
        self.order = EpochOrder(layout, seed, epoch, shuffle)
        self.global_batch_size = check_int(global_batch_size, "global_batch_size", least=1, most=MAX_SIZE)
        self.streams = _default_streams(global_batch_size, shuffle) if streams is None else streams
        self.tail = _check_tail(tail)
        self._per_stream = _check_streams(self.streams, global_batch_size)
        self._full = layout.total_samples // global_batch_size
        window = check_int(window_shards, "window_shards", least=1, most=MAX_COUNT) * layout.shard_size
        # One window over everything is the same as any larger one, and stays within 64 bits.
        self._window = min(window, max(1, layout.total_samples))
        self._window_key = self.order.key(_WINDOWS)

    @property
    def batches(self) -> int:
        """How many batches the epoch has."""
        return self._full + (self.tail != "drop" and self._tail_samples > 0)

    def batch_size(self, batch: int) -> int:
        """How many places the batch has: G, but for a short tail."""
        _check_below(batch, "batch", self.batches)
        is_short = batch == self._full and self.tail == "short"
        return self._tail_samples if is_short else self.global_batch_size

    def repeated_from(self, batch: int) -> int:
        """From this place of the batch on its samples were in the epoch before: they only fill it up."""
        return self._tail_samples if batch == self._full else self.global_batch_size

    def batch(self, batch: int) -> Indexes:
        """The samples of a whole batch, in the order of its places."""
        return self.places(batch, 0, 1)

    def places(self, batch: int, position: int, world: int) -> Indexes:
        """The samples that the rank at `position` among `world` ranks takes from a batch; evaluates no others."""
        mine = _share(self.batch_size(batch), position, world)
        return self.order.line(self._tail_places(mine) if batch == self._full else self._line_places(batch, mine))

    def run(self, first: int, last: int, position: int, world: int, step: int = 1) -> Indexes:
        """`places` of each batch from `first` to before `last`, or of each `step`-th of them, one after the other:
        evaluated together, which takes a fraction of the time."""
        check_int(last, "last", most=self.batches)
        check_int(first, "first", most=last)
        batches = np.arange(first, last, check_int(step, "step", least=1), dtype=np.int64)
        full = batches[batches < self._full]
        mine = _share(self.global_batch_size, position, world)
        found = self.order.line(self._line_places(np.repeat(full, len(mine)), np.tile(mine, len(full))))
        return found if len(full) == len(batches) else np.concatenate([found, self.places(self._full, position, world)])

    def _line_places(self, batch: int | Indexes, places: Indexes) -> Indexes:
        """Where in the line these places of a full batch are, or of as many batches."""
        length = self._full * self._per_stream
        stream, offset = np.divmod(places, self._per_stream)
        offset += batch * self._per_stream
        starts: Indexes = stream * length
        return starts + (self._in_window(stream, offset, length) if self.order.shuffle else offset)

    def _in_window(self, stream: Indexes, offset: Indexes, length: int) -> Indexes:
        """Offsets in a stream, shuffled inside the block of the stream that each falls in."""
        block, within = np.divmod(offset, self._window)
        keys = mix.subkeys(mix.subkeys(self._window_key, stream), block)
        last, rest = divmod(length, self._window)
        found = np.empty_like(within)
        for chosen, size in ((block < last, self._window), (block == last, rest)):
            found[chosen] = at_keys(size, keys[chosen], within[chosen])
        return block * self._window + found

    def _tail_places(self, places: Indexes) -> Indexes:
        """Where in the line the places of the last batch are: the end of the line, then its start again."""
        wrapped: Indexes = (places + self._full * self.global_batch_size) % self.order.layout.total_samples
        return wrapped

    @property
    def _tail_samples(self) -> int:
        return self.order.layout.total_samples - self._full * self.global_batch_size


class AffinityOrder:
    """The samples of the shards one worker owns: its shards in the epoch's order, each permuted inside."""

    __slots__ = ("_ends", "order", "shards")

    def __init__(self, order: EpochOrder, owned: Indexes) -> None:
        """`owned` in any order; each shard once."""
        self.order = order
        # Positions are distinct because shards are, so any sort gives the same order.
        self.shards: Indexes = owned[np.argsort(order.positions_of(owned))]
        self._ends = np.cumsum(order.layout.sizes(self.shards))

    @property
    def count(self) -> int:
        """How many samples the worker has."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def samples(self, start: int, end: int) -> Indexes:
        """The samples from the start-th to before the end-th of the worker."""
        check_int(end, "end", most=self.count)
        check_int(start, "start", most=end)
        places = np.arange(start, end, dtype=np.int64)
        index = np.searchsorted(self._ends, places, side="right")
        shards = self.shards[index]
        return self.order.samples_in(shards, places - (self._ends[index] - self.order.layout.sizes(shards)))


class Transfer(NamedTuple):
    """The giver's samples [start, end), counted in its own `AffinityOrder`, are the taker's to process."""

    giver: int
    start: int
    end: int
    taker: int


def level(counts: Sequence[int]) -> list[Transfer]:
    """Even out the ends of affinity orders: the fewest samples that must move until counts differ by at most one.

    Givers keep the start of their order and give up its end, so what moves is the tail of their last shards. The
    remainder stays with those who have most, the lower index first. By then ranks differ by at most one batch.
    """
    targets = _level_targets(counts)
    takers = ((index, want - counts[index]) for index, want in enumerate(targets) if want > counts[index])
    taker, lacking = 0, 0
    transfers: list[Transfer] = []
    for giver, have in enumerate(counts):
        start = targets[giver]
        while start < have:
            if lacking == 0:
                taker, lacking = next(takers)
            moved = min(lacking, have - start)
            transfers.append(Transfer(giver, start, start + moved, taker))
            start += moved
            lacking -= moved
    return transfers


def _level_targets(counts: Sequence[int]) -> list[int]:
    if not counts:
        return []
    share, extra = divmod(sum(counts), len(counts))
    targets = [share] * len(counts)
    for index in sorted(range(len(counts)), key=lambda each: (-counts[each], each))[:extra]:
        targets[index] += 1
    return targets


def _default_streams(global_batch_size: int, shuffle: bool) -> int:
    if not shuffle:
        return 1
    return max(each for each in range(1, MAX_STREAMS + 1) if global_batch_size % each == 0)


def _share(size: int, position: int, world: int) -> Indexes:
    """The places of a batch that are for the rank at `position` among `world`."""
    check_int(world, "world", least=1)
    _check_below(position, "position", world)
    return np.arange(position * size // world, (position + 1) * size // world, dtype=np.int64)


def _check_streams(streams: int, global_batch_size: int) -> int:
    """How many samples of a batch come from each stream."""
    check_int(streams, "streams", least=1)
    if global_batch_size % streams:
        raise InvalidInput(
            f"streams must divide the global batch size, but {streams} does not divide {global_batch_size}"
        )
    return global_batch_size // streams


def _check_tail(tail: Tail) -> Tail:
    check_choice(tail, "tail", ("drop", "pad", "short"))
    return tail


def _check_below(value: int, what: str, count: int) -> None:
    if check_int(value, what, most=MAX_COUNT) >= count:
        raise InvalidInput(f"there is no {what} {value}: there are {count}, counted from 0")
