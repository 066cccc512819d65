"""A coordinator for all tests that do not harm it, and files whose samples can be counted."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from strata.data.counted import COUNTING, Progress
from strata.data.shardfiles import FileRows
from strata.errors import NotFound
from tests.servers.coordinator import Client, CoordinatorProcess, coordinator


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    with coordinator(tmp_path_factory.mktemp("coordinator"), "--lease-seconds", "120") as process:
        yield process


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("STRATA_") or name in ("COORDINATOR_URL", "RANK")]:
        monkeypatch.delenv(name)


@pytest.fixture
def job(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each test has a job of its own, which the environment names."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:120]
    monkeypatch.setenv("STRATA_JOB_ID", name)
    return name


@pytest.fixture
def client(running: CoordinatorProcess, job: str) -> Iterator[Client]:
    with Client(running.address, job) as made:
        yield made


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts JSON lines and Parquet footers, for as long as Strata itself cannot."""
    if importlib.util.find_spec(COUNTING) is None:
        module = ModuleType(COUNTING)
        module.count = _count  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, COUNTING, module)


def _count(path: str | list[str], format: str, progress: Progress | None) -> list[FileRows]:
    paths = [Path(path)] if isinstance(path, str) else [Path(each) for each in path]
    files: list[FileRows] = []
    for each in paths:
        if not each.exists():
            raise NotFound(f"there is no file or folder {each}")
        for file in sorted(each.iterdir()) if each.is_dir() else [each]:
            files.append(FileRows(str(file), _rows(file, format)))
            if progress:
                progress(len(files), len(files), sum(done.rows for done in files))
    return files


def _rows(file: Path, format: str) -> int:
    if format == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        return int(parquet.read_metadata(file).num_rows)
    return len(file.read_bytes().splitlines())
