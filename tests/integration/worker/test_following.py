"""A training loop that was given no orchestrator, beside a coordinator: it is told of, and heeds operators."""

import urllib.error
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata import CheckpointManager, CheckpointReader, Training, TrainingOrchestrator
from strata.data import Loader
from strata.errors import BarrierFailed
from tests.integration.data.jobs import write_rows
from tests.integration.worker.test_training import Start, Trainee, folder, start, worked_on
from tests.integration.worker.trainee import BATCH
from tests.servers.coordinator import Client, CoordinatorProcess, own_job
from tests.until import until

pytestmark = pytest.mark.usefixtures("job")

__all__ = ["folder", "start"]

PLAN = {"seconds": 0.1, "save_every": 1000, "epochs": 50}


def crew_of(start: Start, running: CoordinatorProcess, size: int) -> list[Trainee]:
    places = [{"RANK": str(rank), "WORLD_SIZE": str(size)} if size > 1 else {} for rank in range(size)]
    run = {"COORDINATOR_URL": running.address, "STRATA_RUN_ID": "one"}
    return [start(run | place, name=f"w{rank}", **PLAN) for rank, place in enumerate(places)]


def workers(running: CoordinatorProcess) -> list[dict[str, Any]]:
    """None before the job is known."""
    with suppress(urllib.error.HTTPError):
        return list(running.get(f"/api/v1/workers?job={own_job()}")["items"])
    return []


def latest(folder: Path) -> int:
    with CheckpointReader(folder / "checkpoints") as checkpoints:
        return checkpoints.latest_step() or 0


@pytest.mark.parametrize("size", [1, 2])
def test_an_operator_sees_it_has_it_save_and_stops_it(
    start: Start, folder: Path, running: CoordinatorProcess, size: int
) -> None:
    crew, operator = crew_of(start, running, size), Client(running.address)
    until(lambda: [each["state"] for each in workers(running)] == ["training"] * size, seconds=60)
    until(lambda: all(each["step"] > 0 and "goodput_ratio" in each["resources"] for each in workers(running)))
    operator.call("RequestCheckpoint", reason="to look at it")
    until(lambda: latest(folder) > 0)
    operator.call("StopJob", reason="the night is over")
    for process in crew:
        process.ended()
    assert latest(folder) == max(step for step, _, _ in worked_on(folder)) + 1, "not a step is lost"
    shown = [(each["state"], each["reason"]) for each in workers(running)]
    assert shown == [("left", "stopped: the night is over")] * size


@pytest.fixture
def alone(tmp_path: Path, running: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COORDINATOR_URL", running.address)
    write_rows(tmp_path / "rows")
    return tmp_path


def test_an_orchestrator_of_the_same_process_is_left_as_it_was(alone: Path, running: CoordinatorProcess) -> None:
    orchestrator = TrainingOrchestrator("w0", world_size=1, rank=0, job_id=f"{own_job()}-beside")
    orchestrator.blocking.register_worker()
    loader = Loader(str(alone / "rows"), BATCH, format="parquet")
    with Training({"total": np.zeros(1)}, loader, CheckpointManager(alone / "checkpoints")) as training:
        for _ in training:
            pass
    orchestrator.blocking.heartbeat()
    (shown,) = running.get(f"/api/v1/workers?job={own_job()}-beside")["items"]
    assert (shown["step"], shown["state"]) == (training.completed, "idle")
    with CheckpointManager(alone / "others") as manager:
        manager.save({"of": 1}, 1)
        assert manager.session is orchestrator.session, "it is still this process's orchestrator"
    orchestrator.blocking.deregister()
    (shown,) = running.get(f"/api/v1/workers?job={own_job()}-beside")["items"]
    assert shown["state"] == "left"


def test_what_is_waited_at_a_barrier_is_no_useful_time(alone: Path, running: CoordinatorProcess) -> None:
    seconds = 0.3
    Client(running.address, f"{own_job()}-two").register("w1", rank=1, world_size=2)
    orchestrator = TrainingOrchestrator("w0", world_size=2, rank=0, job_id=f"{own_job()}-two")
    orchestrator.blocking.register_worker()
    loader, manager = Loader(str(alone / "rows"), BATCH, format="parquet"), CheckpointManager(alone, coordinator_url="")
    with Training({"total": np.zeros(1)}, loader, manager, orchestrator=orchestrator) as training:
        for _ in training:
            if training.completed == 1:
                with pytest.raises(BarrierFailed):
                    orchestrator.blocking.wait_barrier("nobody-comes", seconds)
    assert training.goodput.seconds["barrier"] >= seconds
    orchestrator.blocking.deregister()
