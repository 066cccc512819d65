"""The journal: what was decided, in one SQLite file, durable when `append` returns.

    state-dir/lock             held by the coordinator that runs
    state-dir/journal.begun    how many records the journal holds for certain, and which was the last (`mark.py`): one
                               that is lost is no fresh start, and one that lost its end, or is another, is not opened
    state-dir/journal.sqlite3  batches of records, in order and without a gap, and snapshots of the state they lead to
    state-dir/journal.sqlite3-wal, -shm, -journal
                               SQLite's logs, which stay behind when the coordinator is killed: the end of the journal
                               may be in them alone, and SQLite lays them over whatever file has that name

The law: an index is written once. A batch is one transaction with one fsync; if that fails, the journal is closed for
good, since nobody knows what reached the disk: only reading it again tells. A journal is opened only if everything that
was acknowledged is in it, and nothing is written to one that is not: SQLite would lay new records over the log behind
the damage. All methods block, and belong to one thread at a time.
"""

import errno
import hashlib
import os
import sqlite3
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from strata.coordinator import logfile
from strata.coordinator.mark import Mark, Marked, marked
from strata.core import codec
from strata.core.records import Record
from strata.errors import StrataError
from strata.storage import filelock
from strata.storage.mounts import NETWORK, mount_of, read_mountinfo

FILE = "journal.sqlite3"
LOG = f"{FILE}-wal"
LOGS = ("-wal", "-shm", "-journal")
BEGUN = "journal.begun"
SCHEMA = 2
"""Since 2 a row's digest is of all its columns; in 1 of the last alone."""
APPLICATION = 0x53545241
SNAPSHOTS_KEPT = 2
LOG_FRAMES = 1000
"""SQLite's log begins anew when it has so many."""
LOG_BYTES = 32 + LOG_FRAMES * (24 + 4096)
"""The log's head, and frames of one page each with a head of their own."""
WAYS_OUT = (
    "Move its files away, and restore a backup with `strata state restore`. Or go on with what is left: "
    "`strata state salvage` says first what would be lost"
)
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


class JournalDamaged(JournalError):
    """What was acknowledged cannot be read, or is gone."""


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
            self._mark = _begun(self._database, state_dir)
        except BaseException:
            filelock.close(self._lock)
            raise
        self._leaves_log = weakref.finalize(self, _tell_the_mark, self._database, self._mark)
        self.failed = False

    def append(self, first_index: int, term: int, records: Sequence[Record]) -> int:
        """Make these durable; gives the bytes they take. JournalError if they may not be."""
        if self.failed:
            raise JournalError("the journal failed before, and is closed")
        try:
            data, digest = append(self._database, first_index, term, records)
            self._mark.advance(first_index + len(records), digest)
            return len(data)
        except (sqlite3.Error, OSError) as error:
            self.failed = True
            raise _told(error, self.folder) from error

    def save_snapshot(self, index: int, term: int, state: bytes) -> None:
        """Keep the state as it is after `index` records, and let go of what it makes superfluous."""
        try:
            with _transaction(self._database):
                insert_snapshot(self._database, Snapshot(index, term, time.time(), state))
                self._database.execute(
                    "DELETE FROM snapshots WHERE state_index NOT IN "
                    "(SELECT state_index FROM snapshots ORDER BY state_index DESC LIMIT ?)",
                    (SNAPSHOTS_KEPT,),
                )
                (oldest,) = self._database.execute("SELECT min(state_index) FROM snapshots").fetchone()
                # The oldest snapshot must be able to catch up, should the newer one turn out to be damaged.
                keep_from = min(oldest, index - HISTORY_RECORDS)
                self._database.execute("DELETE FROM batches WHERE first_index + count <= ?", (keep_from,))
            self._mark.flush()
        except (sqlite3.Error, OSError) as error:
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
        return sum(path.stat().st_size for name in (FILE, LOG) if (path := self.folder / name).exists())

    def close(self) -> None:
        self.failed = True
        self._leaves_log()
        self._database.close()
        with suppress(OSError):
            if not (self.folder / LOG).exists():
                self._mark.finish()
        self._mark.close()
        filelock.close(self._lock)


