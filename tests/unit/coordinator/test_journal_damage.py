"""What was acknowledged is there, or the journal is not opened: whatever byte is damaged, whichever file is gone. And
what a power cut leaves of a write that was not acknowledged keeps nobody from starting."""

import itertools
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from strata.coordinator import backups, journal
from strata.coordinator.journal import BEGUN, FILE, LOG, Journal, JournalDamaged, JournalError
from strata.coordinator.logfile import damaged_at
from strata.coordinator.mark import Mark, marked
from strata.coordinator.replay import replayed
from strata.coordinator.salvage import salvage
from strata.core.records import JobOpened, Record, TermStarted
from tests.unit.coordinator.test_journal import APPEND, story

SHM = f"{FILE}-shm"
FRAME = 24 + 4096
Story = tuple[str, list[Any]]


@pytest.fixture(autouse=True)
def _small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the frames that hold something alone."""
    monkeypatch.setattr(journal, "LOG_BYTES", 0)


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory, where that can be: thousands of journals are opened, and what they flush is of no interest."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


def told(folder: Path) -> Story:
    """All that a coordinator knows which starts on this, and all that it shows."""
    opened = Journal(folder)
    try:
        found = replayed(opened)
        return found.machine.digest(), list(found.history)
    finally:
        opened.close()


def write(folder: Path, records: list[Record], batch: int = 5) -> None:
    opened = Journal(folder)
    for first in range(0, len(records), batch):
        opened.append(first, 1, records[first : first + batch])
    opened.close()


def killed(folder: Path, records: list[Record], batch: int = 5, *, keep: int = 0) -> list[int]:
    """What is left where the coordinator is killed after these. The log holds all but the first `keep` of them. Gives
    the length of the log after each batch."""
    live, ends = folder.with_name(f"{folder.name}-live"), []
    write(live, records[:keep], batch)
    opened = Journal(live)
    for first in range(keep, len(records), batch):
        opened.append(first, 1, records[first : first + batch])
        ends.append((live / LOG).stat().st_size)
    shutil.copytree(live, folder)
    opened.close()
    return ends


class Disk:
    """The files of a folder, to be damaged again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = {path.name: path.read_bytes() for path in folder.iterdir()}

    def put(self, **changed: bytes | None) -> None:
        """As they were, but for these; None is for one that is gone. `log` and `mark` are names, too."""
        names = {"file": FILE, "log": LOG, "shm": SHM, "mark": BEGUN}
        files: dict[str, bytes | None] = {**self.files, **{names[name]: data for name, data in changed.items()}}
        for path in self.folder.iterdir():
            if files.get(path.name) is None:
                path.unlink()
        for name, data in files.items():
            path = self.folder / name
            if data is None or (path.exists() and path.read_bytes() == data):
                continue
            with path.open(
                "r+b" if path.exists() else "wb"
            ) as file:  # in place: to write files anew takes ten times as long
                file.write(data)
                file.truncate()

    def told(self, refusal: str = "") -> Story | None:
        """None if it is refused, with these words, and without a change to what is there where it says so."""
        before = self._evidence()
        try:
            return told(self.folder)
        except JournalError as error:
            words = str(error)
        assert "Nothing was changed" not in words or self._evidence() == before
        assert refusal in words
        return None

    def refused(self, refusal: str = "") -> bool:
        return self.told(refusal) is None

    def _evidence(self) -> list[bytes]:
        return [data for name in (FILE, LOG) if (path := self.folder / name).exists() and (data := path.read_bytes())]


def counted(folder: Path) -> tuple[int, bool]:
    """What the mark says: how many records, and whether some may be in the log alone."""
    mark = marked(folder / BEGUN)
    assert mark is not None
    return mark.records, mark.in_log


def flipped(data: bytes, place: int, by: int = 0x41) -> bytes:
    return b"".join((data[:place], bytes([data[place] ^ by]), data[place + 1 :]))


def heads_and_every(step: int, size: int) -> Iterable[int]:
    """The log's heads whole, and some of the rest."""
    heads = itertools.chain(range(32), *(range(at, at + 24) for at in range(32, size - 23, FRAME)))
    return sorted({*heads, *range(0, size, step)})


EVERY_BYTE = pytest.param(1, marks=pytest.mark.long)


