"""The command line as such, from outside: its output and its exit code."""

import json
import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from strata.testing import Plan
from tests.e2e.telling import as_text, strata_here
from tests.e2e.telling import strata as strata_process


def strata(*arguments: str) -> subprocess.CompletedProcess[str]:
    return as_text(strata_here(*arguments))


def test_without_arguments_it_says_what_it_can_do() -> None:
    told = as_text(strata_process())
    assert told.returncode == 2
    assert "simulate" in told.stderr
    assert "demo" in told.stderr


def test_it_knows_its_version() -> None:
    assert re.fullmatch(r"strata \d+\.\d+\.\d+\n", as_text(strata_process("--version")).stdout)


def test_one_seed_tells_how_it_went() -> None:
    told = strata("simulate", "--seed", "3", "--workers", "8")
    assert told.returncode == 0
    assert "every promise held" in told.stdout
    assert re.search(r"events +[\d,]+ handled, [\d,]+ per second", told.stdout)
    assert re.search(r"digest +[0-9a-f]{32}", told.stdout)


def test_a_seed_replays_to_the_same_digest() -> None:
    digests = [re.findall(r"[0-9a-f]{32}", strata("simulate", "--seed", "9", "--workers", "6").stdout) for _ in "ab"]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 1


def test_what_the_readme_shows_of_a_seed_is_what_it_gives() -> None:
    shown = re.findall(r"digest +([0-9a-f]{32})", (Path(__file__).parents[2] / "README.md").read_text("utf-8"))
    assert shown == re.findall(r"[0-9a-f]{32}", strata("simulate", "--seed", "7").stdout)


def test_several_seeds_as_json_for_programs() -> None:
    told = strata("simulate", "--seeds", "3", "--workers", "4", "--json")
    assert told.returncode == 0
    results = json.loads(told.stdout)
    assert [result["plan"]["seed"] for result in results] == [0, 1, 2]
    assert all(result["failure"] is None and result["events"] > 100 for result in results)


def test_a_plan_can_be_replayed_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(msgspec.json.encode(Plan.of(3, workers=6)))
    told = strata("simulate", "--replay", str(path))
    assert told.returncode == 0
    assert "1 x 6 workers" in told.stdout


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"seed": "x"}', None])
def test_a_file_that_is_no_plan_is_refused_in_one_line(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_text(content)
    told = strata("simulate", "--replay", str(path))
    assert told.returncode == 2
    assert told.stderr.startswith("error: cannot read a plan from")
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize("wrong", [["--workers", "1"], ["--seconds", "3"], ["--seeds", "0"], ["--faults", "-1"]])
def test_sizes_that_make_no_sense_are_refused(wrong: list[str]) -> None:
    told = strata("simulate", *wrong)
    assert told.returncode == 2
    assert wrong[0] in told.stderr
