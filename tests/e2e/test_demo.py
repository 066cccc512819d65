"""`strata demo` from outside: what it says is what the files and the ledger say, and nothing of it is left behind."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from strata import CheckpointReader
from strata.demo import task
from tests.servers.coordinator import Client, coordinator
from tests.until import until

STRATA = Path(sys.executable).with_name("strata")
SECONDS = 270

pytestmark = pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="processes are found by /proc")


def started(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    command: list[str | Path] = [STRATA, "demo", "--folder", str(folder), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def processes(folder: Path) -> dict[int, str]:
    """Those that the demo started work in its folder: a coordinator, workers, and their helpers. Their commands."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if Path(os.readlink(process / "cwd")) == folder:
                found[int(process.name)] = (process / "cmdline").read_text("utf-8").replace("\0", " ")
        except OSError:
            continue
    return found


def left_over(folder: Path) -> list[str]:
    return list(processes(folder).values())


def pid_of(folder: Path, worker: str) -> int:
    return next(pid for pid, command in processes(folder).items() if f"strata.demo.worker {worker} " in command)


def noted(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in folder.glob("steps-*.jsonl") for line in file.read_text("utf-8").splitlines()]


def test_what_it_says_is_what_the_files_and_the_ledger_say(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    process = started(folder, "--json")
    out, lines = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, lines
    assert left_over(folder) == []
    said = json.loads(out)
    assert said["problems"] == []
    with CheckpointReader(folder / "checkpoints", job_id="demo") as reader:
        kept = [(step, reader.verify(step)) for step in reader.list_checkpoints()]
        samples = int(reader.load()[task.SAMPLES][0])
    assert [(each["step"], each["size_bytes"]) for each in said["checkpoints"]] == kept
    assert said["checkpoints"][-1]["samples"] == samples
    assert all(each["is_equal"] for each in said["checkpoints"])
    assert {len(each["ranks"]) for each in said["checkpoints"] if each["step"]} == {3, 4}, "it was of 3, and of 4"
    check_losses(folder, said)
    check_ledger(folder, said)
    for happened in ("killing worker-2 with -9", "worker-2 (rank", "adding worker-4", "killing the coordinator"):
        assert happened in lines
    times = said["recovery"]
    assert 0 < times["detected"] < times["recovered"]
    assert times["lost_steps"] > 0
    assert times["steps_alone"] > 0


def check_losses(folder: Path, said: dict[str, Any]) -> None:
    latest = {
        each["step"]: each["loss"] for each in sorted(noted(folder), key=lambda each: each["at"]) if "loss" in each
    }
    assert [tuple(each) for each in said["losses"]] == sorted(latest.items())
    assert said["losses"][-1][1] < said["losses"][0][1] / 2, "it has learned"


def check_ledger(folder: Path, said: dict[str, Any]) -> None:
    """As another coordinator reads it from the journal that is left."""
    with coordinator(folder) as running, Client(running.address, "demo") as client:
        ledger = client.call("GetLedger", dataset_id="rows")
    over = [each for each in said["epochs"] if each["is_over"]]
    assert [(each.epoch, each.consumed_samples) for each in ledger.finished] == [
        (each["epoch"], each["consumed"]) for each in over
    ]
    assert [each["consumed"] for each in over] == [task.ROWS] * len(over)
    assert ledger.dataset.consumed_samples == said["epochs"][-1]["consumed"]


@pytest.mark.parametrize(
    "sent",
    [
        signal.SIGINT,
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, marks=pytest.mark.long),
    ],
)
def test_interrupted_in_the_middle_it_leaves_nothing_behind(tmp_path: Path, sent: signal.Signals) -> None:
    folder = tmp_path / "demo"
    process = started(folder)
    assert process.stdout is not None
    with process:
        try:
            while "all of them train" not in (line := process.stdout.readline()):
                assert line, "it ended"
            assert len(left_over(folder)) >= 5, "a coordinator and 4 workers"
            process.send_signal(sent)
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == (-sent if sent == signal.SIGKILL else 130)
    if sent == signal.SIGKILL:
        until(lambda: not left_over(folder))  # they see that it is gone, and end by themselves
    assert left_over(folder) == []


@pytest.mark.long
def test_kept_it_runs_on_where_it_says_until_it_is_interrupted(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    process = started(folder, "--keep")
    assert process.stdout is not None
    with process:
        while not (found := re.search(r"It runs on: see (http\S+/api/dashboard)", line := process.stdout.readline())):
            assert line, "it ended"
        with urlopen(found[1], timeout=10) as answer:
            workers = json.loads(answer.read())["workers"]
        live = [each["worker_id"] for each in workers if each["state"] not in ("failed", "left")]
        assert len(live) == 4
        os.kill(pid_of(folder, live[0]), signal.SIGKILL)
        while f"{live[0]} has ended: 3 workers left" not in (line := process.stdout.readline()):
            assert line, "it ended"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert left_over(folder) == []


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    process = started(tmp_path)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "is not empty" in told
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]
