"""Views: slots are filled in the reverse order in which they were vacated."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.core.views import View
from strata.errors import InvalidInput


def test_rank_r_of_a_declared_world_has_slot_r() -> None:
    view = View.declared(3)
    assert view == View(3, (), {0: 0, 1: 1, 2: 2})
    assert (view.ranks, view.live_slots, len(view)) == ((0, 1, 2), (0, 1, 2), 3)


def test_a_declared_world_is_one_that_everybody_joined() -> None:
    view = View.empty()
    for rank in range(4):
        view = view.join(rank)
    assert view == View.declared(4)


def test_a_newcomer_takes_the_slot_vacated_last() -> None:
    view = View.declared(4).leave(1).leave(2)
    assert view == View(4, (1, 2), {0: 0, 3: 3})
    assert view.join(9) == View(4, (1,), {0: 0, 3: 3, 9: 2})
    assert view.join(9).join(1).join(7) == View(5, (), {0: 0, 1: 1, 3: 3, 7: 4, 9: 2})


def test_a_full_world_that_loses_its_last_slot_is_the_smaller_world() -> None:
    assert View.declared(4).leave(3) == View.declared(3)
    assert View.declared(1).leave(0) == View.empty()


def test_the_last_slot_is_vacated_like_any_other_while_another_is_vacant() -> None:
    assert View.declared(4).leave(1).leave(3) == View(4, (1, 3), {0: 0, 2: 2})


def test_ranks_stay_in_order_whatever_comes_first() -> None:
    view = View.empty()
    for rank in (5, 1, 9, 3):
        view = view.join(rank)
    assert view.ranks == (1, 3, 5, 9)
    assert [view.position(rank) for rank in view.ranks] == [0, 1, 2, 3]


@given(st.integers(0, 6), st.lists(st.integers(0, 8), max_size=30))
def test_a_join_undoes_a_leave(world: int, toggled: list[int]) -> None:
    view = View.declared(world)
    for rank in toggled:
        if rank in view.slots:
            assert view.leave(rank).join(rank) == view
            view = view.leave(rank)
        else:
            assert view.join(rank).leave(rank) == view
            view = view.join(rank)
        assert sorted((*view.live_slots, *view.vacated)) == list(range(view.slot_count))
        assert list(view.ranks) == sorted(view.slots)


def test_a_view_comes_back_from_bytes() -> None:
    view = View.declared(4).leave(2).join(8).leave(0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(view), type=View) == view


def test_the_order_of_the_dict_means_nothing() -> None:
    """A snapshot may list ranks in another order than the machine that wrote it."""
    view = View(3, (), {2: 2, 0: 0, 1: 1})
    assert view == View.declared(3)
    assert (view.ranks, view.position(2)) == ((0, 1, 2), 2)
    assert view.leave(0).join(5).ranks == (1, 2, 5)


def test_a_view_that_does_not_add_up_is_refused() -> None:
    with pytest.raises(InvalidInput, match="3 slots cannot have 1 taken and 1 vacated"):
        View(3, (0,), {1: 1})


def test_wrong_input() -> None:
    view = View.declared(2)
    with pytest.raises(InvalidInput, match="rank 1 cannot join: it is in the view already, in slot 1"):
        view.join(1)
    with pytest.raises(InvalidInput, match="rank 2 cannot leave: it is not in the view of 2 ranks"):
        view.leave(2)
    with pytest.raises(InvalidInput, match="rank 2 has no position"):
        view.position(2)
    with pytest.raises(InvalidInput, match="rank must be at least 0"):
        view.join(-1)
    with pytest.raises(InvalidInput, match="world_size must be at least 0"):
        View.declared(-1)
    assert view == View.declared(2)
