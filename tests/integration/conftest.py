"""The servers, each started once for the tests that need it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack

import pytest

from tests.servers.processes import ComponentMissing, Server, azurite, seaweedfs


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _started(seaweedfs(tmp_path_factory.mktemp("seaweedfs")))


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _started(seaweedfs(tmp_path_factory.mktemp("gcs"), open_to_all=True))


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _started(azurite(tmp_path_factory.mktemp("azurite")))


def _started(starting: AbstractContextManager[Server]) -> Iterator[Server]:
    with ExitStack() as stack:
        try:
            server = stack.enter_context(starting)
        except ComponentMissing as missing:
            pytest.skip(f"missing component: {missing}")
        yield server
