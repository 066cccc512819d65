"""From a journal to the machine that wrote it, and to what happened lately."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import msgspec

from strata.coordinator.journal import WAYS_OUT, Batch, JournalDamaged, Snapshot
from strata.core.machine import Machine
from strata.core.records import Record
from strata.core.settings import Policy

HISTORY_KEPT = 10_000


class Readable(Protocol):
    """What a journal must tell."""

    def snapshots(self) -> Iterator[Snapshot]: ...

    def batches(self, after: int = -1) -> Iterator[Batch]: ...


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One record of the journal, and when it was decided."""

    index: int
    term: int
    unix_seconds: float
    record: Record


class Replayed(NamedTuple):
    """The machine as it was, the latest entries of its journal, and how much it had to be fed beyond a snapshot."""

    machine: Machine
    history: deque[Entry]
    fed: int
    fed_bytes: int
    snapshot_bytes: int


def replayed(journal: Readable, policy: Policy | None = None) -> Replayed:
    """Start from the newest snapshot that is whole, and apply everything after it."""
    snapshot = next(journal.snapshots(), None)
    machine = Machine(policy) if snapshot is None else Machine.restore(snapshot.state, policy)
    history: deque[Entry] = deque(maxlen=HISTORY_KEPT)
    fed = fed_bytes = 0
    for batch in journal.batches():
        if batch.first_index >= machine.index:
            fed_bytes += batch.size_bytes
        for index, record in enumerate(batch.records, batch.first_index):
            if index > machine.index:
                raise JournalDamaged(
                    f"the journal has a gap: the records from index {machine.index} to {index - 1} are missing. "
                    f"{WAYS_OUT}"
                )
            if index == machine.index:
                machine.apply(record)
                fed += 1
            history.append(Entry(index, batch.term, batch.unix_seconds, record))
    return Replayed(machine, history, fed, fed_bytes, 0 if snapshot is None else len(snapshot.state))
