"""Checkpoints: commits, lineages, recovery, retention, and the errands that go with them."""

from typing import Any

import pytest

from strata.core.effects import (
    AbandonAttempt,
    Acknowledged,
    AnnounceCommit,
    Begun,
    Done,
    Errand,
    FinishFirst,
    LineageNow,
    RecoveryPoint,
    Registered,
    Skipped,
)
from strata.core.events import (
    BatchesReported,
    DamageReported,
    DrainRequested,
    FilesRemoved,
    ManifestPut,
    ManifestRemoved,
    PartFailed,
    PinRequested,
    Position,
    ProgressReported,
    RollBackRequested,
)
from strata.core.lineages import head
from strata.core.records import (
    CheckpointAbandoned,
    CheckpointBegun,
    CheckpointCommitted,
    CheckpointDecided,
    CheckpointDeleted,
    RecoveryPointSet,
)
from strata.core.settings import Policy
from strata.errors import Conflict, Expired, NotFound, Refused, StaleGeneration, Superseded
from tests.unit.core.cluster import JOB, Cluster

LEASE = Policy().lease_seconds
ATTEMPT = Policy().attempt_seconds


def statuses(cluster: Cluster) -> dict[int, str]:
    return {number: attempt.status for number, attempt in sorted(cluster.job.attempts.items())}


def committed_steps(cluster: Cluster) -> list[int]:
    return [attempt.step for _, attempt in sorted(cluster.job.attempts.items()) if attempt.usable]


def damage(cluster: Cluster, who: Registered, attempt: int) -> Any:
    return cluster.from_worker(DamageReported, who, attempt=attempt, reason="digest of layer.0.weight differs")


def roll_back(cluster: Cluster, step: int, generation: int | None = None) -> Any:
    return cluster.send(RollBackRequested(JOB, step, cluster.generation if generation is None else generation))


def pin(cluster: Cluster, attempt: int, name: str = "paper", pinned: bool = True) -> Any:
    return cluster.send(PinRequested(JOB, attempt, name, pinned))


def errands(cluster: Cluster, who: Registered) -> list[tuple[str, int]]:
    """What the next heartbeat asks this worker to do, and for which attempt."""
    return [(errand.kind, errand.attempt) for errand in cluster.heartbeat(who).errands]


# -- the way to a commit ---------------------------------------------------------------------------------------------


def test_a_step_is_committed_when_every_part_is_durable_and_the_manifest_is_put() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    assert cluster.begin(w0, step=10, epoch=1) == Begun(1, 0, 10, "open")
    assert cluster.begin(w1, step=10, epoch=1) == Begun(1, 0, 10, "open")
    assert cluster.ack(w1, 1) == Acknowledged(1, "open", put_manifest=False)
    assert statuses(cluster) == {1: "open"}
    assert cluster.ack(w0, 1) == Acknowledged(1, "decided", put_manifest=True)
    assert statuses(cluster) == {1: "decided"}
    assert committed_steps(cluster) == []
    assert cluster.put(w0, 1) == Done()
    assert cluster.effect(AnnounceCommit) == AnnounceCommit(JOB, 1, ("w0", "w1"))
    assert committed_steps(cluster) == [10]
    cluster.replay()


def test_an_attempt_says_in_which_term_and_generation_it_was_begun() -> None:
    cluster = Cluster()
    w0, _ = cluster.world(2)
    cluster.restart()
    cluster.begin(w0, step=10)
    (begun,) = cluster.recorded(CheckpointBegun)
    assert (begun.term, begun.generation) == (2, cluster.generation)
    assert begun.participants == {0: ("w0", 1), 1: ("w1", 2)}


def test_the_one_who_is_last_writes_no_manifest_unless_it_is_the_lowest() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    cluster.begin(w0, step=10)
    cluster.ack(w0, 1)
    assert cluster.ack(w1, 1) == Acknowledged(1, "decided", put_manifest=False)
    assert errands(cluster, w0) == [("put_manifest", 1)]
    assert errands(cluster, w1) == []


def test_every_event_on_the_way_may_be_repeated() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    for _ in range(2):
        for who in (w0, w1):
            cluster.begin(who, step=10)
    for _ in range(2):
        for who in (w1, w0):
            cluster.ack(who, 1)
    for _ in range(2):
        cluster.put(w0, 1)
    assert cluster.begin(w1, step=10) == Begun(1, 0, 10, "committed")
    assert cluster.ack(w1, 1) == Acknowledged(1, "committed", put_manifest=False)
    for kind in (CheckpointBegun, CheckpointDecided, CheckpointCommitted):
        assert len(cluster.recorded(kind)) == 1


def test_a_part_is_written_once() -> None:
    cluster = Cluster()
    w0, _ = cluster.world(2)
    cluster.begin(w0, step=10)
    cluster.ack(w0, 1, digest="xxh3-128:aa")
    with pytest.raises(Conflict, match=r"'w0'.*digest xxh3-128:aa and now says xxh3-128:bb"):
        cluster.ack(w0, 1, digest="xxh3-128:bb")
    with pytest.raises(Conflict):
        cluster.ack(w0, 1, digest="xxh3-128:aa", part_bytes=1)


