"""The coordinator of a simulation: the real hub and service, on a disk that takes its time, and with a power switch.

A crash loses what was not durable, with the answers that waited for it; a batch that was on its way to the disk may
have made it or not.
"""

import asyncio
import inspect
from collections.abc import Iterator
from random import Random
from typing import cast

from strata.coordinator import translate
from strata.coordinator.groupcommit import Durable, Failed
from strata.coordinator.hub import Hub
from strata.coordinator.journal import Batch, Journal, Snapshot
from strata.coordinator.service import coordinator_service
from strata.core import codec
from strata.core.records import Record
from strata.core.settings import Policy
from strata.core.state import Job
from strata.rpc import Call, Method, RpcError, Status
from strata.rpc.later import Later
from strata.testing.saves.virtualtime import DAWN, Owner

DISK_SECONDS = 0.002
SNAPSHOT_BYTES = 20_000


class Disk:
    """A journal's, in memory."""

    def __init__(self) -> None:
        self._batches: list[tuple[int, int, float, bytes]] = []
        self._snapshots: list[Snapshot] = []

    def append(self, first_index: int, term: int, data: bytes) -> None:
        self._batches.append((first_index, term, DAWN + asyncio.get_running_loop().time(), data))

    def save_snapshot(self, state_index: int, term: int, state: bytes) -> None:
        self._snapshots.append(Snapshot(state_index, term, DAWN, state))

    def snapshots(self) -> Iterator[Snapshot]:
        return reversed(self._snapshots)

    def batches(self, after: int = -1) -> Iterator[Batch]:
        for first, term, when, data in self._batches:
            yield Batch(first, term, when, codec.decode_records(data), len(data))

    def close(self) -> None:
        """It stays."""


class _Commits:
    """Group commit, on virtual time."""

    def __init__(self, disk: Disk, next_index: int, durable: Durable, failed: Failed) -> None:
        self._disk, self._next_index, self._durable = disk, next_index, durable
        self._gathered: list[Record] = []
        self._snapshots: list[tuple[int, bytes]] = []
        self._writing: tuple[int, int, bytes] | None = None
        self._is_scheduled = self._is_lost = False
        self._term = 0

    def add(self, records: list[Record], term: int) -> None:
        self._gathered.extend(records)
        self._term = term
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._start)

    def add_snapshot(self, state_index: int, state: bytes) -> None:
        self._snapshots.append((state_index, state))

    def _start(self) -> None:
        records, self._gathered = self._gathered, []
        self._writing = (self._next_index, self._term, codec.encode_records(records))
        self._next_index += len(records)
        asyncio.get_running_loop().call_later(DISK_SECONDS, self._wrote)

    def _wrote(self) -> None:
        if self._is_lost or self._writing is None:
            return
        written, self._writing, self._is_scheduled = self._writing, None, False
        self._disk.append(*written)
        for index, state in [each for each in self._snapshots if each[0] <= self._next_index]:
            self._disk.save_snapshot(index, written[1], state)
            self._snapshots.remove((index, state))
        self._durable(self._next_index, len(written[2]))
        if self._gathered and not self._is_scheduled:
            self._is_scheduled = True
            self._start()

    async def close(self) -> None:
        """Nothing to wait for: a simulated coordinator ends in a crash."""

    def crash(self, *, is_written: bool) -> None:
        if is_written and self._writing is not None:
            self._disk.append(*self._writing)
        self._is_lost = True


class CoordinatorHost:
    """One coordinator at a time, on one disk."""

    def __init__(self, policy: Policy, seed: int) -> None:
        self._policy = policy
        self._rng = Random(f"host {seed}")
        self._disk = Disk()
        self._owner = Owner("coordinator")
        self._hub: Hub | None = None
        self._commits: _Commits | None = None
        self._methods: dict[str, Method] = {}
        self.starts = self.handled = 0

    @property
    def is_up(self) -> bool:
        return bool(self._methods)

    async def start(self) -> None:
        """As a new process, from what is on the disk."""
        self._owner = Owner("coordinator")
        self.starts += 1

        def commits(journal: Journal, next_index: int, durable: Durable, failed: Failed) -> _Commits:
            self._commits = _Commits(self._disk, next_index, durable, failed)
            return self._commits

        hub = Hub(
            cast(Journal, self._disk),
            self._policy,
            tell_verdict=translate.verdict,
            clock=asyncio.get_running_loop().time,
            snapshot_after_bytes=SNAPSHOT_BYTES,
            commits=commits,
        )
        await hub.start()
        self._hub = hub
        self._methods = {method.path: method for method in coordinator_service(hub)}

    def crash(self) -> None:
        if self._hub is None or self._commits is None:
            return
        self._owner.kill()
        self._hub.release_waits()
        self._commits.crash(is_written=self._rng.random() < 0.5)
        self._hub, self._commits, self._methods = None, None, {}

    def serve(self, path: str, payload: bytes) -> "asyncio.Task[bytes]":
        """What it answers: RpcError if it is down. The task ends with the process."""
        if not self.is_up:
            raise RpcError(Status.UNAVAILABLE, "cannot connect to the coordinator")
        self.handled += 1
        return self._owner.run(_handled(self._methods[path], payload))

    def job(self, name: str) -> Job:
        """As it has it now."""
        assert self._hub is not None
        return self._hub.machine.state.job(name)


async def _handled(method: Method, payload: bytes) -> bytes:
    found = method.handler(method.read(payload), cast(Call, None))
    if isinstance(found, Later) or inspect.isawaitable(found):
        found = await found
    return method.write(found)