def _tell_the_mark(database: sqlite3.Connection, mark: Mark) -> None:
    """SQLite removes its log with the last connection, also when Python ends, if all of it is in the file. So that
    is said before."""
    with suppress(sqlite3.Error, OSError):  # then the log stays, or what is wrong is told by the next start
        _, frames, moved = database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if frames == moved:
            mark.finish()


def append(
    database: sqlite3.Connection,
    first_index: int,
    term: int,
    records: Sequence[Record],
    unix_seconds: float | None = None,
) -> tuple[bytes, bytes]:
    """One statement, one transaction, one flush. Gives the records as they are stored, and the digest of their row."""
    data = codec.encode_records(records)
    head = (first_index, len(records), term, time.time() if unix_seconds is None else unix_seconds)
    digest = row_digest(data, *head)
    database.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)", (*head, data, digest))
    return data, digest


def insert_snapshot(database: sqlite3.Connection, snapshot: Snapshot) -> None:
    *head, state = snapshot
    row = (*head, state, row_digest(state, *head))
    database.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?)", row)


def snapshots(database: sqlite3.Connection) -> Iterator[Snapshot]:
    rows = _rows(
        database, "SELECT state_index, term, unix_seconds, state, digest FROM snapshots ORDER BY state_index DESC"
    )
    for index, term, unix_seconds, state, digest in rows:
        if digest == row_digest(state, index, term, unix_seconds) or digest == row_digest(state):
            yield Snapshot(index, term, unix_seconds, state)


def batches(database: sqlite3.Connection, after: int = -1) -> Iterator[Batch]:
    rows = _rows(
        database,
        "SELECT first_index, count, term, unix_seconds, records, digest FROM batches "
        "WHERE first_index + count - 1 > ? ORDER BY first_index",
        after,
    )
    for first_index, count, term, unix_seconds, data, digest in rows:
        if digest != row_digest(data, first_index, count, term, unix_seconds) and digest != row_digest(data):
            raise JournalDamaged(
                f"the journal is damaged: the records from index {first_index} on are not what was written. {WAYS_OUT}"
            )
        try:
            records = codec.decode_records(data)
        except (msgspec.DecodeError, TypeError, ValueError) as error:
            raise JournalError(
                f"the records from index {first_index} on were written by a version of Strata that this one does not "
                f"understand ({error}): use that version"
            ) from error
        if len(records) != count:
            raise JournalDamaged(
                f"the journal is damaged: {count} records were expected at index {first_index}. {WAYS_OUT}"
            )
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
    return JournalDamaged(f"the journal is damaged: {error}. {WAYS_OUT}")


def opened_for_reading(state_dir: Path) -> sqlite3.Connection:
    """Beside a running coordinator, which it does not disturb."""
    file = state_dir / FILE
    if not file.exists():
        raise JournalError(f"there is no journal in {state_dir}: is that a coordinator's --state-dir?")
    _check_log_is_there(file)
    database = read_only(file)
    try:
        check_whole(database, file)
    except sqlite3.Error as error:
        database.close()
        if _is_damage(error):
            raise _damaged(error) from error
        raise JournalError(f"cannot read {file}: {error}") from error
    except BaseException:
        database.close()
        raise
    return database


def read_only(file: Path) -> sqlite3.Connection:
    """It changes neither the file nor the log, whatever is wrong with them."""
    return sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


def files_of(file: Path) -> list[Path]:
    """What is there of a database: its file, and the logs that belong to that very file."""
    named = [file, *(file.with_name(f"{file.name}{ending}") for ending in LOGS)]
    return [path for path in named if path.exists()]


