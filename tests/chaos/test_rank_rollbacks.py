"""All ranks go back to an older step and train on past it: what they left behind is never gone on from again."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from strata import background
from strata.checkpoint.lineage import read_lineage
from tests.chaos.ranks import Berth, Run, started
from tests.chaos.recovering import JOB, Ground, Job, Orders, Trial, assert_same, let_marks_run_out, meet
from tests.chaos.steps import NEVER
from tests.chaos.trying import each_of
from tests.servers.coordinator import Client

pytestmark = [
    pytest.mark.xdist_group("ranks"),
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc"),
]

LEASE_SECONDS = 10.0
KEEP = 20


@pytest.fixture(params=[LEASE_SECONDS, 0.0], ids=["coordinator", "none"])
def job(ground: Ground, request: pytest.FixtureRequest) -> Iterator[Job]:
    with far_ahead(ground, request.param) as job:
        yield job


@contextmanager
def far_ahead(ground: Ground, lease_seconds: float) -> Iterator[Job]:
    """A job of two ranks. After its first run another went on to step 5."""
    with ground.job(2, lease_seconds) as job:
        with started(berth(job, "ahead")) as run:
            go_on(run, 2, "first", by="ahead", steps=(3, 4, 5))
        yield job


def berth(job: Job, run: str) -> Berth:
    return job.berth(run)._replace(keep=KEEP)


def go_on(run: Run, latest: int, whose: str, *, by: str, steps: tuple[int, ...] = ()) -> None:
    """From the latest, which must be this one, on all ranks."""
    for rank, state in enumerate(run.each("load")):
        assert_same(state, rank, latest, whose)
    for step in steps:
        run.each("save", step=step, by=by)


def restart(job: Job) -> None:
    if job.coordinator is not None:
        job.coordinator.kill()
        job.coordinator.start()


def lineages(job: Job) -> dict[int, list[int]]:
    """The steps that the coordinator knows, in each line of the job's history."""
    assert job.coordinator is not None
    with Client(job.coordinator.address, JOB, patient=True) as client:
        found = client.call("ListCheckpoints").checkpoints
    return {
        line: sorted(each.step for each in found if each.lineage == line) for line in {each.lineage for each in found}
    }


def test_a_later_run_goes_back_and_what_it_left_is_never_picked(job: Job) -> None:
    with started(berth(job, "third")) as run:
        run.each("load", step=2)
        run.each("save", step=3, by="third")
        assert run.each("list") == [[1, 2, 3]] * 2
    if job.coordinator is not None:
        assert list(lineages(job).values()) == [[1, 2, 3, 4, 5], [3]]
    restart(job)
    with started(berth(job, "fourth")) as run:
        go_on(run, 3, "third", by="fourth", steps=(4,))
    with started(berth(job, "fifth")) as run:
        go_on(run, 4, "fourth", by="fifth", steps=(5,))
    with started(berth(job, "last")) as run:
        go_on(run, 5, "fifth", by="last")


def test_a_run_goes_back_while_it_lasts_and_on_again(job: Job) -> None:
    with started(berth(job, "third")) as run:
        go_on(run, 5, "ahead", by="third", steps=(6,))
        run.each("load", step=4)
        run.each("save", step=5, by="third")
        run.each("load", step=2)
        run.each("save", step=3, by="third")
        go_on(run, 3, "third", by="third", steps=(4,))
    restart(job)
    with started(berth(job, "fourth")) as run:
        go_on(run, 4, "third", by="fourth", steps=(5,))
        assert run.each("list") == [[1, 2, 3, 4, 5]] * 2


def test_what_was_left_can_be_gone_on_from_by_its_step(job: Job) -> None:
    with started(berth(job, "third")) as run:
        run.each("load", step=2)
        run.each("save", step=3, by="third")
    with started(berth(job, "fourth")) as run:
        for rank, state in enumerate(run.each("load", step=5)):
            assert_same(state, rank, 5, "ahead")
        run.each("save", step=6, by="fourth")
        go_on(run, 6, "fourth", by="fourth")
    restart(job)
    with started(berth(job, "fifth")) as run:
        go_on(run, 6, "fourth", by="fifth", steps=(7,))