@pytest.mark.parametrize("step", [611, EVERY_BYTE])
def test_no_byte_of_the_log_can_be_lost(tmp_path: Path, step: int) -> None:
    records = story().records
    killed(tmp_path / "state", records, batch=3, keep=len(records) - 6)
    disk = Disk(tmp_path / "state")
    log = disk.files[LOG]
    for place in heads_and_every(step, len(log)):
        disk.put(log=flipped(log, place, by=1 << place % 8))
        assert disk.refused("Nothing was changed"), f"byte {place}"
    disk.put()
    assert told(disk.folder)[0] == story().machine.digest()


@pytest.mark.parametrize("step", [211, EVERY_BYTE])
@pytest.mark.parametrize("is_killed", [False, True])
def test_no_byte_of_the_file_makes_another_story(tmp_path: Path, step: int, is_killed: bool) -> None:
    records, state = story().records, tmp_path / "state"
    killed(state, records, batch=3, keep=len(records) - 6 if is_killed else 0)
    if not is_killed:
        shutil.rmtree(state)
        state = tmp_path / "state-live"
    disk = Disk(state)
    whole = told(state)
    refused = 0
    for place in range(0, len(disk.files[FILE]), step):
        disk.put(file=flipped(disk.files[FILE], place))
        found = disk.told()
        refused += found is None
        assert found in (None, whole), f"byte {place}"
    assert refused


@pytest.mark.parametrize("step", [1 << 12, EVERY_BYTE])
def test_no_byte_of_the_index_or_the_mark_matters(tmp_path: Path, step: int) -> None:
    """Of the index those that say something, and some of the zeros."""
    killed(tmp_path / "state", story().records, keep=15)
    disk = Disk(tmp_path / "state")
    whole = told(disk.folder)
    shm = disk.files[SHM]
    used = [place for place, byte in enumerate(shm) if place < 136 or byte]
    for place in sorted({*used[:: 8 if step > 1 else 1], *range(0, len(shm), max(step, 61))}):
        disk.put(shm=flipped(shm, place))
        assert disk.told() == whole, f"byte {place}"
    for place in range(len(disk.files[BEGUN])):
        disk.put(mark=flipped(disk.files[BEGUN], place))
        assert disk.told() == whole, f"byte {place}"


def test_a_log_that_is_gone_is_missed(tmp_path: Path) -> None:
    killed(tmp_path / "state", story().records, keep=10)
    disk = Disk(tmp_path / "state")
    for gone in (None, b"", bytes(len(disk.files[LOG])), disk.files[LOG][: 32 + FRAME]):
        disk.put(log=gone)
        assert disk.refused("records were acknowledged")
        with pytest.raises(JournalDamaged, match="strata state salvage"):
            journal.opened_for_reading(disk.folder)
        with pytest.raises(JournalDamaged):
            backups.backup(disk.folder, tmp_path / "backup")
    disk.put()
    assert told(disk.folder)[0] == story().machine.digest()


def test_after_a_power_cut_a_log_that_is_gone_is_missed_too(tmp_path: Path) -> None:
    """The mark as it was flushed last: when the journal was opened."""
    state = tmp_path / "state"
    killed(state, story().records, keep=20)
    with closing(Mark(state / BEGUN)) as mark:
        mark.begin(20, in_log=True)
    disk = Disk(state)
    for gone in (None, b""):
        disk.put(log=gone)
        assert disk.refused("is gone. At least 20 records")


def test_what_was_acknowledged_behind_the_damage_tells_of_it_without_the_mark(tmp_path: Path) -> None:
    ends = killed(tmp_path / "state", story().records)
    disk = Disk(tmp_path / "state")
    log = disk.files[LOG]
    for place in heads_and_every(997, len(log)):
        disk.put(log=flipped(log, place), mark=b"")
        if ends[0] <= place < ends[-2]:
            assert disk.refused(f"cannot be read from byte {32 + (place - 32) // FRAME * FRAME:,} on"), f"byte {place}"
    assert damaged_at(tmp_path / "state-live" / FILE) is None, "what is no log has no damage"


# -- power cuts: what was not flushed may be there, or not, or be anything ------------------------------------------


def count_of(folder: Path) -> int:
    opened = Journal(folder)
    try:
        return replayed(opened).machine.index
    finally:
        opened.close()


