"""Stretches of shards as batches: the samples of each are those of its pieces, wherever stretches begin and end."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strata.core.orders import AffinityOrder, EpochOrder, ShardLayout
from strata.data.columns import Fixed
from strata.data.grants import Piece
from strata.data.held import Held
from strata.data.ownbatches import Stretches
from strata.data.runs import Runs, Samples, Share

TOTAL, SHARD = 103, 10
ORDER = EpochOrder(ShardLayout(TOTAL, SHARD), 5, 2, True)

stretches = st.lists(
    st.tuples(st.integers(0, 10), st.integers(0, 9), st.integers(1, 10)).filter(
        lambda each: each[1] < each[2] <= (3 if each[0] == 10 else SHARD)
    ),
    max_size=8,
).map(lambda found: [Piece(*each) for each in found])


@given(stretches, st.integers(1, 30))
def test_batches_are_their_pieces(pieces: list[Piece], size: int) -> None:
    reading = Stretches(ORDER, pieces, size)
    places = [(each.shard, place) for each in pieces for place in range(each.start, each.end)]
    assert reading.count == len(places)
    assert reading.batches == -(-len(places) // size)
    for batch in range(reading.batches):
        expected = places[batch * size : (batch + 1) * size]
        assert reading.batch_size(batch) == len(expected)
        found = [(each.shard, place) for each in reading.pieces(batch) for place in range(each.start, each.end)]
        assert found == expected
        shards, offsets = np.array(expected).T
        assert reading.run(batch, batch + 1, 0, 1).tolist() == ORDER.samples_in(shards, offsets).tolist()
    together = [sample for batch in range(reading.batches) for sample in reading.run(batch, batch + 1, 0, 1)]
    assert reading.run(0, reading.batches, 0, 1).tolist() == together


def test_whole_shards_are_the_affinity_order() -> None:
    whole = AffinityOrder(ORDER, np.array([3, 10, 1, 7]))
    pieces = [Piece(int(shard), 0, 3 if shard == 10 else SHARD) for shard in whole.shards]
    reading = Stretches(ORDER, pieces, 8)
    assert reading.run(0, reading.batches, 0, 1).tolist() == whole.samples(0, whole.count).tolist()


class _Blocks:
    def locate(self, samples: Samples) -> tuple[Samples, Samples]:
        return samples // 7, samples % 7


def test_runs_are_put_together_from_them() -> None:
    held = Held(lambda block: {"number": Fixed(np.arange(7 * block, 7 * block + 7))}, 1 << 20, 2)
    reading = Stretches(ORDER, [Piece(2, 3, 10), Piece(10, 0, 3), Piece(4, 0, 9)], 4)
    try:
        runs = Runs(reading, Share(0, 1), _Blocks(), held)
        made = itertools.chain(runs.begin(range(1))().batches(), runs.begin(range(1, 5))().batches())
        found = [batch["number"].tolist() for batch in made]
    finally:
        held.close()
    assert [len(each) for each in found] == [4, 4, 4, 4, 3]
    assert list(itertools.chain(*found)) == reading.run(0, 5, 0, 1).tolist()
