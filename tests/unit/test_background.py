"""The private loop: results, errors, forks, and calls that would wait for themselves."""

import asyncio
import os
import threading

import pytest

from strata import background


async def _where() -> str:
    return threading.current_thread().name


async def _fail() -> None:
    raise ZeroDivisionError


def test_it_runs_on_a_thread_of_its_own() -> None:
    assert background.run(_where()) == "strata-loop"
    with pytest.raises(ZeroDivisionError):
        background.run(_fail())


def test_it_runs_under_a_running_loop() -> None:
    async def main() -> str:
        return background.run(_where())

    assert asyncio.run(main()) == "strata-loop"


def test_waiting_for_itself_is_refused() -> None:
    async def nested() -> None:
        background.run(_where())

    with pytest.raises(RuntimeError, match="would wait for itself"):
        background.run(nested())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_one_of_its_own() -> None:
    background.run(_where())
    child = os.fork()
    if child == 0:
        os._exit(0 if background.run(_where()) == "strata-loop" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
