"""The mutation check: each rule of the core and of saving, broken on purpose, is noticed by what should notice it."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.hunt import NONE, NOTICED, SURVIVED
from tests.mutation.mutants import MUTANTS, SIMULATION, Mutant, source_of

ROOT = Path(__file__).parents[2]
DECLARATIONS = {"__init__", "effects", "events", "records"}
QUICK_PER_MODULE = 1
HUNT_SECONDS = 240


def hunt(name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.mutation.hunt", name]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HUNT_SECONDS, check=False)


def in_either_run() -> list[Any]:
    """The first mutant of each module is hunted in every run, the others only where minutes are spent."""
    seen: Counter[str] = Counter()
    params = []
    for mutant in MUTANTS:
        seen[mutant.module] += 1
        marks = [pytest.mark.long] if seen[mutant.module] > QUICK_PER_MODULE else []
        params.append(pytest.param(mutant, id=mutant.name, marks=marks))
    return params


@pytest.mark.parametrize("mutant", in_either_run())
def test_a_broken_rule_is_noticed(mutant: Mutant) -> None:
    found = hunt(mutant.name)
    told = f"{found.stdout[-2000:]}{found.stderr[-2000:]}"
    assert found.returncode == NOTICED, f"{mutant.noticed_by} does not notice\n{told}"


def test_nothing_is_noticed_where_nothing_is_broken() -> None:
    found = hunt(NONE)
    assert found.returncode == SURVIVED, found.stdout[-4000:] + found.stderr[-2000:]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_its_module_but_for_one_place(mutant: Mutant) -> None:
    source = source_of(mutant.module)
    compile(mutant.mutate(source), mutant.module, "exec")
    assert mutant.noticed_by == SIMULATION or (ROOT / mutant.noticed_by.partition("::")[0]).is_file()


def test_no_two_mutants_are_alike() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({mutant[1:4] for mutant in MUTANTS}) == len(MUTANTS)


def test_every_module_that_decides_something_has_mutants() -> None:
    modules = {path.stem for path in (ROOT / "src/strata/core").glob("*.py")} - DECLARATIONS
    assert modules <= {mutant.module.removeprefix("strata.core.") for mutant in MUTANTS}