def test_a_manifest_before_the_decision_is_refused_naming_the_ranks() -> None:
    cluster = Cluster()
    w0, w1, _ = cluster.world(3)
    cluster.begin(w0, step=10)
    cluster.ack(w1, 1)
    with pytest.raises(Refused, match=r"parts of ranks \[0, 2\] are not durable"):
        cluster.put(w0, 1)


def test_an_attempt_never_begun_is_not_known() -> None:
    cluster = Cluster()
    (w0,) = cluster.world(1)
    with pytest.raises(NotFound, match="no attempt 1"):
        cluster.ack(w0, 1)


def test_a_step_behind_the_latest_one_is_refused() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    cluster.save(workers, step=10)
    with pytest.raises(Refused, match="step 5 lies behind step 10, which lineage 0 has already"):
        cluster.begin(workers[0], step=5)


def test_a_save_from_another_generation_is_stale() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    stale = cluster.generation
    cluster.leave(w1)
    with pytest.raises(StaleGeneration) as refusal:
        cluster.begin(w0, step=10, generation=stale)
    assert refusal.value.generation == cluster.generation


def test_declared_ranks_take_part_before_they_join() -> None:
    cluster = Cluster()
    w0 = cluster.register("w0", rank=0, world_size=2)
    cluster.begin(w0, step=0)
    assert cluster.ack(w0, 1).status == "open"
    w1 = cluster.register("w1", rank=1, world_size=2)
    assert cluster.begin(w1, step=0).attempt == 1
    assert cluster.ack(w1, 1).status == "decided"


def test_a_draining_worker_still_takes_part() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    cluster.send(DrainRequested(JOB, "w1"))
    cluster.begin(w0, step=10)
    assert cluster.ack(w0, 1).status == "open"
    assert cluster.ack(w1, 1).status == "decided"


# -- zombies and losses ----------------------------------------------------------------------------------------------


def test_a_superseded_process_acknowledges_nothing() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    cluster.begin(w0, step=10)
    cluster.register("w1", rank=1, world_size=2)
    with pytest.raises(Superseded):
        cluster.ack(w1, 1)


def test_an_expired_process_acknowledges_nothing() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    cluster.begin(w0, step=10)
    cluster.expire(w1)
    with pytest.raises(Expired):
        cluster.ack(w1, 1)


def test_participants_are_processes_and_the_successor_of_one_is_another() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    cluster.begin(w0, step=10)
    cluster.ack(w1, 1)
    successor = cluster.register("w1", rank=1, world_size=2)
    with pytest.raises(Refused, match=r"'w1' \(rank 1, incarnation 3\) takes no part in attempt 1 at step 10"):
        cluster.ack(successor, 1)


def test_a_newcomer_takes_no_part() -> None:
    cluster = Cluster()
    (w0,) = cluster.open_world(1)
    cluster.begin(w0, step=10)
    newcomer = cluster.register("w1")
    with pytest.raises(Refused, match="participants were fixed before this process joined"):
        cluster.begin(newcomer, step=10)
    with pytest.raises(Refused, match="takes no part"):
        cluster.ack(newcomer, 1)
    assert cluster.ack(w0, 1).status == "decided"


def test_a_loss_before_the_acknowledgement_abandons_the_attempt_on_all_ranks() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    cluster.begin(w0, step=10)
    cluster.ack(w0, 1)
    cluster.leave(w1, reason="out of memory")
    abandoned = cluster.effect(AbandonAttempt)
    assert abandoned.workers == ("w0", "w1")
    assert abandoned.reason == "w1 was lost before its part was durable: out of memory"
    assert statuses(cluster) == {}
    with pytest.raises(Refused, match="attempt 1 of job 'llm' is over: it was abandoned or deleted"):
        cluster.ack(w0, 1)


def test_the_loss_of_one_who_joined_during_the_save_abandons_it_too() -> None:
    cluster = Cluster()
    w0 = cluster.register("w0", rank=0, world_size=2)
    cluster.begin(w0, step=0)
    w1 = cluster.register("w1", rank=1, world_size=2)
    cluster.begin(w1, step=0)
    cluster.leave(w1)
    assert cluster.effect(AbandonAttempt).attempt == 1


def test_a_loss_after_the_acknowledgement_undoes_nothing() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    cluster.begin(w0, step=10)
    cluster.ack(w1, 1)
    cluster.expire(w1)
    assert cluster.ack(w0, 1) == Acknowledged(1, "decided", put_manifest=True)
    cluster.put(w0, 1)
    assert committed_steps(cluster) == [10]


