"""Both servers, each once for all tests; and the clients that ask them."""

from collections.abc import Callable, Iterator

import pytest

from tests.integration.rpc.clients import AioClient, Client, NodeClient, SyncClient
from tests.servers.grpc_process import Running, interop_server

CLIENTS: dict[str, Callable[[str], Client]] = {
    "grpcio": SyncClient,
    "grpcio-aio": AioClient,
    "grpc-js": NodeClient,
}


@pytest.fixture(scope="session")
def strata_server() -> Iterator[Running]:
    with interop_server("strata") as running:
        yield running


@pytest.fixture(scope="session", params=["strata", "grpcio"])
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    if request.param == "strata":
        yield request.getfixturevalue("strata_server")
        return
    with interop_server("grpcio") as running:
        yield running


@pytest.fixture(scope="session", params=CLIENTS)
def client(request: pytest.FixtureRequest, server: Running) -> Iterator[Client]:
    kind = CLIENTS[request.param]
    missing = NodeClient.missing() if kind is NodeClient else None
    if missing:
        pytest.skip(f"missing component: {missing}")
    made = kind(server.address)
    yield made
    made.close()
