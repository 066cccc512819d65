"""The log that people read: journal entries, in words. Those that only a machine cares for are left out."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from strata.coordinator.replay import Entry
from strata.core import records
from strata.core.records import Record
from strata.texts import printable

UNREMARKABLE: tuple[type[Record], ...] = (
    records.ProgressMade,
    records.PartAcknowledged,
    records.ShardsRevoked,
    records.ShardsReleased,
    records.ViewChanged,
    records.WorkerDescribed,
    records.WorkersForgotten,
)
_WARNINGS: tuple[type[Record], ...] = (
    records.BarrierBroken,
    records.CheckpointAbandoned,
    records.CheckpointSkipped,
    records.HistoryLost,
    records.SaveDropped,
    records.SaveReopened,
    records.ShardsReissued,
    records.WorkerDraining,
)
_IN_WORDS: dict[type[Record], Callable[..., str]] = {
    records.TermStarted: lambda it: f"the coordinator started: term {it.term}",
    records.JobOpened: lambda it: f"job {it.job} began",
    records.JobConfigured: lambda it: (
        f"settings: barriers {it.settings.barriers}, recovery {it.settings.recovery}, saves {it.settings.saves}"
    ),
    records.WorkerJoined: lambda it: f"{it.worker} joined: {it.reason}",
    records.WorkerLost: lambda it: f"{it.worker} (rank {it.rank}) is out: {it.reason}",
    records.WorkerDraining: lambda it: f"{it.worker} (rank {it.rank}) is draining: {it.reason}",
    records.WorldDeclared: lambda it: f"a world of {it.world_size or 'any size'} began",
    records.SaveWanted: lambda it: f"a checkpoint is wanted: {it.reason}",
    records.JobStopping: lambda it: f"everybody is told to stop: {it.reason}",
    records.SituationChanged: lambda it: f"the job {it.reason}",
    records.BarrierReleased: lambda it: (
        f"barrier {it.barrier} released: {it.reason}" + (f"; {it.last} came last" if it.last else "")
    ),
    records.BarrierBroken: lambda it: f"barrier {it.barrier} failed: {it.reason}",
    records.DatasetRegistered: lambda it: (
        f"dataset {it.dataset} (version {it.version}): {it.total_samples:,} samples in shards of {it.shard_size:,}"
    ),
    records.DatasetRemoved: lambda it: f"dataset {it.dataset} was removed",
    records.EpochAdvanced: lambda it: f"dataset {it.dataset} is in epoch {it.epoch}: {it.reason}",
    records.EpochProven: lambda it: f"epoch {it.epoch} of dataset {it.dataset} had ended: {it.reason}",
    records.ShardsReissued: lambda it: (
        f"{it.shards} shards of {it.dataset} ({it.samples:,} samples not reported) go from {it.worker} to others"
    ),
    records.CheckpointBegun: lambda it: f"step {it.step} is being saved (attempt {it.attempt}): {it.reason}",
    records.CheckpointAdopted: lambda it: f"step {it.step} is taken on (attempt {it.attempt}): {it.reason}",
    records.CheckpointSkipped: lambda it: f"step {it.step} is not saved: {it.reason}",
    records.CheckpointPinned: lambda it: (
        f"attempt {it.attempt} is {'pinned' if it.pinned else 'no longer pinned'} as {it.name}"
    ),
    records.LineageStarted: lambda it: f"lineage {it.lineage} branches off at step {it.base_step}: {it.reason}",
    records.RecoveryPointSet: lambda it: (
        f"everybody goes on from {f'step {it.step}' if it.step >= 0 else 'the beginning'}: {it.reason}"
    ),
}


@dataclass(frozen=True, slots=True)
class EventView:
    """One thing that happened. `id` orders all of them; `severity` is info, warning or error."""

    id: str
    unix_seconds: float
    job_id: str
    kind: str
    message: str
    severity: str
    worker_id: str
    step: int | None


def event_of(entry: Entry) -> EventView | None:
    """The entry in words; None for one that is not worth any."""
    record = entry.record
    if isinstance(record, UNREMARKABLE):
        return None
    words = _IN_WORDS.get(type(record))
    return EventView(
        id=event_id(entry.term, entry.index),
        unix_seconds=entry.unix_seconds,
        job_id=getattr(record, "job", ""),
        kind=_kind(type(record)),
        message=printable(_otherwise(record) if words is None else words(record)),
        severity=_severity(record),
        worker_id=getattr(record, "worker", ""),
        step=getattr(record, "step", None),
    )


def event_id(term: int, index: int) -> str:
    return f"{term}-{index}"


def index_of(event: str) -> int | None:
    """Where in the journal an event with this id is; None if that is no id."""
    found = re.fullmatch(r"(\d{1,18})-(\d{1,18})", event)
    return int(found[2]) if found else None


def _otherwise(record: Record) -> str:
    attempt = getattr(record, "attempt", None)
    words = _kind(type(record)).replace("_", " ")
    return f"{words}{f' (attempt {attempt})' if attempt else ''}: {getattr(record, 'reason', '')}".rstrip(": ")


def _severity(record: Record) -> str:
    if isinstance(record, records.CheckpointDamaged):
        return "error"
    if isinstance(record, records.WorkerLost):
        return "info" if record.cause == "left" else "error"
    if isinstance(record, records.SituationChanged):
        return "warning" if record.held_back else "info"
    return "warning" if isinstance(record, _WARNINGS) else "info"


@cache
def _kind(record: type[Record]) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", record.__name__).lower()
