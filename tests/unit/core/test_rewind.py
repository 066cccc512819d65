"""The data goes with the model: what a checkpoint says was consumed, and what a recovery rewinds."""

import pytest

from strata.core.effects import Registered
from strata.core.events import BatchesReported, Position, ProgressReported
from strata.errors import Refused, StaleGeneration
from tests.unit.core.cluster import JOB, Cluster
from tests.unit.core.saves import roll_back

# -- the data goes with the model ------------------------------------------------------------------------------------


def report(cluster: Cluster, who: Registered, cursors: dict[int, int]) -> None:
    cluster.from_worker(
        ProgressReported, who, dataset="images", version=1, epoch=0, point=cluster.job.points, cursors=cursors
    )


def owned(cluster: Cluster, who: Registered) -> list[int]:
    view, dataset = cluster.job.world.view, cluster.dataset()
    shards = cluster.machine.volatile.ownerships.of(JOB, dataset, view).shards_of(who.rank)
    return sorted(int(shard) for shard in shards)


def at(*consumed: int, epoch: int = 0, version: int = 1) -> dict[str, Position]:
    return {"images": Position(version, epoch, list(consumed))}


def prefix(shard: int, cursor: int) -> tuple[int, int]:
    return shard * 10, shard * 10 + cursor


def test_recovering_rewinds_the_data_to_what_the_checkpoint_says() -> None:
    cluster = Cluster()
    workers = w0, w1 = cluster.world(2)
    cluster.add_dataset()
    mine, theirs = owned(cluster, w0)[0], owned(cluster, w1)[0]
    report(cluster, w0, {mine: 6})
    report(cluster, w1, {theirs: 4})
    cluster.save(workers, step=10, positions={"w0": at(*prefix(mine, 6)), "w1": at(*prefix(theirs, 4))})
    report(cluster, w0, {mine: 10})
    report(cluster, w1, {theirs: 9})
    cluster.recover(w0)
    consumed = cluster.dataset().consumed
    assert consumed.count == 10
    assert consumed.covers(*prefix(mine, 6))
    assert consumed.covers(*prefix(theirs, 4))


def test_recovering_from_the_beginning_forgets_all_progress() -> None:
    cluster = Cluster()
    w0, _ = cluster.world(2)
    cluster.add_dataset()
    report(cluster, w0, dict.fromkeys(owned(cluster, w0), 10))
    cluster.recover(w0)
    assert cluster.dataset().consumed.count == 0


def test_what_departed_workers_consumed_is_in_the_next_checkpoint() -> None:
    cluster = Cluster(recovery="carry_on")
    w0, w1 = cluster.open_world(2)
    cluster.add_dataset()
    cluster.recover(w0)
    theirs = owned(cluster, w1)[0]
    report(cluster, w1, {theirs: 7})
    cluster.expire(w1)
    attempt = cluster.save([w0], step=10, positions={"w0": at()})
    assert cluster.job.attempts[attempt].positions == at(*prefix(theirs, 7))
    cluster.leave(w0)
    cluster.recover(cluster.register("w0"))
    assert cluster.dataset().consumed.to_flat() == list(prefix(theirs, 7))


def test_what_was_consumed_before_the_recovery_point_is_in_the_next_checkpoint_too() -> None:
    cluster = Cluster()
    (w0,) = cluster.world(1)
    cluster.add_dataset()
    report(cluster, w0, {0: 10})
    cluster.save([w0], step=10, positions={"w0": at(0, 10)})
    cluster.recover(w0)
    report(cluster, w0, {7: 3})
    attempt = cluster.save([w0], step=20, positions={"w0": at(70, 73)})
    assert cluster.job.attempts[attempt].positions == at(0, 10, 70, 73)


def test_a_new_version_since_the_checkpoint_begins_at_its_beginning() -> None:
    cluster = Cluster()
    workers = w0, _ = cluster.world(2)
    cluster.add_dataset()
    cluster.save(workers, step=10, positions={"w0": at(0, 10)})
    cluster.add_dataset(total_samples=200, replaces=1)
    cluster.recover(w0)
    assert (cluster.dataset().version, cluster.dataset().epoch, cluster.dataset().consumed.count) == (2, 0, 0)


def test_going_back_an_epoch_takes_back_its_proof() -> None:
    cluster = Cluster()
    workers = _, w1 = cluster.world(2)
    cluster.add_dataset()
    cluster.save(workers, step=10)
    for who in workers:
        report(cluster, who, dict.fromkeys(owned(cluster, who), 10))
    assert cluster.dataset().epoch == 1
    cluster.recover(w1)
    assert cluster.dataset().epoch == 0
    assert cluster.dataset().proofs == []


def test_a_position_from_another_epoch_than_the_save_began_in_is_refused() -> None:
    cluster = Cluster()
    w0, _ = cluster.world(2)
    cluster.add_dataset()
    cluster.begin(w0, step=10)
    with pytest.raises(Refused, match=r"epoch 1 of dataset 'images'; the save began in version 1, epoch 0"):
        cluster.ack(w0, 1, positions=at(0, 10, epoch=1))


