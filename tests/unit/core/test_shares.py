"""A rank's shards in the order of any epoch, as the world is now."""

import pytest

from strata.core.shares import shards_in_order
from strata.errors import NotFound
from strata.sharding import ShardManager
from tests.unit.core.cluster import Cluster


def shards(cluster: Cluster, rank: int, epoch: int) -> list[int]:
    return shards_in_order(cluster.machine.volatile, cluster.job, cluster.dataset(), rank, epoch)


def test_the_shards_of_all_ranks_are_all_shards_in_every_epoch() -> None:
    cluster = Cluster()
    cluster.world(3)
    cluster.add_dataset(shuffle=True, seed=7, total_samples=1000)
    for epoch in (0, 1, 10**9):
        everybody = [shards(cluster, rank, epoch) for rank in range(3)]
        assert sorted(shard for own in everybody for shard in own) == list(range(100))
    assert shards(cluster, 1, 0) != shards(cluster, 1, 1)
    assert sorted(shards(cluster, 1, 0)) == sorted(shards(cluster, 1, 1))
    assert shards(cluster, 1, 0) != sorted(shards(cluster, 1, 0))


def test_they_are_what_the_manager_gives_without_a_coordinator() -> None:
    cluster = Cluster()
    cluster.world(4)
    cluster.add_dataset(shuffle=True, seed=3, total_samples=999)
    manager = ShardManager()
    for rank in range(4):
        manager.register_worker(f"w{rank}")
    manager.register_dataset_params("images", 999, 10, True, 3)
    for rank in range(4):
        for epoch in (0, 5):
            alone = [each.shard_id for each in manager.get_shard_for_worker("images", f"w{rank}", epoch)]
            assert shards(cluster, rank, epoch) == alone


def test_a_rank_that_is_not_there_is_told_so() -> None:
    cluster = Cluster()
    cluster.add_dataset()
    with pytest.raises(NotFound, match="nobody has joined"):
        shards(cluster, 0, 0)
    cluster.world(2)
    with pytest.raises(NotFound, match="2 ranks, 0 to 1"):
        shards(cluster, 2, 0)
