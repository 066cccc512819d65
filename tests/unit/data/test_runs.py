"""Runs of batches: what is put together is what the order says, however runs are asked for and blocks are cut."""

import numpy as np
import pytest

from strata.core.orders import ElasticOrder, ShardLayout, Tail
from strata.data.columns import Fixed
from strata.data.held import Decoded, Held
from strata.data.runs import PLAN_SAMPLES, Runs, Samples, Share

ALONE = Share(0, 1)


class Blocks:
    """Blocks of so many samples each; their one column holds the numbers of the samples."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def locate(self, samples: Samples) -> tuple[Samples, Samples]:
        return samples // self.rows, samples % self.rows

    def decode(self, block: int) -> Decoded:
        return {"number": Fixed(np.arange(block * self.rows, (block + 1) * self.rows))}


def check(order: ElasticOrder, rows: int, asked: list[tuple[int, int]], share: Share = ALONE, step: int = 1) -> None:
    check_runs(order, rows, [range(first, last, step) for first, last in asked], share)


def check_runs(order: ElasticOrder, rows: int, asked: list[range], share: Share = ALONE) -> None:
    blocks = Blocks(rows)
    held = Held(blocks.decode, 1 << 20, 2)
    try:
        runs = Runs(order, share, blocks, held)
        for batches in asked:
            run = runs.begin(batches)()
            found = [batch["number"].tolist() for batch in run.batches()]
            assert found == [order.places(batch, *share).tolist() for batch in batches]
    finally:
        held.close()


def elastic(total: int, shard: int, batch: int, *, shuffle: bool = True, tail: Tail = "drop") -> ElasticOrder:
    return ElasticOrder(ShardLayout(total, shard), 7, 1, shuffle, batch, tail=tail)


@pytest.mark.parametrize("rows", [1, 7, 100, 1000])
@pytest.mark.parametrize("shuffle", [True, False])
def test_blocks_may_be_cut_anywhere(rows: int, shuffle: bool) -> None:
    check(elastic(1000, 20, 16, shuffle=shuffle), rows, [(0, 1), (1, 20), (20, 62)])


def test_every_third_batch_by_itself() -> None:
    check(elastic(1000, 20, 16), 7, [(1, 2), (4, 20), (22, 62)], step=3)


@pytest.mark.slow
@pytest.mark.parametrize("tail", ["drop", "short", "pad"])
@pytest.mark.parametrize("step", [2, 3, 4, 5])
@pytest.mark.parametrize("batch", [16, PLAN_SAMPLES // 3, PLAN_SAMPLES])
def test_a_worker_s_batches_in_runs_of_any_length_to_the_end_of_the_epoch(batch: int, step: int, tail: Tail) -> None:
    order = elastic(11 * batch + 3, 50, batch, tail=tail)
    for worker in range(step):
        left = range(worker, order.batches, step)
        asked: list[range] = []
        for length in (1, 2, 256):  # cut off as they are for those who make them: what is behind the end counts along
            asked, left = [*asked, left[:length]], left[length:]
        check_runs(order, 100, asked)


def test_more_blocks_than_sixteen_bits_can_count() -> None:
    check(elastic(100_000, 10, 64), 1, [(0, 4), (100, 104)])


@pytest.mark.parametrize("share", [ALONE, Share(0, 3), Share(2, 3)])
def test_in_any_order_and_beyond_what_is_planned_at_once(share: Share) -> None:
    batches = 3 * PLAN_SAMPLES // 256
    order = elastic(256 * batches, 100, 256)
    middle = batches // 2
    asked = [(0, 1), (1, 3), (middle, middle + 2), (2, 5), (0, 0), (batches - 1, batches), (0, batches), (5, 6)]
    check(order, 50, asked, share)


def test_the_tail_is_planned_with_the_rest() -> None:
    check(elastic(1005, 20, 16, tail="short"), 15, [(0, 1), (1, 2), (60, 63)])
    check(elastic(1005, 20, 16, tail="pad"), 15, [(0, 1), (1, 2), (60, 63)])
