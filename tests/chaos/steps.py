"""The steps of a process in the protocol of a save, counted; and what befalls it at one of them.

A step is a call to the storage, or a call to the coordinator other than a heartbeat. What only looks, and is repeated
until somebody else has done something, is one step however often it is repeated: so a rank takes the same steps each
time, and they can be enumerated.
"""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple, TypeVar
from unittest.mock import patch

from strata.rpc import Channel, RpcError, Status
from strata.storage import StorageBackend
from strata.testing.faulty import FaultyStorage

T = TypeVar("T")

STRUCK = "*"
"""How the line of the step begins at which it happened."""
STOPPING_SECONDS = 0.1
"""A signal that stops a process may find this thread last: it must not get any further meanwhile."""
LOOKS = frozenset(
    {"read", "read_versioned", "read_range", "read_ranges", "read_into", "exists", "size", "version", "list_all"}
    | {"list_folder", "AwaitCheckpoint", "GetCheckpoint", "ListCheckpoints", "Recover"}
)


class Doom(NamedTuple):
    """Comes at the step of this number, counted from 1: before it is done, while it is, or right after. A coordinator
    that dies right after a call to it has not sent its answer."""

    at: int = 0
    when: Literal["before", "during", "after"] = "before"
    coordinator: int = 0
    """The process id of the one that is killed, or 0."""
    kills: bool = False
    """This process itself."""
    stops: bool = False
    """It stands still until somebody wakes it."""


NEVER = Doom()


class Steps:
    """Of this process. `log` gets their names, one on each line: it is there whatever becomes of the process."""

    def __init__(self, doom: Doom, log: str) -> None:
        self._doom = doom
        self._log = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o666)
        self._count = 0
        self._looks: set[str] = set()

    async def take(self, operation: str, what: str, work: Callable[[], Awaitable[T]]) -> T:
        if not self._is_it(operation, what):
            return await work()
        if self._doom.when == "before":
            self._strike()
            return await work()
        working = asyncio.ensure_future(work())
        if self._doom.when == "during":
            await asyncio.sleep(0.001)
            self._strike()
            return await working
        try:
            result = await working
        finally:
            self._strike()
        if self._doom.coordinator and what.startswith("/"):
            raise RpcError(Status.UNAVAILABLE, "it died with its answer on the way")
        return result

    def _is_it(self, operation: str, what: str) -> bool:
        name = f"{operation} {what}"
        if operation in LOOKS:
            if name in self._looks or "/readers/" in what:  # another rank's mark, which is there or not
                return False
            self._looks.add(name)
        else:
            self._looks.clear()
        self._count += 1
        struck = self._count == self._doom.at
        os.write(self._log, f"{STRUCK if struck else ''}{name}\n".encode())
        return struck

    def _strike(self) -> None:
        if self._doom.coordinator:
            os.kill(self._doom.coordinator, signal.SIGKILL)
            while _is_running(self._doom.coordinator):
                time.sleep(0.0005)
        if self._doom.kills:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._doom.stops:
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(STOPPING_SECONDS)


def _is_running(pid: int) -> bool:
    return state_of_process(pid) not in ("", "Z", "X")


def state_of_process(pid: int) -> str:
    """As Linux has it: R, S, T for one that is stopped, Z for one that nobody has buried; empty for none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


class SteppedStorage(FaultyStorage):
    """Each call is a step."""

    def __init__(self, inner: StorageBackend, steps: Steps) -> None:
        super().__init__(inner)
        self._steps = steps

    async def call(
        self,
        operation: str,
        path: str,
        whole: Callable[[], Awaitable[T]],
        half: Callable[[], Awaitable[object]] | None = None,
    ) -> T:
        return await self._steps.take(operation, path, whole)


def count_calls(steps: Steps) -> None:
    """To the coordinator, from now on, in this process: each is a step."""
    plain = Channel.try_once

    async def stepped(self: Channel, address: str, remote: Any, *rest: Any) -> bytes:
        method = remote.path.rpartition("/")[2]
        if method == "Heartbeat":
            return await plain(self, address, remote, *rest)
        return await steps.take(method, remote.path, lambda: plain(self, address, remote, *rest))

    patch.object(Channel, "try_once", stepped).start()
