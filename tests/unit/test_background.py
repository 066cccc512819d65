"""The private loop: results, errors, forks, and calls that would wait for themselves."""

import asyncio
import os
import subprocess
import sys
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


ENDS = """
import asyncio
from strata import background

async def goes_on():
    try:
        began.set()
        await asyncio.sleep(3600)
    finally:
        print("given up", flush=True)

began = asyncio.Event()
background.start(goes_on())
background.run(began.wait())
"""


def test_what_is_under_way_when_python_ends_is_given_up_before() -> None:
    told = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60, check=False)
    assert (told.returncode, told.stdout, told.stderr) == (0, "given up\n", "")


FAILS = """
from strata import background

def fails():
    raise ZeroDivisionError("a defect")

background.at_the_end(fails)
background.at_the_end(lambda: print("done", flush=True))
background.loop()
"""


def test_last_work_that_fails_costs_nobody_else_theirs() -> None:
    told = subprocess.run([sys.executable, "-c", FAILS], capture_output=True, text=True, timeout=60, check=False)
    assert told.stdout == "done\n"
    assert "a defect" in told.stderr
