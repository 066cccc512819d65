"""A rank stands still at each step of a save, and wakes up when others have taken its place: it changes nothing."""

import sys

import pytest

from tests.chaos.recovering import Ground, Trial, meet
from tests.chaos.steps import NEVER
from tests.chaos.trying import each_of
from tests.chaos.zombies import Woken, check_undisturbed, sleep_through

pytestmark = [
    pytest.mark.xdist_group("ranks"),
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc"),
]

TRIALS = {"coordinator": Trial(lease=1.0, patience=1.5), "none": Trial()}


def sleep(ground: Ground, size: int, victim: int, name: str, *, start: int = 1, stride: int = 1) -> list[Woken]:
    trial = TRIALS[name]
    with ground.job(size, trial.lease) as job:
        whole = meet(job, trial._replace(patience=60.0), victim, NEVER)
    assert all(whole.told), whole.errors

    def attempt(at: int) -> Woken:
        with ground.job(size, trial.lease) as job:
            woken = sleep_through(job, trial, victim, at)
            if woken.struck:
                check_undisturbed(job, 4 if woken.took_over else 5)
            return woken

    # One that the coordinator has never heard of is no zombie to it when it wakes up, but a later start.
    first = start + 1 if trial.lease else start
    return [each for each in each_of(range(first, whole.steps + 1, stride), attempt) if each.struck]


def check(found: list[Woken], victim: int, name: str) -> None:
    """Without a coordinator a first rank that slept before it looked for the latest finds what the others have saved,
    and goes on from there as any later start would. All others change nothing."""
    assert found
    for woken in found:
        assert not woken.took_over or (name == "none" and victim == 0 and woken.loaded == 4), woken


@pytest.mark.parametrize(
    ("name", "victim", "start", "stride"),
    [("none", 0, 3, 9), ("none", 1, 4, 9), ("coordinator", 0, 2, 9), ("coordinator", 1, 3, 9)],
)
def test_one_of_two_at_some_steps(ground: Ground, name: str, victim: int, start: int, stride: int) -> None:
    check(sleep(ground, 2, victim, name, start=start, stride=stride), victim, name)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["none", "coordinator"])
@pytest.mark.parametrize(
    ("size", "victim"),
    [
        pytest.param(2, 1, marks=pytest.mark.long),
        *(pytest.param(*case, marks=pytest.mark.soak) for case in [(2, 0), (3, 0), (3, 2), (4, 0), (4, 1)]),
    ],
)
def test_one_of_several_at_every_step(ground: Ground, name: str, size: int, victim: int) -> None:
    check(sleep(ground, size, victim, name), victim, name)
