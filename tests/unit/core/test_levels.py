"""Shares with evened ends: whatever was read before, they are all that is left, and differ by at most one sample."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.core.levels import Levels, Stretches
from strata.core.orders import EpochOrder, ShardLayout
from strata.core.ranges import RangeSet
from strata.core.slots import Ownership
from strata.core.views import View


def places(share: Stretches) -> list[int]:
    flat = share.to_flat()
    return [place for start, end in zip(flat[::2], flat[1::2], strict=True) for place in range(start, end)]


def ranges(consumed: set[int]) -> RangeSet:
    found = RangeSet()
    for place in consumed:
        found.add(place, place + 1)
    return found


def owners_of(layout: ShardLayout, view: View) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    by_slot = {slot: rank for rank, slot in view.slots.items()}
    owned = Ownership.of(layout.shard_count, 3, view).owners()
    return np.array([by_slot[int(slot)] for slot in owned], np.int64)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[EpochOrder, View, list[int], RangeSet]:
    layout = ShardLayout(draw(st.integers(1, 70)), draw(st.integers(1, 12)))
    view = View.declared(draw(st.integers(1, 6)))
    for rank in draw(st.lists(st.sampled_from(view.ranks), unique=True, max_size=len(view) - 1)):
        view = view.leave(rank)
    draining = draw(st.sets(st.integers(6, 8), max_size=2))
    consumed = draw(st.sets(st.integers(0, layout.total_samples - 1)))
    if draw(st.booleans()):
        consumed = set()
    order = EpochOrder(layout, 3, draw(st.integers(0, 3)), draw(st.booleans()))
    return order, view, [*view.ranks, *draining], ranges(consumed)


@given(worlds())
@settings(deadline=None)
def test_shares_are_all_that_is_left_once_and_differ_by_at_most_one_sample(
    world: tuple[EpochOrder, View, list[int], RangeSet],
) -> None:
    order, view, ranks, consumed = world
    levels = Levels(order, owners_of(order.layout, view), ranks, consumed)
    found = {rank: places(levels.share(rank)) for rank in ranks}
    everything = sorted(place for share in found.values() for place in share)
    assert everything == [place for place in range(order.layout.total_samples) if not consumed.covers(place, place + 1)]
    assert levels.left == len(everything)
    assert max(map(len, found.values())) - min(map(len, found.values())) <= 1
    assert levels.ranks == tuple(sorted(ranks))
    for rank in ranks:
        assert levels.share(rank).count == len(found[rank])


@given(worlds())
@settings(deadline=None)
def test_a_rank_reads_its_own_shards_in_the_order_of_the_epoch_and_then_what_others_lend(
    world: tuple[EpochOrder, View, list[int], RangeSet],
) -> None:
    order, view, ranks, consumed = world
    owners, size = owners_of(order.layout, view), order.layout.shard_size
    levels = Levels(order, owners, ranks, consumed)
    for rank in ranks:
        share = places(levels.share(rank))
        own = [place for place in share if owners[place // size] == rank]
        assert share[: len(own)] == own
        assert own == sorted(own, key=lambda place: (int(order.positions_of(np.array([place // size]))[0]), place))
        left = [
            place
            for place in range(order.layout.total_samples)
            if owners[place // size] == rank and not consumed.covers(place, place + 1)
        ]
        assert len(own) == len(left) or len(own) == len(share), "who lends takes nothing"


@given(worlds(), st.integers(0, 80), st.integers(0, 80))
def test_a_part_of_a_share_is_what_stands_there(
    world: tuple[EpochOrder, View, list[int], RangeSet], one: int, other: int
) -> None:
    order, view, ranks, consumed = world
    share = Levels(order, owners_of(order.layout, view), ranks, consumed).share(ranks[0])
    first, last = sorted((one, other))
    assert places(share.part(first, last)) == places(share)[first:last]
    assert share.part(first, last).places() == ranges(set(places(share)[first:last]))


def test_shards_of_nobody_are_read_too() -> None:
    order = EpochOrder(ShardLayout(10, 4), 0, 0, False)
    levels = Levels(order, np.full(3, -1, np.int64), [2, 5], RangeSet())
    assert [places(levels.share(rank)) for rank in (2, 5)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_by_example() -> None:
    order = EpochOrder(ShardLayout(40, 10), 0, 0, False)
    levels = Levels(order, np.array([0, 0, 1, 1]), [0, 1, 7], RangeSet.from_flat([0, 6, 12, 15]))
    assert levels.left == 31
    assert levels.share(0).to_flat() == [6, 10, 10, 12, 15, 19]
    assert levels.share(1).to_flat() == [20, 30, 30, 31]  # the one that is left over stays with who has most
    assert levels.share(7).to_flat() == [19, 20, 31, 40]
