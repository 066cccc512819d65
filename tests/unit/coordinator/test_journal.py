"""The journal: what was appended is there, whole and in order; what is damaged or another's is refused in words."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from strata.coordinator import backups, journal
from strata.coordinator.journal import FILE, Journal, JournalError
from strata.coordinator.replay import replayed
from strata.core.machine import Machine
from strata.core.records import Record, TermStarted, WorkerJoined
from tests.unit.core.cluster import JOB, Cluster


def story() -> Cluster:
    cluster = Cluster()
    workers = cluster.world(3)
    cluster.add_dataset()
    for number in range(1, 4):
        for who in workers:
            cluster.arrive(who, "sync", expected=3, arrival=number)
    cluster.save(workers, 10)
    return cluster


def write(folder: Path, records: list[Record], batch: int = 5) -> None:
    opened = Journal(folder)
    for first in range(0, len(records), batch):
        opened.append(first, 1, records[first : first + batch])
    opened.close()


def noted_connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """All that are opened from now on: what a connection was told it tells itself alone."""
    connect, opened = sqlite3.connect, list[sqlite3.Connection]()

    def noted(*where: Any, **how: Any) -> sqlite3.Connection:
        opened.append(connect(*where, **how))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    return opened


def read(folder: Path) -> Machine:
    opened = Journal(folder)
    try:
        return replayed(opened).machine
    finally:
        opened.close()


def test_what_was_appended_gives_the_same_state(tmp_path: Path) -> None:
    cluster = story()
    write(tmp_path, cluster.records)
    assert read(tmp_path).digest() == cluster.machine.digest()


def test_a_new_folder_is_an_empty_journal_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "state"
    assert read(folder).index == 0
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_log_has_its_size_before_the_first_record_which_is_flushed_as_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = noted_connections(monkeypatch)
    opened, log = Journal(tmp_path), tmp_path / f"{FILE}-wal"
    size = log.stat().st_size
    assert size >= journal.LOG_BYTES
    opened.append(0, 1, [TermStarted(1)])
    assert log.stat().st_size == size, "a file that grows takes twice as long to flush"
    assert connections[-1].execute("PRAGMA synchronous").fetchone() == (2,), "FULL: flushed with each commit"
    assert connections[-1].execute("PRAGMA freelist_count").fetchone() == (0,), "it takes no room in the file itself"
    opened.close()


def test_a_log_that_gets_its_size_keeps_what_a_kill_left_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, live, left = story(), tmp_path / "live", tmp_path / "left"
    with monkeypatch.context() as before:
        before.setattr(journal, "LOG_BYTES", 0)
        opened = Journal(live)
        opened.append(0, 1, cluster.records)
        assert (live / f"{FILE}-wal").stat().st_size < journal.LOG_FRAMES * 4096
        shutil.copytree(live, left)
        opened.close()
    assert read(left).digest() == cluster.machine.digest()


def test_a_journal_opens_beside_one_who_reads(tmp_path: Path) -> None:
    write(tmp_path, story().records)
    with closing(journal.opened_for_reading(tmp_path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM batches").fetchone()
        opened = Journal(tmp_path)
        opened.append(len(story().records), 1, [TermStarted(2)])
        opened.close()
    assert read(tmp_path).index == len(story().records) + 1


APPEND = """
import resource, signal, sys
from pathlib import Path
from typing import Any
from strata.coordinator.journal import Journal, JournalError
from strata.core.records import TermStarted
if sys.argv[3:]:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), -1))
try:
    journal = Journal(Path(sys.argv[1]))
except JournalError as error:
    sys.exit(f"not opened: {error}")