def _check_not_orphaned(file: Path) -> None:
    """SQLite deletes a log whose file is empty, and what is durable may be in that log alone."""
    if not file.exists() and file.with_name(BEGUN).exists() and not files_of(file):
        mark = marked(file.with_name(BEGUN))
        records = 0 if mark is None else mark.records
        known = f", and at least {records:,} records were acknowledged" if records else ""
        raise JournalDamaged(
            f"{file} is gone{known}. Put it back; or restore a backup with `strata state restore`; or remove the whole "
            "folder to begin anew"
        )
    if not file.exists() and (logs := files_of(file)):
        raise JournalError(
            f"{file} is gone, but not its logs ({', '.join(log.name for log in logs)}). Put the file back; or move "
            "the logs away, and restore a backup with `strata state restore`"
        )
    if file.exists() and not file.stat().st_size and _has_log(file):
        raise JournalError(
            f"{file} is empty, but not its log ({LOG}). Put the file back; or move both away, and restore a backup "
            "with `strata state restore`"
        )


def _has_log(file: Path) -> bool:
    """Who reads where there is none leaves an empty one."""
    log = file.with_name(LOG)
    return log.exists() and log.stat().st_size > 0


# -- whether everything that was acknowledged is there ---------------------------------------------------------------


def _check_log_is_there(file: Path) -> None:
    """A coordinator that ends well says that nothing is in the log alone before the log is removed; one that starts
    makes a log before it says that some may be. Looked at in this order, since one may do either meanwhile."""
    if not _has_log(file) and (mark := marked(file.with_name(BEGUN))) and mark.in_log and not _has_log(file):
        raise _incomplete(
            file, f"its end was in {LOG}, which is gone. At least {mark.records:,} records were acknowledged"
        )


def check_whole(database: sqlite3.Connection, file: Path) -> None:
    """The mark first: what it counts is in whatever is read after it."""
    begun = file.with_name(BEGUN)
    mark = marked(begun)
    check_schema(database, file)
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if not version and begun.exists():
        raise JournalDamaged(
            f"the journal {file} is empty, though it had records before: move its files away, and restore a backup "
            "with `strata state restore`, or remove the whole folder to begin anew"
        )
    check_structure(database, file)
    count = count_records(database) if version else 0
    if mark is not None and count < mark.records:
        raise _incomplete(
            file,
            f"{mark.records:,} records were acknowledged, and {mark.records - count:,} of them, from index {count} on, "
            f"are missing{f': the end of {LOG} cannot be read, or is gone' if _has_log(file) else ''}",
        )
    if version and mark is not None and mark.last and not _holds(database, mark):
        raise _incomplete(
            file,
            f"the records before index {mark.records} are not those that were acknowledged: it or {LOG} was changed, "
            "or is another coordinator's",
        )


def _holds(database: sqlite3.Connection, mark: Marked) -> bool:
    """Whether the batch that was the last is there; true as well where all up to it were let go of since."""
    row = database.execute(
        "SELECT first_index + count, digest FROM batches WHERE first_index < ? ORDER BY first_index DESC LIMIT 1",
        (mark.records,),
    ).fetchone()
    return row is None or row == (mark.records, mark.last)


def _last_digest(database: sqlite3.Connection, count: int) -> bytes:
    """Of the batch that ends so."""
    row = database.execute(
        "SELECT first_index + count, digest FROM batches ORDER BY first_index DESC LIMIT 1"
    ).fetchone()
    return row[1] if row is not None and row[0] == count else b""