def test_by_hand_between_runs_while_the_coordinator_knows_the_newer_steps(job: Job) -> None:
    command = [sys.executable, "-m", "strata", "ckpt", "rollback", str(job.root), "--to", "2", "--yes"]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "left behind: 3, 4, 5" in told.stdout
    with started(berth(job, "third")) as run:
        go_on(run, 2, "first", by="third", steps=(3,))
    restart(job)
    with started(berth(job, "fourth")) as run:
        go_on(run, 3, "third", by="fourth", steps=(4,))
        assert run.each("list") == [[1, 2, 3, 4]] * 2


def test_by_hand_while_a_run_lasts_ends_that_run(job: Job) -> None:
    with started(berth(job, "third")) as run:
        go_on(run, 5, "ahead", by="third", steps=(6,))
        command = [sys.executable, "-m", "strata", "ckpt", "rollback", str(job.root), "--to", "2", "--yes"]
        subprocess.run(command, capture_output=True, check=True)
        run.tell("save", step=7, by="third")
        told = [rank.hear().error for rank in run.ranks]
        assert "Superseded" in told[0]
        assert all(told), "a rank was told that it is committed"
    with started(berth(job, "fourth")) as run:
        go_on(run, 2, "first", by="fourth", steps=(3,))


GOING_BACK: Orders = (("load", {"step": 2}), ("save", {"step": 3, "by": "back"}), ("close", {}))


def kill_on_the_way_back(ground: Ground, victim: int, trial: Trial, *, start: int = 1, stride: int = 1) -> set[str]:
    """At each step of a run that goes back. Gives whose checkpoint the next run found, each time."""
    with far_ahead(ground, trial.lease) as job:
        whole = meet(job, trial._replace(patience=60.0), victim, NEVER, GOING_BACK)
    assert all(whole.told), whole.errors

    def attempt(at: int) -> str:
        with far_ahead(ground, trial.lease) as job:
            before = background.run(read_lineage(job.store())).newest
            met = meet(job, trial, victim, trial.doom(at, "before", job), GOING_BACK)
            has_begun = background.run(read_lineage(job.store())).newest != before
            let_marks_run_out(job)
            with started(berth(job, "next")) as run:
                found = run.each("load")
                step, whose = found[0]["step"], found[0]["by"]
                assert (step, whose) in ([(3, "back")] if any(met.told) else [(5, "ahead"), (2, "first"), (3, "back")])
                assert whose == "ahead" or has_begun
                assert whose != "ahead" or not has_begun, f"{met.struck}: the abandoned branch is picked"
                for rank, state in enumerate(found):
                    assert_same(state, rank, step, whose)
                run.each("save", step=step + 1, by="next")
                run.each("close")
            with started(berth(job, "last")) as run:
                go_on(run, step + 1, "next", by="last")
            return str(whose)

    return set(each_of(range(start, whole.steps + 1, stride), attempt))


@pytest.mark.parametrize("lease", [pytest.param(1.0, marks=pytest.mark.long), 0.0], ids=["coordinator", "none"])
def test_rank_0_dies_on_the_way_back(ground: Ground, lease: float) -> None:
    trial = Trial(rank=True, lease=lease, patience=2.0, keep=KEEP)
    assert kill_on_the_way_back(ground, 0, trial, start=8, stride=9) == {"ahead", "first", "back"}


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("lease", [1.0, 0.0], ids=["coordinator", "none"])
def test_a_rank_dies_at_any_step_of_the_way_back(ground: Ground, lease: float, victim: int) -> None:
    trial = Trial(rank=True, lease=lease, patience=2.0, keep=KEEP)
    wanted = {"ahead", "first", "back"} if victim == 0 else {"first", "back"}
    assert kill_on_the_way_back(ground, victim, trial) == wanted
