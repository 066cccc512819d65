"""Durable and volatile state by themselves: bounds, limits, and what a pause gives back."""

from strata.core.events import EpochAdvanceRequested
from strata.core.state import SKIPPED_KEPT, Attempt, Dataset, Job, Member
from strata.core.volatile import OpenRound, Volatile
from tests.unit.core.cluster import JOB, Cluster


def test_the_last_shard_ends_with_the_dataset() -> None:
    dataset = Dataset("images", 1, 23, 10, False, 0, "", "", "slots-v1", "affinity")
    assert [dataset.bounds(shard) for shard in range(dataset.shard_count)] == [(0, 10), (10, 20), (20, 23)]


def test_only_the_latest_skipped_steps_are_remembered() -> None:
    job = Job(JOB)
    for step in range(SKIPPED_KEPT + 44):
        job.skip(step, "busy")
    assert sorted(job.skipped) == list(range(44, SKIPPED_KEPT + 44))


def test_only_the_latest_proofs_are_kept() -> None:
    cluster = Cluster()
    cluster.add_dataset()
    for epoch in range(100):
        cluster.send(EpochAdvanceRequested(JOB, "images", epoch))
    assert [proof.epoch for proof in cluster.dataset().proofs] == list(range(36, 100))


def test_a_pause_gives_back_the_time_but_never_more_than_a_lease() -> None:
    volatile = Volatile()
    job = volatile.job(JOB)
    job.leases = {"silent": 12.0, "just heard": 59.0}
    job.attempt_deadlines, job.manifest_deadlines, job.unlinked_until = {1: 20.0}, {1: 21.0}, {2: 22.0}
    job.rounds["epoch"] = OpenRound("epoch", 2, 2, None, None, 0.0, 30.0)
    volatile.extend(40.0, now=50.0, latest=60.0)
    assert job.leases == {"silent": 52.0, "just heard": 60.0}
    assert (job.attempt_deadlines, job.manifest_deadlines, job.unlinked_until) == ({1: 60.0}, {1: 61.0}, {2: 62.0})
    assert job.rounds["epoch"].deadline == 70.0


def test_equal_states_have_equal_bytes_in_whatever_order_they_came_about() -> None:
    first, second = Cluster(), Cluster()
    for cluster, names in ((first, ("texts", "images")), (second, ("images", "texts"))):
        for name in names:
            cluster.add_dataset(name)
    assert first.machine.snapshot() == second.machine.snapshot()


def test_an_attempt_waits_for_the_very_process_it_was_frozen_with() -> None:
    attempt = Attempt(1, 0, 10, 0, 1, 1, {0: ("w0", 1), 1: ("", 0)}, [], {})
    assert attempt.awaits(Member("w0", 1, "n", 0, "live", ""))
    assert not attempt.awaits(Member("w0", 2, "n", 0, "live", ""))
    assert attempt.awaits(Member("w1", 7, "n", 1, "live", ""))
    assert not attempt.awaits(Member("w2", 3, "n", 2, "live", ""))
