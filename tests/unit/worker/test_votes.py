"""What ranks tell each other of a notice, as one of them sees it."""

import sys
from datetime import timedelta
from typing import Any

import pytest

from strata.worker.preemption import Notice
from strata.worker.votes import NO_NOTICE, NO_TIME, TIME_TO_SAVE, Votes, votes_of

OWN = Notice("SIGTERM at noon", 30.0, True)


class Vote:
    """As a tensor of one number, and as the work that fills it."""

    def __init__(self, outcome: int | None) -> None:
        self._outcome, self.is_waited_for = outcome, False

    def wait(self, timeout: timedelta | None = None) -> None:
        self.is_waited_for = True
        if self._outcome is None:
            raise RuntimeError("Connection closed by peer")

    def item(self) -> int | None:
        return self._outcome


class Torch:
    """What comes of each vote, in order; and what was cast."""

    int32 = None

    def __init__(self, *outcomes: int | None) -> None:
        self.distributed, self._outcomes = self, list(outcomes)
        self.cast: list[int] = []
        self.is_destroyed = False

    def destroy_process_group(self, group: None) -> None:
        self.is_destroyed = True

    class ReduceOp:
        MAX = None

    def tensor(self, values: list[int], dtype: None) -> Vote:
        self.cast += values
        self.last = Vote(self._outcomes.pop(0))
        return self.last

    def all_reduce(self, vote: Vote, **_: Any) -> Vote:
        return vote


def test_a_notice_is_acted_on_one_step_after_it_is_told() -> None:
    torch = Torch(NO_NOTICE, TIME_TO_SAVE, TIME_TO_SAVE)
    votes = Votes(torch, None)
    assert [votes.after_step(own, 30.0) for own in (None, OWN, OWN)] == [None, None, OWN]
    assert torch.cast == [NO_NOTICE, TIME_TO_SAVE, TIME_TO_SAVE]


@pytest.mark.parametrize("outcome", [TIME_TO_SAVE, NO_TIME])
def test_a_notice_of_another_is_acted_on_as_that_one_can(outcome: int) -> None:
    votes = Votes(Torch(outcome, NO_NOTICE), None)
    votes.after_step(None, 30.0)
    found = votes.after_step(None, 30.0)
    assert found is not None
    assert (found.seconds, found.is_enough) == (30.0, outcome == TIME_TO_SAVE)
    mixed = Votes(Torch(outcome, NO_NOTICE), None)
    mixed.after_step(OWN, 30.0)
    assert mixed.after_step(OWN, 30.0) == OWN._replace(is_enough=outcome == TIME_TO_SAVE)


def test_where_one_is_lost_each_is_on_its_own() -> None:
    votes = Votes(Torch(None, NO_NOTICE), None)
    assert votes.after_step(None, 30.0) is None
    assert votes.after_step(None, 30.0) is None
    assert votes.is_over
    assert votes.after_step(OWN, 30.0) == OWN


@pytest.mark.parametrize("outcome", [NO_NOTICE, None], ids=["all are there", "one is lost"])
def test_the_last_vote_is_not_left_under_way(outcome: int | None) -> None:
    torch = Torch(NO_NOTICE, outcome)
    votes = Votes(torch, None)
    votes.close()
    votes = Votes(torch, None)
    for _ in range(2):
        votes.after_step(None, 30.0)
    assert not torch.last.is_waited_for
    votes.close()
    assert torch.last.is_waited_for
    assert torch.is_destroyed, "threads and sockets of each Training would be kept else"
    assert votes.after_step(OWN, 30.0) == OWN, "each is on its own"


def test_nothing_is_imported_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert votes_of(4) is None
    assert "torch" not in sys.modules