def mark_of(folder: Path, count: int) -> bytes:
    with closing(Mark(folder / "mark")) as mark:
        mark.begin(count, in_log=True)
    data = (folder / "mark").read_bytes()
    (folder / "mark").unlink()
    return data


@pytest.mark.parametrize("step", [503, EVERY_BYTE])
def test_a_log_that_ends_anywhere_holds_what_was_flushed(tmp_path: Path, step: int) -> None:
    """The mark says the most that it may say then; and if it says more, the end is missed."""
    records = story().records[:14]
    ends = killed(tmp_path / "state", records)
    disk = Disk(tmp_path / "state")
    log = disk.files[LOG]
    for length in sorted({*range(ends[0], len(log), step), *ends, *(end - 1 for end in ends[1:])}):
        flushed = min(len(records), 5 * sum(end <= length for end in ends))
        disk.put(log=log[:length], mark=mark_of(tmp_path, flushed))
        assert count_of(disk.folder) == flushed, f"cut at {length}"
        if length % 16 == 0:
            disk.put(log=log[:length], mark=mark_of(tmp_path, flushed + 1))
            assert disk.refused("are missing"), f"cut at {length}"


def large(first: int) -> list[Record]:
    """Of several frames, the last of which commits."""
    return [JobOpened(f"job-{number}-{'x' * 200}") for number in range(first, first + 60)]


@pytest.mark.parametrize("rest", ["zeros", "garbage", "garbage in the page", "as before"])
@pytest.mark.parametrize("earlier", [0, 1])
def test_a_torn_batch_that_was_not_acknowledged_keeps_nobody_from_starting(
    tmp_path: Path, rest: str, earlier: int
) -> None:
    """Any of its frames may have reached the disk, over what an earlier torn batch has left behind."""
    ends = killed(tmp_path / "state", [TermStarted(1), *large(0), *large(60)], batch=1)
    live = tmp_path / "torn-live"
    opened = Journal(live)
    opened.append(0, 1, [TermStarted(1)])
    before = (live / LOG).read_bytes()
    if earlier:  # a longer one was cut off there, and the coordinator started again
        opened.append(1, 1, [*large(0), *large(60), *large(120)])
        left = bytearray((live / LOG).read_bytes())
        left[len(before) + 24 : len(before) + 24 + 100] = bytes(100)
        shutil.copytree(live, tmp_path / "again")
        opened.close()
        live = tmp_path / "again"
        (live / LOG).write_bytes(left)
        (live / BEGUN).write_bytes(mark_of(tmp_path, 1))
        before = bytes(left)
        opened = Journal(live)
    opened.append(1, 1, large(0))
    state = tmp_path / "torn"
    shutil.copytree(live, state)
    opened.close()
    disk = Disk(state)
    log = disk.files[LOG]
    start = ends[0]
    frames = [at for at in range(start, len(log), FRAME) if log[at : at + FRAME] != before[at : at + FRAME]]
    assert len(frames) >= 4
    for lost in _some(frames):
        torn = bytearray(log)
        for at in lost:
            torn[at : at + FRAME] = _instead(rest, log[at : at + FRAME], before[at : at + FRAME])
        disk.put(log=bytes(torn), mark=mark_of(tmp_path, 1))
        assert count_of(state) == 1, f"lost {lost}"
    disk.put()
    assert count_of(state) == 61


def _some(frames: list[int]) -> Iterator[tuple[int, ...]]:
    """Any one or two of them, all but one, and all."""
    for count in (1, 2, len(frames) - 1, len(frames)):
        yield from itertools.combinations(frames, count)


def _instead(rest: str, frame: bytes, before: bytes) -> bytes:
    if rest == "as before":
        return before.ljust(FRAME, b"\0")
    if rest == "garbage in the page":
        return frame[:24] + os.urandom(FRAME - 24)
    return bytes(FRAME) if rest == "zeros" else os.urandom(FRAME)


def test_a_log_that_is_used_again_holds_old_frames_behind_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "LOG_FRAMES", 8)
    records: list[Record] = [TermStarted(number) for number in range(1, 60)]
    ends = killed(tmp_path / "state", records, batch=1)
    assert len(ends) > len(set(ends)), "the log was begun anew"
    assert damaged_at(tmp_path / "state" / LOG) is None
    disk = Disk(tmp_path / "state")
    disk.put(mark=b"")
    assert count_of(disk.folder) == 59
    disk.put(log=None)
    assert disk.refused("59 records were acknowledged")