def test_nobody_saves_an_abandoned_step_again_before_a_recovery() -> None:
    cluster = Cluster()
    w0, w1, w2 = cluster.world(3)
    cluster.begin(w0, step=10)
    cluster.leave(w1)
    skipped = cluster.begin(w0, step=10)
    assert isinstance(skipped, Skipped)
    assert "attempt 1 was abandoned: w1 was lost" in skipped.reason
    assert cluster.begin(w2, step=10) == skipped
    cluster.recover(w0)
    assert cluster.begin(w0, step=10) == Begun(2, 0, 10, "open")


def test_whoever_a_save_waits_for_is_asked_for_its_part() -> None:
    cluster = Cluster()
    w0, w1 = cluster.open_world(2)
    cluster.begin(w0, step=10)
    newcomer = cluster.register("w2")
    cluster.ack(w0, 1)
    assert cluster.heartbeat(w1).errands == (Errand("save", 1, step=10),)
    assert errands(cluster, w0) == errands(cluster, newcomer) == []


def test_a_loss_between_decided_and_committed_gives_the_errand_to_the_next_participant() -> None:
    cluster = Cluster()
    workers = w0, w1, w2 = cluster.world(3)
    cluster.decide(workers, step=10)
    assert errands(cluster, w0) == [("put_manifest", 1)]
    cluster.leave(w0)
    assert errands(cluster, w1) == [("put_manifest", 1)]
    assert errands(cluster, w2) == []
    cluster.put(w1, 1)
    assert errands(cluster, w1) == []
    assert committed_steps(cluster) == [10]


def test_a_participant_puts_the_manifest_before_a_newcomer_of_a_lower_rank() -> None:
    cluster = Cluster()
    w0, w1, w2 = cluster.open_world(3)
    cluster.leave(w0)
    cluster.decide([w1, w2], step=10)
    newcomer = cluster.register("newcomer")
    assert newcomer.rank < w1.rank
    assert errands(cluster, newcomer) == []
    assert errands(cluster, w1) == [("put_manifest", 1)]


def test_a_decision_outlives_all_who_took_part() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    cluster.decide(workers, step=10)
    for who in workers:
        cluster.leave(who)
    cluster.restart()
    newcomer = cluster.register("spare", rank=1, world_size=2)
    assert errands(cluster, newcomer) == [("put_manifest", 1)]


def test_a_part_that_failed_abandons_the_attempt_on_all_ranks() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    cluster.begin(w0, step=10)
    cluster.ack(w0, 1)
    assert cluster.from_worker(PartFailed, w1, attempt=1, reason="disk full") == Done()
    assert cluster.effect(AbandonAttempt).reason == "w1 could not save its part: disk full"
    assert statuses(cluster) == {}


def test_a_late_failure_undoes_no_acknowledged_part() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    cluster.begin(w0, step=10)
    cluster.ack(w0, 1)
    cluster.from_worker(PartFailed, w0, attempt=1, reason="a duplicate from the queue")
    assert cluster.ack(w1, 1).status == "decided"
    cluster.from_worker(PartFailed, w1, attempt=1, reason="another")
    assert statuses(cluster) == {1: "decided"}


# -- overlapping saves and time --------------------------------------------------------------------------------------


def test_an_overlapping_save_is_skipped_on_every_rank() -> None:
    cluster = Cluster(saves="skip")
    w0, w1 = cluster.world(2)
    cluster.begin(w0, step=10)
    skipped = cluster.begin(w0, step=20)
    assert skipped == Skipped(20, "the save of step 10 (attempt 1) is still under way")
    for who in (w0, w1):
        cluster.ack(who, 1)
    cluster.put(w0, 1)
    assert cluster.begin(w1, step=20) == skipped
    assert cluster.begin(w1, step=30) == Begun(2, 0, 30, "open")


def test_a_skip_is_remembered_after_a_restart() -> None:
    cluster = Cluster(saves="skip")
    w0, w1 = cluster.world(2)
    cluster.begin(w0, step=10)
    skipped = cluster.begin(w0, step=20)
    cluster.restart()
    cluster.from_worker(PartFailed, w1, attempt=1, reason="disk full")
    assert cluster.begin(w1, step=20) == skipped


def test_a_late_begin_of_a_step_under_way_is_not_skipped() -> None:
    cluster = Cluster(saves="skip")
    w0, w1 = cluster.world(2)
    cluster.begin(w0, step=10)
    cluster.begin(w0, step=20)
    assert cluster.begin(w1, step=10) == Begun(1, 0, 10, "open")


def test_skips_do_not_pile_up() -> None:
    cluster = Cluster(saves="skip")
    workers = cluster.world(2)
    for step in range(10, 1000, 10):
        attempt = cluster.begin(workers[0], step=step).attempt
        cluster.begin(workers[0], step=step + 5)
        for who in workers:
            cluster.ack(who, attempt)
        cluster.put(workers[0], attempt)
    assert len(cluster.job.skipped) <= 1


