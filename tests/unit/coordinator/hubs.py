"""A hub for tests, on a journal that writes when it is let."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from strata.coordinator.hub import Hub
from strata.coordinator.journal import Journal, JournalError
from strata.core.effects import DismissArrival, Registered
from strata.core.events import RegisterRequested
from strata.core.records import Record
from strata.rpc import RpcError, Status


class SlowJournal(Journal):
    """Writes when it is let."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.may_write = threading.Event()
        self.may_write.set()
        self.batches_written: list[int] = []
        self.broken = False

    def append(self, first_index: int, term: int, records: Sequence[Record]) -> int:
        self.may_write.wait(10)
        if self.broken:
            raise JournalError("no room is left")
        self.batches_written.append(len(records))
        return super().append(first_index, term, records)


def told(outcome: Any) -> Any:
    if isinstance(outcome, DismissArrival):
        return RpcError(Status.ABORTED, outcome.cause)
    return f"round {outcome.round}"


def run(folder: Path, work: Callable[[Hub, SlowJournal], Awaitable[None]], **more: Any) -> None:
    async def main() -> None:
        journal = SlowJournal(folder)
        hub = Hub(journal, tell_verdict=told, **more)
        await hub.start()
        try:
            await work(hub, journal)
        finally:
            journal.may_write.set()
            await hub.stop()

    asyncio.run(main())


def register(hub: Hub, worker: str, **more: Any) -> Registered:
    answer = hub.ask(RegisterRequested("job", worker, f"{worker}-nonce", **more))
    assert isinstance(answer, Registered)
    return answer
