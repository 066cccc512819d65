"""Where the time goes: every second to one cause, and only steps that still count are useful."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import InvalidInput
from strata.worker import goodput as module
from strata.worker.goodput import CAUSES, Goodput


def spent(account: Goodput, now: float) -> dict[str, float]:
    """What took any time at all."""
    return {cause: seconds for cause, seconds in account.summary(now).seconds.items() if seconds}


def make_steps(account: Goodput, *seconds: float, now: float = 0.0, **more: Any) -> float:
    for each in seconds:
        account.enter("step", now)
        now += each
        account.leave(now, **more)
    return now


def test_an_inner_cause_takes_its_time_from_the_outer_one() -> None:
    account = Goodput(100.0)
    account.enter("step", 101.0)
    account.enter("data", 103.0)
    account.leave(106.0)
    account.enter("barrier", 107.0)
    account.leave(108.0)
    account.leave(110.0)
    account.enter("checkpoint", 110.0)
    account.leave(111.0)
    told = account.summary(112.0)
    assert {cause: seconds for cause, seconds in told.seconds.items() if seconds} == {
        "unattributed": 2.0,
        "step": 5.0,
        "data": 3.0,
        "barrier": 1.0,
        "checkpoint": 1.0,
    }
    assert (told.wall_seconds, told.steps, told.lost_steps) == (12.0, 1, 0)
    assert told.goodput == pytest.approx(5 / 12)


def test_a_wait_that_is_told_of_afterwards_is_taken_from_what_it_was_within() -> None:
    account = Goodput(0.0)
    account.enter("step", 1.0)
    account.put_down("barrier", 2.0, 4.0)
    account.leave(5.0)
    assert spent(account, 5.0) == {"unattributed": 1.0, "step": 2.0, "barrier": 2.0}
    account.enter("step", 5.0)
    account.put_down("barrier", 60.0, 6.0)  # more than there was
    account.leave(6.5)
    account.put_down("barrier", 60.0, 7.0)  # within nothing
    assert spent(account, 7.0) == {"unattributed": 1.5, "step": 2.5, "barrier": 3.0}
    account.lost(2)
    assert spent(account, 7.0) == {"unattributed": 1.5, "recovery": 2.5, "barrier": 3.0}, "only what was the steps' own"


def test_what_is_under_way_counts_as_far_as_it_is_and_looking_changes_nothing() -> None:
    account = Goodput(0.0)
    account.enter("step", 0.0)
    account.enter("data", 1.0)
    assert spent(account, 3.0) == {"step": 1.0, "data": 2.0}
    account.leave(4.0)
    account.leave(5.0)
    assert spent(account, 5.0) == {"step": 2.0, "data": 3.0}
    assert account.summary(5.0) == account.summary(5.0)


def test_steps_that_are_lost_were_time_of_recovery() -> None:
    account = Goodput(0.0)
    now = make_steps(account, 1.0, 2.0, 4.0, samples=10)
    assert account.lost(2) == 2
    told = account.summary(now)
    assert (told.seconds["step"], told.seconds["recovery"]) == (1.0, 6.0)
    assert (told.steps, told.lost_steps, told.samples) == (1, 2, 10)
    assert account.lost(5) == 1, "what was made before this process began is not its own to lose"
    assert account.lost(1) == 0
    told = account.summary(now)
    assert (told.steps, told.lost_steps, told.samples, told.goodput) == (0, 3, 0, 0.0)
    assert told.seconds["recovery"] == 7.0


def test_what_was_not_of_the_step_itself_is_not_lost_with_it() -> None:
    account = Goodput(0.0)
    account.enter("step", 0.0)
    account.enter("data", 1.0)
    account.leave(4.0)
    account.leave(5.0)
    account.lost(1)
    assert spent(account, 5.0) == {"recovery": 2.0, "data": 3.0}


def test_a_step_that_failed_was_of_no_use() -> None:
    account = Goodput(0.0)
    account.enter("step", 0.0)
    account.enter("barrier", 2.0)
    account.abandon(3.0)
    account.abandon(4.0)
    told = account.summary(4.0)
    assert (told.steps, told.seconds["step"], told.seconds["recovery"], told.seconds["barrier"]) == (0, 0.0, 3.0, 1.0)


def test_steps_of_long_ago_are_taken_for_ones_like_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEPS_KEPT", 2)
    account = Goodput(0.0)
    now = make_steps(account, 1.0, 3.0, 10.0, 20.0, samples=4)
    assert account.lost(3) == 3
    told = account.summary(now)
    assert (told.seconds["recovery"], told.seconds["step"], told.steps, told.samples) == (32.0, 2.0, 1, 4)
    account.lost(1)
    assert spent(account, now) == {"recovery": 34.0}
    assert account.summary(now).samples == 0


def test_samples_are_told_where_anybody_said_how_many() -> None:
    account = Goodput(0.0)
    make_steps(account, 1.0)
    silent = account.summary(1.0)
    assert (silent.samples, silent.samples_per_second) == (None, None)
    assert "samples_per_second" not in silent.as_resources()
    make_steps(account, 1.0, now=1.0, samples=64)
    told = account.summary(4.0)
    assert (told.samples, told.samples_per_second) == (64, 16.0)


def test_what_heartbeats_carry_is_a_handful_of_numbers_with_units() -> None:
    account = Goodput(0.0)
    account.enter("data", 0.0)
    account.leave(1.0)
    make_steps(account, 3.0, now=1.0, samples=8)
    assert account.summary(4.0).as_resources() == {
        "goodput_ratio": 0.75,
        "data_wait_seconds": 1.0,
        "checkpoint_wait_seconds": 0.0,
        "barrier_wait_seconds": 0.0,
        "recovery_seconds": 0.0,
        "samples_per_second": 2.0,
    }


def test_a_run_that_has_just_begun_has_no_goodput_yet() -> None:
    told = Goodput(5.0).summary(5.0)
    assert (told.wall_seconds, told.goodput, told.steps) == (0.0, 0.0, 0)


def test_what_makes_no_sense_is_refused_and_changes_nothing() -> None:
    account = Goodput(10.0)
    account.enter("step", 11.0)
    before = account.summary(12.0)
    wrong: list[Any] = [
        lambda: account.enter("lunch", 12.0),  # type: ignore[arg-type]
        lambda: account.enter("step", 12.0),
        lambda: account.enter("data", 11.0),
        lambda: account.leave(11.9),
        lambda: account.leave(13.0, samples=-1),
        lambda: account.leave(float("nan")),
        lambda: account.leave(float("inf")),
        lambda: account.lost(-1),
        lambda: account.lost(1.5),  # type: ignore[arg-type]
    ]
    for each in wrong:
        with pytest.raises(InvalidInput):
            each()
    assert account.summary(12.0) == before
    account.leave(12.0)
    with pytest.raises(InvalidInput, match="nothing was entered"):
        account.leave(12.0)
    with pytest.raises(InvalidInput, match="nothing was entered"):
        account.abandon(12.0)


moves = st.lists(
    st.tuples(
        st.one_of(st.sampled_from([*CAUSES, "leave", "abandon", "look"]), st.integers(0, 5)),
        st.floats(0, 1e5, allow_nan=False),
    ),
    max_size=60,
)


@given(st.floats(-1e6, 1e9), moves)
def test_the_seconds_by_cause_add_up_to_the_wall_time_whatever_happens(began: float, story: list[Any]) -> None:
    account, now = Goodput(began), began
    entered: list[str] = []
    for move, passes in story:
        now += passes
        if isinstance(move, int):
            account.lost(move)
        elif move in ("leave", "abandon"):
            if entered:
                entered.pop()
                getattr(account, move)(now)
        elif move != "look" and not (move == "step" and "step" in entered):
            entered.append(move)
            account.enter(move, now)
        told = account.summary(now)
        assert sum(told.seconds.values()) == pytest.approx(told.wall_seconds, rel=1e-9, abs=1e-6)
        assert told.wall_seconds == pytest.approx(now - began, rel=1e-9, abs=1e-6)
        assert all(seconds >= 0 for seconds in told.seconds.values())
        assert 0 <= told.goodput <= 1


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30), st.integers(0, 40), st.integers(1, 10))
def test_steps_are_lost_from_the_last_one_on(seconds: list[int], lost: int, kept: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "STEPS_KEPT", max(kept, lost))
        account = Goodput(0.0)
        now = make_steps(account, *map(float, seconds))
        assert account.lost(lost) == min(lost, len(seconds))
        told = account.summary(now)
    kept_seconds = seconds[: max(0, len(seconds) - lost)]
    assert told.seconds["step"] == sum(kept_seconds)
    assert told.seconds["recovery"] == sum(seconds) - sum(kept_seconds)
    assert told.steps + told.lost_steps == len(seconds)
