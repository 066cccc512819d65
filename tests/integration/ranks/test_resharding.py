"""N ranks save, M load: the same parameters and optimizer, to the bit, and the same losses from there on."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SAVED, UNTIL = 3, 6
LONG = pytest.mark.long


def torchrun(ranks: int, folder: Path, tell: Path, *more: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["-m", "tests.integration.ranks.train", str(folder), "--tell", str(tell), "--until", str(UNTIL), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(tell.read_text("utf-8"))
    return found


@pytest.mark.parametrize(
    ("how", "saving", "loading"),
    [
        pytest.param("fsdp", 4, 2, marks=LONG),
        pytest.param("hsdp", 4, 2, marks=LONG),
        pytest.param("tp", 4, 3, marks=LONG),
        pytest.param("ddp", 2, 3, marks=LONG),
        pytest.param("fsdp", 2, 4, marks=LONG),
        pytest.param("fsdp", 3, 1, marks=LONG),
        pytest.param("ddp", 4, 2, marks=LONG),
    ],
)
def test_a_run_goes_on_at_another_size(tmp_path: Path, how: str, saving: int, loading: int) -> None:
    folder = tmp_path / "checkpoints"
    before = torchrun(saving, folder, tmp_path / "before.json", "--how", how, "--save-at", str(SAVED))
    after = torchrun(loading, folder, tmp_path / "after.json", "--how", "ddp" if how == "ddp" else "fsdp", "--load")
    goes_on(before, after)


@LONG
def test_a_run_goes_on_with_tensor_parallelism(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    before = torchrun(3, folder, tmp_path / "before.json", "--how", "fsdp", "--save-at", str(SAVED))
    goes_on(before, torchrun(4, folder, tmp_path / "after.json", "--how", "tp", "--load"))


def goes_on(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert after["loaded"] == before["saved"]
    assert list(after["losses"]) == [str(step) for step in range(SAVED, UNTIL)]
    for step, loss in after["losses"].items():
        assert loss == pytest.approx(before["losses"][step], rel=1e-9)


@LONG
def test_any_layout_comes_from_any_other(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    program = ["-m", "tests.integration.ranks.layouts", str(tmp_path)]
    for ranks, more in (("4", ["--save"]), ("3", []), ("1", [])):
        done = subprocess.run(
            [*command, ranks, *program, *more], capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