def test_an_overlapping_save_waits_on_every_rank_where_the_job_says_so() -> None:
    cluster = Cluster(saves="wait")
    w0, w1 = cluster.world(2)
    cluster.begin(w0, step=10)
    for who in (w0, w1):
        with pytest.raises(Refused, match="step 20 cannot be saved yet: the save of step 10") as refusal:
            cluster.begin(who, step=20)
        assert refusal.value.retry
    for who in (w0, w1):
        cluster.ack(who, 1)
    assert cluster.begin(w0, step=20) == Begun(2, 0, 20, "open")


def test_a_save_that_takes_too_long_is_abandoned_naming_who_is_missing() -> None:
    cluster = Cluster(Policy(attempt_seconds=60.0))
    w0 = cluster.register("w0", rank=0, world_size=3)
    w1 = cluster.register("w1", rank=1, world_size=3)
    cluster.begin(w0, step=10)
    cluster.ack(w0, 1)
    cluster.pass_time(59.0, alive=[w0, w1])
    assert statuses(cluster) == {1: "open"}
    cluster.pass_time(1.0, alive=[w0, w1])
    assert cluster.effect(AbandonAttempt).reason == "timed out waiting for the parts of w1, rank 2"


def test_after_a_restart_a_save_has_its_full_time_again() -> None:
    cluster = Cluster(Policy(attempt_seconds=60.0))
    w0, _ = workers = cluster.world(2)
    cluster.begin(w0, step=10)
    cluster.pass_time(59.0, alive=workers)
    cluster.restart()
    cluster.pass_time(59.0, alive=workers)
    assert statuses(cluster) == {1: "open"}
    cluster.pass_time(3.0, alive=workers)
    assert statuses(cluster) == {}


def test_a_decided_attempt_is_never_timed_out() -> None:
    cluster = Cluster(Policy(attempt_seconds=10.0))
    workers = cluster.world(2)
    cluster.decide(workers, step=10)
    cluster.pass_time(100.0, alive=workers)
    assert statuses(cluster) == {1: "decided"}
    assert cluster.recorded(CheckpointAbandoned) == []


# -- recovery --------------------------------------------------------------------------------------------------------


def test_without_a_checkpoint_everybody_starts_at_the_beginning() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    point = cluster.recover(w0)
    assert (point.attempt, point.step, point.epoch, point.lineage) == (0, -1, 0, 0)
    assert cluster.recover(w1) == point


def test_everybody_in_a_generation_is_given_the_same_point() -> None:
    cluster = Cluster()
    workers = cluster.world(3)
    cluster.save(workers, step=10, epoch=2)
    expected = RecoveryPoint(3, 0, 1, 10, 2, "generation 3: w1 was the first to ask", (0, 1, 2), 1)
    assert [cluster.recover(workers[rank]) for rank in (1, 0, 2)] == [expected] * 3
    cluster.restart()
    assert cluster.recover(workers[0]) == expected
    assert len(cluster.recorded(RecoveryPointSet)) == 1


def test_an_open_attempt_is_no_recovery_point_and_is_abandoned() -> None:
    cluster = Cluster()
    w0, w1 = workers = cluster.world(2)
    cluster.save(workers, step=10)
    cluster.begin(w0, step=20)
    cluster.ack(w0, 2)
    assert cluster.recover(w1).step == 10
    assert statuses(cluster) == {1: "committed"}


def test_a_decided_attempt_is_finished_first() -> None:
    cluster = Cluster()
    workers = w0, w1 = cluster.world(2)
    attempt = cluster.decide(workers, step=10)
    for who in workers:
        assert cluster.recover(who) == FinishFirst(Errand("put_manifest", attempt, step=10))
    cluster.put(w1, attempt)
    assert cluster.recover(w0).step == 10


def test_an_incomplete_world_waits_for_its_ranks() -> None:
    cluster = Cluster()
    w0 = cluster.register("w0", rank=0, world_size=3)
    with pytest.raises(Refused, match="nobody is registered for ranks 1, 2") as refusal:
        cluster.recover(w0)
    assert refusal.value.retry
    cluster.register("w1", rank=1, world_size=3)
    with pytest.raises(Refused, match="nobody is registered for rank 2"):
        cluster.recover(w0)
    cluster.register("w2", rank=2, world_size=3)
    assert cluster.recover(w0).ranks == (0, 1, 2)


def test_the_survivors_recover_without_the_lost() -> None:
    cluster = Cluster()
    workers = w0, w1, w2 = cluster.world(3)
    cluster.save(workers, step=10)
    cluster.recover(w0)
    cluster.leave(w1)
    point = cluster.recover(w2)
    assert (point.step, point.ranks, point.generation) == (10, (0, 2), cluster.generation)
    assert cluster.recover(w0) == point


def test_asking_again_takes_everybody_back() -> None:
    cluster = Cluster()
    w0, w1 = workers = cluster.world(2)
    first = cluster.recover(w0)
    cluster.recover(w1)
    cluster.save(workers, step=10)
    again = cluster.recover(w0, generation=first.generation)
    assert again.generation == first.generation + 1
    assert again.step == 10
    assert cluster.recover(w1, generation=first.generation) == again


