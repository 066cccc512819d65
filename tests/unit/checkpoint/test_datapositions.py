"""Where all ranks are in their datasets: what each rank's part says, put together."""

import pytest

from strata.checkpoint.datapositions import merged, messages
from strata.checkpoint.manifest import Part
from strata.core.events import Position
from strata.errors import RankFailed

READING = "global_batch_size=8"


def part(rank: int, position: Position) -> Part:
    return Part(1, rank, "a", "tree", None, [], [], [], {"rows": position})


def test_what_ranks_left_out_at_one_place_adds_up() -> None:
    parts = [part(rank, Position(1, 2, [0, 64], READING, left_out=rank)) for rank in range(4)]
    assert merged(parts, 5) == {"rows": Position(1, 2, [0, 64], READING, left_out=6)}


def test_shares_of_the_affinity_order_add_up() -> None:
    parts = [part(0, Position(1, 2, [0, 8])), part(1, Position(1, 2, [16, 24]))]
    assert merged(parts, 5) == {"rows": Position(1, 2, [0, 8, 16, 24])}


def test_ranks_at_different_places_are_refused() -> None:
    parts = [part(0, Position(1, 2, [0, 64], READING)), part(1, Position(1, 2, [0, 72], READING))]
    with pytest.raises(RankFailed, match=r"rank 0 is at sample 64 .* rank 1 at sample 72"):
        merged(parts, 5)


def test_the_coordinator_is_told_what_was_left_out() -> None:
    assert messages({"rows": Position(1, 2, [0, 64], READING, left_out=6)})["rows"].left_out_samples == 6
