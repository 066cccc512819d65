"""The demo's processes: a coordinator and workers on this machine, started, killed, and never left behind.

Each is in a session of its own, so that Ctrl-C reaches the demo alone, which then ends them; and on a leash, so that
they end by themselves if the demo is killed. What they say goes to a file for each.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

from strata.config import SETTINGS
from strata.errors import StrataError

JOB = "demo"
LEASE_SECONDS, HEARTBEAT_SECONDS = 3.0, 0.5
END_SECONDS = 10.0
LOG_LINES = 15
"""Of a process that failed, to show."""


class DemoFailed(StrataError):
    """The demo did not come to what it shows."""

    code = "demo_failed"


class Child:
    """A process, and where it says what."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        self.process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        self._taking = threading.Thread(target=self._take, args=(self.process.stdout,), daemon=True)
        self._taking.start()

    def _take(self, output: IO[bytes]) -> None:
        """To its end, which comes when the last process that writes there is gone: a worker's helper, too."""
        with self.log.open("ab", buffering=0) as log:
            while data := os.read(output.fileno(), 1 << 16):
                log.write(data)

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def forget(self) -> None:
        """It has ended: wait until its helper has, too."""
        self._taking.join(END_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])


class Cluster:
    """All processes of one demo, with what they write in `folder`. Leaving it, for whatever reason, ends them all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workers: dict[str, Child] = {}
        """Those that are meant to run."""
        self.coordinator: Child | None = None
        self.address, self.http = "127.0.0.1:0", ""
        self.starts = 0
        """Of the coordinator."""
        self._gone: list[Child] = []
        said = {name for setting in SETTINGS for name in setting.names_in_environment}
        self._environment = {name: value for name, value in os.environ.items() if name not in said}

    # -- the coordinator ---------------------------------------------------------------------------------------------

    def start_coordinator(self) -> None:
        """Again on the same ports and with the same state, if one ran before. `serves` says when it does."""
        self.starts += 1
        arguments = ["coordinator", self.address, "--http-port", self.http.rpartition(":")[2] or "0"]
        arguments += ["--state-dir", str(self.folder / "state"), "--log-format", "json"]
        arguments += ["--lease-seconds", f"{LEASE_SECONDS:g}", "--heartbeat-seconds", f"{HEARTBEAT_SECONDS:g}"]
        name = f"coordinator-{self.starts}"
        self.coordinator = Child(name, ["strata.demo.leash", *arguments], self.folder, self._environment)

    @property
    def dashboard(self) -> str:
        """Where the state can be seen."""
        return f"http://{self.http}/api/dashboard"

    def serves(self) -> bool:
        """Whether the coordinator that was started last does; then it is known where."""
        started = None if self.coordinator is None else _started(self.coordinator)
        if started is not None:
            self.address, self.http = started["address"], started["http"]
        return started is not None

    def kill_coordinator(self) -> None:
        assert self.coordinator is not None, "it was started"
        self.coordinator.kill()
        self._gone.append(self.coordinator)
        self.coordinator = None

    # -- workers -----------------------------------------------------------------------------------------------------

    def start_worker(self, name: str, least: int = 1) -> None:
        """It waits until there are at least so many."""
        command = ["strata.demo.worker", name, JOB, str(self.folder), str(least)]
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        environment = {**self._environment, **threads, "COORDINATOR_URL": self.address}
        self.workers[name] = Child(name, command, self.folder, environment)

    def kill_worker(self, name: str) -> None:
        child = self.workers.pop(name)
        child.kill()
        self._gone.append(child)

    def release(self, name: str) -> None:
        """It has ended by itself, as it should."""
        child = self.workers.pop(name)
        self._gone.append(child)
        if child.process.wait():
            raise DemoFailed(f"{name} ended with status {child.process.returncode}:\n{child.tail()}")

    # -- all of them -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """DemoFailed if one has ended that is meant to run."""
        there = [*self.workers.values(), *([] if self.coordinator is None else [self.coordinator])]
        for child in there:
            if child.has_ended:
                raise DemoFailed(f"{child.name} ended with status {child.process.returncode}:\n{child.tail()}")

    def stop(self) -> None:
        """Workers first: their helpers tell the coordinator, and end with that."""
        for name in list(self.workers):
            self.kill_worker(name)
        for child in self._gone:
            child.forget()
        if self.coordinator is not None:
            coordinator = self.coordinator
            self.kill_coordinator()
            coordinator.forget()
        self._gone = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _started(coordinator: Child) -> Any:
    """Its word that it serves, once it is written."""
    if not coordinator.log.exists():
        return None
    for line in coordinator.log.read_text(errors="replace").splitlines():
        if line.endswith("}") and '"message": "started"' in line:
            return json.loads(line)
    return None
