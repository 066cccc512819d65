"""The data goes with the model: what a checkpoint says was consumed, and what a recovery rewinds."""

from contextlib import nullcontext

import pytest

from strata.core.effects import Registered
from strata.core.events import BatchesReported, Found, Position, ProgressReported
from strata.errors import InvalidInput, Refused, StaleGeneration
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
    for who in workers:
        complete(cluster, who, 64)
    assert cluster.dataset("texts").consumed.to_flat() == [0, 64]
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
        complete(cluster, w1, 100)
    cluster.begin(w0, step=1)
    if reported == "during the save":
        complete(cluster, w0, 100)
        complete(cluster, w1, 100)
    for who in (w0, w1):
        cluster.ack(who, 1, positions=done)
    cluster.put(w0, 1)
    if reported == "after the save":
        complete(cluster, w0, 100)
        complete(cluster, w1, 100)
    assert cluster.recover(w0).step == 1
    assert (cluster.dataset("texts").epoch, cluster.dataset("texts").consumed.count) == (1, 0)


def test_a_worker_of_its_own_that_ends_an_epoch_saves_the_beginning_of_the_next() -> None:
    """It says where it was, and the coordinator has begun the next epoch since."""
    cluster = Cluster()
    (w0,) = cluster.world(1)
    cluster.add_dataset()
    report(cluster, w0, dict.fromkeys(owned(cluster, w0), 10))
    assert cluster.dataset().epoch == 1
    cluster.begin(w0, step=1)
    cluster.ack(w0, 1, positions={"images": Position(1, 0, [0, cluster.dataset().total_samples])})
    cluster.put(w0, 1)
    assert cluster.recover(w0).step == 1
    assert (cluster.dataset().epoch, cluster.dataset().consumed.count) == (1, 0)


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


@pytest.mark.parametrize("first", [0, 1])
def test_the_end_of_an_epoch_and_the_beginning_of_the_next_are_the_same_step(first: int) -> None:
    """A rank that has not asked for another batch yet says the one, and a rank that has says the other."""
    cluster = Cluster()
    workers = cluster.world(2)
    cluster.add_dataset("texts", order="elastic")
    for who in workers:
        complete(cluster, who, 100)
    assert cluster.dataset("texts").epoch == 1
    cluster.begin(workers[0], step=1)
    said = [Position(1, 0, [0, 100]), Position(1, 1, [])]
    for who, there in zip(workers, said if first == 0 else said[::-1], strict=True):
        cluster.ack(who, 1, positions={"texts": there})
    cluster.put(workers[0], 1)
    assert cluster.recover(workers[0]).step == 1
    assert (cluster.dataset("texts").epoch, cluster.dataset("texts").consumed.count) == (1, 0)


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


# -- an epoch is read in one way --------------------------------------------------------------------------------------


def read(cluster: Cluster, who: Registered, through: int, reading: str, epoch: int = 0) -> None:
    now = {"generation": cluster.generation, "point": cluster.job.points}
    said = {"version": 1, "epoch": epoch, "through": through, "reading": reading, **now}
    cluster.from_worker(BatchesReported, who, dataset="texts", **said)


def elastic(size: int = 1) -> tuple[Cluster, list[Registered]]:
    cluster = Cluster()
    workers = cluster.world(size)
    cluster.add_dataset("texts", order="elastic")
    cluster.recover(workers[0])
    return cluster, workers


def test_an_epoch_is_read_in_the_way_it_was_begun_and_the_next_in_any() -> None:
    cluster, (w0,) = elastic()
    read(cluster, w0, 32, "by 32")
    with pytest.raises(Refused, match=r"'w0' reads epoch 0 of dataset 'texts' as by 50, and it was begun as by 32"):
        read(cluster, w0, 50, "by 50")
    with pytest.raises(Refused, match="as it likes, and it was begun as by 32"):
        read(cluster, w0, 50, "")
    assert cluster.dataset("texts").consumed.to_flat() == [0, 32]
    read(cluster, w0, 100, "by 32")
    assert (cluster.dataset("texts").epoch, cluster.dataset("texts").reading) == (1, "")
    read(cluster, w0, 50, "by 50", epoch=1)
    cluster.restart()
    assert cluster.dataset("texts").reading == "by 50"