def test_a_retried_question_takes_nobody_back_twice() -> None:
    cluster = Cluster()
    w0, _ = cluster.world(2)
    first = cluster.recover(w0)
    again = cluster.recover(w0, generation=first.generation)
    assert cluster.recover(w0, generation=first.generation) == again
    assert cluster.generation == again.generation


def test_a_new_process_that_asks_twice_takes_nobody_back() -> None:
    cluster = Cluster()
    w0, _ = cluster.world(2)
    assert cluster.recover(w0) == cluster.recover(w0)


# -- damage ----------------------------------------------------------------------------------------------------------


def test_damage_of_the_recovery_point_yields_a_new_point_and_lineage_for_all() -> None:
    cluster = Cluster()
    workers = w0, w1 = cluster.world(2)
    cluster.save(workers, step=10)
    broken = cluster.save(workers, step=20)
    stale = cluster.recover(w0)
    assert stale.attempt == broken
    assert damage(cluster, w0, broken) == Done()
    assert cluster.heartbeat(w1).generation == stale.generation + 1
    point = cluster.recover(w1, generation=stale.generation)
    assert (point.step, point.attempt, point.lineage) == (10, 1, 1)
    assert cluster.recover(w0, generation=stale.generation) == point


def test_damage_found_twice_is_one_damage() -> None:
    cluster = Cluster()
    workers = w0, w1 = cluster.world(2)
    cluster.save(workers, step=10)
    cluster.recover(w0)
    damage(cluster, w0, 1)
    generation = cluster.generation
    damage(cluster, w1, 1)
    assert cluster.generation == generation


def test_damage_of_everything_leads_back_to_the_beginning() -> None:
    cluster = Cluster()
    workers = w0, w1 = cluster.world(2)
    for step in (10, 20):
        damage(cluster, w1, cluster.save(workers, step=step))
    point = cluster.recover(w0)
    assert (point.step, point.attempt, point.lineage) == (-1, 0, 1)
    assert cluster.begin(w0, step=10) == Begun(3, 1, 10, "open")


def test_damage_of_a_checkpoint_that_is_not_the_point_disturbs_nobody() -> None:
    cluster = Cluster()
    workers = w0, w1 = cluster.world(2)
    cluster.recover(w0)
    attempt = cluster.save(workers, step=10)
    generation = cluster.generation
    damage(cluster, w1, attempt)
    assert cluster.generation == generation
    assert cluster.begin(w0, step=20).attempt == 2


def test_an_open_attempt_cannot_be_damaged() -> None:
    cluster = Cluster()
    w0, _ = cluster.world(2)
    cluster.begin(w0, step=10)
    with pytest.raises(Refused, match="attempt 1 is still being written"):
        damage(cluster, w0, 1)


def test_the_step_of_a_damaged_checkpoint_is_not_begun_again_in_its_lineage() -> None:
    cluster = Cluster()
    workers = w0, w1 = cluster.world(2)
    damage(cluster, w0, cluster.save(workers, step=10))
    with pytest.raises(Refused):
        cluster.begin(w1, step=10)


# -- lineages --------------------------------------------------------------------------------------------------------


def test_rolling_back_starts_a_lineage_and_a_generation() -> None:
    cluster = Cluster()
    workers = w0, _ = cluster.world(2)
    for step in (10, 20, 30):
        cluster.save(workers, step=step)
    generation = cluster.generation
    assert roll_back(cluster, 10) == LineageNow(1, generation + 1, 10)
    point = cluster.recover(w0)
    assert (point.step, point.lineage, point.attempt) == (10, 1, 1)


def test_rolling_back_twice_is_rolling_back_once() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    cluster.save(workers, step=10)
    generation = cluster.generation
    answer = roll_back(cluster, 10, generation)
    before = cluster.machine.snapshot()
    assert roll_back(cluster, 10, generation) == answer
    assert cluster.machine.snapshot() == before


def test_rolling_back_from_another_generation_is_stale() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    cluster.save(workers, step=10)
    with pytest.raises(StaleGeneration, match="look again, then decide"):
        roll_back(cluster, 10, cluster.generation - 1)


def test_only_a_committed_step_can_be_rolled_back_to() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    cluster.save(workers, step=10)
    cluster.begin(workers[0], step=20)
    with pytest.raises(NotFound, match=r"no committed checkpoint of step 20 to roll back to; there are \[10\]"):
        roll_back(cluster, 20)


def test_rolling_back_waits_for_a_decided_checkpoint_and_abandons_an_open_one() -> None:
    cluster = Cluster(saves="skip")
    workers = w0, _ = cluster.world(2)
    cluster.save(workers, step=10)
    attempt = cluster.decide(workers, step=20)
    with pytest.raises(Refused, match="once it is committed") as refusal:
        roll_back(cluster, 10)
    assert refusal.value.retry
    cluster.put(w0, attempt)
    cluster.begin(w0, step=30)
    roll_back(cluster, 10)
    assert cluster.effect(AbandonAttempt).reason == "rolled back to step 10"


