"""Places on object stores."""

import secrets
from collections.abc import Iterator

import pytest

from tests.integration.data.places import SERVERS, Place, place_at
from tests.servers.processes import Server


@pytest.fixture(params=SERVERS)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """On each of the object stores."""
    server = request.getfixturevalue({"s3": "s3_server", "gs": "gcs_server", "az": "azure_server"}[request.param])
    yield from place_at(request.param, server.endpoint, secrets.token_hex(8), monkeypatch)


@pytest.fixture
def s3_place(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """For what does not depend on which one it is."""
    yield from place_at("s3", s3_server.endpoint, secrets.token_hex(8), monkeypatch)
