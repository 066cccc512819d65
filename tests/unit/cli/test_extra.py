"""Without the extra `coordinator` a process trains, and the command line says what is missing."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from strata.cli import EXTRA

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))["project"]

HIDING = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""

COMMAND = """
from strata.cli import main
main()
"""

TRAINING = """
import sys
import numpy as np
import strata
import strata.data, strata.integrations.dcp, strata.rpc, strata.session, strata.wire.connecting
from strata.wire.remotes import remote

for name in strata.__all__:
    getattr(strata, name)
strata.rpc.Channel, strata.rpc.Server, remote("Heartbeat")
with strata.CheckpointManager(sys.argv[1], rank=0, world_size=1) as manager:
    manager.save_async({"weights": np.ones(3)}, step=7).result()
    assert manager.load()["weights"].tolist() == [1, 1, 1]
print("trained")
"""


def _run(hidden: tuple[str, ...], program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", HIDING.format(hidden=hidden) + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("typer", ["--version"]),
        ("rich", ["status"]),
        ("fastapi", ["coordinator", "127.0.0.1:0"]),
    ],
)
def test_a_command_says_which_extra_is_missing(missing: str, arguments: list[str], tmp_path: Path) -> None:
    state = ["--state-dir", str(tmp_path)] if "coordinator" in arguments else []
    told = _run((missing,), COMMAND, *arguments, *state)
    assert told.returncode == 2
    assert told.stderr.splitlines() == [
        f"error: the strata command and the coordinator need {missing}, which is not installed: "
        f"pip install '{PROJECT['name']}[coordinator]'"
    ]


def test_what_else_is_missing_is_not_blamed_on_the_extra() -> None:
    told = _run(("msgspec",), COMMAND, "ckpt", "ls", "somewhere")
    assert "No module named 'msgspec'" in told.stderr
    assert "coordinator]" not in told.stderr


def test_a_training_process_does_without_the_extra(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    told = _run(EXTRA, TRAINING, str(tmp_path))
    assert told.stdout == "trained\n", told.stderr


def test_the_extra_brings_the_modules_that_are_said_to_be_missing() -> None:
    """fastapi brings two of them, and without uvloop a coordinator runs on asyncio's own loop."""
    known = packages_distributions()
    brought = {re.split("[<>=;]", each)[0].strip() for each in PROJECT["optional-dependencies"]["coordinator"]}
    assert {known[module][0] for module in EXTRA} - {"pydantic", "starlette"} == brought - {"uvloop"}