def test_the_latest_follows_the_lineage_and_not_the_largest_step() -> None:
    cluster = Cluster()
    workers = w0, w1 = cluster.world(2)
    for step in (10, 20, 30):
        cluster.save(workers, step=step)
    roll_back(cluster, 10)
    cluster.recover(w0)
    retrained = cluster.save(workers, step=20)
    cluster.leave(w1)
    point = cluster.recover(w0)
    assert (point.step, point.attempt, point.lineage) == (20, retrained, 1)


def test_a_step_occurs_once_in_each_lineage() -> None:
    cluster = Cluster()
    workers = w0, _ = cluster.world(2)
    for step in (10, 20):
        cluster.save(workers, step=step)
    for _ in range(3):
        roll_back(cluster, 10)
        cluster.recover(w0)
        cluster.save(workers, step=20)
    places = [(attempt.lineage, attempt.step) for attempt in cluster.job.attempts.values()]
    assert sorted(places) == [(0, 10), (0, 20), (1, 20), (2, 20), (3, 20)]


def test_what_a_lineage_left_behind_is_invisible_to_it() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    for step in (10, 20, 30):
        cluster.save(workers, step=step)
    roll_back(cluster, 10)
    for hidden in (20, 30):
        with pytest.raises(NotFound, match=f"no committed checkpoint of step {hidden}"):
            roll_back(cluster, hidden)
    assert roll_back(cluster, 10).lineage == 2


def test_a_lineage_sees_what_its_ancestors_had_before_it_began() -> None:
    cluster = Cluster()
    workers = w0, _ = cluster.world(2)
    for step in (10, 20, 30):
        cluster.save(workers, step=step)
    roll_back(cluster, 20)
    for who in workers:
        cluster.recover(who)
    cluster.save(workers, step=25)
    roll_back(cluster, 25)
    assert roll_back(cluster, 10).lineage == 3
    assert cluster.recover(w0).step == 10


def test_an_operator_may_roll_back_to_where_damage_led_before() -> None:
    cluster = Cluster()
    workers = w0, w1 = cluster.world(2)
    cluster.save(workers, step=10)
    broken = cluster.save(workers, step=20)
    cluster.recover(w0)
    damage(cluster, w0, broken)
    for who in (w0, w1):
        assert cluster.recover(who).lineage == 1
    cluster.save(workers, step=30)
    assert roll_back(cluster, 10).lineage == 2
    assert cluster.recover(w0).step == 10


def test_a_thousand_rollbacks_are_as_sound_as_one() -> None:
    cluster = Cluster()
    workers = w0, _ = cluster.world(2)
    cluster.save(workers, step=10)
    for number in range(1, 1101):
        assert roll_back(cluster, 10).lineage == number
    assert cluster.recover(w0).step == 10


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


# -- retention -------------------------------------------------------------------------------------------------------


def kept(steps: range, metrics: dict[int, str] | None = None, **rules: Any) -> list[int]:
    """The steps that are still there when all of these were saved under these rules."""
    cluster = Cluster(**rules)
    workers = cluster.world(2)
    for step in steps:
        said = {"loss": metrics[step]} if metrics and step in metrics else None
        cluster.save(workers, step=step, metrics=said)
    return committed_steps(cluster)


def test_without_rules_everything_is_kept() -> None:
    assert kept(range(10, 110, 10)) == list(range(10, 110, 10))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9])
def test_the_last_so_many_are_kept(count: int) -> None:
    for saved in range(1, 8):
        steps = list(range(10, 10 + 10 * saved, 10))
        assert kept(range(10, 10 + 10 * saved, 10), keep_count=count) == steps[-count:]


def test_every_so_many_steps_one_is_kept() -> None:
    assert kept(range(10, 120, 10), keep_count=2, keep_every=50) == [50, 100, 110]


def test_only_every_so_many_steps_one_is_kept_and_the_last() -> None:
    assert kept(range(10, 120, 10), keep_every=50) == [50, 100, 110]


LOSSES = {10: "0.9", 20: "0.5", 30: "0.7", 40: "0.6", 50: "0.8"}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"best_mode": "min"}, [20, 50]),
        ({"best_mode": "max"}, [10, 50]),
        ({"best_mode": "min", "best_count": 2}, [20, 40, 50]),
    ],
)
def test_the_best_are_kept(rules: dict[str, Any], expected: list[int]) -> None:
    assert kept(range(10, 60, 10), LOSSES, keep_count=1, best_metric="loss", **rules) == expected


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_loss_that_is_not_a_number_is_never_the_best(mode: str) -> None:
    losses = {10: "nan", 20: "0.5", 30: "nan", 40: "0.6"}
    best = 20 if mode == "min" else 40
    assert kept(range(10, 60, 10), losses, keep_count=1, best_metric="loss", best_mode=mode) == [best, 50]


