"""How a process is shown that has ended, whether or not it said that it leaves."""

import os
import subprocess
import sys
from typing import Any

import pytest

from tests.integration.session.scenes import worker
from tests.servers.coordinator import CoordinatorProcess, own_job

pytestmark = pytest.mark.usefixtures("job")

BEGINNING = """
import asyncio, multiprocessing, signal, sys
from strata import CheckpointManager, TrainingOrchestrator
from strata.session import ends
from strata.worker.settings import OrchestratorConfig

def registered(**how):
    made = TrainingOrchestrator("w0", config=OrchestratorConfig(**how))
    made.blocking.register_worker(ip="127.0.0.1")
    return made

def fail():
    registered()
    raise ValueError("no number")

def finish():
    registered()
    ends("enough")

async def within(error):
    async with TrainingOrchestrator("w0") as made:
        if error is not None:
            raise error

async def until_interrupted():
    async with TrainingOrchestrator("w0"):
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(60)

if __name__ == "__main__":
"""


def ended(running: CoordinatorProcess, *lines: str) -> dict[str, Any]:
    """The worker, as it is shown once the process that did this is gone."""
    script = BEGINNING + "\n".join(f"    {line}" for line in lines)
    path = running.folder / "script.py"
    path.write_text(script)
    environment = {**os.environ, "COORDINATOR_URL": running.address}
    subprocess.run([sys.executable, str(path)], env=environment, timeout=60, check=False)
    return worker(running, own_job())


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["made = registered()"], "its process ended by itself"),
        (["made = registered(helper=False)"], "its process ended by itself"),
        (["registered().blocking.deregister()"], "it is done"),
        (["registered().blocking.deregister('enough')"], "enough"),
        (["asyncio.run(within(None))"], "it is done"),
        (["asyncio.run(within(SystemExit(0)))"], "it is done"),
        (["asyncio.run(until_interrupted())"], "it was interrupted: CancelledError"),
        (["made = registered()", "raise KeyboardInterrupt"], "it was interrupted: KeyboardInterrupt"),
    ],
)
def test_one_that_ends_in_good_order_has_left(running: CoordinatorProcess, lines: list[str], reason: str) -> None:
    shown = ended(running, *lines)
    assert (shown["state"], shown["reason"]) == ("left", reason)


@pytest.mark.parametrize(
    "lines",
    [
        ["fail()"],
        ["made = registered(helper=False)", "raise ValueError('no number')"],
        ["asyncio.run(within(ValueError('no number')))"],
    ],
)
def test_one_that_ends_in_an_error_has_failed_at_once(running: CoordinatorProcess, lines: list[str]) -> None:
    shown = ended(running, *lines)
    assert (shown["state"], shown["reason"]) == ("failed", "its process died: ValueError: no number")


def test_a_child_of_pythons_own_that_fails_is_told_of_by_its_helper(running: CoordinatorProcess) -> None:
    """It ends alike whether or not it failed: with `sys.exit`."""
    child = "child = multiprocessing.get_context('spawn').Process(target=fail)"
    shown = ended(running, child, "child.start()", "child.join()", "import time; time.sleep(2)")
    assert shown["state"] == "failed"
    assert "ended without leaving the job" in shown["reason"]


@pytest.mark.parametrize("how", ["fork", "forkserver", "spawn"])
def test_a_child_of_pythons_own_that_said_how_it_ends_leaves(running: CoordinatorProcess, how: str) -> None:
    child = f"child = multiprocessing.get_context({how!r}).Process(target=finish)"
    shown = ended(running, child, "child.start()", "child.join()")
    assert (shown["state"], shown["reason"]) == ("left", "enough")


def test_what_is_being_saved_is_committed_before_it_leaves(running: CoordinatorProcess) -> None:
    lines = ["registered().blocking.recover()", "manager = CheckpointManager(sys.argv[0] + '.saved')"]
    shown = ended(running, *lines, "manager.save_async(bytes(50_000_000), 7)")
    assert shown["state"] == "left"
    checkpoints = running.get(f"/api/v1/checkpoints?job={own_job()}")["items"]
    assert [(each["step"], each["status"]) for each in checkpoints] == [(7, "committed")]
