"""A whole job of training processes, and a coordinator: killed, stopped, resumed and started at random, from a seed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strata import CheckpointReader, DatasetRegistry
from tests.integration.data.jobs import write_rows
from tests.integration.session.scenes import eventually, helpers_of
from tests.servers.coordinator import Client, CoordinatorProcess, coordinator

JOB = "chaos"
ROWS, EPOCHS, STEP_SECONDS = 2_000, 6, 0.3
"""Undisturbed, that alone is three minutes."""
FEWEST_BLOWS = 25
FLAGS = ("--lease-seconds", "3", "--heartbeat-seconds", "0.5")
SEED = int(os.environ.get("STRATA_CHAOS_SEED", "1"))


class Crew:
    """Training processes, so many at a time."""

    def __init__(self, folder: Path, address: str, size: int) -> None:
        self._folder, self._size, self._count = folder, size, 0
        self._environment = {**os.environ, "COORDINATOR_URL": address}
        self.running: list[subprocess.Popen[bytes]] = []
        self.stopped: list[subprocess.Popen[bytes]] = []
        self.ended: list[int] = []
        self.pids: list[int] = []
        """Of all that ever ran."""

    def fill(self) -> None:
        while len(self.running) + len(self.stopped) < self._size:
            how = {"job": JOB, "name": f"w{self._count}", "seconds": STEP_SECONDS, "epochs": EPOCHS, "save_every": 5}
            command = [sys.executable, "-m", "tests.integration.worker.trainee", str(self._folder), json.dumps(how)]
            with (self._folder / f"log-{self._count}").open("wb") as log:
                self.running.append(subprocess.Popen(command, stdout=log, stderr=log, env=self._environment))
            self.pids.append(self.running[-1].pid)
            self._count += 1

    def take_stock(self) -> None:
        """Those that ended by themselves: well, or since they were given up while they were stopped."""
        for process in list(self.running):
            if process.poll() is not None:
                self.running.remove(process)
                self.ended.append(process.returncode)

    def kill(self, process: "subprocess.Popen[bytes]") -> None:
        process.kill()
        process.wait()
        self.running.remove(process)

    def stop(self, process: "subprocess.Popen[bytes]") -> None:
        process.send_signal(signal.SIGSTOP)
        self.running.remove(process)
        self.stopped.append(process)

    def resume(self) -> None:
        for process in self.stopped:
            process.send_signal(signal.SIGCONT)
        self.running += self.stopped
        self.stopped = []

    def end(self) -> None:
        for process in (*self.running, *self.stopped):
            process.kill()
            process.wait()


@contextmanager
def crew(folder: Path, address: str, size: int) -> Iterator[Crew]:
    found = Crew(folder, address, size)
    try:
        yield found
    finally:
        found.end()


def is_over(operator: Client) -> bool:
    dataset = operator.call("GetLedger", dataset_id="rows").dataset
    epoch: int = dataset.epoch
    return epoch >= EPOCHS


def torment(crew: Crew, running: CoordinatorProcess, operator: Client, rng: random.Random, seconds: float) -> list[str]:
    """Until the time is up, or the training is over. What was done."""
    done, ends = [], time.monotonic() + seconds
    while time.monotonic() < ends and not is_over(operator):
        time.sleep(rng.uniform(1.0, 6.0))
        crew.take_stock()
        what = rng.choice(["kill", "kill", "stop", "coordinator", "resume", "both"])
        done.append(what)
        if what in ("kill", "both") and crew.running:
            crew.kill(rng.choice(crew.running))
        if what == "stop" and crew.running and not crew.stopped:
            crew.stop(rng.choice(crew.running))
        if what == "resume":
            crew.resume()
        if what in ("coordinator", "both"):
            running.kill()
            time.sleep(rng.uniform(0.1, 2.0))
            running.start()
        crew.fill()
    return done


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
@pytest.mark.parametrize(("size", "seconds", "seed"), [(8, 180.0, SEED)])
def test_a_job_that_is_tormented_ends_and_nothing_is_lost(tmp_path: Path, size: int, seconds: float, seed: int) -> None:
    write_rows(tmp_path / "rows", ROWS)
    state = tmp_path / "coordinator"
    state.mkdir()
    with coordinator(state, *FLAGS) as running:
        with DatasetRegistry(running.address, job_id=JOB) as registry:
            registry.register("rows", str(tmp_path / "rows"), "parquet", shard_size=64, shuffle=True)
        operator = Client(running.address, JOB, patient=True)
        with crew(tmp_path, running.address, size) as workers:
            workers.fill()
            done = torment(workers, running, operator, random.Random(seed), seconds)
            assert len(done) >= FEWEST_BLOWS, f"seed {seed}: it was over after {done}"
            workers.resume()
            ends = time.monotonic() + 600
            while workers.running:
                assert time.monotonic() < ends, f"seed {seed}: it did not come to its end after {done}"
                workers.take_stock()
                time.sleep(0.2)
            assert workers.ended.count(0) >= 1, f"seed {seed}: nobody came to the end: {workers.ended} after {done}"
        ledger = operator.call("GetLedger", dataset_id="rows")
        finished = [(each.epoch, each.consumed_samples) for each in ledger.finished]
        assert finished == [(epoch, ROWS) for epoch in range(EPOCHS)], f"seed {seed}: {done}"
        with CheckpointReader(tmp_path / "checkpoints", job_id=JOB) as checkpoints:
            steps = checkpoints.list_checkpoints()
            assert all(checkpoints.verify(step) > 0 for step in steps)
            final = checkpoints.load()
        assert int(final["samples"][0]) == EPOCHS * ROWS
        assert int(final["total"][0]) == EPOCHS * sum(range(ROWS)), "every sample once, and none twice"
    eventually(lambda: not subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, check=False).stdout)
    eventually(lambda: not any(helpers_of(pid) for pid in workers.pids))
