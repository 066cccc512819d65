"""The journal: what was decided, in one SQLite file, durable when `append` returns.

    state-dir/lock             held by the coordinator that runs
    state-dir/journal.begun    there once there is a journal, so that one that is lost is no fresh start
    state-dir/journal.sqlite3  batches of records, in order and without a gap, and snapshots of the state they lead to
    state-dir/journal.sqlite3-wal, -shm, -journal
                               SQLite's logs, which stay behind when the coordinator is killed: the end of the journal
                               may be in them alone, and SQLite lays them over whatever file has that name

The law: an index is written once. A batch is one transaction with one fsync; if that fails, the journal is closed for
good, since nobody knows what reached the disk: only reading it again tells. All methods block, and belong to one
thread at a time.
"""

import errno
import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from strata.core import codec
from strata.core.records import Record
from strata.errors import StrataError
from strata.storage import filelock
from strata.storage.mounts import NETWORK, mount_of, read_mountinfo

FILE = "journal.sqlite3"
LOGS = ("-wal", "-shm", "-journal")
BEGUN = "journal.begun"
SCHEMA = 1
APPLICATION = 0x53545241
SNAPSHOTS_KEPT = 2
LOG_FRAMES = 1000
"""SQLite's log begins anew when it has so many."""
FLUSH_FAILED = (sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC)
LOG_BYTES = 32 + LOG_FRAMES * (24 + 4096)
"""The log's head, and frames of one page each with a head of their own."""
HISTORY_RECORDS = 20_000
"""Records that are kept beyond what a restart needs, so that the events of the last while can be shown."""

_CREATE = """
CREATE TABLE batches (
    first_index INTEGER PRIMARY KEY,
    count INTEGER NOT NULL,
    term INTEGER NOT NULL,
    unix_seconds REAL NOT NULL,
    records BLOB NOT NULL,
    digest BLOB NOT NULL
);
CREATE TABLE snapshots (
    state_index INTEGER PRIMARY KEY,
    term INTEGER NOT NULL,
    unix_seconds REAL NOT NULL,
    state BLOB NOT NULL,
    digest BLOB NOT NULL
);
"""


class JournalError(StrataError):
    """The journal cannot be used: the message says why, and what to do."""

    code = "journal"


class Batch(NamedTuple):
    """Records that were made durable together; the first of them has the index `first_index`."""

    first_index: int
    term: int
    unix_seconds: float
    records: list[Record]
    size_bytes: int


class Snapshot(NamedTuple):
    """The state after `state_index` records."""

    state_index: int
    term: int
    unix_seconds: float
    state: bytes


class Journal:
    """The journal of the one coordinator that may use this folder."""

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir
        self._lock = locked(state_dir)
        try:
            self._database = _opened(state_dir / FILE)
        except BaseException:
            filelock.close(self._lock)
            raise
        self.failed = False

    def append(self, first_index: int, term: int, records: Sequence[Record]) -> int:
        """Make these durable; gives the bytes they take. JournalError if they may not be."""
        if self.failed:
            raise JournalError("the journal failed before, and is closed")
        try:
            return append(self._database, first_index, term, records)
        except sqlite3.Error as error:
            self.failed = True
            raise _told(error, self.folder) from error

    def save_snapshot(self, index: int, term: int, state: bytes) -> None:
        """Keep the state as it is after `index` records, and let go of what it makes superfluous."""
        try:
            with _transaction(self._database):
                self._database.execute(
                    "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?)",
                    (index, term, time.time(), state, _digest(state)),
                )
                self._database.execute(
                    "DELETE FROM snapshots WHERE state_index NOT IN "
                    "(SELECT state_index FROM snapshots ORDER BY state_index DESC LIMIT ?)",
                    (SNAPSHOTS_KEPT,),
                )
                (oldest,) = self._database.execute("SELECT min(state_index) FROM snapshots").fetchone()
                # The oldest snapshot must be able to catch up, should the newer one turn out to be damaged.
                keep_from = min(oldest, index - HISTORY_RECORDS)
                self._database.execute("DELETE FROM batches WHERE first_index + count <= ?", (keep_from,))
        except sqlite3.Error as error:
            self.failed = True
            raise _told(error, self.folder) from error

    def snapshots(self) -> Iterator[Snapshot]:
        """The newest first; one that is damaged is left out."""
        return snapshots(self._database)

    def batches(self, after: int = -1) -> Iterator[Batch]:
        """All that hold records with an index above `after`, in order."""
        return batches(self._database, after)

    def size_bytes(self) -> int:
        """What the files take on the disk."""
        names = (FILE, f"{FILE}-wal")
        return sum(path.stat().st_size for name in names if (path := self.folder / name).exists())

    def close(self) -> None:
        self.failed = True
        self._database.close()
        filelock.close(self._lock)


