"""A rank's share in steps: all ranks take as many, whatever was read before, and what is told of it is true."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.core.levels import Levels
from strata.core.orders import EpochOrder, ShardLayout
from strata.core.ranges import RangeSet
from strata.data.grants import Piece, Share, Standing, Told
from strata.data.levelled import Levelled, steps_of
from strata.data.ownbatches import Stretches


def telling(share: Share, **about: int) -> Told:
    said = {"incarnation": 1, "version": 1, "point": 1, "epoch": 0, **about}
    return Told(Standing(**said), 4, [], [], [], {}, {}, share)


def made(share: Share, layout: ShardLayout, batch_size: int = 4, **about: int) -> Levelled:
    found = Levelled(layout, 3, True, batch_size)
    found.told(telling(share, **about))
    return found


def take(rank: Levelled, batch_size: int) -> list[Piece]:
    """The next batch, as a loader gives it out."""
    pieces = Stretches(rank.order, rank.left(), batch_size, rank.steps_left).pieces(0)
    rank.give(pieces)
    return pieces


def places(pieces: list[Piece], size: int) -> list[int]:
    return [piece.shard * size + place for piece in pieces for place in range(piece.start, piece.end)]


@st.composite
def shares(draw: st.DrawFn) -> tuple[ShardLayout, list[Share], RangeSet]:
    layout = ShardLayout(draw(st.integers(1, 60)), draw(st.integers(1, 9)))
    ranks, shards = draw(st.integers(1, 5)), layout.shard_count
    owners = np.array(draw(st.lists(st.integers(0, ranks - 1), min_size=shards, max_size=shards)), np.int64)
    consumed = RangeSet()
    for place in draw(st.sets(st.integers(0, layout.total_samples - 1))):
        consumed.add(place, place + 1)
    levels = Levels(EpochOrder(layout, 3, 0, True), owners, range(ranks), consumed)
    told = [Share(ranks, levels.left, levels.share(rank).to_flat(), 0) for rank in range(ranks)]
    return layout, told, consumed


@given(shares(), st.integers(1, 12))
@settings(deadline=None)
def test_all_ranks_take_the_same_steps_and_read_all_that_is_left(
    given: tuple[ShardLayout, list[Share], RangeSet], batch_size: int
) -> None:
    layout, told, consumed = given
    ranks = [made(share, layout, batch_size) for share in told]
    steps = steps_of(told[0].left, len(told), batch_size)
    found: list[int] = []
    for step in range(steps):
        assert [rank.steps_left for rank in ranks] == [steps - step] * len(ranks)
        batches = [places(take(rank, batch_size), layout.shard_size) for rank in ranks]
        sizes = [len(batch) for batch in batches]
        assert max(sizes) - min(sizes) <= 1
        assert step == steps - 1 or set(sizes) == {batch_size}
        found += [place for batch in batches for place in batch]
    assert [(rank.steps_left, rank.left()) for rank in ranks] == [(0, [])] * len(ranks)
    left = [place for start, end in consumed.missing(0, layout.total_samples) for place in range(start, end)]
    assert sorted(found) == left


LAYOUT = ShardLayout(40, 10)
SHARE = Share(2, 19, [15, 22, 0, 3], 0)


def test_what_is_reported_was_consumed_and_a_position_is_what_was_given_out() -> None:
    rank = made(SHARE, LAYOUT)
    assert take(rank, 4) == [Piece(1, 5, 9)]
    assert (rank.news(), rank.own) == ({}, [15, 19])
    assert take(rank, 4) == [Piece(1, 9, 10), Piece(2, 0, 2), Piece(0, 0, 1)]
    assert (rank.news(), rank.own) == ({"levelled": 4}, [0, 1, 15, 22])
    assert rank.standing is not None
    rank.reported(rank.standing, {"levelled": 4})
    assert rank.news() == {}
    rank.consume()
    assert rank.news() == {"levelled": 8}
    assert rank.left() == [Piece(0, 1, 3)]


def test_another_loader_of_the_process_goes_on_where_the_one_before_was() -> None:
    rank = made(SHARE._replace(read=8), LAYOUT)
    assert (rank.left(), rank.steps_left, rank.own, rank.news()) == ([Piece(0, 1, 3)], 1, [0, 1, 15, 22], {})


def test_what_is_told_again_changes_nothing_and_another_standing_begins_anew() -> None:
    rank = made(SHARE, LAYOUT)
    take(rank, 4)
    changes, before = rank.changes, rank.standing
    assert before is not None
    rank.told(telling(SHARE._replace(read=4)))
    assert (rank.changes, rank.own) == (changes, [15, 19])
    for other in ({"point": 2}, {"epoch": 1}, {"incarnation": 2}, {"version": 2}):
        rank.told(telling(SHARE, **other))
        rank.reported(before, {"levelled": 4})  # of the past
        take(rank, 4)
        rank.consume()
        assert (rank.own, rank.news()) == ([15, 19], {"levelled": 4})
    assert rank.changes == changes + 4


def test_a_rank_that_has_nothing_takes_the_last_step_with_the_others() -> None:
    rank = made(Share(2, 1, [], 0), LAYOUT)
    assert (rank.left(), rank.steps_left) == ([], 1)
    assert take(rank, 4) == []
    rank.consume()
    assert (rank.steps_left, rank.own, rank.news()) == (0, [], {})
    with pytest.raises(AssertionError, match="no rank takes more steps"):
        rank.give([])


def test_the_last_step_is_taken_also_where_the_others_are_in_the_next_epoch() -> None:
    rank = made(Share(2, 9, [15, 19], 0), LAYOUT)
    take(rank, 4)
    changes = rank.changes
    rank.told(telling(SHARE, epoch=1))
    assert (rank.steps_left, rank.changes, rank.order.epoch) == (1, changes, 0)
    assert take(rank, 4) == []
    rank.told(telling(SHARE, epoch=1))
    assert (rank.steps_left, rank.changes, rank.order.epoch) == (3, changes + 1, 1)
    rank = made(Share(2, 9, [15, 19], 4), LAYOUT)
    rank.told(telling(SHARE, point=2))
    assert rank.steps_left == 3, "who goes back owes nothing"
    rank.told(telling(SHARE, point=2, epoch=1))
    assert rank.order.epoch == 1, "what is not read of an epoch that somebody ended is not read any more"


def test_nothing_is_given_up() -> None:
    rank: Any = made(SHARE, LAYOUT)
    assert (rank.release(), rank.awaited) == (None, frozenset())
