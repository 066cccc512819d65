"""Several ranks without a coordinator, of which one, or all, are given notice that they will be killed."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strata import CheckpointReader
from tests.integration.data.jobs import write_rows
from tests.integration.session.scenes import eventually

SIZE = 3

Start = Callable[..., "Crew"]


class Crew:
    """All ranks of one start."""

    def __init__(self, folder: Path, environment: dict[str, str], notice_seconds: float) -> None:
        self._folder = folder
        command = [sys.executable, "-m", "tests.integration.worker.several", str(folder), str(notice_seconds)]
        self.processes = []
        for rank in range(SIZE):
            place = {"RANK": str(rank), "WORLD_SIZE": str(SIZE), "OMP_NUM_THREADS": "1"}
            with (folder / f"log-{rank}").open("w") as log:
                around = {**os.environ, **place, **environment}
                self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=around))

    def made(self, rank: int) -> int:
        return made(self._folder, rank)

    def said(self, rank: int) -> str:
        return (self._folder / f"log-{rank}").read_text("utf-8")

    def ended(self, rank: int) -> int:
        return self.processes[rank].wait(60)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    write_rows(tmp_path / "rows")
    started: list[Crew] = []

    def begin(notice_seconds: float = 30.0, **environment: str) -> Crew:
        started.append(Crew(tmp_path, environment, notice_seconds))
        crew = started[-1]
        eventually(lambda: min(crew.made(rank) for rank in range(SIZE)) >= 5)
        return crew

    yield begin
    for crew in started:
        for process in crew.processes:
            process.kill()
            process.wait()


def made(folder: Path, rank: int) -> int:
    """So many steps."""
    file = folder / f"made-{rank}"
    return int(lines[-1]) if file.exists() and (lines := file.read_text("utf-8").split()) else 0


def latest(folder: Path) -> int:
    with CheckpointReader(folder / "checkpoints") as checkpoints:
        found = checkpoints.latest_step()
    assert found is not None
    return found


def group() -> dict[str, str]:
    """Where torch's processes meet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}


@pytest.mark.parametrize(
    ("whom", "wait"),
    [
        pytest.param([SIZE - 1], 0.0, id="the last"),
        pytest.param([0, 1, 2], 0.02, id="all, one after the other"),
        pytest.param([0], 0.0, id="the first", marks=pytest.mark.long),
        pytest.param([0, 1, 2], 0.0, id="all at once", marks=pytest.mark.long),
    ],
)
def test_ranks_that_torch_knows_stop_and_save_at_one_step_whoever_is_given_notice(
    start: Start, tmp_path: Path, whom: list[int], wait: float
) -> None:
    """One after the other, as a launcher sends it: some may be in the next step by then."""
    crew = start(**group())
    for rank in whom:
        crew.processes[rank].send_signal(signal.SIGTERM)
        time.sleep(wait)
    assert [crew.ended(rank) for rank in range(SIZE)] == [75] * SIZE, crew.said(0)[-3000:]
    made = {crew.made(rank) for rank in range(SIZE)}
    assert made == {latest(tmp_path)}, "not a step is lost"


@pytest.mark.long
def test_if_one_has_no_time_to_save_none_begins_to(start: Start, tmp_path: Path) -> None:
    crew = start(1e-6, **group())
    crew.processes[1].send_signal(signal.SIGTERM)
    assert [crew.ended(rank) for rank in range(SIZE)] == [75] * SIZE
    assert len({crew.made(rank) for rank in range(SIZE)}) == 1
    assert latest(tmp_path) == 0, "the last commit stays"
    assert "another rank was given notice" in crew.said(0)


def test_ranks_that_cannot_agree_keep_the_last_commit_and_end_in_time(start: Start, tmp_path: Path) -> None:
    """Each goes its own way, and stops at a step of its own. None waits for the others' parts for as long as else."""
    crew = start(8.0, STRATA_RUN_ID=secrets.token_hex(4))
    for process in crew.processes:
        process.send_signal(signal.SIGTERM)
    assert [crew.ended(rank) for rank in range(SIZE)] == [75] * SIZE
    assert latest(tmp_path) == 0
    assert "the last commit stays" in crew.said(0)
    assert "run a coordinator" in crew.said(0)


@pytest.mark.long
def test_torchrun_that_is_told_of_sigusr1_has_its_ranks_save_and_stop_at_one_step(tmp_path: Path) -> None:
    """As Slurm sends it: to torchrun, which passes it on, and to each rank."""
    write_rows(tmp_path / "rows")
    flags = ["--standalone", "--nproc-per-node=2", "--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"]
    program = ["-m", "tests.integration.worker.several", str(tmp_path), "30"]
    with (tmp_path / "log").open("w") as log:
        torchrun = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *flags, *program],
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    try:
        eventually(lambda: min(made(tmp_path, rank) for rank in range(2)) >= 5)
        for rank in range(2):
            os.kill(int((tmp_path / f"process-{rank}").read_text("utf-8")), signal.SIGUSR1)
        torchrun.send_signal(signal.SIGUSR1)
        assert torchrun.wait(60) == 1, "a status of its own"
    finally:
        torchrun.terminate()  # which ends its ranks, if they run still
        torchrun.wait()
    assert {made(tmp_path, rank) for rank in range(2)} == {latest(tmp_path)}
    said = (tmp_path / "log").read_text("utf-8")
    assert said.count("SIGUSR1 at") == 2, said[-3000:]
