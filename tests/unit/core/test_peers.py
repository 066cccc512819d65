"""Who is there, from which rank on; and whether it is the world that is meant."""

import pytest

from strata.core.events import DrainRequested
from strata.core.peers import check_generation, peers_from
from strata.errors import StaleGeneration
from tests.unit.core.cluster import JOB, Cluster


def seen(cluster: Cluster, rank: int = 0) -> list[tuple[int, str]]:
    return [(member.rank, member.worker) for member in peers_from(cluster.job, rank)]


def test_those_who_are_there_are_told_in_the_order_of_their_ranks() -> None:
    cluster = Cluster()
    for rank in (3, 0, 2):
        cluster.register(f"w{rank}", rank=rank, world_size=4)
    assert seen(cluster) == [(0, "w0"), (2, "w2"), (3, "w3")]
    assert seen(cluster, 2) == [(2, "w2"), (3, "w3")]
    assert seen(cluster, 4) == []


def test_who_drains_is_there_until_it_leaves_and_who_is_lost_is_not() -> None:
    cluster = Cluster()
    workers = cluster.open_world(3)
    cluster.send(DrainRequested(JOB, "w1"))
    assert [(member.worker, member.status) for member in peers_from(cluster.job, 1)] == [
        ("w1", "draining"),
        ("w2", "live"),
    ]
    cluster.leave(workers[1])
    cluster.expire(workers[2])
    assert seen(cluster) == [(0, "w0")]


def test_a_process_that_took_a_name_over_is_told_with_its_own_address() -> None:
    cluster = Cluster()
    cluster.register("w0", ip="10.0.0.1", port=1)
    cluster.register("w1")
    again = cluster.register("w0", ip="10.0.0.9", port=9)
    (found, _) = peers_from(cluster.job, 0)
    assert (found.incarnation, found.ip, found.port) == (again.incarnation, "10.0.0.9", 9)


def test_another_world_than_the_one_that_is_meant_is_refused() -> None:
    cluster = Cluster()
    cluster.world(2)
    before = cluster.generation
    check_generation(cluster.job, before)
    cluster.send(DrainRequested(JOB, "w1"))
    for other in (before, cluster.generation + 1, -1):
        with pytest.raises(StaleGeneration, match=f"is in generation {cluster.generation} now") as error:
            check_generation(cluster.job, other)
        assert error.value.generation == cluster.generation
