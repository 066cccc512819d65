"""Shares: the shards of one rank in the order of any epoch, as the world is now. A pure question."""

import numpy as np

from strata.core.orders import EpochOrder, ShardLayout
from strata.core.state import Dataset, Job
from strata.core.volatile import Volatile
from strata.errors import NotFound


def shards_in_order(volatile: Volatile, job: Job, dataset: Dataset, rank: int, epoch: int) -> list[int]:
    """What this rank reads in that epoch, in the order in which it reads it."""
    view = job.world.view
    if rank not in view.slots:
        raise NotFound(
            f"rank {rank} has no shards: the world of job {job.job!r} has {len(view)} ranks"
            + (f", {view.ranks[0]} to {view.ranks[-1]}" if len(view) else " as nobody has joined it yet")
        )
    owned = np.array(volatile.ownerships.of(job.job, dataset, view).shards_of(rank), np.int64)
    layout = ShardLayout(dataset.total_samples, dataset.shard_size)
    order = EpochOrder(layout, dataset.seed, epoch, dataset.shuffle)
    shards: list[int] = owned[np.argsort(order.positions_of(owned))].tolist()
    return shards
