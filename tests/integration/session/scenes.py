"""Training processes and their helpers, started and looked at from outside."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from strata.session.lines import Line, encoded
from tests.servers.coordinator import CoordinatorProcess
from tests.until import until

HELPER = "strata.session.keepalive"
ROOT = Path(__file__).parents[3]


eventually = until


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def helpers_of(pid: int) -> list[int]:
    """Processes that watch this one, but for those that only start them."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            words = (each / "cmdline").read_bytes().split(b"\0")
            parent = int((each / "stat").read_text("utf-8").rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if HELPER.encode() in words and str(pid).encode() in words and parent != pid:
            found.append(int(each.name))
    return found


def helper_of(pid: int) -> int:
    """The helper, once it has loaded all that it needs to speak."""
    (found,) = until(lambda: helpers_of(pid))
    until(lambda: "cygrpc" in Path(f"/proc/{found}/maps").read_text("utf-8"))
    return found


def lost(running: CoordinatorProcess, job: str) -> list[str]:
    """What the events tell of workers that went, the first one first."""
    events = running.get(f"/api/v1/events?job={job}")["items"]
    return [each["message"] for each in reversed(events) if each["kind"] == "worker_lost"]


def worker(running: CoordinatorProcess, job: str, token: str = "") -> dict[str, Any]:
    """How the coordinator shows w0."""
    found = running.get(f"/api/v1/workers?job={job}", token)["items"]
    return next(each for each in found if each["worker_id"] == "w0")


class Trainer:
    """`tests/integration/session/trainer.py` as worker w0 of a job."""

    def __init__(self, running: CoordinatorProcess, job: str, **told: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.session.trainer", running.address, job, "w0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith("STRATA_")},
        )
        self._write(json.dumps({"settings": {}, "pulse": True, "stall_seconds": 60.0} | told))

    @property
    def pid(self) -> int:
        return self.process.pid

    def _write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def tell(self, command: str) -> None:
        self._write(command)

    def answer(self) -> str:
        """To the first of what it was told and has not answered yet."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().split(maxsplit=1)[-1].strip()

    def ask(self, command: str) -> str:
        self.tell(command)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)


@contextmanager
def trainer(running: CoordinatorProcess, job: str, **told: Any) -> Iterator[Trainer]:
    made = Trainer(running, job, **told)
    try:
        yield made
    finally:
        made.kill()
        made.process.communicate()


class Helper:
    """A helper that the test itself speaks to, and that watches a process which only sleeps."""

    def __init__(self) -> None:
        self.watched = subprocess.Popen(["sleep", "600"])
        theirs, self._pipe = os.pipe()
        command = [sys.executable, "-m", HELPER, str(self.watched.pid)]
        starting = subprocess.Popen(command, stdin=theirs, stdout=subprocess.DEVNULL, start_new_session=True)
        os.close(theirs)
        starting.wait(30)
        self.pid = helper_of(self.watched.pid)

    def say(self, *lines: Line) -> None:
        os.write(self._pipe, b"".join(encoded(line) for line in lines))

    def close(self) -> None:
        os.close(self._pipe)
        self.watched.kill()
        self.watched.wait(30)
        until(lambda: not is_there(self.pid))


@contextmanager
def helper() -> Iterator[Helper]:
    made = Helper()
    try:
        yield made
    finally:
        made.close()
