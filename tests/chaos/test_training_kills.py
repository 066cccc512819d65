"""A job of a fixed size in which a process is killed at any step, or the coordinator, or both, or all processes: it
ends as if nothing had been."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from strata import CheckpointReader, DatasetRegistry
from tests.integration.data.jobs import ROWS, write_rows
from tests.integration.session.scenes import eventually
from tests.integration.worker.trainee import BATCH
from tests.servers.coordinator import Client, CoordinatorProcess, coordinator

JOB = "fixed"
SIZE, EPOCHS, SAVE_EVERY = 3, 2, 3
STEPS = EPOCHS * -(-ROWS // BATCH)
FLAGS = ("--lease-seconds", "3", "--heartbeat-seconds", "0.5")
RANKS = {"rank 0": (0,), "rank 1": (1,), "both": (2,), "all": (0, 1, 2), "coordinator": ()}
MOMENTS = [0, 1, 2, 3, 4, 11, 12, 13, STEPS - 1, STEPS]
LONG_MOMENTS = [0, 3, STEPS]
"""At the start, between a save and the next, and at the end; the others are left to `make test-soak`."""


class End(NamedTuple):
    """What a run came to. `weight`: as it was computed from all batches in their order, shared out as they were."""

    steps: int
    samples: int
    total: int
    weight: str
    finished: list[tuple[int, int]]


class Scene:
    """A coordinator, and the processes of a job, each of which is started again when it is killed."""

    def __init__(self, folder: Path, running: CoordinatorProcess) -> None:
        self._folder, self._running = folder, running
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._operator = Client(running.address, JOB, patient=True)
        for rank in range(SIZE):
            self._start(rank)

    def _start(self, rank: int) -> None:
        place = {"rank": rank, "world_size": SIZE}
        how = {"job": JOB, "name": f"w{rank}", "place": place, "seconds": 0.05}
        how |= {"epochs": EPOCHS, "save_every": SAVE_EVERY}
        command = [sys.executable, "-m", "tests.integration.worker.trainee", str(self._folder), json.dumps(how)]
        environment = {**os.environ, "COORDINATOR_URL": self._running.address}
        with (self._folder / f"log-{rank}").open("ab") as log:
            self._processes[rank] = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    @property
    def made(self) -> int:
        """So many steps, by the one who is furthest."""
        lines = [line for file in self._folder.glob("steps-*") for line in file.read_text("utf-8").splitlines()]
        return max((json.loads(line)[0] + 1 for line in lines), default=0)

    def kill(self, who: str) -> None:
        for rank in RANKS[who]:
            self._processes[rank].kill()
        if who in ("coordinator", "both"):
            self._running.kill()
            self._running.start()
        for rank in RANKS[who]:
            self._processes[rank].wait()
            self._start(rank)

    def end(self) -> End:
        for rank, process in self._processes.items():
            assert process.wait(120) == 0, (self._folder / f"log-{rank}").read_text("utf-8")[-3000:]
        ledger = self._operator.call("GetLedger", dataset_id="rows")
        finished = [(each.epoch, each.consumed_samples) for each in ledger.finished]
        with CheckpointReader(self._folder / "checkpoints", job_id=JOB) as checkpoints:
            assert all(checkpoints.verify(step) > 0 for step in checkpoints.list_checkpoints())
            steps, state = checkpoints.latest_step(), checkpoints.load()
        assert steps is not None
        samples, total = (int(state[name][0]) for name in ("samples", "total"))
        return End(steps, samples, total, _exactly(state["weight"]), finished)

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()


def _exactly(weight: "np.ndarray[Any, np.dtype[np.float64]]") -> str:
    return float(weight[0]).hex()


@contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    write_rows(folder / "rows")
    state = folder / "coordinator"
    state.mkdir()
    with ExitStack() as stack:
        running = stack.enter_context(coordinator(state, *FLAGS))
        with DatasetRegistry(running.address, job_id=JOB) as registry:
            registry.register("rows", str(folder / "rows"), "parquet", shard_size=16, shuffle=True)
        found = Scene(folder, running)
        stack.callback(found.close)
        yield found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> End:
    with scene(tmp_path_factory.mktemp("undisturbed")) as job:
        return job.end()


def case(who: str, moment: int) -> Any:
    is_sample = (who, moment) == ("both", 13)
    mark = pytest.mark.long if moment in LONG_MOMENTS else pytest.mark.soak
    return pytest.param(who, moment, marks=() if is_sample else mark, id=f"{who} at {moment}")


@pytest.mark.parametrize(("who", "moment"), [case(who, moment) for who in RANKS for moment in MOMENTS])
def test_it_ends_with_the_same_parameters(tmp_path: Path, undisturbed: End, who: str, moment: int) -> None:
    with scene(tmp_path) as job:
        eventually(lambda: job.made >= moment)
        job.kill(who)
        assert job.end() == undisturbed


def test_the_run_that_all_are_compared_with_is_whole(undisturbed: End) -> None:
    assert undisturbed[:3] == (STEPS, EPOCHS * ROWS, EPOCHS * sum(range(ROWS)))
    assert undisturbed.finished == [(epoch, ROWS) for epoch in range(EPOCHS)]
