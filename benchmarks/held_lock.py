"""Heartbeats of a worker that holds Python's lock for seconds, as the coordinator hears them.

The trainer holds it three seconds of each four: no thread of it can speak then, and its helper does. What is measured
is how long it is between two heartbeats, against the interval that the coordinator asked for.
"""

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import About, Row, Table

ABOUT = About("a minute")

INTERVAL_SECONDS, LEASE_SECONDS, SECONDS = 1.0, 10.0, 60.0
LOOK_SECONDS = 0.01

TRAINER = """
import ctypes, sys, time
from strata import TrainingOrchestrator
TrainingOrchestrator("w0", sys.argv[1], job_id="held").blocking.register_worker()
print("registered", flush=True)
libc = ctypes.PyDLL(None)  # whose functions keep Python's lock
while True:
    time.sleep(1.0)
    libc.usleep(3_000_000)
"""


def run() -> Iterator[Table]:
    with tempfile.TemporaryDirectory() as folder, _coordinator(Path(folder)) as (address, http), _trainer(address):
        gaps = sorted(_gaps(f"http://{http}/api/v1/workers?job=held"))
    found = {"p50": gaps[len(gaps) // 2], "p99": gaps[int(0.99 * (len(gaps) - 1))], "longest": gaps[-1]}
    rows = [
        Row(name, seconds, seconds, "s", INTERVAL_SECONDS if name == "p99" else None) for name, seconds in found.items()
    ]
    yield Table(
        f"Between heartbeats every {INTERVAL_SECONDS:g} s, the lock held 3 s of each 4; {len(gaps)} of them", rows
    )


@contextmanager
def _coordinator(folder: Path) -> Iterator[tuple[str, str]]:
    command = [sys.executable, "-m", "strata", "coordinator", "127.0.0.1:0", "--http-port", "0", "--log-format", "json"]
    command += ["--state-dir", str(folder / "state"), "--lease-seconds", str(LEASE_SECONDS)]
    command += ["--heartbeat-seconds", str(INTERVAL_SECONDS)]
    with (folder / "log").open("w+") as log, _running(command, stdout=log, stderr=log):
        while '"message": "started"' not in (said := (folder / "log").read_text()):
            time.sleep(0.05)
        started = next(json.loads(line) for line in said.splitlines() if '"message": "started"' in line)
        yield started["address"], started["http"]


@contextmanager
def _trainer(address: str) -> Iterator[None]:
    with _running([sys.executable, "-c", TRAINER, address], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(3.0)  # its helper starts
        yield


@contextmanager
def _running(command: list[str], **how: object) -> "Iterator[subprocess.Popen[bytes]]":
    process = subprocess.Popen(command, **how)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _gaps(url: str) -> Iterator[float]:
    """Each as long as it was when the next one came. One that is looked at too late would be seen too short by that."""
    ends, before = time.monotonic() + SECONDS, 0.0
    while time.monotonic() < ends:
        with urllib.request.urlopen(url, timeout=10) as answer:
            (worker,) = json.loads(answer.read())["items"]
        ago = worker["heard_seconds_ago"]
        if ago < before:
            yield before + LOOK_SECONDS
        before = ago
        time.sleep(LOOK_SECONDS)
