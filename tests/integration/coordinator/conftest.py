"""One coordinator for all tests that do not harm it, on each of the two gRPC servers."""

from collections.abc import Iterator

import pytest

from tests.servers.coordinator import Client, CoordinatorProcess, coordinator

TOKEN = "integration-test-token"


@pytest.fixture(scope="session", params=["strata", "grpcio"])
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    folder = tmp_path_factory.mktemp(f"coordinator-{request.param}")
    flags = ["--rpc", request.param, "--lease-seconds", "4", "--heartbeat-seconds", "1"]
    with coordinator(folder, *flags) as process:
        yield process


@pytest.fixture
def client(running: CoordinatorProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    """Each test has a job of its own."""
    job = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:120]
    with Client(running.address, job) as made:
        yield made