def test_batches_reported_before_a_late_begin_are_not_part_of_its_step() -> None:
    cluster = Cluster()
    workers = w0, _ = cluster.world(2)
    cluster.add_dataset("texts", order="elastic")
    for through in (32, 64):
        cluster.from_worker(
            BatchesReported,
            w0,
            dataset="texts",
            version=1,
            epoch=0,
            generation=cluster.generation,
            point=cluster.job.points,
            through=through,
        )
    at_step_1 = {"texts": Position(1, 0, [0, 32])}
    cluster.save(workers, step=1, positions={"w0": at_step_1, "w1": at_step_1})
    cluster.recover(w0)
    assert cluster.dataset("texts").consumed.to_flat() == [0, 32]


def complete(cluster: Cluster, who: Registered, through: int) -> None:
    fields = {
        "dataset": "texts",
        "version": 1,
        "epoch": 0,
        "generation": cluster.generation,
        "point": cluster.job.points,
    }
    cluster.from_worker(BatchesReported, who, through=through, **fields)


@pytest.mark.parametrize("reported", ["before the save", "during the save", "after the save"])
def test_a_checkpoint_at_the_end_of_an_epoch_leads_into_the_next_one(reported: str) -> None:
    """Whichever of the messages came first: the last batches are done, and a rank begins to save that step."""
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    cluster.add_dataset("texts", order="elastic")
    done = {"texts": Position(1, 0, [0, 100])}
    if reported == "before the save":
        complete(cluster, w0, 100)
    cluster.begin(w0, step=1)
    if reported == "during the save":
        complete(cluster, w0, 100)
    for who in (w0, w1):
        cluster.ack(who, 1, positions=done)
    cluster.put(w0, 1)
    if reported == "after the save":
        complete(cluster, w0, 100)
    assert cluster.recover(w0).step == 1
    assert (cluster.dataset("texts").epoch, cluster.dataset("texts").consumed.count) == (1, 0)


def test_progress_from_before_a_rollback_is_void() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    cluster.add_dataset()
    cluster.recover(w0)
    shard = owned(cluster, w1)[0]
    before = cluster.job.points
    cluster.recover(w0, generation=cluster.generation)
    with pytest.raises(StaleGeneration, match="rolled back"):
        cluster.from_worker(
            ProgressReported, w1, dataset="images", version=1, epoch=0, point=before, cursors={shard: 7}
        )
    assert cluster.dataset().consumed.count == 0


def test_ranks_that_contradict_each_other_are_not_at_the_same_step() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    cluster.add_dataset("texts", order="elastic")
    attempt = cluster.begin(w0, step=1).attempt
    cluster.ack(w0, attempt, positions={"texts": Position(1, 0, [0, 32])})
    with pytest.raises(Refused, match="not at the same step"):
        cluster.ack(w1, attempt, positions={"texts": Position(1, 0, [0, 64])})


# -- carrying on -----------------------------------------------------------------------------------------------------


def test_where_a_job_carries_on_the_survivors_progress_stands() -> None:
    cluster = Cluster(recovery="carry_on")
    w0, w1 = cluster.open_world(2)
    cluster.add_dataset()
    cluster.recover(w0)
    cluster.save([w0, w1], step=10)
    shard = owned(cluster, w0)[0]
    report(cluster, w0, {shard: 6})
    newcomer = cluster.register("w2")
    point = cluster.recover(newcomer)
    assert (point.step, point.attempt, point.ranks) == (10, 1, (0, 1, 2))
    assert cluster.dataset().consumed.count == 6


def test_where_a_job_rolls_back_a_newcomer_takes_everybody_back() -> None:
    cluster = Cluster(recovery="rollback")
    w0, w1 = cluster.open_world(2)
    cluster.add_dataset()
    cluster.recover(w0)
    cluster.save([w0, w1], step=10)
    report(cluster, w0, {owned(cluster, w0)[0]: 6})
    cluster.recover(cluster.register("w2"))
    assert cluster.dataset().consumed.count == 0


def test_a_job_that_carries_on_goes_back_when_nobody_was_left() -> None:
    cluster = Cluster(recovery="carry_on")
    (w0,) = cluster.open_world(1)
    cluster.add_dataset()
    cluster.recover(w0)
    report(cluster, w0, {0: 5})
    cluster.save([w0], step=10, positions={"w0": at(0, 5)})
    report(cluster, w0, {0: 9})
    cluster.expire(w0)
    point = cluster.recover(cluster.register("w0"))
    assert point.step == 10
    assert cluster.dataset().consumed.to_flat() == [0, 5]


def test_an_operators_rollback_rewinds_the_data_also_where_the_job_carries_on() -> None:
    cluster = Cluster(recovery="carry_on")
    (w0,) = cluster.open_world(1)
    cluster.add_dataset()
    cluster.recover(w0)
    report(cluster, w0, {0: 5})
    cluster.save([w0], step=10, positions={"w0": at(0, 5)})
    report(cluster, w0, {0: 9})
    cluster.save([w0], step=20, positions={"w0": at(0, 9)})
    roll_back(cluster, 10)
    assert cluster.recover(w0).step == 10
    assert cluster.dataset().consumed.to_flat() == [0, 5]


def test_a_job_that_carries_on_saves_without_a_rank_that_never_came() -> None:
    cluster = Cluster(recovery="carry_on")
    w0 = cluster.register("w0", rank=0, world_size=2)
    attempt = cluster.begin(w0, step=1).attempt
    assert cluster.ack(w0, attempt).status == "decided"
