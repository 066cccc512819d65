"""Children under strace, which fails or kills them at calls to the system."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.storage.crashing import fork


def strace_program() -> str:
    program = shutil.which("strace")
    if program is None:
        pytest.skip("missing component: strace")
    return program


def under_strace(strace: str, inject: str, body: Callable[[], None], tmp_path: Path) -> int:
    """Run it in a child, with strace attached just before it begins: when it sleeps, waiting for that."""
    begin_read, begin_write = os.pipe()
    ready_read, ready_write = os.pipe()

    def wait_and_run() -> None:
        os.close(begin_write)
        os.write(ready_write, b"x")
        if os.read(begin_read, 1):
            body()

    child = fork(wait_and_run)
    os.close(begin_read)
    os.close(ready_write)
    os.read(ready_read, 1)
    os.close(ready_read)
    while Path(f"/proc/{child}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "S":
        os.sched_yield()
    log = tmp_path / "strace.log"
    log.unlink(missing_ok=True)
    tracer = subprocess.Popen(
        [strace, "-f", "-e", "trace=all", "-e", f"inject={inject}", "-o", str(log), "-p", str(child)],
        stderr=subprocess.PIPE,
    )
    try:
        assert tracer.stderr is not None
        assert b"attached" in tracer.stderr.readline()
        os.write(begin_write, b"x")
    finally:
        os.close(begin_write)
        _, status = os.waitpid(child, 0)
        tracer.terminate()
        tracer.communicate()
    return os.waitstatus_to_exitcode(status)
