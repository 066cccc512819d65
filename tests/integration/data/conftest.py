"""A coordinator for all tests that do not harm it."""

import os
from collections.abc import Iterator

import pytest

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
