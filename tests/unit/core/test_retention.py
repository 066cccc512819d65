"""Retention: which checkpoints are kept, and how the others go without hurting a reader."""

from typing import Any

import pytest

from strata.core.effects import Done, Registered
from strata.core.events import CheckpointRemoved, FilesRemoved, ManifestPut, ManifestRemoved
from strata.core.lineages import head
from strata.core.records import CheckpointDeleted
from strata.errors import NotFound, Refused
from tests.unit.core.cluster import Cluster
from tests.unit.core.saves import LEASE, committed_steps, damage, errands, pin, roll_back, statuses

# -- what is kept ----------------------------------------------------------------------------------------------------


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


# -- how the others go -----------------------------------------------------------------------------------------------


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


def test_a_job_that_deletes_for_itself_says_so_afterwards() -> None:
    cluster = Cluster()
    w0, _ = workers = cluster.world(2)
    for step in (10, 20):
        cluster.save(workers, step=step)
    assert cluster.from_worker(CheckpointRemoved, w0, attempt=1) == Done()
    assert cluster.from_worker(CheckpointRemoved, w0, attempt=1) == Done()
    assert committed_steps(cluster) == [20]
    with pytest.raises(NotFound):
        cluster.from_worker(CheckpointRemoved, w0, attempt=9)
    cluster.decide(workers, step=30)
    with pytest.raises(Refused, match="still being saved"):
        cluster.from_worker(CheckpointRemoved, w0, attempt=3)
    cluster.replay()
