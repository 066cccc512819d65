"""A save that somebody asked for, as one rank sees it: what it promises, where it holds, and when it is free."""

import threading
from collections.abc import Callable

import pytest

from strata.session.appointments import NOTHING, Agreed, Appointments, Promise
from strata.v1 import coordinator_pb2 as pb

PROPOSE, SAVE_AT = pb.Command.KIND_PROPOSE_SAVE, pb.Command.KIND_SAVE_AT


def command(kind: pb.Command.Kind, step: int, *, request: int = 1, last: bool = False) -> pb.Command:
    return pb.Command(kind=kind, request=request, step=step, reason="maintenance", last=last)


def at(step: int | None, speak: Callable[[], None] = lambda: None, hold_seconds: float = 30.0) -> Appointments:
    found = Appointments(speak, hold_seconds)
    if step is not None:
        assert found.reached(step) is None
    return found


def test_a_step_that_is_yet_to_come_is_promised_and_told_at_once() -> None:
    rank = at(10)
    assert rank.heard([command(PROPOSE, 12)])
    assert rank.promised == Promise(1, 12)
    assert not rank.heard([command(PROPOSE, 12)]), "it is told already"


@pytest.mark.parametrize("step", [9, 10])
def test_a_step_that_is_past_is_not_promised_and_that_is_told_at_once(step: int) -> None:
    rank = at(10)
    assert rank.heard([command(PROPOSE, step)])
    assert rank.promised == NOTHING


def test_who_never_asks_whether_to_save_promises_nothing() -> None:
    rank = at(None)
    rank.heard([command(PROPOSE, 12)])
    assert rank.promised == NOTHING


def test_all_save_at_the_step_that_is_agreed_and_at_no_other() -> None:
    rank = at(10)
    rank.heard([command(PROPOSE, 12)])
    rank.heard([command(SAVE_AT, 12, last=True)])
    assert rank.reached(11) is None
    assert rank.reached(12) == Agreed(12, "maintenance", True)
    assert rank.promised == NOTHING
    rank.heard([command(SAVE_AT, 12)])  # as it is until the save has begun
    assert rank.reached(13) is None


def test_what_is_agreed_before_a_later_step_is_promised_is_kept_and_so_is_the_promise() -> None:
    rank = at(10)
    rank.heard([command(SAVE_AT, 12), command(PROPOSE, 14, request=2)])
    rank.heard([command(SAVE_AT, 20, request=3, last=True)])
    assert rank.reached(12) == Agreed(12, "maintenance", False)
    assert rank.promised == Promise(2, 14)
    assert rank.reached(13) is None
    assert rank.promised == Promise(2, 14)
    rank.answered(Promise(2, 14), [])
    assert rank.reached(14) is None
    assert rank.reached(20) == Agreed(20, "maintenance", True)


def test_at_the_step_it_holds_until_the_outcome_is_known() -> None:
    asked = threading.Event()
    rank = at(10, asked.set)
    rank.heard([command(PROPOSE, 11)])
    threading.Thread(target=lambda: (asked.wait(), rank.heard([command(SAVE_AT, 11)]))).start()
    assert rank.reached(11) == Agreed(11, "maintenance", False)


@pytest.mark.parametrize("answer", [[], [command(PROPOSE, 20)], [command(PROPOSE, 12, request=2)]])
def test_it_is_free_when_its_promise_is_answered_with_something_else(answer: list[pb.Command]) -> None:
    asked = threading.Event()
    rank = at(10, asked.set)
    rank.heard([command(PROPOSE, 11)])

    def speak_for_the_coordinator() -> None:
        asked.wait()
        rank.answered(rank.promised, answer)
        rank.heard(answer)

    threading.Thread(target=speak_for_the_coordinator).start()
    assert rank.reached(11) is None


def test_an_answer_to_a_heartbeat_before_the_promise_frees_nobody() -> None:
    rank = at(10)
    rank.heard([command(PROPOSE, 12)])
    rank.answered(NOTHING, [])
    assert rank.promised == Promise(1, 12)
    rank.answered(rank.promised, [command(PROPOSE, 12)])
    assert rank.promised == Promise(1, 12)


def test_training_goes_on_if_nobody_ever_says_what_became_of_it() -> None:
    rank = at(10, hold_seconds=0.01)
    rank.heard([command(PROPOSE, 11)])
    assert rank.reached(11) is None
    assert rank.promised == NOTHING


def test_after_a_recovery_nothing_holds_that_was_agreed_before_it() -> None:
    rank = at(10)
    rank.heard([command(PROPOSE, 12)])
    rank.heard([command(SAVE_AT, 12)])
    rank.begin_again()
    assert rank.promised == NOTHING
    assert rank.reached(12) is None
    assert rank.heard([command(PROPOSE, 14)]), "the same proposal may come again"
    assert rank.promised == Promise(1, 14)
