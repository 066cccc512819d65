"""Notices: whether there is time to save is known from the saves before."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import get_context

import pytest

from strata.checkpoint.telling import SaveEvent
from strata.errors import InvalidInput
from strata.worker.preemption import Notice, Notices


def committed(step: int, seconds: float, outcome: str = "committed") -> SaveEvent:
    return SaveEvent(outcome, "job", step, 0.0, 1, 1, 0, 0.0, seconds, 1.0)


@pytest.mark.parametrize(
    ("saves", "is_enough"),
    [
        ([], True),
        ([10.0], True),
        ([25.0], False),
        ([24.0, 1.0], True),
        ([60.0, 1.0], False),
        ([60.0, *[1.0] * 10], True),
    ],
    ids=str,
)
def test_a_notice_is_compared_with_what_saves_took(saves: list[float], is_enough: bool) -> None:
    given: list[Notice] = []
    notices = Notices(30.0, given.append)
    for step, seconds in enumerate(saves):
        notices.saved(committed(step, seconds))
    notices.give("the machine is wanted back")
    assert given == [Notice("the machine is wanted back", 30.0, is_enough)]


def test_a_notice_has_a_length() -> None:
    with pytest.raises(InvalidInput, match="notice_seconds must be a number of seconds above 0"):
        Notices(-1, lambda notice: None)


def test_a_save_that_failed_says_nothing_of_how_long_one_takes() -> None:
    given: list[Notice] = []
    notices = Notices(30.0, given.append)
    notices.saved(committed(1, 100.0, "failed"))
    notices.give("now")
    assert given[0].is_enough
    assert notices.committed is None


def test_if_it_is_too_short_what_stays_is_said(caplog: pytest.LogCaptureFixture) -> None:
    notices = Notices(30.0, lambda notice: None)
    notices.saved(committed(7, 100.0))
    notices.give("SIGTERM")
    assert "SIGTERM: 30 s are left, and a save takes 100.0 s: step 7 stays the last one" in caplog.text


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_signals_are_notices_while_they_are_watched_and_then_what_they_were(name: str) -> None:
    number = getattr(signal, name)
    before = signal.getsignal(number)
    given: list[Notice] = []
    notices = Notices(30.0, given.append)
    notices.watch()
    os.kill(os.getpid(), number)
    assert [notice.reason.split()[0] for notice in given] == [name]
    notices.unwatch()
    assert signal.getsignal(number) == before


@pytest.fixture
def plain_sigterm() -> Iterator[None]:
    """What it does in a program that has not said otherwise: Ray, say, which other tests load, has."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("plain_sigterm")
def test_a_forked_child_ends_as_whoever_sends_it_a_signal_wants() -> None:
    notices = Notices(30.0, lambda notice: None)
    notices.watch()
    try:
        forking = get_context("fork")
        is_there = forking.Event()
        child = forking.Process(target=lambda: (is_there.set(), time.sleep(60)))
        child.start()
        assert is_there.wait(20)  # what comes while it is forked, Python forgets
        child.terminate()
        child.join(20)
        assert child.exitcode == -signal.SIGTERM
    finally:
        notices.unwatch()
        child.kill()


def test_a_forked_child_goes_on_at_a_notice_that_all_processes_of_a_step_are_sent() -> None:
    """A loader's worker, say, without which its trainer could not go on until it has saved."""
    notices = Notices(30.0, lambda notice: None)
    notices.watch()
    try:
        forking = get_context("fork")
        is_there = forking.Event()
        child = forking.Process(target=lambda: (is_there.set(), time.sleep(0.5)))
        child.start()
        assert is_there.wait(20)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGUSR1)
        child.join(20)
        assert child.exitcode == 0
    finally:
        notices.unwatch()
        child.kill()


def test_no_other_thread_can_watch_which_is_said_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    notices = Notices(30.0, lambda notice: None)
    trying = threading.Thread(target=notices.watch, name="trainer")
    trying.start()
    trying.join()
    notices.unwatch()
    (said,) = caplog.records
    assert said.levelname == "WARNING"
    assert "thread 'trainer'" in said.message
    assert "ask_to_stop" in said.message
