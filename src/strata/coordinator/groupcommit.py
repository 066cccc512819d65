"""Group commit: everything that was decided in one turn of the loop becomes durable in one transaction.

The loop never waits for the disk. One thread writes; while it does, the next batch gathers. What fails, fails for good.
"""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol, TypeAlias

from strata.coordinator.journal import Journal, JournalError
from strata.core.records import Record
from strata.logs import get_logger

logger = get_logger("strata.coordinator")


@dataclass(frozen=True, slots=True)
class _Append:
    first_index: int
    term: int
    records: list[Record]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    state_index: int
    term: int
    state: bytes


Durable: TypeAlias = Callable[[int, int], None]
Failed: TypeAlias = Callable[[JournalError], None]


class Commits(Protocol):
    """What a hub needs of whoever makes its records durable."""

    def add(self, records: list[Record], term: int) -> None: ...

    def add_snapshot(self, state_index: int, state: bytes) -> None: ...

    async def close(self) -> None: ...


class GroupCommit:
    """`durable` is told the index up to which everything is on the disk, and how many bytes that took; `failed` why no
    more ever will be. Both are called on the loop."""

    def __init__(
        self,
        journal: Journal,
        next_index: int,
        durable: Durable,
        failed: Failed,
    ) -> None:
        self._journal = journal
        self._next_index = next_index
        self._durable, self._failed = durable, failed
        self._gathered: list[Record] = []
        self._writing = self._scheduled = self._over = False
        self._term = 0
        self._tasks: SimpleQueue[_Append | _Snapshot | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._write, name="strata-journal", daemon=True)
        self._thread.start()

    def add(self, records: list[Record], term: int) -> None:
        """To be written with whatever else this turn of the loop decides."""
        self._gathered.extend(records)
        self._term = term
        if not self._writing and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._start)

    def add_snapshot(self, state_index: int, state: bytes) -> None:
        """Written after the records that led to it, which must all have been added."""
        if self._gathered:
            self._start()
        self._tasks.put(_Snapshot(state_index, self._term, state))

    async def close(self) -> None:
        """Once everything is written."""
        if self._gathered and not self._writing:
            self._start()
        if not self._over:
            await self._idle.wait()
        self._tasks.put(None)
        await asyncio.to_thread(self._thread.join)

    def _start(self) -> None:
        self._scheduled = False
        if not self._gathered or self._over:
            return
        records, self._gathered = self._gathered, []
        self._writing = True
        self._idle.clear()
        self._tasks.put(_Append(self._next_index, self._term, records))
        self._next_index += len(records)

    def _wrote(self, index: int, size: int) -> None:
        self._writing = self._next_index != index
        self._durable(index, size)
        if self._gathered and not self._writing:
            self._start()
        if not self._writing:
            self._idle.set()

    def _broke(self, error: JournalError) -> None:
        self._over = True
        self._idle.set()
        self._failed(error)

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _write(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                if isinstance(task, _Snapshot):
                    self._journal.save_snapshot(task.state_index, task.term, task.state)
                    continue
                size = self._journal.append(task.first_index, task.term, task.records)
            except JournalError as error:
                self._tell(self._broke, error)
                return
            except Exception as error:
                logger.exception("the journal's thread failed")
                self._tell(self._broke, JournalError(f"the journal cannot be written: {error!r}. See the log"))
                return
            self._tell(self._wrote, task.first_index + len(task.records), size)

    def _tell(self, callback: Callable[..., None], *about: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *about)
