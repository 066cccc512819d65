"""A coordinator for all tests that do not harm it; places on object stores."""

import os
import secrets
from collections.abc import Iterator

import pytest

from tests.integration.data.places import SERVERS, Place, place_at
from tests.servers.coordinator import Client, CoordinatorProcess, coordinator
from tests.servers.processes import Server


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


@pytest.fixture(params=SERVERS)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """On each of the object stores."""
    server = request.getfixturevalue({"s3": "s3_server", "gs": "gcs_server", "az": "azure_server"}[request.param])
    yield from place_at(request.param, server.endpoint, secrets.token_hex(8), monkeypatch)


@pytest.fixture
def s3_place(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """For what does not depend on which one it is."""
    yield from place_at("s3", s3_server.endpoint, secrets.token_hex(8), monkeypatch)