journal.append(int(sys.argv[2]), 1, [TermStarted(1)])
print("appended")
"""


def test_no_room_for_the_whole_log_is_room_for_a_record(tmp_path: Path) -> None:
    for index in range(2):
        command = [sys.executable, "-c", APPEND, str(tmp_path), str(index), str(2 << 20)]
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        assert told.stdout == "appended\n", told.stderr


def test_a_flush_that_fails_while_the_log_gets_its_size_is_told(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("missing component: strace")
    Journal(tmp_path).close()
    tracer = ["strace", "-f", "-qq", "-o", str(tmp_path / "trace"), "-e", "trace=fsync,fdatasync"]
    tracer += ["-e", "inject=fsync,fdatasync:error=EIO"]
    command = [*tracer, sys.executable, "-c", APPEND, str(tmp_path), "0"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.stderr.startswith("not opened: the journal in")
    assert "cannot be written" in told.stderr


def test_a_snapshot_stands_for_what_came_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "HISTORY_RECORDS", 3)
    cluster = story()
    records = cluster.records
    machine = Machine()
    opened = Journal(tmp_path)
    for index, record in enumerate(records):
        opened.append(index, 1, [record])
        machine.apply(record)
        if index in (5, 9, 12):
            opened.save_snapshot(machine.index, 1, machine.snapshot())
    found = replayed(opened)
    assert found.machine.digest() == cluster.machine.digest()
    assert found.fed == len(records) - 13
    assert [snapshot.state_index for snapshot in opened.snapshots()] == [13, 10]
    assert next(opened.batches()).first_index == 10, "the older snapshot can still catch up"
    opened.close()


def test_history_is_kept_beyond_what_a_restart_needs(tmp_path: Path) -> None:
    cluster = story()
    write(tmp_path, cluster.records)
    opened = Journal(tmp_path)
    opened.save_snapshot(cluster.machine.index, 1, cluster.machine.snapshot())
    found = replayed(opened)
    assert found.fed == 0
    assert [entry.record for entry in found.history] == cluster.records
    opened.close()


def test_a_damaged_snapshot_is_passed_over(tmp_path: Path) -> None:
    cluster = story()
    write(tmp_path, cluster.records)
    opened = Journal(tmp_path)
    opened.save_snapshot(cluster.machine.index, 1, cluster.machine.snapshot())
    opened.close()
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("UPDATE snapshots SET state = CAST(x'00' || substr(state, 2) AS BLOB)")
    database.close()
    assert read(tmp_path).digest() == cluster.machine.digest()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            "UPDATE batches SET records = CAST(x'00' || substr(records, 2) AS BLOB) WHERE first_index = 5",
            "from index 5 on are not",
        ),
        ("DELETE FROM batches WHERE first_index = 5", "gap.*from index 5 to 9"),
    ],
)
def test_a_damaged_journal_is_refused_and_says_where(tmp_path: Path, damage: str, message: str) -> None:
    write(tmp_path, story().records)
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute(damage)
    database.close()
    with pytest.raises(JournalError, match=message):
        read(tmp_path)


def test_an_index_is_written_once(tmp_path: Path) -> None:
    opened = Journal(tmp_path)
    opened.append(0, 1, [TermStarted(1)])
    with pytest.raises(JournalError, match="cannot be written"):
        opened.append(0, 1, [TermStarted(2)])
    with pytest.raises(JournalError, match="failed before"):
        opened.append(1, 1, [TermStarted(3)])
    opened.close()
    assert read(tmp_path).state.term == 1


def test_a_second_coordinator_is_refused_and_told_who_is_there(tmp_path: Path) -> None:
    opened = Journal(tmp_path)
    with pytest.raises(JournalError, match=rf"another coordinator \(process {os.getpid()}\)"):
        Journal(tmp_path)
    opened.close()
    Journal(tmp_path).close()


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "lustre", "fuse.sshfs"])
def test_a_network_filesystem_is_refused(tmp_path: Path, kind: str) -> None:
    mountinfo = f"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:1 / {tmp_path} rw - {kind} server:/x rw\n"
    with pytest.raises(JournalError, match=f"network filesystem.*{kind}"):
        journal.check_filesystem(tmp_path, mountinfo)
    assert journal.check_filesystem(tmp_path.parent, mountinfo) == "ext4"


def test_what_is_not_a_journal_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("CREATE TABLE mine (a)")
    database.close()
    with pytest.raises(JournalError, match="not a journal of Strata's"):
        Journal(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / FILE).write_bytes(b"something else entirely" * 100)
    with pytest.raises(JournalError, match="not a database"):
        Journal(tmp_path / "other")


def test_a_journal_that_is_empty_or_gone_is_no_fresh_start(tmp_path: Path) -> None:
    write(tmp_path / "state", story().records)
    backups.backup(tmp_path / "state", tmp_path / "backup")
    file = tmp_path / "state" / FILE
    file.write_bytes(b"")
    with pytest.raises(
        JournalError, match="is empty, though it had records before: move its files away, and restore a backup"
    ):
        Journal(tmp_path / "state")
    for each in journal.files_of(file):
        each.unlink()
    for _ in range(2):  # the refusal puts no empty file in its place
        with pytest.raises(JournalError, match=f"is gone, and at least {len(story().records)} records were ack"):
            Journal(tmp_path / "state")
        assert not file.exists()
    backups.restore(tmp_path / "backup", tmp_path / "state")
    Journal(tmp_path / "state").close()


def test_a_journal_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(JournalError, match="newer version"):
        Journal(tmp_path)


def test_a_backup_is_the_state_of_one_instant_beside_a_running_coordinator(tmp_path: Path) -> None:
    cluster = story()
    opened = Journal(tmp_path / "state")
    opened.append(0, 1, cluster.records)
    backups.backup(tmp_path / "state", tmp_path / "backup")
    opened.append(cluster.machine.index, 1, [TermStarted(2)])
    opened.close()
    backups.restore(tmp_path / "backup", tmp_path / "restored")
    restored, kept = read(tmp_path / "restored").state, cluster.machine.state
    assert restored.term == kept.term + backups.TERMS_SKIPPED
    there, here = restored.jobs[JOB], kept.jobs[JOB]
    assert there.world.members == here.world.members
    assert there.attempts == here.attempts
    assert there.world.next_incarnation > here.world.next_incarnation + 1000, "no number is given twice"
    assert there.world.generation > here.world.generation + 1000
    assert there.next_attempt > here.next_attempt + 1000
    assert there.points > here.points + 1000
    assert there.next_request > here.next_request + 1000
    assert there.versions_skipped > 1000
    assert there.dataset_versions["images"] > here.dataset_versions["images"] + 1000


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    opened = Journal(tmp_path / "state")
    opened.append(0, 1, story().records)
    backups.backup(tmp_path / "state", tmp_path / "backup")
    opened.close()
    backups.restore(tmp_path / "backup", tmp_path / "restored")
    files = [tmp_path / "backup", tmp_path / "state" / FILE, tmp_path / "restored" / FILE]
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600] * 3


def test_a_damaged_backup_is_not_put_in_place(tmp_path: Path) -> None:
    write(tmp_path / "state", story().records)
    backups.backup(tmp_path / "state", tmp_path / "backup")
    with sqlite3.connect(tmp_path / "backup") as database:
        database.execute("DELETE FROM batches WHERE first_index = 5")
    database.close()
    with pytest.raises(JournalError, match="gap"):
        backups.restore(tmp_path / "backup", tmp_path / "new")
    assert not (tmp_path / "new" / FILE).exists()


def test_a_disk_that_is_full_during_a_snapshot_is_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connections = noted_connections(monkeypatch)
    opened = Journal(tmp_path)
    opened.append(0, 1, story().records)
    connections[-1].execute("PRAGMA max_page_count=20")
    with pytest.raises(JournalError, match="no room is left"):
        opened.save_snapshot(10, 1, b"x" * 10_000_000)
    opened.close()
    assert read(tmp_path).index == len(story().records)


def test_records_of_an_unknown_kind_are_told_as_that(tmp_path: Path) -> None:
    opened = Journal(tmp_path)
    opened.append(0, 1, [TermStarted(1)])
    opened.close()
    data = msgspec.msgpack.encode([{"type": "Surprise"}])
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("UPDATE batches SET records = ?, digest = ?", (data, journal.row_digest(data)))
    database.close()
    (tmp_path / journal.BEGUN).write_bytes(b"")
    with pytest.raises(JournalError, match="a version of Strata that this one does not"):
        read(tmp_path)


def test_nothing_is_overwritten_by_a_backup_or_a_restore(tmp_path: Path) -> None:
    write(tmp_path / "state", story().records)
    backups.backup(tmp_path / "state", tmp_path / "backup")
    with pytest.raises(JournalError, match="never overwritten"):
        backups.backup(tmp_path / "state", tmp_path / "backup")
    with pytest.raises(JournalError, match="holds a journal already"):
        backups.restore(tmp_path / "backup", tmp_path / "state")
    with pytest.raises(JournalError, match="there is no backup"):
        backups.restore(tmp_path / "nothing", tmp_path / "new")
    (tmp_path / "text").write_text("no database" * 1000)
    with pytest.raises(JournalError, match="not a database"):
        backups.restore(tmp_path / "text", tmp_path / "new")
    assert not (tmp_path / "new" / FILE).exists()


def write_and_die(folder: Path) -> None:
    Journal(folder).append(0, 1, story().records)
    os.kill(os.getpid(), signal.SIGKILL)


def leave_logs(folder: Path) -> None:
    """A coordinator that was killed leaves SQLite's logs behind, and in them what it wrote."""
    program = f"from {__name__} import *; write_and_die(Path({str(folder)!r}))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == -signal.SIGKILL


