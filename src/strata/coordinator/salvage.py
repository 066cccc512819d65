"""Going on with what is left of a damaged journal, when neither what is missing nor a backup is to be had."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from strata.coordinator.backups import Reading, forget_mark, skip_ahead, staged
from strata.coordinator.journal import (
    BEGUN,
    FILE,
    Batch,
    JournalDamaged,
    JournalError,
    Snapshot,
    append,
    batches,
    check_before_writing,
    check_schema,
    create_tables,
    files_of,
    insert_snapshot,
    locked,
    opened_for_reading,
    read_only,
    snapshots,
    synced,
)
from strata.coordinator.mark import marked
from strata.coordinator.replay import replayed
from strata.storage import filelock

LOST = "the end of the journal was lost, and the coordinator goes on without it"


class Remains(NamedTuple):
    """So many `records` since the journal began can be read, of at least so many that were `acknowledged`. `damage`
    says what is wrong, and `aside` is where the damaged files are once others are in their place."""

    records: int
    acknowledged: int
    damage: str
    aside: Path | None


def salvage(state_dir: Path, *, carry_out: bool) -> Remains:
    """Say what is left; with `carry_out`, make a journal of that, and put the damaged one aside.

    All that follows what cannot be read is forgotten. As after a restore, no number is given twice.
    """
    file = state_dir / FILE
    if not file.exists():
        raise JournalError(f"there is no journal in {state_dir}: is that a coordinator's --state-dir?")
    lock = locked(state_dir)
    try:
        damage = _damage_of(file)
        mark = marked(state_dir / BEGUN)
        snapshot, left = _read(file)
        count = _end(snapshot, left)
        aside = _replace(file, snapshot, left) if carry_out else None
        return Remains(count, max(count, mark.records if mark else 0), damage, aside)
    except (sqlite3.Error, OSError) as error:
        raise JournalError(f"cannot salvage {file}: {error}") from error
    finally:
        filelock.close(lock)


def _damage_of(file: Path) -> str:
    try:
        check_before_writing(file)
        with closing(opened_for_reading(file.parent)) as database:
            replayed(Reading(database))
    except JournalDamaged as damage:
        return str(damage)
    except sqlite3.DatabaseError as error:
        return f"{file} cannot be read: {error}"
    raise JournalError(f"nothing is missing from {file}: a coordinator can start with it as it is")


def _read(file: Path) -> tuple[Snapshot | None, list[Batch]]:
    """The newest snapshot that is whole, and the batches that lead up to it and on from there without a gap."""
    with closing(read_only(file)) as database:
        database.execute("PRAGMA writable_schema=ON")  # or SQLite reads nothing of a file that was cut off
        snapshot = None
        with suppress(JournalDamaged, sqlite3.DatabaseError):
            check_schema(database, file)
            snapshot = next(snapshots(database), None)
        index = 0 if snapshot is None else snapshot.state_index
        for after in (-1, index - 1):
            left = _unbroken(database, after)
            if left and left[0].first_index <= index <= _end(None, left):
                return snapshot, left
    if snapshot is None:
        raise JournalDamaged(
            f"nothing of {file} can be read: restore a backup with `strata state restore`, or move the whole folder "
            "away to begin anew"
        )
    return snapshot, []


def _unbroken(database: sqlite3.Connection, after: int) -> list[Batch]:
    found: list[Batch] = []
    with suppress(JournalDamaged):
        for batch in batches(database, after):
            if found and batch.first_index != _end(None, found):
                break
            found.append(batch)
    return found


def _end(snapshot: Snapshot | None, left: list[Batch]) -> int:
    last = left[-1].first_index + len(left[-1].records) if left else 0
    return last if snapshot is None else max(last, snapshot.state_index)


def _replace(file: Path, snapshot: Snapshot | None, left: list[Batch]) -> Path:
    with staged(file) as copy:
        create_tables(copy)
        if snapshot is not None:
            insert_snapshot(copy, snapshot)
        for batch in left:
            append(copy, batch.first_index, batch.term, batch.records, batch.unix_seconds)
        skip_ahead(copy, LOST)
        aside = _put_aside(file)
        forget_mark(file.parent)
    return aside


def _put_aside(file: Path) -> Path:
    numbers = (number for number in range(1, 10_000) if not file.with_name(f"damaged-{number}").exists())
    aside = file.with_name(f"damaged-{next(numbers)}")
    aside.mkdir(mode=0o700)
    for each in files_of(file):
        each.rename(aside / each.name)
    synced(aside)
    synced(file.parent)
    return aside
