"""The orders of an epoch: every sample once, the same batches for every world, and places that can be found again."""

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.core.orders import AffinityOrder, ElasticOrder, EpochOrder, ShardLayout, Tail, level
from strata.core.slots import Ownership
from strata.core.views import View
from strata.errors import InvalidInput

LAYOUTS = st.builds(ShardLayout, st.integers(0, 200), st.integers(1, 30))
SMALL_LAYOUTS = st.builds(ShardLayout, st.integers(0, 80), st.integers(1, 12))
WORLDS = (1, 2, 3, 4, 8)


def epoch_of(order: ElasticOrder) -> list[int]:
    return [sample for batch in range(order.batches) for sample in order.batch(batch).tolist()]


# -- layout and line -------------------------------------------------------------------------------------------------


def test_the_last_shard_has_what_is_left() -> None:
    layout = ShardLayout(95, 10)
    assert (layout.shard_count, layout.last_size) == (10, 5)
    assert (layout.bounds(0), layout.bounds(9)) == ((0, 10), (90, 95))
    assert layout.sizes(np.array([0, 9, 3])).tolist() == [10, 5, 10]
    assert (ShardLayout(0, 10).shard_count, ShardLayout(0, 10).last_size) == (0, 0)
    assert (ShardLayout(20, 10).shard_count, ShardLayout(20, 10).last_size) == (2, 10)
    assert (ShardLayout(3, 10).shard_count, ShardLayout(3, 10).last_size) == (1, 3)


def test_golden_line() -> None:
    order = EpochOrder(ShardLayout(95, 10), seed=3, epoch=1, shuffle=True)
    assert order.shards_at(np.arange(10)).tolist() == [5, 7, 0, 8, 2, 9, 6, 4, 3, 1]
    assert order.line(np.arange(48, 58)).tolist() == [28, 29, 90, 91, 92, 93, 94, 60, 61, 62]
    shard = np.full(5, 9), np.arange(5)
    assert order.samples_in(*shard).tolist() == [91, 90, 92, 93, 94]


@given(LAYOUTS, st.integers(), st.integers(0, 5), st.booleans())
def test_the_line_is_the_shards_one_after_the_other(layout: ShardLayout, seed: int, epoch: int, shuffle: bool) -> None:
    order = EpochOrder(layout, seed, epoch, shuffle)
    shards = order.shards_at(np.arange(layout.shard_count))
    line = [sample for shard in shards.tolist() for sample in range(*layout.bounds(shard))]
    every = np.arange(layout.total_samples)
    assert order.line(every).tolist() == line
    assert order.line_places_of(np.array(line, dtype=np.int64)).tolist() == every.tolist()
    assert order.positions_of(shards).tolist() == list(range(layout.shard_count))
    assert sorted(line) == every.tolist()
    if not shuffle:
        assert line == every.tolist()


@given(LAYOUTS, st.integers(), st.booleans())
def test_inside_a_shard_every_sample_stands_once(layout: ShardLayout, seed: int, shuffle: bool) -> None:
    order = EpochOrder(layout, seed, 0, shuffle)
    shards, positions = np.divmod(np.arange(layout.total_samples), layout.shard_size)
    samples = order.samples_in(shards, positions).tolist()
    for start, end in map(layout.bounds, range(layout.shard_count)):
        assert sorted(samples[start:end]) == list(range(start, end))
        assert shuffle or samples[start:end] == list(range(start, end))


def test_each_epoch_and_each_seed_has_its_own_order() -> None:
    layout = ShardLayout(10_000, 10)
    places = np.arange(1000)
    orders = [
        EpochOrder(layout, seed, epoch, shuffle=True).shards_at(places).tolist()
        for seed, epoch in ((0, 0), (0, 1), (1, 0), (-1, 0), (2**64, 0), (1, 1))
    ]
    assert len({tuple(order) for order in orders}) == len(orders)
    assert EpochOrder(layout, 0, 1, shuffle=True).shards_at(places).tolist() == orders[1]


