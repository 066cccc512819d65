"""A coordinator for all tests that do not harm it, which soon gives up on a worker; and one that is patient."""

from collections.abc import Iterator

import pytest

from tests.servers.coordinator import Client, CoordinatorProcess, coordinator

SHORT = ("--lease-seconds", "2", "--heartbeat-seconds", "0.5")
LONG = ("--lease-seconds", "600", "--heartbeat-seconds", "200")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    with coordinator(tmp_path_factory.mktemp("short"), *SHORT) as process:
        yield process


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    """Whoever is lost here within minutes was not lost by silence."""
    with coordinator(tmp_path_factory.mktemp("long"), *LONG) as process:
        yield process


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    """Each test has one of its own."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:120]


@pytest.fixture
def client(running: CoordinatorProcess, job: str) -> Iterator[Client]:
    with Client(running.address, job) as made:
        yield made