def append(database: sqlite3.Connection, first_index: int, term: int, records: Sequence[Record]) -> int:
    """One statement, one transaction, one flush."""
    data = codec.encode_records(records)
    row = (first_index, len(records), term, time.time(), data, _digest(data))
    database.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)", row)
    return len(data)


def snapshots(database: sqlite3.Connection) -> Iterator[Snapshot]:
    rows = _rows(
        database, "SELECT state_index, term, unix_seconds, state, digest FROM snapshots ORDER BY state_index DESC"
    )
    for index, term, unix_seconds, state, digest in rows:
        if _digest(state) == digest:
            yield Snapshot(index, term, unix_seconds, state)


def batches(database: sqlite3.Connection, after: int = -1) -> Iterator[Batch]:
    rows = _rows(
        database,
        "SELECT first_index, count, term, unix_seconds, records, digest FROM batches "
        "WHERE first_index + count - 1 > ? ORDER BY first_index",
        after,
    )
    for first_index, count, term, unix_seconds, data, digest in rows:
        if _digest(data) != digest:
            raise JournalError(
                f"the journal is damaged: the records from index {first_index} on are not what was written. "
                "Restore a backup with `strata state restore`"
            )
        try:
            records = codec.decode_records(data)
        except (msgspec.DecodeError, TypeError, ValueError) as error:
            raise JournalError(
                f"the records from index {first_index} on were written by a version of Strata that this one does not "
                f"understand ({error}): use that version"
            ) from error
        if len(records) != count:
            raise JournalError(f"the journal is damaged: {count} records were expected at index {first_index}")
        yield Batch(first_index, term, unix_seconds, records, len(data))


def _rows(database: sqlite3.Connection, question: str, *given: int) -> Iterator[Any]:
    try:
        cursor = database.execute(question, given)
        row = cursor.fetchone()
    except sqlite3.Error as error:
        raise _damaged(error) from error
    while row is not None:
        yield row
        try:
            row = cursor.fetchone()
        except sqlite3.Error as error:
            raise _damaged(error) from error


def _damaged(error: sqlite3.Error) -> JournalError:
    return JournalError(f"the journal is damaged: {error}. Restore a backup with `strata state restore`")


def opened_for_reading(state_dir: Path) -> sqlite3.Connection:
    """Beside a running coordinator, which it does not disturb."""
    file = state_dir / FILE
    if not file.exists():
        raise JournalError(f"there is no journal in {state_dir}: is that a coordinator's --state-dir?")
    database = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    try:
        check_schema(database, file)
    except sqlite3.Error as error:
        database.close()
        raise JournalError(f"cannot read {file}: {error}") from error
    except BaseException:
        database.close()
        raise
    return database


def files_of(file: Path) -> list[Path]:
    """What is there of a database: its file, and the logs that belong to that very file."""
    named = [file, *(file.with_name(f"{file.name}{ending}") for ending in LOGS)]
    return [path for path in named if path.exists()]


def _check_not_orphaned(file: Path) -> None:
    """SQLite deletes a log whose file is empty, and what is durable may be in that log alone."""
    if not file.exists() and (logs := files_of(file)):
        raise JournalError(
            f"{file} is gone, but not its logs ({', '.join(log.name for log in logs)}). Put the file back; or move "
            "the logs away, and restore a backup with `strata state restore`"
        )


def _opened(file: Path) -> sqlite3.Connection:
    _check_not_orphaned(file)
    try:
        create_private(file)
        database = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        try:
            check_schema(database, file)
            (mode,) = database.execute("PRAGMA journal_mode=WAL").fetchone()
            if mode != "wal":
                raise JournalError(f"{file.parent} is on a filesystem that SQLite cannot keep a journal on ({mode})")
            database.execute("PRAGMA synchronous=FULL")
            database.execute(f"PRAGMA wal_autocheckpoint={LOG_FRAMES}")
            if not database.execute("PRAGMA user_version").fetchone()[0]:
                if (file.parent / BEGUN).exists():
                    raise JournalError(
                        f"the journal {file} is empty, and it was not: restore a backup with `strata state restore`, "
                        f"or remove the whole folder to begin anew"
                    )
                with _transaction(database):
                    for statement in _CREATE.split(";"):
                        database.execute(statement)
                    database.execute(f"PRAGMA application_id={APPLICATION}")
                    database.execute(f"PRAGMA user_version={SCHEMA}")
            create_private(file.parent / BEGUN)
            _make_room(database, file.with_name(f"{FILE}-wal"))
        except BaseException:
            database.close()
            raise
    except (sqlite3.Error, OSError) as error:
        raise _told(error, file.parent) from error
    return database


