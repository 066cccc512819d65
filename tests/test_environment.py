"""What a developer has in the environment changes no test."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.environment import KEPT, NAMES, OF_THE_MACHINE, PREFIXES, clear, is_cleared

ROOT = Path(__file__).parents[1]
NAME = re.compile(r"[A-Z][A-Z0-9]+(_[A-Z0-9]+)*")
WRITTEN = {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}
"""For processes that Strata starts."""
OTHERS = {
    *("FILE", "FILE_OR_PATH", "FORMAT", "KEY", "PREFIX", "SOURCE", "STEP", "TARGET", "URL"),  # in texts of help
    *("SC_PAGE_SIZE", "SC_PHYS_PAGES", "TLS", "ID", "MB", "GB"),
}


def names_in_source() -> Iterator[tuple[str, Path]]:
    """Words that look like a variable's name, in modules that know of an environment."""
    for path in sorted((ROOT / "src" / "strata").rglob("*.py")):
        text = path.read_text("utf-8")
        if "environ" not in text and "getenv" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME.fullmatch(node.value):
                yield node.value, path


def test_every_variable_that_strata_reads_is_cleared() -> None:
    found = dict(names_in_source())
    assert {"COORDINATOR_URL", "STRATA_RUN_ID", "LOCAL_WORLD_SIZE", "STORAGE_EMULATOR_HOST"} <= found.keys()
    unknown = {name: path for name, path in found.items() if not is_cleared(name)}
    assert not unknown.keys() - OF_THE_MACHINE - WRITTEN - OTHERS, "add it to tests/environment.py"
    assert not (OF_THE_MACHINE | WRITTEN | OTHERS) - found.keys(), "nothing in the source says this any more"


def test_it_is_cleared_for_every_test_and_fixture_and_what_they_start(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(Path(__file__).with_name("conftest.py").read_text("utf-8"))
    pytester.makepyfile(
        """
        import os, subprocess, sys
        from tests.environment import is_cleared

        SET = ["GRPC_ENABLE_FORK_SUPPORT", "LC_ALL"]  # by the conftest
        AT_IMPORT = [name for name in os.environ if is_cleared(name)]

        def test_nothing_is_set():
            assert sorted(AT_IMPORT) == SET
            told = subprocess.run([sys.executable, "-c", "import os; print(*os.environ)"], stdout=-1, text=True).stdout
            assert sorted(name for name in told.split() if is_cleared(name)) == SET
            assert os.environ["STRATA_TEST_PROFILE"] == "default"
            told = subprocess.run([sys.executable, "-c", "print(chr(0x2713))"], stdout=-1, text=True, check=True).stdout
            assert told.strip() == chr(0x2713)
        """
    )
    said = dict.fromkeys((*NAMES, *(f"{prefix}X" for prefix in PREFIXES), "http_proxy", "no_proxy"), "1")
    said |= dict.fromkeys(KEPT, "default") | {"GRPC_ENABLE_FORK_SUPPORT": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    said |= {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX"}
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"],
        cwd=pytester.path,
        env=os.environ | said,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in result.stdout, result.stdout + result.stderr


def test_what_is_not_strata_s_stays() -> None:
    environment = {"HOME": "/home/somebody", "COORDINATOR_URL": "a:1", "http_proxy": "b:2", "STRATA_TEST_PROFILE": "ci"}
    clear(environment)
    assert environment == {"HOME": "/home/somebody", "STRATA_TEST_PROFILE": "ci"}
