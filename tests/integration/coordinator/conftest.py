"""What foreign clients see is the same on the grpcio server; that is for the long tests."""

from collections.abc import Iterator

import pytest

from tests.coordinators import PATIENT
from tests.servers.coordinator import CoordinatorProcess, coordinator


@pytest.fixture(scope="session", params=["strata", pytest.param("grpcio", marks=pytest.mark.long)])
def running(
    request: pytest.FixtureRequest, running: CoordinatorProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CoordinatorProcess]:
    if request.param == "strata":
        yield running
        return
    with coordinator(tmp_path_factory.mktemp("grpcio"), "--rpc", "grpcio", *PATIENT) as process:
        yield process
