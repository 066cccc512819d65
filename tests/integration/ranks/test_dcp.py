"""torch.distributed.checkpoint on several ranks with Strata under it: N save, M load, and a rank that dies."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from strata.checkpoint import CheckpointReader
from tests.unit.checkpoint.states import assert_same

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")

SAVED, UNTIL = 3, 6


def torchrun(ranks: int, folder: Path, tell: str, *more: str, fails: bool = False) -> dict[str, Any]:
    told = folder / tell
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["-m", "tests.integration.ranks.dcp_train", str(folder), "--tell", str(told), "--until", str(UNTIL)]
    done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode != 0) == fails, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(told.read_text("utf-8")) if told.exists() else {}
    return found


def strata(*command: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "strata", "ckpt", *map(str, command)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def loads(*ways: str) -> list[str]:
    return ["--load", *ways]


@pytest.mark.long
def test_four_ranks_save_and_two_go_on(tmp_path: Path) -> None:
    before = torchrun(4, tmp_path, "before.json", "--save", "dcp", "async", "manager", "torch")
    ways = loads("dcp:dcp", "manager:dcp", "dcp:async", "dcp:manager")
    after = torchrun(2, tmp_path, "after.json", *ways)
    assert list(after["loaded"]) == ways[1:]
    for step, loaded in after["loaded"].values():
        assert step == SAVED
        assert loaded == before["saved"]
    assert list(after["losses"]) == [str(step) for step in range(SAVED, UNTIL)]
    for step, loss in after["losses"].items():
        assert loss == pytest.approx(before["losses"][step], rel=1e-9)
    assert "all as written" in strata("verify", tmp_path / "dcp")
    assert "of 4 ranks" in strata("show", tmp_path / "dcp")
    assert "same" in strata("diff", tmp_path / "dcp", tmp_path / "async", "--exit-code")
    check_import_and_export(tmp_path)


def check_import_and_export(folder: Path) -> None:
    """Of what four ranks wrote: by torch to Strata, and by Strata to torch."""
    strata("import", folder / "torch", folder / "imported", "--step", SAVED)
    expected = CheckpointReader(folder / "dcp").load()
    assert_same(in_order(CheckpointReader(folder / "imported").load()), in_order(expected))
    for way in ("dcp", "manager"):
        strata("export", "dcp", folder / way, folder / f"{way}-exported")
        found = zeros(expected)
        dcp.load(found, checkpoint_id=folder / f"{way}-exported", no_dist=True)
        assert_same(found, expected)


def in_order(state: Any) -> Any:
    """Torch's own folders have keys in the order in which ranks wrote them."""
    if isinstance(state, list):
        return [in_order(each) for each in state]
    return {key: in_order(state[key]) for key in sorted(state)} if isinstance(state, dict) else state


def zeros(state: Any) -> Any:
    """The same shapes, to be loaded into."""
    if isinstance(state, dict):
        return {key: zeros(each) for key, each in state.items()}
    if isinstance(state, list):
        return [zeros(each) for each in state]
    return torch.zeros_like(state) if isinstance(state, torch.Tensor) else None


@pytest.mark.long
def test_a_rank_that_dies_before_the_commit_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    before = torchrun(4, tmp_path, "before.json", "--save", "dcp", "--how", "hsdp")
    torchrun(4, tmp_path, "never.json", *loads("dcp:dcp"), "--die-rank", "1", fails=True)
    folder = tmp_path / "dcp/default/checkpoints"
    assert list((folder / "step_4").iterdir())
    with CheckpointReader(tmp_path / "dcp") as reader:
        assert reader.list_checkpoints() == [SAVED]
    after = torchrun(2, tmp_path, "after.json", *loads("dcp:dcp"), "--save", "dcp", "--save-at", "5")
    assert after["loaded"]["dcp:dcp"] == [SAVED, before["saved"]]
    with CheckpointReader(tmp_path / "dcp") as reader:
        assert reader.list_checkpoints() == [SAVED, 5]
        assert reader.describe().world_size == 2
    assert not (folder / "step_4").exists()
    assert "all as written" in strata("verify", tmp_path / "dcp", "--all")


@pytest.mark.long
def test_a_process_of_its_own_saves(tmp_path: Path) -> None:
    before = torchrun(2, tmp_path, "before.json", "--save", "process")
    after = torchrun(1, tmp_path, "after.json", *loads("dcp:process"))
    assert after["loaded"]["dcp:process"] == [SAVED, before["saved"]]
