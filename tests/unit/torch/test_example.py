"""The example in the documentation does what is said there."""

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.checkpoint.states import assert_same

PAGE = Path(__file__).parents[3] / "docs/CHECKPOINTS.md"


def run(program: str, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    found: dict[str, Any] = {}
    exec(program, found)
    return found


def test_a_run_that_is_stopped_goes_on_as_if_it_had_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = PAGE.read_text("utf-8").partition("## With PyTorch")[2]
    program = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    stopped = program.replace("+ 1, 101)", "+ 1, 56)")
    assert stopped != program
    for folder in ("whole", "stopped"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "whole")
    whole = run(program, seed=1)
    monkeypatch.chdir(tmp_path / "stopped")
    run(stopped, seed=1)
    again = run(program, seed=2)
    assert (again["manager"].loaded_step, whole["manager"].loaded_step) == (50, None)
    assert again["loss"].item() == whole["loss"].item()
    first, second = (
        {key: each for key, each in found["state"].strata_state().items() if key != "rng"} for found in (again, whole)
    )
    assert_same(first, second)