def test_a_dataset_too_large_for_any_array_has_an_order() -> None:
    layout = ShardLayout(2**62 - 5, 1000)
    order = EpochOrder(layout, 1, 0, shuffle=True)
    places = np.array([0, 2**40, 2**62 - 6])
    assert order.line_places_of(order.line(places)).tolist() == places.tolist()
    elastic = ElasticOrder(layout, 1, 0, True, 64)
    assert len(set(elastic.batch(elastic.batches - 1).tolist())) == 64


# -- elastic ---------------------------------------------------------------------------------------------------------


def test_golden_batches() -> None:
    order = ElasticOrder(ShardLayout(95, 10), 3, 1, True, 12, window_shards=2, tail="pad")
    assert order.streams == 12
    assert [order.batch(batch).tolist() for batch in (0, 3, 7)] == [
        [50, 72, 76, 3, 84, 21, 24, 91, 61, 42, 31, 34],
        [53, 73, 75, 6, 81, 85, 26, 60, 63, 43, 45, 38],
        [39, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 50],
    ]
    imagenet = ElasticOrder(ShardLayout(1_281_167, 10_000), 0, 0, True, 256, tail="short")
    assert (imagenet.streams, imagenet.batches, imagenet.batch_size(5004)) == (64, 5005, 143)
    assert imagenet.batch(0)[:8].tolist() == [41567, 9576, 42855, 8346, 152712, 154256, 159578, 151594]


def naive_full_batches(order: ElasticOrder) -> list[list[int]]:
    """What each stream may deal in each of its windows, cut from the line; only the order inside a window is free."""
    total, size = order.order.layout.total_samples, order.global_batch_size
    line = order.order.line(np.arange(total)).tolist()
    length = total // size * size // order.streams
    return [line[stream * length : (stream + 1) * length] for stream in range(order.streams)]


def test_a_batch_is_filled_up_from_the_epochs_beginning_behind_its_last_sample() -> None:
    order = ElasticOrder(ShardLayout(95, 10), 3, 1, True, 12, tail="pad")
    assert [order.repeated_from(batch) for batch in range(order.batches)] == [12] * 7 + [11]


@given(SMALL_LAYOUTS, st.integers(1, 8), st.integers(1, 4), st.integers(1, 4), st.integers())
def test_each_stream_deals_its_own_part_of_the_line_window_by_window(
    layout: ShardLayout, per_stream: int, streams: int, window: int, seed: int
) -> None:
    order = ElasticOrder(layout, seed, 2, True, per_stream * streams, streams=streams, window_shards=window)
    batches = [order.batch(batch).reshape(streams, per_stream) for batch in range(order.batches)]
    span = window * layout.shard_size
    for stream, expected in enumerate(naive_full_batches(order)):
        dealt = [sample for batch in batches for sample in batch[stream].tolist()]
        for start in range(0, len(expected), span):
            assert sorted(dealt[start : start + span]) == sorted(expected[start : start + span])


