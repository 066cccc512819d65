"""The servers, each started once for the tests that need it; disks, and what fails calls to the system."""

import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from tests.integration.disks import Disk, mount
from tests.integration.tracing import strace_program
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


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path)
    yield disk
    disk.unmount()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder))
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def strace() -> str:
    return strace_program()