def test_checkpoints_without_the_metric_are_not_the_best() -> None:
    assert kept(range(10, 60, 10), {20: "0.5"}, keep_count=1, best_metric="loss") == [20, 50]


def test_a_pinned_checkpoint_is_kept_until_it_is_unpinned() -> None:
    cluster = Cluster(keep_count=1)
    workers = cluster.world(2)
    pinned = cluster.save(workers, step=10)
    for name in ("paper", "demo", "paper"):
        assert pin(cluster, pinned, name) == Done()
    for step in (20, 30):
        cluster.save(workers, step=step)
    assert committed_steps(cluster) == [10, 30]
    pin(cluster, pinned, "paper", pinned=False)
    assert committed_steps(cluster) == [10, 30]
    pin(cluster, pinned, "demo", pinned=False)
    assert committed_steps(cluster) == [30]


@pytest.mark.parametrize("status", ["open", "decided", "doomed"])
def test_only_a_committed_checkpoint_can_be_pinned(status: str) -> None:
    cluster = Cluster(keep_count=1)
    workers = cluster.world(2)
    if status == "doomed":
        cluster.save(workers, step=1)
        cluster.save(workers, step=2)
    elif status == "decided":
        cluster.decide(workers, step=1)
    else:
        cluster.begin(workers[0], step=1)
    with pytest.raises(Refused, match=f"attempt 1 is {status}; only a committed checkpoint can be pinned"):
        pin(cluster, 1)


def test_the_recovery_point_is_kept() -> None:
    cluster = Cluster(keep_count=1)
    workers = w0, _ = cluster.world(2)
    cluster.save(workers, step=10)
    cluster.recover(w0)
    for step in (20, 30, 40):
        cluster.save(workers, step=step)
    assert committed_steps(cluster) == [10, 40]


def test_the_head_of_the_lineage_is_kept_though_others_are_newer() -> None:
    cluster = Cluster(keep_count=2)
    workers = cluster.world(2)
    pinned = cluster.save(workers, step=10)
    pin(cluster, pinned)
    for step in (20, 30):
        cluster.save(workers, step=step)
    roll_back(cluster, 10)
    pin(cluster, pinned, pinned=False)
    latest = head(cluster.job)
    assert latest is not None
    assert latest.attempt == pinned
    assert committed_steps(cluster) == [10, 20, 30]


def test_what_a_save_under_way_refers_to_is_kept() -> None:
    cluster = Cluster(keep_count=1)
    workers = w0, _ = cluster.world(2)
    parent = cluster.save(workers, step=10)
    pin(cluster, parent)
    cluster.save(workers, step=20)
    cluster.begin(w0, step=30, references=[parent])
    pin(cluster, parent, pinned=False)
    assert committed_steps(cluster) == [10, 20]


@pytest.mark.parametrize("status", ["doomed", "open"])
def test_only_a_committed_checkpoint_can_be_referred_to(status: str) -> None:
    cluster = Cluster(keep_count=1, saves="wait")
    workers = w0, _ = cluster.world(2)
    if status == "doomed":
        cluster.save(workers, step=10)
        cluster.save(workers, step=20)
    else:
        cluster.begin(w0, step=10)
    with pytest.raises(Refused, match=f"attempt 1 cannot be referred to: it is {status}"):
        cluster.begin(w0, step=30, references=[1])


def removal(references: bool = False) -> tuple[Cluster, list[Registered]]:
    """Attempt 1 is doomed, since 2 is committed; 2 refers to it or not."""
    cluster = Cluster(keep_count=1)
    workers = cluster.world(2)
    cluster.save(workers, step=10)
    cluster.save(workers, step=20, references=[1] if references else [])
    return cluster, workers


def unlink(cluster: Cluster, who: Registered, attempt: int = 1) -> None:
    assert cluster.from_worker(ManifestRemoved, who, attempt=attempt) == Done()


def remove_files(cluster: Cluster, who: Registered, attempt: int = 1) -> None:
    assert cluster.from_worker(FilesRemoved, who, attempt=attempt) == Done()


def test_first_the_manifest_goes_then_two_leases_later_the_files() -> None:
    cluster, (w0, w1) = removal()
    assert errands(cluster, w0) == [("remove_manifest", 1)]
    assert errands(cluster, w1) == []
    unlink(cluster, w0)
    cluster.pass_time(2 * LEASE - 0.1, alive=[w0, w1])
    assert errands(cluster, w0) == []
    cluster.pass_time(0.1, alive=[w0, w1])
    assert errands(cluster, w0) == [("remove_files", 1)]
    remove_files(cluster, w0)
    assert errands(cluster, w0) == []
    assert statuses(cluster) == {2: "committed"}
    assert cluster.job.unsettled == []


