"""Ranks, the coordinator, or both are killed with SIGKILL at each step of a save, and all ranks are started anew."""

import sys
from typing import Any

import pytest

from tests.chaos.recovering import SECOND_RUN, Ground, Met, Trial, check_recovery, meet, meet_and_stay
from tests.chaos.steps import NEVER
from tests.chaos.trying import each_of

pytestmark = [
    pytest.mark.xdist_group("ranks"),
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc"),
]

TRIALS = {
    "without coordinator": Trial(rank=True),
    "rank": Trial(rank=True, lease=1.0, patience=2.0),
    "coordinator": Trial(coordinator=True, lease=30.0, patience=30.0),
    "both": Trial(rank=True, coordinator=True, lease=3.0, patience=4.0),
    "coordinator for long": Trial(coordinator=True, lease=3.0, patience=3.0, reach=0.5, comes_back=False),
    "both for long": Trial(rank=True, coordinator=True, lease=3.0, patience=2.0, reach=0.5, comes_back=False),
}
FEWEST_STEPS = 15
"""Of any rank, from the moment it is made to its end: if it were fewer, they would not be counted well."""
LAST_STEPS = 4
"""Of a rank, when the step of training is committed."""


def kill(ground: Ground, size: int, victim: int, name: str, when: str, *, start: int = 1, stride: int = 1) -> set[int]:
    """At each step, or some. Gives the steps of training that were gone on from."""
    trial = TRIALS[name]
    with ground.job(size, trial.lease) as job:
        whole = meet(job, trial._replace(patience=60.0), victim, NEVER)
    assert all(whole.told), whole.errors
    assert whole.steps >= FEWEST_STEPS

    def attempt(at: int) -> tuple[Met, int]:
        with ground.job(size, trial.lease) as job:
            met = meet(job, trial, victim, trial.doom(at, when, job))
            try:
                return met, check_recovery(job, met) if met.struck else 0
            except AssertionError as error:
                raise AssertionError(f"{met.struck!r}, in {job.folder}, {met.errors}: {error}") from error

    found = each_of(range(start, whole.steps + 1, stride), attempt)
    reached = [(met, latest) for met, latest in found if met.struck]
    assert len(reached) > 0.8 * len(found), "most steps were never reached"
    if name == "coordinator":
        assert all(all(met.told) for met, _ in reached), "a save did not outlive the coordinator's restart"
    return {latest for _, latest in reached}


@pytest.mark.parametrize(
    ("name", "start", "stride"),
    [
        ("without coordinator", 1, 3),
        ("rank", 2, 8),
        pytest.param("coordinator", 3, 6, marks=pytest.mark.long),
        pytest.param("both", 4, 8, marks=pytest.mark.long),
        pytest.param("coordinator for long", 5, 12, marks=pytest.mark.long),
        pytest.param("both for long", 6, 28, marks=pytest.mark.long),
    ],
)
def test_two_ranks_at_some_steps(ground: Ground, name: str, start: int, stride: int) -> None:
    outcomes = [kill(ground, 2, victim, name, "before", start=start, stride=stride) for victim in (0, 1)]
    assert set.union(*outcomes) == ({2, 3} if TRIALS[name].rank else {3}), "a save goes on without the coordinator"


def kill_and_stay(ground: Ground, size: int, victim: int, *, start: int = 1, stride: int = 1) -> set[int]:
    trial = TRIALS["rank"]
    with ground.job(size, trial.lease) as job:
        whole = meet(job, trial._replace(patience=60.0), victim, NEVER, SECOND_RUN[:2])
    last = range(whole.steps - LAST_STEPS, whole.steps)

    def attempt(at: int) -> int:
        with ground.job(size, trial.lease) as job:
            return meet_and_stay(job, trial, victim, trial.doom(at, "before", job)) or 0

    return set(each_of(sorted({*range(start, whole.steps + 1, stride), *last}), attempt)) - {0}


@pytest.mark.long
def test_those_who_are_left_go_on_with_one_that_is_started_anew(ground: Ground) -> None:
    outcomes = [kill_and_stay(ground, 2, victim, start=6 - victim, stride=9) for victim in (0, 1)]
    assert set.union(*outcomes) == {2, 3}


MATRIX = [
    *((size, victim, when) for size in (2, 3, 4) for victim in range(size) for when in ("before", "after")),
    *((2, victim, "during") for victim in (0, 1)),
]


def long_or_soak(sample: object, cases: list[Any]) -> list[Any]:
    """One is in the long tests. The others take hours of waiting: on virtual time all are in `test_kill_points.py`."""
    return [pytest.param(*case, marks=pytest.mark.long if case == sample else pytest.mark.soak) for case in cases]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", list(TRIALS))
@pytest.mark.parametrize(("size", "victim", "when"), long_or_soak((2, 1, "during"), MATRIX))
def test_any_rank_of_several_at_every_step(ground: Ground, name: str, size: int, victim: int, when: str) -> None:
    outcomes = kill(ground, size, victim, name, when)
    assert outcomes == ({2, 3} if TRIALS[name].rank else {3})


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("size", "victim"), long_or_soak((2, 1), [(2, 0), (2, 1), (3, 0), (3, 2)]))
def test_those_who_are_left_go_on_with_any_that_is_started_anew(ground: Ground, size: int, victim: int) -> None:
    assert kill_and_stay(ground, size, victim) == {2, 3}
