"""The coordinators that tests share, each started once for a run (in each process of xdist's), and a job per test.

tests/conftest.py imports these fixtures for all tests. A test that needs other flags uses `coordinator(folder, *flags)`
of tests/servers/coordinator.py.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.coordinator import Client, CoordinatorProcess, coordinator

TOKEN = "a-token-of-the-tests"
PATIENT = ("--lease-seconds", "600", "--heartbeat-seconds", "1")
HASTY = ("--lease-seconds", "2", "--heartbeat-seconds", "0.5")

_numbers = itertools.count()


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    """For all tests that do not harm it. It gives up on no worker for its silence, however slow the machine."""
    with coordinator(tmp_path_factory.mktemp("running"), *PATIENT) as process:
        yield process


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    """The same for callers that have TOKEN."""
    with coordinator(tmp_path_factory.mktemp("guarded"), *PATIENT, environment={"STRATA_TOKEN": TOKEN}) as process:
        yield process


@pytest.fixture(scope="session")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    """For all tests that do not harm it. It gives up on a worker after two seconds of silence."""
    with coordinator(tmp_path_factory.mktemp("hasty"), *HASTY) as process:
        yield process


@pytest.fixture
def own_coordinator(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    """For one test, which may kill it and start it again. It gives up on a worker after four seconds of silence."""
    folder = tmp_path / "coordinator"
    folder.mkdir()
    with coordinator(folder, "--lease-seconds", "4", "--heartbeat-seconds", "0.5") as process:
        yield process


@pytest.fixture
def job(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A job of the test's own, on any coordinator; the environment names it, too."""
    letters = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in request.node.name)
    name = f"{letters[:50]}-{next(_numbers)}"
    monkeypatch.setenv("STRATA_JOB_ID", name)
    return name


@pytest.fixture
def client(running: CoordinatorProcess, job: str) -> Iterator[Client]:
    """Speaks for the test's job with `running`."""
    with Client(running.address, job) as made:
        yield made
