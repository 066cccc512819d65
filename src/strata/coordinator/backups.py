"""Backups of a journal: one file, taken at one instant, also beside a running coordinator."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from strata.coordinator.journal import (
    FILE,
    Batch,
    JournalError,
    Snapshot,
    append,
    batches,
    check_schema,
    create_private,
    locked,
    opened_for_reading,
    snapshots,
)
from strata.coordinator.replay import replayed
from strata.core.lineages import head
from strata.core.records import HistoryLost, Record, TermStarted
from strata.core.state import Job
from strata.storage import filelock

TERMS_SKIPPED, NUMBERS_SKIPPED = 1000, 1_000_000
"""Starts of a coordinator, and processes, generations and saves of a job, that a backup may be behind by."""


def backup(state_dir: Path, target: Path) -> None:
    """Copy the journal as it is at one instant to a file, beside a running coordinator too."""
    partial = target.with_name(f"{target.name}.partial")
    with closing(opened_for_reading(state_dir)) as source:
        if target.exists():
            raise JournalError(f"{target} exists already: a backup is never overwritten")
        partial.unlink(missing_ok=True)
        try:
            create_private(partial)
            with closing(sqlite3.connect(partial, isolation_level=None)) as copy:
                source.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")
            _synced(partial)
            os.rename(partial, target)
            _synced(target.parent)
        except (sqlite3.Error, OSError) as error:
            partial.unlink(missing_ok=True)
            raise JournalError(f"cannot write the backup {target}: {error}") from error


def restore(source: Path, state_dir: Path) -> None:
    """Put a backup where a coordinator will find it; the folder must not hold a journal."""
    if not source.is_file():
        raise JournalError(f"there is no backup {source}")
    lock = locked(state_dir)
    partial = state_dir / f"{FILE}.partial"
    try:
        if (state_dir / FILE).exists():
            raise JournalError(f"{state_dir} holds a journal already: move it away first")
        partial.unlink(missing_ok=True)
        create_private(partial)
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as backup_,
            closing(sqlite3.connect(partial, isolation_level=None)) as copy,
        ):
            check_schema(backup_, source)
            backup_.backup(copy)
            _skip_ahead(copy)
        _synced(partial)
        os.rename(partial, state_dir / FILE)
        _synced(state_dir)
    except (sqlite3.Error, OSError) as error:
        raise JournalError(f"cannot restore {source}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
        filelock.close(lock)


def _skip_ahead(database: sqlite3.Connection) -> None:
    """What happened after the backup is forgotten here, and not by those who were told of it: no number that they may
    have been given is given again."""
    state = replayed(Reading(database)).machine.state
    records: list[Record] = [TermStarted(state.term + TERMS_SKIPPED)]
    records += [
        HistoryLost(name, NUMBERS_SKIPPED, "the state was restored from a backup") for name in sorted(state.jobs)
    ]
    append(database, state.index, state.term, records)


class Reading:
    """A journal that is only looked at."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def snapshots(self) -> Iterator[Snapshot]:
        return snapshots(self._database)

    def batches(self, after: int = -1) -> Iterator[Batch]:
        return batches(self._database, after)

    def summary(self, job: str | None = None) -> dict[str, Any]:
        """What a coordinator would know if it started now; all of one job if that is asked for."""
        machine = replayed(self).machine
        state = machine.state
        if job is not None:
            return dict(msgspec.msgpack.decode(machine.snapshot())["jobs"][state.job(job).job])
        newest = next(self.snapshots(), None)
        (kept,) = self._database.execute("SELECT coalesce(sum(count), 0) FROM batches").fetchone()
        return {
            "term": state.term,
            "records": state.index,
            "kept_records": kept,
            "snapshot_index": None if newest is None else newest.state_index,
            "digest": machine.digest(),
            "jobs": [_told(state.jobs[name]) for name in sorted(state.jobs)],
        }


def _told(job: Job) -> dict[str, Any]:
    latest = head(job)
    return {
        "job_id": job.job,
        "generation": job.world.generation,
        "workers": len(job.world.by_rank),
        "datasets": len(job.datasets),
        "checkpoints": sum(attempt.usable for attempt in job.attempts.values()),
        "latest_step": None if latest is None else latest.step,
    }


def _synced(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