def test_ranks_that_would_read_an_epoch_in_different_ways_do_not_begin() -> None:
    cluster, (w0, w1) = elastic(2)
    read(cluster, w0, 0, "by 32")
    with pytest.raises(Refused, match=r"'w1' reads epoch 0 of dataset 'texts' as by 50, and others as by 32"):
        read(cluster, w1, 0, "by 50")
    read(cluster, w1, 0, "by 32")


def test_how_an_epoch_is_read_takes_no_more_than_a_little_room() -> None:
    cluster, (w0,) = elastic()
    with pytest.raises(InvalidInput, match="at most 2048 characters"):
        read(cluster, w0, 1, "x" * 2049)


@pytest.mark.parametrize(("epoch", "consumed"), [(0, [0, 96]), (0, []), (2, [0, 32])])
def test_in_the_elastic_order_a_position_may_be_of_any_epoch(epoch: int, consumed: list[int]) -> None:
    """The next epoch has begun before the save has; or nobody has told of those since."""
    cluster, (w0,) = elastic()
    read(cluster, w0, 100, "by 32")
    assert cluster.dataset("texts").epoch == 1
    there = {"texts": Position(1, epoch, consumed, "by 32")}
    cluster.save([w0], step=10, positions={"w0": there})
    read(cluster, w0, 64, "by 64", epoch=1)
    cluster.recover(w0, cluster.generation)
    found = cluster.dataset("texts")
    assert (found.epoch, found.consumed.to_flat(), found.reading) == (epoch, consumed, "by 32")
    with pytest.raises(Refused, match="it was begun as by 32") if consumed else nullcontext():
        read(cluster, w0, 64, "by 64", epoch=epoch)


def test_a_checkpoint_without_positions_has_the_ledger_as_it_was() -> None:
    cluster, (w0,) = elastic()
    read(cluster, w0, 32, "by 32")
    cluster.save([w0], step=10)
    read(cluster, w0, 64, "by 32")
    cluster.recover(w0, cluster.generation)
    assert cluster.dataset("texts").consumed.to_flat() == [0, 32]
    assert cluster.dataset("texts").reading == "by 32"


# -- what a checkpoint says that was saved without the coordinator ----------------------------------------------------


def test_the_data_goes_on_from_where_a_checkpoint_is_that_was_found() -> None:
    cluster, (w0,) = elastic()
    there = Position(1, 3, [0, 40], "by 20")
    cluster.recover(w0, found=Found(900, 3, "step_900", {"texts": there}), insist=True)
    found = cluster.dataset("texts")
    assert (found.epoch, found.consumed.to_flat(), found.reading) == (3, [0, 40], "by 20")


def test_a_dataset_that_comes_later_goes_on_from_there_too() -> None:
    """The coordinator's journal was lost: the job begins anew, and the storage has its checkpoints."""
    cluster = Cluster()
    (w0,) = cluster.world(1)
    cluster.recover(w0, found=Found(900, 3, "step_900", {"texts": Position(1, 3, [0, 40], "by 20")}))
    cluster.add_dataset("texts", order="elastic")
    cluster.add_dataset("others", order="elastic")
    assert (cluster.dataset("texts").epoch, cluster.dataset("texts").consumed.to_flat()) == (3, [0, 40])
    assert (cluster.dataset("others").epoch, cluster.dataset("others").consumed.count) == (0, 0)
    cluster.restart()
    assert cluster.dataset("texts").epoch == 3


