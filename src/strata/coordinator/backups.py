"""Backups of a journal: one file, taken at one instant, also beside a running coordinator."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from strata.coordinator.journal import (
    BEGUN,
    FILE,
    SCHEMA,
    Batch,
    JournalError,
    Snapshot,
    append,
    batches,
    check_schema,
    check_structure,
    create_private,
    files_of,
    locked,
    opened_for_reading,
    read_only,
    snapshots,
    synced,
)
from strata.coordinator.mark import Mark
from strata.coordinator.replay import replayed
from strata.core.lineages import head
from strata.core.records import HistoryLost, Record, TermStarted
from strata.core.state import Job
from strata.storage import filelock

TERMS_SKIPPED, NUMBERS_SKIPPED = 1000, 1_000_000
"""Starts of a coordinator, and of whatever has a number in a job, that a backup may be behind by."""


def backup(state_dir: Path, target: Path) -> None:
    """Copy the journal as it is at one instant to a file, beside a running coordinator too."""
    with closing(opened_for_reading(state_dir)) as source:
        if there := files_of(target):
            raise JournalError(f"{there[0]} exists already: a backup is never overwritten")
        try:
            with staged(target) as copy:
                source.backup(copy)
        except (sqlite3.Error, OSError) as error:
            raise JournalError(f"cannot write the backup {target}: {error}") from error


def restore(source: Path, state_dir: Path) -> None:
    """Put a backup where a coordinator will find it; the folder must not hold a journal, nor the logs of one."""
    if not source.is_file():
        raise JournalError(f"there is no backup {source}")
    lock = locked(state_dir)
    try:
        if there := files_of(state_dir / FILE):
            listed = ", ".join(file.name for file in there)
            raise JournalError(f"{state_dir} holds a journal already: move it away first, all its files ({listed})")
        with (
            closing(read_only(source)) as backup_,
            staged(state_dir / FILE) as copy,
        ):
            check_schema(backup_, source)
            check_structure(backup_, source)
            backup_.backup(copy)
            skip_ahead(copy, "the state was restored from a backup")
            forget_mark(state_dir)
    except (sqlite3.Error, OSError) as error:
        raise JournalError(f"cannot restore {source}: {error}") from error
    finally:
        filelock.close(lock)


@contextmanager
def staged(target: Path) -> Iterator[sqlite3.Connection]:
    """A database that has another name until all of it is durable in one file. What a crash left of an earlier one is
    removed first, with its logs: SQLite would lay them over this one."""
    partial = target.with_name(f"{target.name}.partial")
    try:
        _remove(partial)
        create_private(partial)
        with closing(sqlite3.connect(partial, isolation_level=None)) as copy:
            yield copy
            copy.execute("PRAGMA journal_mode=DELETE")
        synced(partial)
        os.rename(partial, target)
        synced(target.parent)
    finally:
        _remove(partial)


def _remove(database: Path) -> None:
    for file in files_of(database):
        file.unlink()


def forget_mark(state_dir: Path) -> None:
    """What takes the journal's place holds what it holds."""
    with closing(Mark(state_dir / BEGUN)) as mark:
        mark.begin(0, in_log=False)


def skip_ahead(database: sqlite3.Connection, why: str) -> None:
    """What happened later is forgotten here, and not by those who were told of it: no number that they may have been
    given is given again."""
    state = replayed(Reading(database)).machine.state
    records: list[Record] = [TermStarted(state.term + TERMS_SKIPPED)]
    records += [HistoryLost(name, NUMBERS_SKIPPED, why, NUMBERS_SKIPPED) for name in sorted(state.jobs)]
    append(database, state.index, state.term, records)
    database.execute(f"PRAGMA user_version={SCHEMA}")


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