def test_the_two_leases_are_waited_for_anew_after_a_restart() -> None:
    cluster, (w0, w1) = removal()
    unlink(cluster, w0)
    cluster.restart()
    assert errands(cluster, w0) == []
    cluster.pass_time(2 * LEASE, alive=[w0, w1])
    assert errands(cluster, w0) == [("remove_files", 1)]


def test_a_paused_coordinator_gives_readers_the_time_back() -> None:
    cluster, (w0, _) = removal()
    unlink(cluster, w0)
    cluster.sweep(at=cluster.now + 1.0)
    cluster.sweep(at=cluster.now + 1000.0)
    assert errands(cluster, w0) == []


def test_removing_may_be_repeated_at_every_stage() -> None:
    cluster, (w0, w1) = removal()
    unlink(cluster, w0)
    unlink(cluster, w1)
    cluster.pass_time(2 * LEASE, alive=[w0, w1])
    remove_files(cluster, w0)
    remove_files(cluster, w1)
    assert len(cluster.recorded(CheckpointDeleted)) == 1


def test_another_worker_takes_over_the_cleaning() -> None:
    cluster, (w0, w1) = removal()
    cluster.leave(w0)
    assert errands(cluster, w1) == [("remove_manifest", 1)]


def test_what_is_kept_must_not_be_removed() -> None:
    cluster, (w0, _) = removal()
    with pytest.raises(Refused, match="attempt 2 is committed: its manifest must not be removed"):
        unlink(cluster, w0, attempt=2)
    for attempt, status in [(1, "doomed"), (2, "committed")]:
        with pytest.raises(Refused, match=f"attempt {attempt} is {status}: its files must not be removed"):
            remove_files(cluster, w0, attempt)


def test_referenced_files_outlive_their_manifest() -> None:
    cluster, (w0, w1) = removal(references=True)
    unlink(cluster, w0)
    cluster.pass_time(10 * LEASE, alive=[w0, w1])
    assert errands(cluster, w0) == []
    cluster.save([w0, w1], step=30)
    assert errands(cluster, w0) == [("remove_files", 1), ("remove_manifest", 2)]


def test_a_doomed_checkpoint_is_no_recovery_point() -> None:
    cluster, (w0, w1) = removal()
    damage(cluster, w0, 2)
    assert cluster.recover(w1).attempt == 0


# -- what the review of the protocol found ---------------------------------------------------------------------------


def test_nobody_saves_between_a_rollback_and_the_recovery() -> None:
    cluster = Cluster()
    workers = w0, _ = cluster.world(2)
    for step in (10, 20):
        cluster.save(workers, step=step)
    roll_back(cluster, 10)
    with pytest.raises(StaleGeneration, match="must recover before it saves again"):
        cluster.begin(w0, step=30)
    assert cluster.recover(w0).step == 10


def test_a_manifest_that_nobody_puts_within_a_lease_is_asked_of_everybody() -> None:
    cluster = Cluster()
    workers = w0, w1 = cluster.world(2)
    attempt = cluster.begin(w0, step=10).attempt
    for who in workers:
        cluster.ack(who, attempt)
    asked = [errand.kind for errand in cluster.heartbeat(w1).errands]
    assert asked == []
    cluster.pass_time(LEASE + 1, alive=workers)
    assert [errand.kind for errand in cluster.heartbeat(w1).errands] == ["put_manifest"]


def test_a_manifest_put_again_after_its_removal_is_removed_again() -> None:
    cluster, (w0, _) = removal()
    unlink(cluster, w0)
    cluster.from_worker(ManifestPut, w0, attempt=1)
    assert errands(cluster, w0) == [("remove_manifest", 1)]


def test_files_are_not_reported_removed_before_their_time() -> None:
    cluster, (w0, _) = removal()
    unlink(cluster, w0)
    with pytest.raises(Refused, match="may still be read"):
        cluster.from_worker(FilesRemoved, w0, attempt=1)


def test_ranks_that_contradict_each_other_are_not_at_the_same_step() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    cluster.add_dataset("texts", order="elastic")
    attempt = cluster.begin(w0, step=1).attempt
    cluster.ack(w0, attempt, positions={"texts": Position(1, 0, [0, 32])})
    with pytest.raises(Refused, match="not at the same step"):
        cluster.ack(w1, attempt, positions={"texts": Position(1, 0, [0, 64])})


def test_damaged_checkpoints_go_too_and_their_step_is_not_used_again() -> None:
    cluster = Cluster()
    cluster.configure(keep_count=1)
    workers = w0, _ = cluster.world(2)
    broken = cluster.save(workers, step=10)
    damage(cluster, w0, broken)
    cluster.save(workers, step=20)
    assert cluster.job.attempts[broken].status == "doomed"
    assert cluster.job.lineages[0].tip == 20


def test_a_job_that_carries_on_saves_without_a_rank_that_never_came() -> None:
    cluster = Cluster(recovery="carry_on")
    w0 = cluster.register("w0", rank=0, world_size=2)
    attempt = cluster.begin(w0, step=1).attempt
    assert cluster.ack(w0, attempt).status == "decided"
