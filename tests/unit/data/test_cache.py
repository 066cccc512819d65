"""The cache of remote data: right or not there, whoever is killed when, whatever the disk says, and never too large."""

import errno
import multiprocessing
import os
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from strata.data import cache as module
from strata.data.cache import Cache
from strata.errors import InvalidInput
from strata.storage import filelock
from tests.unit.data.steps import AtStep, in_child, killed

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

LENGTH = 1000
HEAD = module.HEAD_BYTES
ROOMY = 1 << 20
TIGHT = 12 * (LENGTH + HEAD)


def key(number: int) -> bytes:
    return b"file %d" % number


def content(number: int) -> bytes:
    return bytes([number]) * LENGTH


def get(cache: Cache, number: int, fetched: list[int] | None = None) -> bytes:
    def fetch() -> bytes:
        if fetched is not None:
            fetched.append(number)
        return content(number)

    return cache.get("data", key(number), LENGTH, fetch)


def is_kept(cache: Cache, number: int) -> bool:
    fetched: list[int] = []
    assert get(cache, number, fetched) == content(number)
    return not fetched


def files(root: Path, suffix: str = "") -> list[Path]:
    return [path for path in root.glob("data/shards/*/*") if path.name.endswith(suffix)]


def check(root: Path, limit: int) -> None:
    """What holds at any instant: no more than the limit, and no more than is counted. A part into which nothing was
    written yet takes nothing from the disk, however long it says it is."""
    used = sum(path.stat().st_size for path in files(root) if path.read_bytes().strip(b"\0"))
    assert used <= limit
    ledger = root / ".strata-cache"
    counted = ledger.read_text() if ledger.exists() else ""
    assert not counted or used <= int(counted)


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_was_fetched_is_there_for_everybody(tmp_path: Path) -> None:
    cache, fetched = Cache(tmp_path / "cache", ROOMY), list[int]()
    assert [get(cache, number, fetched) for number in (1, 2, 1, 2)] == [content(each) for each in (1, 2, 1, 2)]
    assert fetched == [1, 2]
    assert is_kept(Cache(tmp_path / "cache", ROOMY), 1)
    assert in_child(lambda: os._exit(0 if is_kept(cache, 2) else 1)) == 0
    assert len(files(tmp_path / "cache")) == 2
    assert cache.get("other", key(1), LENGTH, lambda: b"x" * LENGTH) == b"x" * LENGTH


@pytest.mark.parametrize("harm", ["head", "body", "cut", "longer", "empty", "another"])
def test_a_damaged_entry_is_fetched_and_written_again(tmp_path: Path, harm: str) -> None:
    cache = Cache(tmp_path, ROOMY)
    get(cache, 1)
    (entry,) = files(tmp_path)
    whole = entry.read_bytes()
    get(cache, 2)
    (another,) = (path for path in files(tmp_path) if path != entry)
    entry.write_bytes(
        {
            "head": bytes([whole[0] ^ 1]) + whole[1:],
            "body": whole[:-1] + bytes([whole[-1] ^ 1]),
            "cut": whole[:-1],
            "longer": whole + b"x",
            "empty": b"",
            "another": another.read_bytes(),
        }[harm]
    )
    assert not is_kept(cache, 1)
    assert is_kept(cache, 1)
    assert entry.read_bytes() == whole


@pytest.mark.slow
@pytest.mark.parametrize("limit", [ROOMY, TIGHT])
def test_who_is_killed_at_any_step_leaves_a_right_entry_or_none(tmp_path: Path, limit: int) -> None:
    """With a tight limit, room has to be made by removing others."""
    step, code = 0, None
    while code != 0:
        step += 1
        root = tmp_path / str(step)
        cache = Cache(root, limit)
        for number in range(12 if limit == TIGHT else 2):
            get(cache, number)

        def dies(step: int = step, cache: Cache = cache) -> None:
            steps: Any = AtStep(step, killed)
            module.os = steps  # type: ignore[attr-defined]  # its own steps count, not those of all
            assert get(cache, 100) == content(100)
            os._exit(0 if steps.is_past else 1)

        code = in_child(dies)
        assert code in {0, -signal.SIGKILL}
        check(root, limit)
        for entry in files(root):
            assert entry.name.endswith(".part") or len(entry.read_bytes()) == LENGTH + HEAD
        assert get(cache, 100) == content(100)
        assert is_kept(cache, 100)
        assert not files(root, ".part")
        for number in range(101, 120):
            get(cache, number)
            check(root, limit)
    assert step > 10