def test_a_restore_is_not_overlaid_with_the_log_of_the_journal_before(tmp_path: Path) -> None:
    state = tmp_path / "state"
    write(tmp_path / "former", story().records[:5])
    backups.backup(tmp_path / "former", tmp_path / "backup")
    leave_logs(state)
    with pytest.raises(JournalError, match=rf"all its files \({FILE}, {FILE}-wal, {FILE}-shm\)"):
        backups.restore(tmp_path / "backup", state)
    (state / FILE).rename(tmp_path / "aside")
    with pytest.raises(JournalError, match=rf"all its files \({FILE}-wal, {FILE}-shm\)"):
        backups.restore(tmp_path / "backup", state)
    for ending in ("-wal", "-shm"):
        (state / f"{FILE}{ending}").rename(tmp_path / f"aside{ending}")
    backups.restore(tmp_path / "backup", state)
    assert read(state).index == 5 + len(["TermStarted", "HistoryLost"])


@pytest.mark.parametrize("ending", ["-wal", "-shm", "-journal"])
def test_no_journal_begins_or_is_put_beside_a_log_without_its_file(tmp_path: Path, ending: str) -> None:
    write(tmp_path / "former", story().records)
    backups.backup(tmp_path / "former", tmp_path / "backup")
    log = tmp_path / "state" / f"{FILE}{ending}"
    log.parent.mkdir()
    log.write_bytes(b"the end of a journal")
    with pytest.raises(JournalError, match=f"is gone, but not its logs \\({log.name}\\)"):
        Journal(log.parent)
    with pytest.raises(JournalError, match="move it away first"):
        backups.restore(tmp_path / "backup", log.parent)
    assert log.read_bytes() == b"the end of a journal"
    assert not (log.parent / FILE).exists()


