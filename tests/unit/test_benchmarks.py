"""Benchmarks say what they need; what is missing costs the tables that need it, and one that breaks costs no other."""

import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks
from benchmarks import Missing, Row, Table, measured, program
from benchmarks.__main__ import main

ROOT = Path(__file__).parents[2]

SOUND = """
from benchmarks import About, Row, Table, measured, program

ABOUT = About("a moment", ("h2load",))

def run():
    return measured(_load, _rest)

def _load():
    program("h2load")

def _rest():
    return Table("the rest", [Row("one", 1.0, 1.0, "ms")])
"""

BROKEN = """
from benchmarks import About, Row, Table

ABOUT = About("a moment")

def run():
    yield Table("before", [Row("one", 1.0, 1.0, "ms")])
    raise RuntimeError("seed 1: stuck")
"""


def test_what_is_missing_costs_the_tables_that_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    def load() -> Table:
        program("h2load")
        raise AssertionError("not reached")

    def rest() -> list[Table]:
        return [Table("the rest", [Row("one", 1.0, 1.0, "ms")])]

    left_out, kept = measured(load, rest)
    assert "h2load is missing (Debian: nghttp2-client)" in left_out.title
    assert not left_out.rows
    assert kept.title == "the rest"
    with pytest.raises(Missing):
        program("cc")


def test_the_others_run_when_one_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a_broken_one.py").write_text(BROKEN)
    (tmp_path / "a_sound_one.py").write_text(SOUND)
    monkeypatch.setattr(benchmarks, "__path__", [str(tmp_path)])
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("BENCH", raising=False)
    report = tmp_path / "report.json"
    assert main(["--json", str(report)]) == 1
    found = json.loads(report.read_text("utf-8"))["results"]
    assert [table["title"] for table in found["a_broken_one"]] == ["before"]
    assert [len(table["rows"]) for table in found["a_sound_one"]] == [0, 1]
    told = capsys.readouterr().out
    assert "seed 1: stuck" in told
    assert "ended in an error: a_broken_one" in told
    assert told.count("h2load is missing (Debian: nghttp2-client)") == 2, "where its table would be, and at the end"
    assert told.count("median") == 2, "a table without rows is not drawn"


def test_the_list_says_what_each_takes_and_what_is_missing_here() -> None:
    environment = {**os.environ, "PATH": "", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "benchmarks", "--list"]
    told = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    listed = {line.partition(":")[0] for line in told.splitlines() if line[0] != " "}
    assert listed == {module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name[0] != "_"}
    assert "h2load (missing here: Debian: nghttp2-client)" in told
    assert "\nrpc: 5 minutes\n" in told