# -- the mark ---------------------------------------------------------------------------------------------------------


def test_the_mark_counts_what_is_flushed_and_says_where_it_is(tmp_path: Path) -> None:
    opened = Journal(tmp_path)
    assert counted(tmp_path) == (0, True)
    opened.append(0, 1, [TermStarted(1), TermStarted(2)])
    assert counted(tmp_path) == (2, True)
    opened.append(2, 1, [TermStarted(3)])
    opened.close()
    assert counted(tmp_path) == (3, False)


def test_one_who_reads_while_the_journal_is_closed_keeps_the_log_and_the_mark_says_so(tmp_path: Path) -> None:
    opened = Journal(tmp_path)
    opened.append(0, 1, [TermStarted(1)])
    reader = journal.opened_for_reading(tmp_path)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM batches").fetchone()
    opened.append(1, 1, [TermStarted(2)])
    opened.close()
    assert counted(tmp_path) == (2, True)
    reader.close()
    assert count_of(tmp_path) == 2


@pytest.mark.parametrize("said", [b"", b"\0" * 43, b"00000000000000000009 log  0123456789abcdef\n", b"\xff" * 43])
def test_a_mark_that_is_not_whole_says_nothing(tmp_path: Path, said: bytes) -> None:
    write(tmp_path, story().records)
    (tmp_path / BEGUN).write_bytes(said)
    assert marked(tmp_path / BEGUN) is None
    assert told(tmp_path)[0] == story().machine.digest()
    assert counted(tmp_path) == (len(story().records), False)


def test_a_process_that_ends_without_a_close_leaves_a_journal_that_opens(tmp_path: Path) -> None:
    """SQLite removes the log at the end of Python, too."""
    told_ = subprocess.run([sys.executable, "-c", APPEND, str(tmp_path), "0"], capture_output=True, check=True)
    assert told_.stdout == b"appended\n"
    assert not (tmp_path / LOG).exists()
    assert counted(tmp_path) == (1, False)
    assert count_of(tmp_path) == 1


def test_a_journal_of_the_version_before_is_read_and_goes_on_as_one_of_today(tmp_path: Path) -> None:
    records = story().records
    write(tmp_path, records)
    (tmp_path / BEGUN).write_bytes(b"")
    with closing(sqlite3.connect(tmp_path / FILE)) as database, database:
        for first, data in database.execute("SELECT first_index, records FROM batches").fetchall():
            update = "UPDATE batches SET digest = ? WHERE first_index = ?"
            database.execute(update, (journal.row_digest(data), first))
        database.execute("PRAGMA user_version=1")
    assert told(tmp_path)[0] == story().machine.digest()
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (2,)


@pytest.mark.parametrize("column", ["first_index = first_index + 1000", "term = 7", "unix_seconds = 5"])
def test_a_time_or_a_term_that_is_not_what_was_written_is_damage(tmp_path: Path, column: str) -> None:
    write(tmp_path, story().records)
    with closing(sqlite3.connect(tmp_path / FILE)) as database, database:
        database.execute(f"UPDATE batches SET {column} WHERE first_index = (SELECT max(first_index) FROM batches)")
    with pytest.raises(JournalDamaged, match="damaged"):
        told(tmp_path)


# -- the way out ------------------------------------------------------------------------------------------------------


def test_salvage_says_what_would_be_lost_and_goes_on_with_what_is_left(tmp_path: Path) -> None:
    records = story().records
    ends = killed(tmp_path / "state", records)
    disk = Disk(tmp_path / "state")
    log = flipped(disk.files[LOG], ends[1] + 100)
    disk.put(log=log)
    assert disk.refused()
    left = salvage(disk.folder, carry_out=False)
    assert (left.records, left.acknowledged, left.aside) == (10, len(records), None)
    assert "cannot be read from byte" in left.damage
    assert disk.refused(), "nothing was changed"
    left = salvage(disk.folder, carry_out=True)
    assert left.aside == disk.folder / "damaged-1"
    assert (left.aside / LOG).read_bytes() == log
    assert count_of(disk.folder) == 10 + len(["TermStarted", *["HistoryLost"] * bool(records)])
    with pytest.raises(JournalError, match="nothing is missing"):
        salvage(disk.folder, carry_out=True)