def test_a_log_is_of_use_again_once_its_file_is_back(tmp_path: Path) -> None:
    leave_logs(tmp_path / "state")
    (tmp_path / "state" / FILE).rename(tmp_path / "aside")
    with pytest.raises(JournalError, match="Put the file back"):
        Journal(tmp_path / "state")
    (tmp_path / "aside").rename(tmp_path / "state" / FILE)
    assert read(tmp_path / "state").digest() == story().machine.digest()


def test_what_a_crash_left_of_a_restore_is_not_laid_over_the_next(tmp_path: Path) -> None:
    write(tmp_path / "former", story().records[:5])
    backups.backup(tmp_path / "former", tmp_path / "backup")
    leave_logs(tmp_path / "other")
    state = tmp_path / "state"
    state.mkdir()
    for ending in ("", "-wal", "-shm"):
        (tmp_path / "other" / f"{FILE}{ending}").rename(state / f"{FILE}.partial{ending}")
    backups.restore(tmp_path / "backup", state)
    assert read(state).index == 5 + len(["TermStarted", "HistoryLost"])
    assert not list(state.glob("*.partial*"))


def test_a_backup_is_not_put_beside_a_log(tmp_path: Path) -> None:
    write(tmp_path / "state", story().records)
    (tmp_path / "backup-wal").write_bytes(b"of another")
    with pytest.raises(JournalError, match="backup-wal exists already"):
        backups.backup(tmp_path / "state", tmp_path / "backup")


def test_records_of_a_batch_have_their_times_and_terms(tmp_path: Path) -> None:
    opened = Journal(tmp_path)
    opened.append(0, 7, [TermStarted(7), WorkerJoined("j", "w", 1, "n", 0, 1, "r")][:1])
    (entry,) = replayed(opened).history
    assert (entry.index, entry.term) == (0, 7)
    assert entry.unix_seconds > 1.7e9
    opened.close()