@pytest.mark.parametrize("limit", [ROOMY, TIGHT])
def test_a_full_disk_at_any_step_means_only_that_it_is_not_kept(
    tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, is_past = 0, False
    while not is_past:
        step += 1
        root = tmp_path / str(step)
        cache = Cache(root, limit)
        for number in range(12 if limit == TIGHT else 2):
            get(cache, number)
        steps = AtStep(step, full)
        with monkeypatch.context() as patch:
            patch.setattr(module, "os", steps)
            assert get(cache, 100) == content(100)
        is_past = steps.is_past
        check(root, limit)
        assert get(cache, 100) == content(100)
        assert is_kept(cache, 100)
    assert step > 10


def test_what_a_dead_process_was_writing_is_removed_when_room_is_made(tmp_path: Path) -> None:
    cache = Cache(tmp_path, TIGHT)

    def dies() -> None:
        cache.get("data", key(1), LENGTH, lambda: killed() or b"")

    assert in_child(dies) == -signal.SIGKILL
    assert len(files(tmp_path, ".part")) == 1
    for number in range(2, 20):
        get(cache, number)
    assert not files(tmp_path, ".part")


def test_what_is_being_written_is_not_removed(tmp_path: Path) -> None:
    cache = Cache(tmp_path, TIGHT)
    writing, go = threading.Event(), threading.Event()

    def fetch() -> bytes:
        writing.set()
        go.wait(30)
        return content(1)

    thread = threading.Thread(target=cache.get, args=("data", key(1), LENGTH, fetch))
    thread.start()
    writing.wait(30)
    for number in range(2, 20):
        get(cache, number)
    assert len(files(tmp_path, ".part")) == 1
    go.set()
    thread.join()
    assert is_kept(cache, 1)
    check(tmp_path, TIGHT)


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, TIGHT)
    for number in range(12):
        get(cache, number)
        for path in files(tmp_path):  # clocks of file systems may be coarse
            os.utime(path, ns=(0, path.stat().st_mtime_ns - 10**9))
    assert is_kept(cache, 0)
    for number in range(20, 24):
        get(cache, number)
        check(tmp_path, TIGHT)
    assert is_kept(cache, 0)
    assert is_kept(cache, 11)
    assert not is_kept(cache, 1)


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    theirs = [tmp_path / "notes", tmp_path / "data/shards/notes", tmp_path / "data/shards/ab/notes"]
    for path in theirs:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 2 * TIGHT)
    cache = Cache(tmp_path, TIGHT)
    for number in range(30):
        get(cache, number)
    assert all(path.stat().st_size == 2 * TIGHT for path in theirs)


def test_what_is_too_large_is_not_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 4 * LENGTH)
    assert not is_kept(cache, 1)
    assert not is_kept(cache, 1)
    assert not files(tmp_path)


def test_what_cannot_be_fetched_leaves_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path, ROOMY)

    def fetch() -> bytes:
        raise ConnectionError("not now")

    with pytest.raises(ConnectionError):
        cache.get("data", key(1), LENGTH, fetch)
    assert not files(tmp_path)
    assert not is_kept(cache, 1)


def test_several_processes_fetch_an_entry_once(tmp_path: Path) -> None:
    cache, log = Cache(tmp_path / "cache", ROOMY), tmp_path / "log"

    def fetched(number: int) -> bytes:
        with log.open("a") as file:
            file.write(f"{number}\n")
        return content(number)

    def work() -> None:
        for number in range(40):
            assert cache.get("data", key(number), LENGTH, partial(fetched, number)) == content(number)

    children = [multiprocessing.get_context("fork").Process(target=work) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert sorted(map(int, log.read_text("utf-8").split())) == list(range(40))


def test_who_fetches_for_too_long_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path, ROOMY)
    get(cache, 1)
    (entry,) = files(tmp_path)
    entry.unlink()
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.02)
    held = os.open(f"{entry}.part", os.O_RDWR | os.O_CREAT)
    assert filelock.try_lock(held)
    assert not is_kept(cache, 1)
    assert not is_kept(cache, 1)
    filelock.close(held)
    assert not is_kept(cache, 1)
    assert is_kept(cache, 1)


def test_a_part_that_is_another_s_by_now_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening it and locking it, another process gave it up, and a third began anew."""
    cache, real = Cache(tmp_path, ROOMY), filelock.try_lock
    held: list[int] = []

    def late(part: int) -> bool | None:
        if not held:
            (path,) = files(tmp_path, ".part")
            path.unlink()
            path.write_bytes(b"half")
            held.append(os.open(path, os.O_RDWR))
            assert real(held[0])
        return real(part)

    monkeypatch.setattr(filelock, "try_lock", late)
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.02)
    assert not is_kept(cache, 1)
    assert [(path.suffix, path.read_bytes()) for path in files(tmp_path)] == [(".part", b"half")]
    filelock.close(held[0])


def test_a_part_that_is_taken_for_one_that_was_left_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening it and locking it: who makes room removes what nobody has locked."""
    cache, real = Cache(tmp_path, ROOMY), filelock.try_lock

    def late(part: int) -> bool | None:
        monkeypatch.undo()
        assert files(tmp_path, ".part")
        other = Cache(tmp_path, TIGHT)
        for number in range(2, 20):
            get(other, number)
        assert not files(tmp_path, ".part")
        return real(part)

    monkeypatch.setattr(filelock, "try_lock", late)
    get(cache, 1)
    assert is_kept(cache, 1)
    assert not files(tmp_path, ".part")


def test_a_part_that_is_begun_as_soon_as_an_entry_is_there_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, real = Cache(tmp_path, ROOMY), os.replace

    def replace(part: str, entry: str) -> None:
        real(part, entry)
        Path(part).write_bytes(b"half")

    monkeypatch.setattr(os, "replace", replace)
    get(cache, 1)
    assert [path.read_bytes() for path in files(tmp_path, ".part")] == [b"half"]
    assert is_kept(cache, 1)


def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidInput, match="cannot cache data in"):
        Cache(tmp_path / "file")
    with pytest.raises(InvalidInput, match="cache_bytes"):
        Cache(tmp_path, 0)