def test_salvage_takes_what_follows_a_snapshot_where_its_history_is_damaged(tmp_path: Path) -> None:
    cluster = story()
    opened = Journal(tmp_path)
    for first in range(0, len(cluster.records), 5):
        opened.append(first, 1, cluster.records[first : first + 5])
    index = cluster.machine.index
    opened.save_snapshot(index, 1, cluster.machine.snapshot())
    opened.append(index, 1, [TermStarted(5)])
    opened.close()
    with closing(sqlite3.connect(tmp_path / FILE)) as database, database:
        database.execute("DELETE FROM batches WHERE first_index = 5")
        database.execute("UPDATE batches SET term = 8 WHERE first_index = 10")
    assert salvage(tmp_path, carry_out=True).records == index + 1
    opened = Journal(tmp_path)
    assert replayed(opened).machine.state.term == 5 + backups.TERMS_SKIPPED
    opened.close()


@pytest.mark.parametrize("names", [{"log"}, {"file", "log"}, {"file"}], ids=["log", "file and log", "file"])
def test_the_journal_of_another_coordinator_is_not_taken_for_this_one(tmp_path: Path, names: set[str]) -> None:
    """It holds more than this one held: its count says nothing."""
    records = story().records
    for name, count in (("state", 10), ("other", len(records))):
        if names == {"file"}:
            write(tmp_path / name, [JobOpened(f"job-of-{name}"), *records[1:count]])
        else:
            killed(tmp_path / name, [JobOpened(f"job-of-{name}"), *records[1:count]])
    disk, other = Disk(tmp_path / "state"), Disk(tmp_path / "other")
    disk.put(**{name: other.files[{"file": FILE, "log": LOG}[name]] for name in names})
    assert disk.refused("not those that were acknowledged")
    assert salvage(disk.folder, carry_out=True).records == len(records)
    assert count_of(disk.folder) > len(records)


def test_of_a_file_that_was_cut_off_salvage_says_what_is_left(tmp_path: Path) -> None:
    """The refusal says that salvage is a way on: it is one wherever the file ends."""
    write(tmp_path, story().records * 3, 2)
    disk = Disk(tmp_path)
    data = disk.files[FILE]
    salvaged = []
    for size in range(4096, len(data), 4096):
        disk.put(file=data[:size])
        assert disk.refused("strata state salvage")
        with suppress(JournalDamaged):  # of the first page alone nothing can be read
            salvaged.append(salvage(tmp_path, carry_out=False).records)
    assert 0 < salvaged[0] <= salvaged[-1]
    assert salvaged == sorted(salvaged)


def test_a_backup_that_hides_its_last_batch_is_not_restored(tmp_path: Path) -> None:
    """The page says that it has one row less: all that it shows is whole."""
    write(tmp_path / "state", story().records)
    backups.backup(tmp_path / "state", tmp_path / "backup")
    with closing(sqlite3.connect(tmp_path / "backup")) as database:
        (page,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'batches'").fetchone()
    data = (tmp_path / "backup").read_bytes()
    rows = (page - 1) * 4096 + 4
    assert data[rows] == -(-len(story().records) // 5)
    (tmp_path / "backup").write_bytes(flipped(data, rows, by=data[rows] ^ data[rows] - 1))
    with pytest.raises(JournalDamaged, match="SQLite says"):
        backups.restore(tmp_path / "backup", tmp_path / "new")


def test_where_nothing_can_be_read_salvage_says_so(tmp_path: Path) -> None:
    write(tmp_path, story().records)
    data = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(data[:4096] + os.urandom(len(data) - 4096))
    with pytest.raises(JournalError, match="nothing of"):
        salvage(tmp_path, carry_out=True)
    (tmp_path / FILE).write_bytes(struct.pack("4096x"))
    with pytest.raises(JournalError):
        salvage(tmp_path, carry_out=True)


def test_a_restore_answers_for_nothing_that_the_journal_before_it_held(tmp_path: Path) -> None:
    write(tmp_path / "former", story().records[:5])
    backups.backup(tmp_path / "former", tmp_path / "backup")
    killed(tmp_path / "state", story().records)
    for name in (FILE, LOG, SHM):
        (tmp_path / "state" / name).unlink()
    backups.restore(tmp_path / "backup", tmp_path / "state")
    assert count_of(tmp_path / "state") == 5 + len(["TermStarted", "HistoryLost"])
