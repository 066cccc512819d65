"""Forks: a child is in no job of its parent's, and waits for none of its parent's threads."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from strata.checkpoint import telling
from strata.session import active, shared
from tests.until import until


def leave() -> None:
    """As when Python ends."""
    shared.leave_all()
    assert active() is None


def tell() -> None:
    telling.show_behind("forked", 0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(("lock", "work"), [(lambda: shared.lock, leave), (lambda: telling.lock, tell)])
def test_a_child_that_is_forked_while_another_thread_is_at_work_does_not_wait_for_it(
    lock: Callable[[], threading.Lock], work: Callable[[], None]
) -> None:
    tell()  # or what makes the numbers would be at work, too
    is_held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with lock():
            is_held.set()
            may_end.wait(60)

    holding = threading.Thread(target=hold)
    holding.start()
    is_held.wait()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            work()
            os._exit(0)
        os._exit(1)
    may_end.set()
    holding.join()
    assert status(child) == 0


def status(child: int) -> int:
    """Kills a child that does not end."""
    found: list[int] = []

    def has_ended() -> bool:
        done, how = os.waitpid(child, os.WNOHANG)
        found.extend([how] if done else [])
        return bool(done)

    try:
        until(has_ended)
    except AssertionError:
        os.kill(child, 9)
        os.waitpid(child, 0)
        raise
    return os.waitstatus_to_exitcode(found[0])
