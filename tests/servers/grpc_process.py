"""The interop server as a process, for as long as somebody needs it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Running(NamedTuple):
    address: str
    pid: int


@contextmanager
def interop_server(*arguments: str, told_to_stop: bool = False) -> Iterator[Running]:
    """Its arguments are those of `tests.servers.interop`. It must end by itself when asked, here or by its user."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-m", "tests.servers.interop", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address, "the server did not start"
        yield Running(address, process.pid)
        if not told_to_stop:
            os.kill(process.pid, signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.communicate()
