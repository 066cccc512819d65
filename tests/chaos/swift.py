"""A coordinator that starts in the time of a fork: the same program, in a process of its own, on a Unix socket."""

import os
import sys
from pathlib import Path
from typing import Any

from tests.chaos.ranks import births, nursery
from tests.chaos.steps import state_of_process
from tests.servers.coordinator import CoordinatorProcess


class SwiftCoordinator(CoordinatorProcess):
    """As its parent class, but forked from the server that has loaded it already."""

    def __init__(self, folder: Path, lease_seconds: float) -> None:
        super().__init__(folder, "--no-http", "--lease-seconds", str(lease_seconds), "--heartbeat-seconds", "0.2")
        self.address = f"unix:{folder / 'socket'}"

    def _launched(self, arguments: list[str], environment: dict[str, str]) -> Any:
        self.log.touch()
        given = (arguments, environment, str(self.log), str(self.folder))
        process = nursery.Process(target=_serve, args=given, daemon=True)
        with births:
            process.start()
        return _Forked(process)


class _Forked:
    """What is asked of a process, as `subprocess` has it."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self.pid = process.pid

    def poll(self) -> int | None:
        """The server of forks buries its dead when it comes to it: one who is not there any more is waited for."""
        if state_of_process(self.pid) in ("", "Z", "X"):
            self._process.join()
        code: int | None = self._process.exitcode
        return code

    def wait(self, seconds: float) -> int:
        self._process.join(seconds)
        code: int | None = self._process.exitcode
        assert code is not None, f"process {self.pid} has not ended after {seconds:g} s"
        return code


def _serve(arguments: list[str], environment: dict[str, str], log: str, folder: str) -> None:
    from strata.cli import main

    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["strata", *arguments]
    main()