@given(SMALL_LAYOUTS, st.integers(1, 40), st.integers(), st.booleans(), st.sampled_from(["drop", "pad", "short"]))
def test_every_sample_once_and_the_tail_as_asked(
    layout: ShardLayout, size: int, seed: int, shuffle: bool, tail: Tail
) -> None:
    order = ElasticOrder(layout, seed, 0, shuffle, size, tail=tail)
    samples, total = epoch_of(order), layout.total_samples
    line = order.order.line(np.arange(total)).tolist()
    full = total // size * size
    assert [order.batch_size(batch) for batch in range(total // size)] == [size] * (total // size)
    assert sorted(samples[:full]) == sorted(line[:full])
    rest = line[full:]
    if tail == "pad" and rest:
        rest = (rest + line * size)[:size]
    assert samples[full:] == ([] if tail == "drop" else rest)
    if tail == "short":
        assert sorted(samples) == list(range(total))


@given(LAYOUTS, st.integers(1, 40), st.sampled_from(["drop", "pad", "short"]))
def test_batches_are_the_same_at_every_world_size(layout: ShardLayout, size: int, tail: Tail) -> None:
    order = ElasticOrder(layout, 9, 4, True, size, tail=tail)
    for batch in {0, order.batches - 1} if order.batches else ():
        whole = order.batch(batch).tolist()
        for world in WORLDS:
            parts = [order.places(batch, position, world).tolist() for position in range(world)]
            assert list(chain(*parts)) == whole
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(SMALL_LAYOUTS, st.integers(1, 40), st.booleans(), st.sampled_from(["drop", "pad", "short"]), st.data())
def test_a_run_of_batches_is_each_of_them(
    layout: ShardLayout, size: int, shuffle: bool, tail: Tail, data: st.DataObject
) -> None:
    order = ElasticOrder(layout, 5, 1, shuffle, size, tail=tail)
    last = data.draw(st.integers(0, order.batches))
    first = data.draw(st.integers(0, last))
    world, step = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    for position in range(world):
        one_by_one = [order.places(batch, position, world).tolist() for batch in range(first, last, step)]
        assert order.run(first, last, position, world, step).tolist() == list(chain(*one_by_one))
    with pytest.raises(InvalidInput, match="last"):
        order.run(0, order.batches + 1, 0, 1)


@given(LAYOUTS, st.integers(1, 40))
def test_without_shuffle_batches_are_the_natural_order(layout: ShardLayout, size: int) -> None:
    order = ElasticOrder(layout, 0, 7, False, size, tail="short")
    assert order.streams == 1
    assert epoch_of(order) == list(range(layout.total_samples))


def test_streams_interleave_the_natural_order_when_asked_to() -> None:
    order = ElasticOrder(ShardLayout(12, 3), 0, 0, False, 4, streams=2)
    assert [order.batch(batch).tolist() for batch in range(3)] == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]


@pytest.mark.parametrize(("size", "streams"), [(1, 1), (6, 6), (64, 64), (96, 48), (128, 64), (127, 1), (1000, 50)])
def test_default_streams_are_the_largest_divisor_up_to_64(size: int, streams: int) -> None:
    assert ElasticOrder(ShardLayout(1, 1), 0, 0, True, size).streams == streams


def test_a_window_larger_than_everything_is_one_window() -> None:
    layout = ShardLayout(100, 10)
    one, other = (ElasticOrder(layout, 0, 0, True, 10, window_shards=count) for count in (10, 2**62))
    assert epoch_of(one) == epoch_of(other)


def test_a_dataset_smaller_than_a_batch() -> None:
    layout = ShardLayout(3, 2)
    assert ElasticOrder(layout, 0, 0, False, 8).batches == 0
    assert epoch_of(ElasticOrder(layout, 0, 0, False, 8, tail="short")) == [0, 1, 2]
    assert epoch_of(ElasticOrder(layout, 0, 0, False, 8, tail="pad")) == [0, 1, 2, 0, 1, 2, 0, 1]


# -- affinity --------------------------------------------------------------------------------------------------------


@given(LAYOUTS, st.integers(1, 6), st.booleans())
def test_workers_read_what_they_own_in_the_order_of_the_epoch(layout: ShardLayout, world: int, shuffle: bool) -> None:
    order = EpochOrder(layout, 5, 1, shuffle)
    ownership = Ownership.of(layout.shard_count, 5, View.declared(world))
    everybody: list[int] = []
    for slot in range(world):
        mine = AffinityOrder(order, ownership.shards_of(slot).astype(np.int64))
        samples = mine.samples(0, mine.count).tolist()
        assert [left < right for left, right in pairwise(order.positions_of(mine.shards).tolist())].count(False) == 0
        assert list(dict.fromkeys(sample // layout.shard_size for sample in samples)) == mine.shards.tolist()
        middle = mine.count // 3
        assert mine.samples(0, middle).tolist() + mine.samples(middle, mine.count).tolist() == samples
        everybody += samples
    assert sorted(everybody) == list(range(layout.total_samples))


@given(st.lists(st.integers(0, 60), max_size=12))
def test_levelling_moves_the_fewest_samples_and_leaves_nobody_behind(counts: list[int]) -> None:
    transfers = level(counts)
    after = counts.copy()
    for move in transfers:
        assert move.start < move.end
        after[move.giver] -= move.end - move.start
        after[move.taker] += move.end - move.start
    for giver, have in enumerate(counts):
        given_up = [(move.start, move.end) for move in transfers if move.giver == giver]
        edges = [after[giver], *(edge for pair in given_up for edge in pair), have] if given_up else []
        assert all(left == right for left, right in zip(edges[::2], edges[1::2], strict=True))
    assert max(after, default=0) - min(after, default=0) <= 1
    share, extra = divmod(sum(counts), len(counts) or 1)
    over = sorted((max(0, have - share) for have in counts), reverse=True)
    assert sum(move.end - move.start for move in transfers) == sum(over) - sum(map(bool, over[:extra]))
    assert not {move.giver for move in transfers} & {move.taker for move in transfers}


def test_levelling_by_example() -> None:
    assert level([10, 10, 10]) == []
    assert level([]) == []
    assert level([20, 10, 10, 10]) == [(0, 13, 16, 1), (0, 16, 18, 2), (0, 18, 20, 3)]
    assert level([9, 3, 7, 7]) == [(0, 7, 9, 1), (3, 6, 7, 1)]
    assert level([5, 4]) == []


# -- wrong input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "size", "why"),
    [
        (-1, 10, "total_samples must be between 0"),
        (10, 0, "shard_size must be between 1"),
        (10, -3, "shard_size must be between 1"),
        (1.5, 10, "total_samples must be an integer, not float"),
        (10, True, "shard_size must be an integer, not bool"),
        (2**62 + 1, 10, "total_samples must be between 0"),
    ],
)
def test_a_layout_of_wrong_numbers_is_refused(total: int, size: int, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        ShardLayout(total, size)


def test_wrong_input_to_an_epoch() -> None:
    layout = ShardLayout(95, 10)
    for seed, epoch, shuffle, why in (
        ("0", 0, True, "seed must be an integer, not str"),
        (0, -1, True, "epoch must be at least 0"),
        (0, 0, 1, "shuffle must be True or False"),
    ):
        with pytest.raises(InvalidInput, match=why):
            EpochOrder(layout, seed, epoch, shuffle)  # type: ignore[arg-type]
    order = EpochOrder(layout, 0, 0, shuffle=False)
    with pytest.raises(InvalidInput, match="places of the line must be at least 0 and below 95"):
        order.line(np.array([95]))
    with pytest.raises(InvalidInput, match="samples must be at least 0 and below 95"):
        order.line_places_of(np.array([-1]))
    with pytest.raises(InvalidInput, match="there is no shard 10: there are 10"):
        layout.bounds(10)
    with pytest.raises(InvalidInput, match="end must be between 0 and 10"):
        AffinityOrder(order, np.array([3])).samples(0, 11)


def test_wrong_input_to_batches() -> None:
    layout = ShardLayout(95, 10)
    wrong: list[tuple[dict[str, object], str]] = [
        ({"global_batch_size": 0}, "global_batch_size must be between 1"),
        (
            {"global_batch_size": 12, "streams": 5},
            "streams must divide the global batch size, but 5 does not divide 12",
        ),
        ({"global_batch_size": 12, "streams": 0}, "streams must be at least 1"),
        ({"global_batch_size": 12, "window_shards": 0}, "window_shards must be at least 1"),
        ({"global_batch_size": 12, "tail": "keep"}, 'tail must be "drop", "pad" or "short"'),
    ]
    for options, why in wrong:
        with pytest.raises(InvalidInput, match=why):
            ElasticOrder(layout, 0, 0, True, **options)  # type: ignore[arg-type]
    order = ElasticOrder(layout, 0, 0, True, 12)
    with pytest.raises(InvalidInput, match="there is no batch 7: there are 7"):
        order.batch(7)
    with pytest.raises(InvalidInput, match="there is no position 2: there are 2"):
        order.places(0, 2, 2)
    with pytest.raises(InvalidInput, match="world must be at least 1"):
        order.places(0, 0, 0)
