"""A coordinator for the jobs of these tests, which notices soon that a worker is gone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.coordinator import CoordinatorProcess, coordinator

FLAGS = ("--lease-seconds", "4", "--heartbeat-seconds", "0.5")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    folder = tmp_path / "coordinator"
    folder.mkdir()
    with coordinator(folder, *FLAGS) as process:
        yield process
