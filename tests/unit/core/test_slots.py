"""slots-v1: balance, fewest moves, and the same answer by every road."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.core import mix
from strata.core.slots import WARM_STEPS, Ownership
from strata.core.views import View
from strata.errors import InvalidInput

SHARDS = st.integers(0, 90)
WORLDS = st.integers(0, 14)
CHURN = st.lists(st.integers(0, 17), max_size=25)


def naive(shard_count: int, seed: int, view: View) -> dict[int, list[int]]:
    """The law of the scheme, word for word, on Python lists."""
    keys = mix.keys(seed, shard_count).tolist()
    order = sorted(range(shard_count), key=lambda shard: keys[shard])
    if view.slot_count == 0:
        return {}
    lists = {0: order}
    for slot in range(1, view.slot_count):
        newcomer: list[int] = []
        for index, owner in enumerate(sorted(lists)):
            quota = shard_count // (slot + 1) + (index < shard_count % (slot + 1))
            newcomer += lists[owner][quota:]
            lists[owner] = lists[owner][:quota]
        lists[slot] = newcomer
    for slot in view.vacated:
        pool = lists.pop(slot)
        for index, owner in enumerate(sorted(lists)):
            lack = shard_count // len(lists) + (index < shard_count % len(lists)) - len(lists[owner])
            lists[owner] = lists[owner] + pool[:lack]
            pool = pool[lack:]
    return lists


def listed(ownership: Ownership) -> dict[int, list[int]]:
    return {slot: ownership.shards_of(slot).tolist() for slot in ownership.live_slots.tolist()}


def toggled(view: View, rank: int) -> View:
    return view.leave(rank) if rank in view.slots else view.join(rank)


def churned(world: int, churn: list[int]) -> View:
    view = View.declared(world)
    for rank in churn:
        view = toggled(view, rank)
    return view


def test_golden_lists() -> None:
    assert listed(Ownership.of(23, 42, View.declared(4))) == {
        0: [5, 2, 0, 22, 10, 4],
        1: [1, 8, 19, 20, 6, 11],
        2: [21, 18, 16, 17, 15, 14],
        3: [13, 9, 12, 7, 3],
    }
    assert listed(Ownership.of(23, 42, View.declared(5).leave(1).leave(3))) == {
        0: [5, 2, 0, 22, 10, 1, 13, 9],
        2: [21, 18, 16, 17, 15, 8, 12, 7],
        4: [4, 11, 14, 3, 6, 19, 20],
    }


def test_golden_sum_of_a_large_world() -> None:
    view = View.declared(300).leave(7).leave(250).leave(0)
    owners = Ownership.of(5000, -1, view).owners()
    weights = np.arange(1, 5001)
    assert int((owners * weights).sum()) == 1_861_588_596
    assert listed(Ownership.of(5000, -1, view)) == naive(5000, -1, view)


@given(SHARDS, st.integers(), WORLDS, CHURN)
def test_it_is_what_the_law_says(shards: int, seed: int, world: int, churn: list[int]) -> None:
    view = churned(world, churn)
    assert listed(Ownership.of(shards, seed, view)) == naive(shards, seed, view)


@given(SHARDS, WORLDS, CHURN)
def test_warm_is_cold_and_only_what_must_move_moves(shards: int, world: int, churn: list[int]) -> None:
    view = View.declared(world)
    warm = Ownership.of(shards, 7, view)
    for rank in churn:
        changed = toggled(view, rank)
        slot = changed.slots[rank] if rank in changed.slots else view.slots[rank]
        after = warm.join(slot) if rank in changed.slots else warm.leave(slot)
        assert listed(after) == listed(Ownership.of(shards, 7, changed)) == listed(warm.moved_to(changed))
        _check_moves(warm, after, slot, joined=rank in changed.slots)
        warm, view = after, changed


def _check_moves(before: Ownership, after: Ownership, slot: int, *, joined: bool) -> None:
    moved = before.owners() != after.owners()
    assert (after.owners() if joined else before.owners())[moved].tolist() == [slot] * int(moved.sum())
    assert int(moved.sum()) == len((after if joined else before).shards_of(slot))


@given(SHARDS, WORLDS, CHURN)
def test_loads_differ_by_at_most_one_and_every_shard_has_one_owner(shards: int, world: int, churn: list[int]) -> None:
    view = churned(world, churn)
    ownership = Ownership.of(shards, 3, view)
    loads = ownership.loads().tolist()
    lists = listed(ownership)
    assert tuple(lists) == view.live_slots
    assert [len(each) for each in lists.values()] == loads
    assert max(loads, default=0) - min(loads, default=0) <= 1
    assert sorted(chain(*lists.values())) == (list(range(shards)) if loads else [])
    owned = {shard: slot for slot, each in lists.items() for shard in each}
    assert ownership.owners().tolist() == [owned.get(shard, -1) for shard in range(shards)]


@given(SHARDS, st.integers(1, 14), st.data())
def test_a_join_is_the_exact_inverse_of_a_leave(shards: int, world: int, data: st.DataObject) -> None:
    ownership = Ownership.of(shards, 1, View.declared(world).leave(0) if world > 2 else View.declared(world))
    slot = data.draw(st.sampled_from(ownership.live_slots.tolist()))
    back = ownership.leave(slot).join(slot)
    assert listed(back) == listed(ownership)
    assert (back.slot_count, back.vacated) == (ownership.slot_count, ownership.vacated)


@given(SHARDS, WORLDS, CHURN, WORLDS, CHURN)
def test_any_view_is_reached_from_any_other(
    shards: int, world: int, churn: list[int], other_world: int, other_churn: list[int]
) -> None:
    view, other = churned(world, churn), churned(other_world, other_churn)
    moved = Ownership.of(shards, 5, view).moved_to(other)
    assert listed(moved) == listed(Ownership.of(shards, 5, other))
    assert (moved.slot_count, moved.vacated) == (other.slot_count, other.vacated)


def test_a_view_far_away_is_computed_afresh() -> None:
    small, large = View.declared(2), View.declared(WARM_STEPS + 10)
    assert listed(Ownership.of(500, 5, small).moved_to(large)) == listed(Ownership.of(500, 5, large))


def test_more_slots_than_shards_one_slot_none_and_no_shards() -> None:
    assert Ownership.of(3, 0, View.declared(5)).loads().tolist() == [1, 1, 1, 0, 0]
    assert sorted(Ownership.of(4, 0, View.declared(1)).shards_of(0).tolist()) == [0, 1, 2, 3]
    nobody = Ownership.of(4, 0, View.empty())
    assert (nobody.loads().tolist(), nobody.owners().tolist()) == ([], [-1, -1, -1, -1])
    assert Ownership.of(0, 0, View.declared(3)).loads().tolist() == [0, 0, 0]
    assert Ownership.of(0, 0, View.empty()).owners().tolist() == []


def test_when_everybody_has_left_the_next_one_takes_it_all() -> None:
    view = View.declared(2)
    empty = Ownership.of(6, 1, view).leave(0).leave(1)
    assert empty.loads().tolist() == []
    assert listed(empty.join(1).join(0)) == listed(Ownership.of(6, 1, view))


def test_the_seed_decides_who_has_what() -> None:
    view = View.declared(4)
    one, other = (Ownership.of(100, seed, view).owners() for seed in (1, 2))
    assert (one != other).sum() > 40


def test_arrays_cannot_be_changed() -> None:
    ownership = Ownership.of(10, 0, View.declared(2))
    for array in (ownership.shards_of(0), ownership.owners(), ownership.live_slots):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_wrong_input() -> None:
    ownership = Ownership.of(10, 0, View.declared(4).leave(1))
    with pytest.raises(InvalidInput, match="slot 1 is not one of the 3 live slots"):
        ownership.shards_of(1)
    with pytest.raises(InvalidInput, match="slot 9 is not one of"):
        ownership.leave(9)
    with pytest.raises(InvalidInput, match="slot 4 cannot be filled now: the next one to be filled is 1"):
        ownership.join(4)
    with pytest.raises(InvalidInput, match="shard_count must be between 0"):
        Ownership.of(-1, 0, View.empty())
    with pytest.raises(InvalidInput, match="shard_count must be between 0"):
        Ownership.of(2**31, 0, View.empty())
    with pytest.raises(InvalidInput, match="seed must be an integer"):
        Ownership.of(1, 0.5, View.empty())  # type: ignore[arg-type]
