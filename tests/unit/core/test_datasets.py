"""Datasets: versions, epochs, who may read which shard, and what the epoch has consumed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.core.effects import Assignments, DatasetInfo, Done, EpochNow, LedgerNow, Registered
from strata.core.events import (
    AssignmentsRequested,
    BatchesReported,
    DatasetRemoveRequested,
    DrainRequested,
    EpochAdvanceRequested,
    Position,
    ProgressReported,
    RevocationAcknowledged,
    RollBackRequested,
)
from strata.core.progress import remaining
from strata.core.records import EpochAdvanced, ProgressMade, ShardsReissued
from strata.core.state import Proof
from strata.errors import Conflict, InvalidInput, NotFound, Refused, StaleGeneration
from tests.unit.core.cluster import JOB, Cluster

ALL = list(range(10))


def assigned(cluster: Cluster, who: Registered, dataset: str = "images") -> Assignments:
    answer: Assignments = cluster.from_worker(AssignmentsRequested, who, dataset=dataset)
    return answer


def report(cluster: Cluster, who: Registered, cursors: dict[int, int], **more: Any) -> Any:
    fields = {"dataset": "images", "version": 1, "epoch": 0, "point": cluster.job.points, "cursors": cursors} | more
    return cluster.from_worker(ProgressReported, who, **fields)


def give_up(cluster: Cluster, who: Registered, shards: list[int], cursors: dict[int, int] | None = None) -> Any:
    return cluster.from_worker(
        RevocationAcknowledged,
        who,
        dataset="images",
        version=1,
        epoch=0,
        point=cluster.job.points,
        generation=cluster.generation,
        shards=shards,
        cursors=cursors or {},
    )


def complete(cluster: Cluster, who: Registered, through: int, **more: Any) -> Any:
    world = {"generation": cluster.generation, "point": cluster.job.points}
    fields = {"dataset": "texts", "version": 1, "epoch": 0, "through": through} | world | more
    return cluster.from_worker(BatchesReported, who, **fields)


def advance(cluster: Cluster, from_epoch: int, **more: Any) -> Any:
    return cluster.send(EpochAdvanceRequested(JOB, "images", from_epoch, **more))


def affinity_world(size: int, **dataset: Any) -> tuple[Cluster, list[Registered]]:
    cluster = Cluster()
    workers = cluster.world(size)
    cluster.add_dataset(**dataset)
    return cluster, workers


# -- versions --------------------------------------------------------------------------------------------------------


def test_registering_an_equal_dataset_is_a_success_and_changes_nothing() -> None:
    cluster = Cluster()
    assert cluster.add_dataset(seed=7) == DatasetInfo("images", 1, 0)
    before = cluster.machine.snapshot()
    assert cluster.add_dataset(seed=7) == DatasetInfo("images", 1, 0)
    assert cluster.machine.snapshot() == before


@pytest.mark.parametrize(
    ("field", "was", "now"),
    [
        ("total_samples", 100, 101),
        ("shard_size", 10, 20),
        ("shuffle", False, True),
        ("seed", 0, 1),
        ("path", "/data", "/elsewhere"),
        ("format", "parquet", "csv"),
        ("strategy", "slots-v1", "ring-v1"),
        ("order", "affinity", "elastic"),
    ],
)
def test_registering_a_different_dataset_is_a_conflict_that_names_the_difference(
    field: str, was: object, now: object
) -> None:
    cluster = Cluster()
    first: dict[str, Any] = {"path": "/data", "format": "parquet", field: was}
    cluster.add_dataset(**first)
    before = cluster.machine.snapshot()
    with pytest.raises(
        Conflict, match=rf"version 1 and differs: {field} was {was!r}, is {now!r}\. .*replaces version 1"
    ):
        cluster.add_dataset(**first | {field: now})
    assert cluster.machine.snapshot() == before


def test_a_conflict_tells_nothing_that_is_secret_in_a_path() -> None:
    cluster = Cluster()
    cluster.add_dataset(path="s3://key:secret@bucket/a")
    with pytest.raises(Conflict, match=r"path was 's3://\*\*\*@bucket/a', is 'https://host/b\?\*\*\*'"):
        cluster.add_dataset(path="https://host/b?sig=secret")
    cluster.add_dataset(path="https://host/b?sig=secret", replaces=1)
    record: Any = cluster.records[-1]
    assert "secret" not in record.reason


def test_columns_are_kept_as_whoever_registered_found_them() -> None:
    cluster = Cluster()
    cluster.add_dataset(columns='{"id": "int64"}')
    cluster.add_dataset(columns="")
    assert cluster.dataset().columns == '{"id": "int64"}'


def test_a_new_version_starts_at_epoch_0_with_nothing_consumed() -> None:
    cluster, (w0,) = affinity_world(1)
    report(cluster, w0, {0: 10})
    advance(cluster, 0)
    assert cluster.add_dataset(total_samples=200, replaces=1) == DatasetInfo("images", 2, 0)
    assert assigned(cluster, w0) == Assignments(2, 0, 1, 0, list(range(20)), [], [], {})


def test_an_equal_new_version_is_the_version_in_force() -> None:
    cluster = Cluster()
    cluster.add_dataset()
    cluster.add_dataset(total_samples=200, replaces=1)
    assert cluster.add_dataset(total_samples=200, replaces=1) == DatasetInfo("images", 2, 0)


def test_a_report_about_another_version_is_refused() -> None:
    cluster, (w0,) = affinity_world(1)
    cluster.add_dataset(total_samples=200, replaces=1)
    with pytest.raises(Refused, match="'images' is at version 2 now, the report is about version 1"):
        report(cluster, w0, {0: 10}, version=1)


def test_a_removed_dataset_is_gone_and_removing_it_again_is_a_success() -> None:
    cluster, (w0,) = affinity_world(1)
    for _ in range(2):
        assert cluster.send(DatasetRemoveRequested(JOB, "images")) == Done()
    with pytest.raises(NotFound, match="no dataset 'images' in job 'llm'; registered: none"):
        assigned(cluster, w0)


def test_a_dataset_that_never_was_cannot_be_removed() -> None:
    cluster, _ = affinity_world(1)
    with pytest.raises(NotFound, match="no dataset 'imagse' in job 'llm'; registered: images"):
        cluster.send(DatasetRemoveRequested(JOB, "imagse"))


def test_a_dataset_registered_again_after_its_removal_is_a_new_version() -> None:
    cluster = Cluster()
    cluster.add_dataset()
    cluster.send(DatasetRemoveRequested(JOB, "images"))
    cluster.restart()
    assert cluster.add_dataset() == DatasetInfo("images", 2, 0)


# -- epochs ----------------------------------------------------------------------------------------------------------


def test_an_epoch_advances_once_however_many_ask() -> None:
    cluster, _ = affinity_world(3)
    assert [advance(cluster, 0, asked_by=f"w{rank}") for rank in range(3)] == [EpochNow(1)] * 3
    assert len(cluster.recorded(EpochAdvanced)) == 1


def test_an_epoch_cannot_advance_from_one_that_has_not_begun() -> None:
    cluster, _ = affinity_world(1)
    with pytest.raises(Refused, match="is in epoch 0: it cannot advance from epoch 1"):
        advance(cluster, 1)


def test_an_advance_from_before_a_rollback_is_stale() -> None:
    cluster, (w0, _) = affinity_world(2)
    before = cluster.job.points
    cluster.recover(w0)
    with pytest.raises(StaleGeneration, match=f"recovery point {before}, but the job was rolled back") as refusal:
        advance(cluster, 0, point=before)
    assert refusal.value.generation == cluster.generation
    assert advance(cluster, 0, point=cluster.job.points) == EpochNow(1)


def test_a_late_repeat_of_a_new_version_does_not_bring_it_back() -> None:
    cluster = Cluster()
    cluster.add_dataset()
    cluster.add_dataset(total_samples=200, replaces=1)
    cluster.add_dataset(total_samples=300, replaces=2)
    with pytest.raises(Conflict, match="version 3"):
        cluster.add_dataset(total_samples=200, replaces=1)


def test_the_proofs_of_a_version_outlive_it() -> None:
    cluster = Cluster()
    cluster.add_dataset()
    advance(cluster, 0)
    cluster.add_dataset(total_samples=200, replaces=1)
    assert [(proof.version, proof.epoch) for proof in cluster.dataset().proofs] == [(1, 0)]


def test_removing_a_version_that_was_replaced_removes_nothing() -> None:
    cluster = Cluster()
    cluster.add_dataset()
    cluster.add_dataset(total_samples=200, replaces=1)
    with pytest.raises(Refused, match="at version 2 now, not 1"):
        cluster.send(DatasetRemoveRequested(JOB, "images", version=1))


def test_batches_from_before_a_rollback_are_void() -> None:
    cluster, (w0, w1) = affinity_world(2)
    cluster.add_dataset("texts", order="elastic")
    before = cluster.job.points
    complete(cluster, w0, 50)
    complete(cluster, w1, 50)
    cluster.recover(w0)
    with pytest.raises(StaleGeneration, match="rolled back"):
        complete(cluster, w0, 50, point=before)
    assert cluster.dataset("texts").consumed.count == 0


def test_a_late_acknowledgement_does_not_give_up_a_shard_that_was_granted_again() -> None:
    cluster = Cluster()
    (w0,) = cluster.open_world(1)
    cluster.add_dataset()
    w1 = cluster.register("w1")
    taken = assigned(cluster, w0).revoked
    asked_in = cluster.generation
    cluster.leave(w1)
    assert assigned(cluster, w0).granted == ALL
    w2 = cluster.register("w2")
    assert assigned(cluster, w0).revoked == taken
    late = {"dataset": "images", "version": 1, "epoch": 0, "point": cluster.job.points, "generation": asked_in}
    cluster.from_worker(RevocationAcknowledged, w0, **late, shards=taken, cursors={})
    assert assigned(cluster, w2).granted == []
    give_up(cluster, w0, taken)
    assert assigned(cluster, w2).granted == taken


def test_who_only_awaited_a_shard_has_nothing_to_give_up() -> None:
    cluster = Cluster()
    (w0,) = cluster.open_world(1)
    cluster.add_dataset()
    w1 = cluster.register("w1")
    cluster.send(DrainRequested(JOB, "w1"))
    assert assigned(cluster, w1).revoked == []
    assert assigned(cluster, w0).granted == ALL


def test_what_was_read_beyond_a_cursor_is_told_after_a_rollback() -> None:
    cluster, (w0, w1) = affinity_world(2)
    parts = {"w0": {"images": Position(1, 0, [30, 32])}, "w1": {"images": Position(1, 0, [33, 35])}}
    cluster.save([w0, w1], step=1, positions=parts)
    cluster.recover(w0)
    holder = w0 if 3 in assigned(cluster, w0).granted else w1
    answer = assigned(cluster, holder)
    assert answer.cursors[3] == 2
    assert answer.beyond == {3: [3, 5]}


def test_an_advance_before_the_end_says_how_much_was_not_consumed() -> None:
    cluster, (w0,) = affinity_world(1)
    report(cluster, w0, {0: 10, 1: 5})
    advance(cluster, 0, asked_by="the trainer")
    assert cluster.recorded(EpochAdvanced)[0].reason == "the trainer asked; 85 samples not reported as consumed"
    assert cluster.dataset().proofs == [Proof(1, 0, 100, 15, 0)]


def test_an_epoch_advances_by_itself_when_it_is_consumed_and_leaves_its_proof() -> None:
    cluster, (w0, w1) = affinity_world(2)
    for who in (w0, w1):
        assert cluster.dataset().epoch == 0
        report(cluster, who, dict.fromkeys(assigned(cluster, who).granted, 10))
    assert cluster.recorded(EpochAdvanced)[0].reason == "all 100 samples are consumed"
    assert cluster.dataset().epoch == 1
    assert cluster.dataset().consumed.count == 0
    assert cluster.dataset().proofs == [Proof(1, 0, total=100, consumed=100, reissued=0)]


def test_the_last_shard_may_be_shorter() -> None:
    cluster, (w0,) = affinity_world(1, total_samples=95)
    report(cluster, w0, dict.fromkeys(range(9), 10) | {9: 5})
    assert cluster.dataset().proofs == [Proof(1, 0, total=95, consumed=95, reissued=0)]


def test_a_late_report_about_a_finished_epoch_is_accepted_and_changes_nothing() -> None:
    cluster, (w0,) = affinity_world(1)
    report(cluster, w0, dict.fromkeys(ALL, 10))
    before = cluster.machine.snapshot()
    assert report(cluster, w0, dict.fromkeys(ALL, 10)) == Done()
    assert cluster.machine.snapshot() == before


def test_a_report_about_an_epoch_to_come_is_refused() -> None:
    cluster, (w0,) = affinity_world(1)
    with pytest.raises(Refused, match="is in epoch 0, the report is about epoch 1"):
        report(cluster, w0, {0: 10}, epoch=1)


# -- progress --------------------------------------------------------------------------------------------------------


def test_cursors_are_idempotent_and_only_grow() -> None:
    cluster, (w0,) = affinity_world(1)
    for cursor, consumed in [(4, 4), (4, 4), (2, 4), (0, 4), (9, 9), (4, 9)]:
        assert report(cluster, w0, {3: cursor}) == Done()
        assert cluster.dataset().consumed.count == consumed
    assert [made.consumed for made in cluster.recorded(ProgressMade)] == [[30, 34], [34, 39]]


def test_the_ledger_stays_compact() -> None:
    cluster, (w0,) = affinity_world(1)
    for cursor in range(1, 11):
        report(cluster, w0, dict.fromkeys(range(9), cursor))
    assert cluster.dataset().consumed.to_flat() == [0, 90]


def test_cursors_tell_where_to_go_on() -> None:
    cluster, (w0,) = affinity_world(1)
    report(cluster, w0, {3: 4, 5: 10})
    assert assigned(cluster, w0).cursors == {3: 4, 5: 10}


def test_what_remains_is_what_nobody_reported() -> None:
    cluster, (w0,) = affinity_world(1)
    report(cluster, w0, {3: 4, 5: 10})
    assert remaining(cluster.dataset(), [3, 4, 5]) == [(34, 40), (40, 50)]


def test_a_report_about_a_shard_held_by_another_is_refused_as_a_whole() -> None:
    cluster, (w0, w1) = affinity_world(2)
    mine, theirs = assigned(cluster, w0).granted[0], assigned(cluster, w1).granted[0]
    before = cluster.machine.snapshot()
    with pytest.raises(Refused, match=f"'w0' reports shard {theirs} of 'images', which w1 holds"):
        report(cluster, w0, {mine: 5, theirs: 5})
    assert cluster.machine.snapshot() == before


def test_cursors_and_batches_each_have_their_order() -> None:
    cluster, (w0,) = affinity_world(1)
    cluster.add_dataset("texts", order="elastic")
    with pytest.raises(Refused, match="'texts' is read in the elastic order: report completed batches"):
        report(cluster, w0, {0: 1}, dataset="texts")
    with pytest.raises(Refused, match="'images' is read in the affinity order: report cursors"):
        complete(cluster, w0, 10, dataset="images")


# -- the elastic order -----------------------------------------------------------------------------------------------


def elastic_world(size: int) -> tuple[Cluster, list[Registered]]:
    cluster = Cluster()
    workers = cluster.world(size)
    cluster.add_dataset("texts", order="elastic")
    return cluster, workers


def test_batches_count_once_when_every_rank_has_completed_them() -> None:
    cluster, (w0, w1, w2) = elastic_world(3)
    said = [(w0, 32, 0), (w0, 64, 0), (w1, 32, 0), (w2, 48, 32), (w1, 32, 32), (w1, 80, 48), (w0, 32, 48), (w2, 90, 64)]
    for who, through, consumed in said:
        assert complete(cluster, who, through).epoch == 0
        assert cluster.dataset("texts").consumed.count == consumed
    assert len(cluster.recorded(ProgressMade)) == 3


def test_who_is_lost_is_not_waited_for_in_what_the_others_completed() -> None:
    cluster = Cluster(recovery="carry_on")
    w0, w1, w2 = cluster.open_world(3)
    cluster.add_dataset("texts", order="elastic")
    complete(cluster, w0, 64)
    complete(cluster, w1, 48)
    complete(cluster, w2, 32)
    cluster.expire(w2)
    assert cluster.dataset("texts").consumed.to_flat() == [0, 48]
    complete(cluster, w1, 64)  # all begin again at 48, and who was ahead is not any more
    assert cluster.dataset("texts").consumed.to_flat() == [0, 48]
    complete(cluster, w0, 64)
    assert cluster.dataset("texts").consumed.to_flat() == [0, 64]


def test_when_all_leave_behind_a_step_that_all_completed_it_counts_in_whatever_order_they_say_so() -> None:
    for says_last in range(4):
        cluster, workers = elastic_world(4)
        for who in workers:
            complete(cluster, who, 32)
        last = workers.pop(says_last)
        for who in workers:
            complete(cluster, who, 48)
        cluster.leave(workers[0])
        complete(cluster, last, 48)
        for who in (last, *workers[1:]):
            cluster.leave(who)
        assert cluster.dataset("texts").consumed.to_flat() == [0, 48]


def test_who_was_behind_the_one_that_left_is_still_waited_for() -> None:
    cluster, (w0, w1, w2) = elastic_world(3)
    for who, through in ((w0, 64), (w1, 48), (w2, 32)):
        complete(cluster, who, through)
    cluster.leave(w0)
    assert cluster.dataset("texts").consumed.to_flat() == [0, 32]
    complete(cluster, w2, 64)
    assert cluster.dataset("texts").consumed.to_flat() == [0, 48]
    complete(cluster, w1, 64)
    assert cluster.dataset("texts").consumed.to_flat() == [0, 64]


def test_who_joins_has_completed_nothing_yet() -> None:
    cluster = Cluster(recovery="carry_on")
    w0, w1 = cluster.open_world(2)
    cluster.add_dataset("texts", order="elastic")
    for who in (w0, w1):
        complete(cluster, who, 32)
    newcomer = cluster.register("w2")
    for who in (w0, w1):
        complete(cluster, who, 64)
    assert cluster.dataset("texts").consumed.to_flat() == [0, 32]
    complete(cluster, newcomer, 48)
    assert cluster.dataset("texts").consumed.to_flat() == [0, 48]


def test_who_joins_takes_up_where_the_others_are_when_all_have_said_it() -> None:
    cluster = Cluster(recovery="carry_on")
    w0, w1 = cluster.open_world(2)
    cluster.add_dataset("texts", order="elastic")
    for who in (w0, w1):
        complete(cluster, who, 32)
    newcomer = cluster.register("w2")
    assert complete(cluster, newcomer, 0, joins=True) == LedgerNow(0, absent=2, consumed=32)
    assert complete(cluster, w0, 64) == LedgerNow(0, absent=1, consumed=32)
    assert cluster.dataset("texts").consumed.to_flat() == [0, 32]
    assert complete(cluster, w1, 48) == LedgerNow(0, absent=0, consumed=48)
    assert cluster.dataset("texts").consumed.to_flat() == [0, 48]
    assert complete(cluster, newcomer, 0, joins=True) == LedgerNow(0, absent=0, consumed=48)
    for who in (w0, w1):
        complete(cluster, who, 80)
    assert cluster.dataset("texts").consumed.to_flat() == [0, 48]  # it has not read what is behind that
    complete(cluster, newcomer, 64)
    assert cluster.dataset("texts").consumed.to_flat() == [0, 64]


def test_a_rank_that_nobody_has_come_to_is_waited_for() -> None:
    cluster = Cluster()
    w0 = cluster.register("w0", rank=0, world_size=2)
    cluster.add_dataset("texts", order="elastic")
    complete(cluster, w0, 100, over=True)
    assert cluster.dataset("texts").consumed.count == 0


def test_a_coordinator_that_was_restarted_hears_again_how_far_all_are() -> None:
    cluster, (w0, w1) = elastic_world(2)
    complete(cluster, w0, 32)
    cluster.restart()
    complete(cluster, w1, 32)
    assert cluster.dataset("texts").consumed.count == 0
    complete(cluster, w0, 64)
    assert cluster.dataset("texts").consumed.to_flat() == [0, 32]


def test_an_epoch_whose_tail_is_dropped_is_over_when_all_say_so() -> None:
    cluster, (w0, w1) = elastic_world(2)
    assert complete(cluster, w0, 96, over=True) == LedgerNow(0, absent=1)
    complete(cluster, w1, 96)
    assert cluster.dataset("texts").consumed.to_flat() == [0, 96]
    assert complete(cluster, w1, 96, over=True) == LedgerNow(1)
    assert complete(cluster, w0, 96, over=True) == LedgerNow(1)  # which comes late, and again
    assert cluster.dataset("texts").proofs == [Proof(1, 0, total=100, consumed=96, reissued=0)]
    assert (cluster.dataset("texts").epoch, cluster.dataset("texts").consumed.count) == (1, 0)
    complete(cluster, w0, 32, epoch=1)
    assert cluster.dataset("texts").consumed.count == 0


def test_the_proof_of_an_epoch_says_how_it_was_read() -> None:
    cluster, (w0, w1) = elastic_world(2)
    for who in (w0, w1):
        complete(cluster, who, 96, over=True, reading="tail=drop")
    assert cluster.dataset("texts").proofs == [Proof(1, 0, 100, 96, 0, "tail=drop")]


def test_what_ranks_left_out_is_counted_with_the_batches_that_lack_it() -> None:
    cluster, (w0, w1) = elastic_world(2)
    complete(cluster, w0, 64, left_out={32: 3, 64: 5})
    assert cluster.dataset("texts").left_out == 0
    complete(cluster, w1, 32, left_out={32: 1})
    assert cluster.dataset("texts").left_out == 4, "w0 is ahead: the others have not been through its second batch"
    complete(cluster, w0, 96, left_out={32: 3, 64: 5})  # which is counted already, in part
    complete(cluster, w1, 96)
    assert cluster.dataset("texts").left_out == 9
    for who in (w0, w1):
        complete(cluster, who, 100, left_out={100: 2})
    assert cluster.dataset("texts").proofs == [Proof(1, 0, total=100, consumed=100, reissued=0, left_out=13)]
    assert cluster.dataset("texts").left_out == 0, "another epoch has begun"


def test_an_older_report_that_comes_late_takes_nothing_back() -> None:
    cluster, (w0, w1) = elastic_world(2)
    complete(cluster, w0, 64, left_out={32: 3, 64: 5})
    complete(cluster, w0, 32, left_out={32: 3})
    complete(cluster, w1, 64)
    assert cluster.dataset("texts").left_out == 8


def test_what_was_left_out_is_counted_once_by_a_coordinator_that_was_restarted() -> None:
    cluster, (w0, w1) = elastic_world(2)
    complete(cluster, w0, 64, left_out={32: 3, 64: 5})
    complete(cluster, w1, 32)
    cluster.restart()
    assert cluster.dataset("texts").left_out == 3
    complete(cluster, w0, 64, left_out={32: 3, 64: 5})
    complete(cluster, w1, 64)
    assert cluster.dataset("texts").left_out == 8


def test_what_a_lost_rank_left_out_of_completed_batches_is_counted() -> None:
    cluster = Cluster(recovery="carry_on")
    w0, w1 = cluster.open_world(2)
    cluster.add_dataset("texts", order="elastic")
    complete(cluster, w0, 64)
    complete(cluster, w1, 32, left_out={32: 7})
    assert cluster.dataset("texts").left_out == 7
    complete(cluster, w1, 64, left_out={64: 1})
    complete(cluster, w0, 96, left_out={96: 2})
    cluster.expire(w1)
    assert cluster.dataset("texts").consumed.to_flat() == [0, 96]
    assert cluster.dataset("texts").left_out == 10


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        ({0: 1}, "a key of left_out must be between 1 and 64, not 0"),
        ({65: 1}, "a key of left_out must be between 1 and 64, not 65"),
        ({64: 0}, r"left_out\[64\] must be between 1 and 64, not 0"),
        ({64: 65}, r"left_out\[64\] must be between 1 and 64, not 65"),
    ],
)
def test_counts_that_no_batch_can_have_are_refused(left_out: dict[int, int], message: str) -> None:
    cluster, (w0, _) = elastic_world(2)
    with pytest.raises(InvalidInput, match=message):
        complete(cluster, w0, 64, left_out=left_out)


def test_a_report_names_so_many_batches_and_no_more() -> None:
    cluster, (w0, _) = elastic_world(2)
    with pytest.raises(InvalidInput, match="left_out names 4097 batches; at most 4096"):
        complete(cluster, w0, 64, left_out=dict.fromkeys(range(1, 4098), 1))


def test_a_checkpoint_knows_how_much_was_left_out_and_a_recovery_goes_back_to_that() -> None:
    cluster, workers = elastic_world(2)
    positions = {f"w{rank}": {"texts": Position(1, 0, [0, 32], left_out=1 + rank)} for rank in range(2)}
    cluster.save(workers, step=1, positions=positions)
    for who in workers:
        complete(cluster, who, 64, left_out={32: 2, 64: 5})
    assert cluster.dataset("texts").left_out == 14
    cluster.recover(workers[0])
    assert (cluster.dataset("texts").consumed.to_flat(), cluster.dataset("texts").left_out) == ([0, 32], 3)


def test_a_checkpoint_behind_a_loss_counts_what_the_lost_rank_had_left_out() -> None:
    cluster = Cluster(recovery="carry_on")
    w0, w1 = cluster.open_world(2)
    cluster.add_dataset("texts", order="elastic")
    for who, samples in ((w0, 3), (w1, 5)):
        complete(cluster, who, 32, left_out={32: samples})
    cluster.expire(w0)
    cluster.save([w1], step=1, positions={"w1": {"texts": Position(1, 0, [0, 32], left_out=5)}})
    cluster.expire(w1)
    again = cluster.register("w1", previous=w1.incarnation)
    cluster.recover(again)
    assert (cluster.dataset("texts").consumed.to_flat(), cluster.dataset("texts").left_out) == ([0, 32], 8)


def test_more_left_out_than_is_consumed_is_refused() -> None:
    cluster, workers = elastic_world(2)
    cluster.begin(workers[0], step=1)
    with pytest.raises(InvalidInput, match="left_out of the position in dataset 'texts' must be between 0 and 32"):
        cluster.ack(workers[0], 1, positions={"texts": Position(1, 0, [0, 32], left_out=33)})


def test_batches_of_another_generation_are_stale() -> None:
    cluster, (w0, w1) = elastic_world(2)
    stale = cluster.generation
    cluster.leave(w1)
    with pytest.raises(StaleGeneration, match=f"batches of generation {stale}") as refusal:
        complete(cluster, w0, 32, generation=stale)
    assert refusal.value.generation == cluster.generation
    assert cluster.dataset("texts").consumed.count == 0


def test_an_elastic_epoch_advances_by_itself() -> None:
    cluster, (w0, w1) = elastic_world(2)
    for who in (w0, w1):
        complete(cluster, who, 64)
        complete(cluster, who, 100)
    assert cluster.dataset("texts").proofs == [Proof(1, 0, total=100, consumed=100, reissued=0)]
    assert cluster.dataset("texts").epoch == 1


def test_nothing_is_reissued_in_the_elastic_order() -> None:
    cluster, (w0, w1) = elastic_world(2)
    complete(cluster, w0, 32)
    cluster.leave(w1)
    assert cluster.dataset("texts").held == {}
    assert cluster.recorded(ShardsReissued) == []


# -- handing over ----------------------------------------------------------------------------------------------------


def test_a_declared_world_divides_over_declared_ranks_before_they_join() -> None:
    cluster = Cluster()
    cluster.add_dataset()
    early = [assigned(cluster, who).granted for who in cluster.world(3)]
    late = [assigned(cluster, who).granted for who in cluster.world(3)]
    first = Cluster()
    first.add_dataset()
    alone = assigned(first, first.register("w0", rank=0, world_size=3)).granted
    assert early == late
    assert alone == early[0]
    assert sorted(shard for shards in early for shard in shards) == ALL


@pytest.mark.parametrize("strategy", ["slots-v1", "ring-v1"])
def test_the_shards_of_a_newcomer_are_granted_when_their_holders_gave_them_up(strategy: str) -> None:
    cluster = Cluster()
    w0, w1 = cluster.open_world(2)
    cluster.add_dataset(strategy=strategy)
    before = {who.worker: assigned(cluster, who).granted for who in (w0, w1)}
    newcomer = cluster.register("w2")
    awaited = assigned(cluster, newcomer).awaited
    assert awaited
    assert assigned(cluster, newcomer).granted == []
    for who in (w0, w1):
        moving = assigned(cluster, who).revoked
        assert set(moving) <= set(before[who.worker]) & set(awaited)
        give_up(cluster, who, moving)
        assert assigned(cluster, who).revoked == []
        assert set(moving) <= set(assigned(cluster, newcomer).granted)
    assert assigned(cluster, newcomer) == Assignments(1, 0, cluster.generation, 0, awaited, [], [], {})


def pending_handover() -> tuple[Cluster, list[Registered], list[int]]:
    """w0 must give these shards to w1, which has just joined."""
    cluster = Cluster()
    w0 = cluster.register("w0")
    cluster.add_dataset()
    w1 = cluster.register("w1")
    return cluster, [w0, w1], assigned(cluster, w0).revoked


def test_a_revoked_shard_is_handed_over_with_its_cursor() -> None:
    cluster, (w0, w1), moving = pending_handover()
    give_up(cluster, w0, moving, {moving[0]: 7})
    assert assigned(cluster, w1).granted == moving
    assert assigned(cluster, w1).cursors == {moving[0]: 7}


def test_the_holder_may_report_on_a_revoked_shard_until_it_gives_it_up() -> None:
    cluster, (w0, w1), (shard, *_) = pending_handover()
    report(cluster, w0, {shard: 3})
    with pytest.raises(Refused, match=f"'w1' reports shard {shard} of 'images', which w0 holds"):
        report(cluster, w1, {shard: 5})
    give_up(cluster, w0, [shard])
    report(cluster, w1, {shard: 5})
    with pytest.raises(Refused, match=f"'w0' reports shard {shard} of 'images', which w1 holds"):
        report(cluster, w0, {shard: 9})
    assert cluster.dataset().consumed.count == 5


def test_giving_up_twice_is_giving_up_once() -> None:
    cluster, (w0, w1), moving = pending_handover()
    give_up(cluster, w0, moving, {moving[0]: 7})
    report(cluster, w1, {moving[0]: 9})
    before = cluster.machine.snapshot()
    assert give_up(cluster, w0, moving, {moving[0]: 7}) == Done()
    assert cluster.machine.snapshot() == before


def test_what_a_worker_does_not_hold_it_cannot_give_up() -> None:
    cluster, (_, w1), moving = pending_handover()
    assert give_up(cluster, w1, moving, {moving[0]: 7}) == Done()
    assert cluster.dataset().consumed.count == 0
    assert assigned(cluster, w1).granted == []


def test_a_cursor_for_a_shard_that_is_not_given_up_is_refused() -> None:
    cluster, (w0, _), moving = pending_handover()
    with pytest.raises(Refused, match=rf"'w0' gives a cursor for shards \[{moving[1]}\] that it does not give up"):
        give_up(cluster, w0, moving[:1], {moving[1]: 3})


def test_a_finished_shard_is_not_revoked() -> None:
    cluster = Cluster()
    w0 = cluster.register("w0")
    cluster.add_dataset()
    report(cluster, w0, dict.fromkeys(range(9), 10))
    w1 = cluster.register("w1")
    assert set(assigned(cluster, w0).revoked) <= {9}
    assert len(assigned(cluster, w1).granted) >= 4


def test_the_shards_of_a_fenced_holder_are_granted_at_once() -> None:
    cluster, (w0, w1), moving = pending_handover()
    cluster.expire(w0)
    assert assigned(cluster, w1) == Assignments(1, 0, cluster.generation, 0, ALL, [], [], {})
    assert set(moving) < set(ALL)


def test_a_handover_goes_on_after_a_restart() -> None:
    cluster, (w0, w1), moving = pending_handover()
    cluster.restart()
    assert assigned(cluster, w1).awaited == moving
    give_up(cluster, w0, moving)
    assert assigned(cluster, w1).granted == moving


def test_a_newcomer_that_goes_again_leaves_the_shards_where_they_were() -> None:
    cluster, (w0, w1), _ = pending_handover()
    cluster.leave(w1)
    assert assigned(cluster, w0) == Assignments(1, 0, cluster.generation, 0, ALL, [], [], {})


def test_the_next_epoch_ends_every_claim_of_the_one_before() -> None:
    cluster, (w0, w1), moving = pending_handover()
    advance(cluster, 0)
    assert assigned(cluster, w1).granted == moving
    assert assigned(cluster, w0).revoked == []
    assert give_up(cluster, w0, moving, {moving[0]: 7}) == Done()
    assert cluster.dataset().consumed.count == 0


def test_giving_up_the_last_samples_ends_the_epoch() -> None:
    cluster, (w0, w1), moving = pending_handover()
    report(cluster, w0, dict.fromkeys(assigned(cluster, w0).granted, 10))
    give_up(cluster, w0, moving, dict.fromkeys(moving, 10))
    assert cluster.dataset().epoch == 1
    assert assigned(cluster, w1).granted == moving


def test_a_draining_worker_hands_over_what_it_has() -> None:
    cluster, (w0, w1) = affinity_world(2)
    before = assigned(cluster, w0).granted
    cluster.send(DrainRequested(JOB, "w0"))
    assert assigned(cluster, w0).granted == []
    assert assigned(cluster, w0).revoked == before
    assert assigned(cluster, w1).awaited == before
    give_up(cluster, w0, before, {before[0]: 6})
    assert assigned(cluster, w1).granted == ALL
    assert assigned(cluster, w1).cursors == {before[0]: 6}
    cluster.leave(w0)
    assert cluster.recorded(ShardsReissued) == []


# -- reissues --------------------------------------------------------------------------------------------------------


def test_what_a_lost_worker_had_not_reported_is_reissued_and_counted() -> None:
    cluster, (w0, w1) = affinity_world(2)
    mine = assigned(cluster, w0).granted
    report(cluster, w0, {mine[0]: 10, mine[1]: 4})
    cluster.expire(w0)
    assert assigned(cluster, w1).granted == ALL
    assert assigned(cluster, w1).cursors == {mine[0]: 10, mine[1]: 4}
    (reissued,) = cluster.recorded(ShardsReissued)
    assert (reissued.worker, reissued.shards, reissued.samples) == ("w0", 4, 36)
    report(cluster, w1, dict.fromkeys(ALL, 10))
    assert cluster.dataset().proofs == [Proof(1, 0, total=100, consumed=100, reissued=36)]


def test_what_a_superseded_process_had_not_reported_is_counted_too() -> None:
    cluster, (w0, _) = affinity_world(2)
    mine = assigned(cluster, w0).granted
    report(cluster, w0, {mine[0]: 4})
    again = cluster.register("w0", rank=0, world_size=2)
    assert assigned(cluster, again).granted == mine
    assert assigned(cluster, again).cursors == {mine[0]: 4}
    assert cluster.dataset().reissued == 46


def test_shards_that_were_only_awaited_are_not_counted_as_reissued() -> None:
    cluster, (_, w1), _ = pending_handover()
    cluster.leave(w1)
    assert cluster.dataset().reissued == 0


def test_revoked_shards_of_a_lost_holder_are_counted_as_reissued() -> None:
    cluster, (w0, w1) = affinity_world(2)
    mine = assigned(cluster, w0).granted
    cluster.send(DrainRequested(JOB, "w0"))
    report(cluster, w0, {mine[0]: 4})
    cluster.expire(w0)
    assert assigned(cluster, w1).granted == ALL
    assert cluster.dataset().reissued == 46


# -- the law, under churn --------------------------------------------------------------------------------------------

CHURN = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "drain", "report", "give_up"]), st.integers(0, 5), st.integers(0, 10)),
    max_size=30,
)


@given(CHURN, st.sampled_from(["slots-v1", "ring-v1"]))
def test_a_shard_never_has_two_live_holders_and_none_is_forgotten(
    churn: list[tuple[str, int, int]], strategy: str
) -> None:
    cluster = Cluster()
    cluster.add_dataset(strategy=strategy)
    there: dict[str, Registered] = {}
    for what, number, cursor in churn:
        name = f"w{number}"
        if what == "join" and name not in there:
            there[name] = cluster.register(name)
        elif what == "leave" and name in there:
            cluster.leave(there.pop(name))
        elif what == "drain" and name in there:
            cluster.send(DrainRequested(JOB, name))
        elif what in ("report", "give_up") and name in there and cluster.dataset().epoch == 0:
            now = assigned(cluster, there[name])
            if what == "report":
                report(cluster, there[name], dict.fromkeys([*now.granted, *now.revoked], cursor))
            else:
                give_up(cluster, there[name], now.revoked, dict.fromkeys(now.revoked, cursor))
        held = [
            shard for who in there.values() for now in [assigned(cluster, who)] for shard in now.granted + now.revoked
        ]
        awaited = {shard for who in there.values() for shard in assigned(cluster, who).awaited}
        assert len(held) == len(set(held)), "two live workers may read the same shard"
        assert awaited <= set(held), "a shard is awaited that nobody can give up"
        unfinished = {shard for shard in ALL if remaining(cluster.dataset(), [shard])}
        assert unfinished <= set(held) or not cluster.job.world.view.slots, "a shard has no holder"
    cluster.replay()


def test_an_epoch_with_one_sample_left_is_not_over() -> None:
    cluster, (w0,) = affinity_world(1)
    report(cluster, w0, dict.fromkeys(ALL, 10) | {ALL[-1]: 9})
    assert cluster.dataset().epoch == 0
    report(cluster, w0, {ALL[-1]: 10})
    assert cluster.dataset().epoch == 1


def test_nothing_counts_between_a_rollback_and_the_recovery() -> None:
    cluster, workers = affinity_world(2)
    w0 = workers[0]
    cluster.save(workers, step=10)
    cluster.send(RollBackRequested(JOB, 10, cluster.generation))
    shard = assigned(cluster, w0).granted[0]
    with pytest.raises(StaleGeneration, match="rolled back"):
        report(cluster, w0, {shard: 5})
    with pytest.raises(StaleGeneration, match="rolled back"):
        advance(cluster, 0, point=cluster.job.points)
    assert cluster.dataset().consumed.count == 0


def test_a_save_holds_what_its_part_says_though_the_worker_reported_more() -> None:
    cluster, (w0,) = affinity_world(1)
    report(cluster, w0, {0: 9})
    cluster.save([w0], step=1, positions={"w0": {"images": Position(1, 0, [0, 5])}})
    cluster.recover(w0)
    assert cluster.dataset().consumed.to_flat() == [0, 5]


def test_an_acknowledgement_for_an_epoch_to_come_is_refused() -> None:
    cluster, (w0, _) = affinity_world(2)
    late = {"dataset": "images", "version": 1, "epoch": 1, "point": cluster.job.points, "generation": 99}
    with pytest.raises(Refused, match="is in epoch 0, the report is about epoch 1"):
        cluster.from_worker(RevocationAcknowledged, w0, **late, shards=[], cursors={})
