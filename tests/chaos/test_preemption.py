"""Machines that are taken away: SIGTERM, and so many seconds later SIGKILL, as clouds, Slurm and Kubernetes do it."""

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strata import CheckpointReader
from tests.integration.data.jobs import ROWS
from tests.integration.worker.test_training import (
    Start,
    Trainee,
    check_batches,
    folder,
    registered,
    start,
    worked_on,
)
from tests.integration.worker.trainee import BATCH
from tests.servers.coordinator import Client, CoordinatorProcess, coordinator, own_job
from tests.until import until

__all__ = ["folder", "start"]

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("job")]

STEPS_PER_EPOCH = -(-ROWS // BATCH)


def latest(folder: Path) -> int:
    with CheckpointReader(folder / "checkpoints") as checkpoints:
        return checkpoints.latest_step() or 0


def take_away(crew: list[Trainee], noticed: int, seconds: float) -> None:
    """Notice is given to one, and what still runs of all when the time is up is killed: then it ends with -9."""
    crew[noticed].send(signal.SIGTERM)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and any(each.process.poll() is None for each in crew):
        time.sleep(0.05)
    for each in crew:
        if each.process.poll() is None:
            each.process.kill()
        each.ended(status=75)


def crew_of_two(start: Start, folder: Path, running: CoordinatorProcess, notice: float, **how: Any) -> list[Trainee]:
    environment = registered(folder, running)
    plan = {"job": own_job(), "save_every": 2, "least": 2, "notice": notice, "ranks_seconds": 120.0, **how}
    return [start(environment, name=f"w{number}", **plan) for number in range(2)]


def check_it_goes_on(start: Start, folder: Path, running: CoordinatorProcess) -> None:
    environment = {"COORDINATOR_URL": running.address}
    again = [start(environment, job=own_job(), name=f"again{number}", least=2) for number in range(2)]
    assert all(each.ended()["samples"] == 2 * ROWS for each in again)
    check_batches(folder)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    (tmp_path / "coordinator").mkdir()
    with coordinator(tmp_path / "coordinator") as running:
        yield running


@pytest.mark.parametrize("noticed", [0, 1])
@pytest.mark.parametrize(
    "notice", [pytest.param(30.0, marks=pytest.mark.long), pytest.param(120.0, marks=pytest.mark.soak)]
)
def test_within_its_notice_a_job_saves_the_step_that_it_stops_at(
    start: Start, folder: Path, running: CoordinatorProcess, notice: float, noticed: int
) -> None:
    """Steps and writes take seconds: what is agreed on must still be in time."""
    how = {"seconds": notice / 15, "write_seconds": notice / 10}
    crew = crew_of_two(start, folder, running, notice, **how)
    until(lambda: latest(folder) >= 2, seconds=300.0)
    take_away(crew, noticed, notice)
    kept = latest(folder)
    assert kept == max(step for step, _, _ in worked_on(folder)) + 1, "not a step is lost"
    ledger = Client(running.address).call("GetLedger", dataset_id="rows").dataset
    assert (ledger.epoch, ledger.consumed_samples) == (kept // STEPS_PER_EPOCH, kept % STEPS_PER_EPOCH * BATCH)
    check_it_goes_on(start, folder, running)


@pytest.mark.long
def test_notice_that_is_too_short_for_a_save_is_used_to_end_well(
    start: Start, folder: Path, running: CoordinatorProcess
) -> None:
    """A save takes 25 s, and 30 are left: none is begun that the kill would cut off."""
    crew = crew_of_two(start, folder, running, 30.0, seconds=1.0, write_seconds=25.0, save_every=1000)
    until(lambda: len(worked_on(folder)) >= 6, seconds=300.0)
    take_away(crew, 0, 30.0)
    assert latest(folder) == 0, "what they began with"
    assert re.search(r"a save takes 2\d", crew[0].said)
    assert "step 0 stays the last one" in crew[0].said
    check_it_goes_on(start, folder, running)