def _make_room(database: sqlite3.Connection, log: Path) -> None:
    """Let SQLite's log have its usual size from the start: to flush what is written over takes half the time of
    flushing what makes a file longer."""
    room = os.statvfs(log.parent)
    if log.stat().st_size >= LOG_BYTES or room.f_bavail * room.f_frsize < 64 * LOG_BYTES:
        return
    # NORMAL flushes whatever moves from the log into the file, but not each frame: these hold what is there already.
    database.execute("PRAGMA synchronous=NORMAL")
    (patience,) = database.execute("PRAGMA busy_timeout").fetchone()
    database.execute("PRAGMA busy_timeout=0")  # whoever reads meanwhile is not waited for
    try:
        for _ in range(LOG_FRAMES):
            if log.stat().st_size >= LOG_BYTES or not _tried(database, "PRAGMA user_version={}"):
                break
        _tried(database, "PRAGMA wal_checkpoint(RESTART)")  # or the log would go on behind them
    finally:
        database.execute(f"PRAGMA busy_timeout={patience}")
        database.execute("PRAGMA synchronous=FULL")


def _tried(database: sqlite3.Connection, statement: str) -> bool:
    """A kindness: what else is wrong is told by the first record. But after a flush that failed nobody knows what is on
    the disk."""
    try:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        database.execute(statement.format(version)).fetchall()
    except sqlite3.Error as error:
        if error.sqlite_errorcode in FLUSH_FAILED:
            raise
        return False
    return True


def create_private(file: Path) -> None:
    """For this user alone: a journal tells of names and paths. SQLite gives its other files the same rights."""
    os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def check_schema(database: sqlite3.Connection, file: Path) -> None:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application != APPLICATION:
        raise JournalError(f"{file} is not a journal of Strata's")
    if version > SCHEMA:
        raise JournalError(
            f"{file} was written by a newer version of Strata (schema {version}; this one knows {SCHEMA}): upgrade"
        )


class _transaction:  # noqa: N801  reads as a statement
    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._database.execute("COMMIT")
        elif self._database.in_transaction:  # where the disk is full, SQLite has rolled back by itself
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")


def _told(error: sqlite3.Error | OSError, folder: Path) -> JournalError:
    if getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return JournalError(
            f"{folder / FILE} is damaged, or no journal at all ({error}): restore a backup with `strata state restore`"
        )
    full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    if full or getattr(error, "errno", None) == errno.ENOSPC:
        return JournalError(
            f"no room is left for the journal in {folder}. Nothing that was acknowledged is lost: "
            "make room, then start the coordinator again"
        )
    return JournalError(
        f"the journal in {folder} cannot be written ({error}). Nothing that was acknowledged is lost: mend the disk, "
        "then start the coordinator again"
    )


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


# -- one coordinator, on a disk of its own ---------------------------------------------------------------------------


def locked(folder: Path) -> int:
    """The lock on this folder, for as long as the process lives."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_filesystem(folder)
        lock = filelock.keep(os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise JournalError(f"cannot keep the state in {folder}: {error.strerror or error}") from error
    held = filelock.try_lock(lock)
    if not held:
        holder = os.pread(lock, 64, 0).decode(errors="replace").strip() if held is False else ""
        filelock.close(lock)
        if held is None:
            raise JournalError(f"{folder} is on a filesystem without locks: use a local disk")
        raise JournalError(
            f"another coordinator{f' (process {holder})' if holder else ''} uses the state in {folder}. "
            "Stop it first, or give this one a --state-dir of its own"
        )
    with suppress(OSError):  # for people alone; a full disk must not keep the coordinator from saying so itself
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def check_filesystem(folder: Path, mountinfo: str | None = None) -> str:
    """The kind of filesystem; JournalError for one whose locks and flushes are another machine's word."""
    told = read_mountinfo() if mountinfo is None else mountinfo
    mount = None if told is None else mount_of(os.path.realpath(folder), told)
    kind = "" if mount is None else mount.kind
    if kind in NETWORK or kind.startswith("fuse."):
        raise JournalError(
            f"the state must not be kept on a network filesystem ({folder} is on {kind}): its locks and flushes cannot "
            "be relied on. Give a --state-dir on a local disk or a block volume"
        )
    return kind
