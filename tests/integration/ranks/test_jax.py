"""Processes of JAX: N save what they hold together, M load it, in any layout, to the bit."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.servers.processes import quiet_ports
from tests.until import until

SECONDS = 240


def run(folder: Path, processes: int, devices: int, *more: str) -> None:
    """All of them, to their end."""
    (port,) = quiet_ports(1)
    environment = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    program = [sys.executable, "-W", "error", "-m", "tests.integration.ranks.jax_processes", str(folder)]
    started = []
    try:
        for process in range(processes):
            command = [*program, str(process), str(processes), str(port), *more]
            with (folder.parent / f"{process}.log").open("wb") as log:
                started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        codes: list[int | None] = []

        def are_over() -> bool:
            codes[:] = [each.poll() for each in started]
            return None not in codes or any(codes)  # others wait for one that failed

        with suppress(AssertionError):
            until(are_over, SECONDS, every=0.1)
    finally:
        for each in started:
            each.kill()
            each.wait()
    said = [(folder.parent / f"{process}.log").read_text(errors="replace")[-3000:] for process in range(processes)]
    assert codes == [0] * processes, "\n\n".join(said)


@pytest.mark.parametrize(
    ("saving", "loading"),
    [
        pytest.param((4, 2), (2, 4), marks=pytest.mark.long, id="four to two"),
        pytest.param((2, 2), (4, 1), marks=pytest.mark.long, id="two to four"),
        pytest.param((2, 4), (1, 3), marks=pytest.mark.long, id="two to one"),
    ],
)
def test_any_layout_comes_from_any_other(tmp_path: Path, saving: tuple[int, int], loading: tuple[int, int]) -> None:
    """So many processes, each with so many devices."""
    folder = tmp_path / "checkpoints"
    run(folder, *saving, "--save")
    run(folder, *loading)