@pytest.mark.parametrize("there", [Position(2, 3, [0, 40]), Position(1, 3, [0, 101])])
def test_a_position_in_something_else_of_that_name_is_none(there: Position) -> None:
    cluster = Cluster()
    (w0,) = cluster.world(1)
    cluster.recover(w0, found=Found(900, 3, "step_900", {"texts": there}))
    cluster.add_dataset("texts", order="elastic")
    assert (cluster.dataset("texts").epoch, cluster.dataset("texts").consumed.count) == (0, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"texts": Position(1, 0, [40, 0])},
        {"texts": Position(1, 0, [-1, 2])},
        {"texts": Position(1, 0, [0, 101])},
        {"texts": Position(1, -1, [])},
        {"texts": Position(1, 0, [], "x" * 2049)},
        {"not an id": Position(1, 0, [])},
        {"others": Position(1, 0, [5])},
        {f"d{number}": Position(1, 0, []) for number in range(1001)},
    ],
)
def test_nonsense_is_no_position(wrong: dict[str, Position]) -> None:
    cluster, (w0,) = elastic()
    with pytest.raises(InvalidInput):
        cluster.recover(w0, found=Found(900, 0, "step_900", wrong), insist=True)


# -- epochs that ended unheard ---------------------------------------------------------------------------------------


def tell(cluster: Cluster, who: Registered, epoch: int, through: int, *, over: bool = False) -> None:
    about = {"generation": cluster.job.world.generation, "point": cluster.job.points, "reading": "in tens"}
    cluster.from_worker(
        BatchesReported, who, dataset="images", version=1, epoch=epoch, through=through, over=over, **about
    )


def ahead(*, is_begun: bool = True) -> tuple[Cluster, Registered]:
    """Nothing was heard of epoch 0 but that it was begun, and all go on from a checkpoint in epoch 2."""
    cluster = Cluster()
    (w0,) = cluster.world(1)
    cluster.add_dataset(order="elastic")
    if is_begun:
        cluster.recover(w0)
    cluster.save([w0], step=30, positions={"w0": at(0, 40, epoch=2)})
    again = cluster.register("w0", rank=0, world_size=1)
    cluster.recover(again)
    return cluster, again


def proven(cluster: Cluster) -> list[tuple[int, int]]:
    return [(proof.epoch, proof.consumed) for proof in cluster.dataset().proofs]


def test_epochs_that_ended_unheard_are_proven_by_who_reads_as_they_were_read() -> None:
    cluster, w0 = ahead()
    assert cluster.dataset().unproven == [0, 1]
    assert proven(cluster) == []
    tell(cluster, w0, 1, 90, over=True)
    tell(cluster, w0, 0, 90)
    assert proven(cluster) == [(1, 90)], "that it is over must be said"
    tell(cluster, w0, 0, 90, over=True)
    tell(cluster, w0, 0, 90, over=True)
    cluster.restart()
    assert proven(cluster) == [(0, 90), (1, 90)]
    assert cluster.dataset().unproven == []
    assert {proof.reading for proof in cluster.dataset().proofs} == {"in tens"}
    assert cluster.dataset().consumed.to_flat() == [0, 40], "what is read now is another matter"


def test_of_epochs_that_were_never_begun_here_nothing_is_known() -> None:
    cluster, w0 = ahead(is_begun=False)
    assert cluster.dataset().unproven == []
    tell(cluster, w0, 1, 90, over=True)
    assert proven(cluster) == []


def test_an_epoch_that_is_read_again_is_not_over() -> None:
    cluster = Cluster()
    (w0,) = cluster.world(1)
    cluster.add_dataset(order="elastic")
    cluster.recover(w0)
    cluster.save([w0], step=10, positions={"w0": at(0, 10)})
    cluster.save([w0], step=30, positions={"w0": at(0, 40, epoch=2)})
    again = cluster.register("w0", rank=0, world_size=1)
    cluster.recover(again)
    assert cluster.dataset().unproven == [0, 1]
    roll_back(cluster, 10)
    cluster.recover(again)
    assert cluster.dataset().epoch == 0
    assert cluster.dataset().unproven == []
