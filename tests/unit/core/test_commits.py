"""Commits: from the first part to the manifest, through losses, zombies, overlaps and time."""

import pytest

from strata.core.effects import AbandonAttempt, Acknowledged, AnnounceCommit, Begun, Done, Errand, Skipped
from strata.core.events import DrainRequested, Found, PartFailed
from strata.core.records import CheckpointAbandoned, CheckpointBegun, CheckpointCommitted, CheckpointDecided
from strata.core.settings import Policy
from strata.errors import Conflict, Expired, InvalidInput, NotFound, Refused, StaleGeneration, Superseded
from tests.unit.core.cluster import JOB, Cluster
from tests.unit.core.saves import LEASE, committed_steps, errands, statuses

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
    with pytest.raises(Conflict, match=r"'w0'.*digest xxh3-128:aa and \d+ bytes, and now says xxh3-128:bb"):
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


def test_a_save_whose_workers_are_all_gone_is_not_open_for_ever() -> None:
    cluster = Cluster(Policy(attempt_seconds=60.0))
    w0 = cluster.register("w0", rank=0, world_size=2)
    cluster.begin(w0, step=10)
    cluster.ack(w0, 1)
    cluster.leave(w0)
    cluster.pass_time(59.0)
    assert statuses(cluster) == {1: "open"}, "the other rank may still come"
    cluster.pass_time(1.0)
    assert statuses(cluster) == {}
    cluster.sweep()
    assert not cluster.machine.volatile.astir


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


# -- places ----------------------------------------------------------------------------------------------------------


def test_an_attempt_has_one_place_which_all_are_told() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    begun = cluster.begin(w0, step=10, place="step_10")
    assert cluster.begin(w0, step=10, place="step_10") == begun
    assert cluster.begin(w1, step=10) == begun
    with pytest.raises(Refused, match="goes somewhere else"):
        cluster.begin(w1, step=10, place="step_10-2")
    cluster.ack(w0, 1, place="step_10/part-0.json")
    cluster.restart()
    attempt = cluster.job.attempts[1]
    assert (attempt.place, attempt.parts[0].place) == ("step_10", "step_10/part-0.json")
    with pytest.raises(InvalidInput, match="at most 2048 characters"):
        cluster.begin(w0, step=20, place="x" * 2049)


def test_a_step_that_nobody_is_to_save_is_skipped_by_all() -> None:
    cluster = Cluster()
    w0, w1 = workers = cluster.world(2)
    skipped = Skipped(10, "step 5 is still being written")
    assert cluster.begin(w0, step=10, skip="step 5 is still being written") == skipped
    assert cluster.begin(w1, step=10) == skipped
    assert cluster.begin(w0, step=10, skip="for another reason") == skipped
    cluster.save(workers, step=20)
    assert cluster.begin(w0, step=20, skip="too late").status == "committed"


def test_whoever_says_a_place_begins_a_step_anew() -> None:
    cluster = Cluster()
    w0, w1 = workers = cluster.world(2)
    cluster.begin(w0, step=10, place="step_10 a")
    cluster.from_worker(PartFailed, w1, attempt=1, reason="disk full")
    assert isinstance(cluster.begin(w1, step=10), Skipped)
    assert cluster.begin(w0, step=10, place="step_10 b") == Begun(2, 0, 10, "open")
    assert cluster.begin(w1, step=10) == Begun(2, 0, 10, "open")
    cluster.restart()
    for who in workers:
        cluster.ack(who, 2)
    cluster.put(w0, 2)
    assert committed_steps(cluster) == [10]


def test_to_call_off_what_is_over_is_answered_whoever_took_part() -> None:
    cluster = Cluster()
    w0, _ = cluster.world(2)
    cluster.recover(w0, found=Found(20, 0, "step_20"))
    assert cluster.begin(w0, step=20, skip="it went another way").status == "committed"