def check_structure(database: sqlite3.Connection, file: Path) -> None:
    """A page that was changed may hide rows that are whole."""
    (health,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if health != "ok":
        raise _incomplete(file, f"SQLite says of it: {health}")


def count_records(database: sqlite3.Connection) -> int:
    """How many there were since the journal began; its beginning is not kept forever."""
    batch = database.execute("SELECT first_index + count FROM batches ORDER BY first_index DESC LIMIT 1").fetchone()
    (snapshot,) = database.execute("SELECT max(state_index) FROM snapshots").fetchone()
    return max((batch and batch[0]) or 0, snapshot or 0)


def _incomplete(file: Path, what: str) -> JournalError:
    return JournalDamaged(
        f"the journal {file} is damaged: {what}. Nothing was changed: put back what is missing if you can. {WAYS_OUT}"
    )


def check_before_writing(file: Path) -> None:
    """Whoever opens a journal to write lets SQLite write over what it takes for the end of its log."""
    _check_log_is_there(file)
    if _has_log(file):
        if (place := logfile.damaged_at(file.with_name(LOG))) is not None:
            raise _incomplete(file, f"{LOG} cannot be read from byte {place:,} on, where acknowledged records are")
        with closing(read_only(file)) as database:
            check_whole(database, file)


# -- opening ---------------------------------------------------------------------------------------------------------


def _opened(file: Path) -> sqlite3.Connection:
    _check_not_orphaned(file)
    try:
        create_private(file)
        if file.stat().st_size:
            check_before_writing(file)
        database = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        try:
            if not _has_log(file):
                check_whole(database, file)
            (mode,) = database.execute("PRAGMA journal_mode=WAL").fetchone()
            if mode != "wal":
                raise JournalError(f"{file.parent} is on a filesystem that SQLite cannot keep a journal on ({mode})")
            database.execute("PRAGMA synchronous=FULL")
            database.execute(f"PRAGMA wal_autocheckpoint={LOG_FRAMES}")
            _create(database)
            _make_room(file.with_name(LOG))
        except BaseException:
            database.close()
            raise
    except (sqlite3.Error, OSError) as error:
        raise _told(error, file.parent) from error
    return database


def _create(database: sqlite3.Connection) -> None:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version < SCHEMA:
        with _transaction(database):
            if not version:
                create_tables(database)
            database.execute(f"PRAGMA user_version={SCHEMA}")


def create_tables(database: sqlite3.Connection) -> None:
    for statement in _CREATE.split(";"):
        database.execute(statement)
    database.execute(f"PRAGMA application_id={APPLICATION}")


def _begun(database: sqlite3.Connection, folder: Path) -> Mark:
    """The mark of a journal that is open. It says that there is a log once that is certain to be there."""
    try:
        mark = Mark(folder / BEGUN)
        try:
            synced(folder)
            count = count_records(database)
            mark.begin(count, in_log=_has_log(folder / FILE), last=_last_digest(database, count))
        except BaseException:
            mark.close()
            raise
    except (sqlite3.Error, OSError) as error:
        database.close()
        raise _told(error, folder) from error
    return mark


def _make_room(log: Path) -> None:
    """Let SQLite's log have its usual size from the start: to flush what is written over takes half the time of
    flushing what makes a file longer. Zeros are no frames."""
    room = os.statvfs(log.parent)
    if log.stat().st_size >= LOG_BYTES or room.f_bavail * room.f_frsize < 64 * LOG_BYTES:
        return
    with log.open("ab", buffering=0) as file:
        with suppress(OSError):  # a kindness: a disk that is full is told by the first record
            file.write(bytes(LOG_BYTES - file.tell()))
        os.fsync(file.fileno())  # after one that failed nobody knows what is on the disk


def synced(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def _is_damage(error: Exception) -> bool:
    """SQLite tells some damage by a code of several parts, of which the lowest eight bits are the kind."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)


def _told(error: sqlite3.Error | OSError, folder: Path) -> JournalError:
    if _is_damage(error):
        return JournalDamaged(f"{folder / FILE} is damaged, or is not a journal ({error}). {WAYS_OUT}")
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


def row_digest(data: bytes, *head: float) -> bytes:
    digest = hashlib.blake2b(repr(head).encode() if head else b"", digest_size=8)
    digest.update(data)
    return digest.digest()


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
        os.ftruncate(lock, os.pwrite(lock, f"{os.getpid()}\n".encode(), 0))
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
