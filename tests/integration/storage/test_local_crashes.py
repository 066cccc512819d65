"""Local writes die at every call to the system, and lose power, and run out of room: the old object or the new one."""

import errno
import os
import re
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from strata.errors import StorageError, StorageFull
from strata.storage import BlockingStorage, LocalStorage
from strata.testing.local_seam import LocalSeam
from tests.integration.disks import Disk
from tests.integration.storage.crashing import Action, act_and_die, kill, run_child
from tests.integration.tracing import under_strace

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

OLD, NEW = b"old", b"new"
LARGE = b"large" * 600_000  # two megabytes and more are written directly
KEY = "job/checkpoints/step_10/object"
MOST_CALLS = 200


def stream(store: BlockingStorage) -> None:
    with store.open_writer(KEY) as writer:
        writer.write(LARGE[:1_700_000])
        writer.write(LARGE[1_700_000:])


def swap(store: BlockingStorage) -> None:
    _, version = store.read_versioned(KEY)
    store.compare_and_swap(KEY, NEW, version)


# Before, what is done, after.
CHANGES: dict[str, tuple[bytes | None, Action, bytes | None]] = {
    "write": (None, lambda store: store.write(KEY, NEW), NEW),
    "replace": (OLD, lambda store: store.write(KEY, NEW), NEW),
    "write a large one": (OLD, lambda store: store.write(KEY, LARGE), LARGE),
    "put if absent": (None, lambda store: store.put_if_absent(KEY, NEW), NEW),
    "swap": (OLD, swap, NEW),
    "stream": (OLD, stream, LARGE),
    "delete": (OLD, lambda store: store.delete(KEY), None),
}
SOME = ("replace", "put if absent", "stream")
SOME_OR_ALL = [pytest.param(each, marks=() if each in SOME else pytest.mark.long) for each in CHANGES]


def prepare(root: Path, before: bytes | None) -> None:
    shutil.rmtree(root, ignore_errors=True)
    with BlockingStorage(LocalStorage(root)) as store:
        store.write("beside", OLD)
        if before is not None:
            store.write(KEY, before)


def found(root: Path) -> bytes | None:
    """What a new process finds; and that it can go on, and sweeps away what the dead one left."""
    with BlockingStorage(LocalStorage(root)) as store:
        value = store.read(KEY) if store.exists(KEY) else None
        assert store.read("beside") == OLD
        assert [entry.path for entry in store.list_all()] == (["beside", KEY] if value is not None else ["beside"])
        store.write("afterwards", NEW)
        assert list(root.glob(".strata-tmp/*.part")) == []
        store.write(KEY, NEW)
        assert store.read(KEY) == NEW
        store.delete("afterwards")
    return value


@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
@pytest.mark.parametrize("change", SOME_OR_ALL)
def test_killed_at_every_call(tmp_path: Path, change: str, after: bool) -> None:
    before, act, then = CHANGES[change]
    outcomes = []
    for at in range(1, MOST_CALLS):
        prepare(tmp_path / "root", before)
        died = act_and_die(tmp_path / "root", act, at=at, after=after, die=kill)
        outcomes.append(found(tmp_path / "root"))
        if not died:
            break
    else:
        pytest.fail("it never ended")
    assert len(outcomes) > 5
    assert set(outcomes) == {before, then}
    turned = outcomes.index(then)
    assert set(outcomes[:turned]) == {before}
    assert set(outcomes[turned:]) == {then}


# -- at any call, as the kernel sees them ------------------------------------------------------------------------------


NOT_ALWAYS_MADE = ("futex", "brk", "mmap", "munmap", "madvise")
"""For locks and memory, which differ from run to run and touch no file."""


def write_here(root: Path) -> None:
    LocalSeam(LocalStorage(root)).write_here(KEY, NEW)


def test_killed_at_every_system_call(tmp_path: Path, strace: str) -> None:
    root = tmp_path / "root"
    prepare(root, OLD)
    assert under_strace(strace, "fsync:delay_enter=1", lambda: write_here(root), tmp_path) == 0
    made: Counter[str] = Counter()
    outcomes = []
    calls = re.findall(r"^\d+ +(\w+)\(", (tmp_path / "strace.log").read_text("utf-8"), re.MULTILINE)
    # The last one is the exit. The first is the wait for the beginning, during which strace attached itself or not.
    calls = [call for call in calls[:-1] if call not in ("read", "restart_syscall", *NOT_ALWAYS_MADE)]
    assert len(calls) > 30
    for call in calls:
        made[call] += 1
        prepare(root, OLD)
        where = f"{call}:signal=KILL:when={made[call]}"
        assert under_strace(strace, where, lambda: write_here(root), tmp_path) == -signal.SIGKILL
        outcomes.append(found(root))
    turned = outcomes.index(NEW)
    assert set(outcomes[:turned]) == {OLD}
    assert set(outcomes[turned:]) == {NEW}


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("call", ["fsync", "pwrite64"])
def test_a_disk_that_fails_is_an_error_with_nothing_left(tmp_path: Path, strace: str, call: str, size: str) -> None:
    root, data = tmp_path / "root", LARGE if size == "large" else NEW
    prepare(root, OLD)

    def body() -> None:
        with pytest.raises(StorageError, match="the disk failed"):
            LocalSeam(LocalStorage(root)).write_here(KEY, data)
        assert list(root.glob(".strata-tmp/*.part")) == []

    assert under_strace(strace, f"{call}:error=EIO:when=1", body, tmp_path) == 0
    assert found(root) == OLD


# -- a disk of its own -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", SOME_OR_ALL)
def test_power_fails_at_every_call(disk: Disk, change: str) -> None:
    before, act, then = CHANGES[change]
    root = disk.path / "root"

    def cut() -> None:
        disk.cut_power()
        kill()

    outcomes = []
    for at in range(1, MOST_CALLS):
        prepare(root, before)
        died = act_and_die(root, act, at=at, after=True, die=cut)
        if not died:  # it returned, so it must be there whatever happens next
            disk.cut_power()
        disk.power_up()
        outcomes.append(found(root))
        if not died:
            break
    else:
        pytest.fail("it never ended")
    assert len(outcomes) > 5
    assert set(outcomes) == {before, then}
    assert outcomes[-1] == then


@pytest.mark.parametrize("how", ["write", "stream", "put_if_absent"])
def test_a_full_disk_is_an_error_with_nothing_left(small_disk: Path, how: str) -> None:
    with BlockingStorage(LocalStorage(small_disk)) as store:
        _fill_up(store, small_disk, how)


@pytest.mark.parametrize("how", ["write", "stream", "put_if_absent"])
def test_a_full_disk_with_direct_writes_too(disk: Disk, how: str) -> None:
    with BlockingStorage(LocalStorage(disk.path / "root")) as store:
        _fill_up(store, disk.path / "root", how)


def put(store: BlockingStorage, how: str, key: str, data: bytes) -> None:
    if how != "stream":
        getattr(store, how)(key, data)
        return
    with store.open_writer(key) as writer:
        for start in range(0, len(data), 1 << 20):
            writer.write(memoryview(data)[start : start + (1 << 20)])


def _fill_up(store: BlockingStorage, root: Path, how: str) -> None:
    store.write("old", OLD)
    huge = bytes(200 << 20)
    for key in ("old", "fresh") if how != "put_if_absent" else ("fresh",):
        with pytest.raises(StorageFull, match="Make room") as raised:
            put(store, how, key, huge)
        assert raised.value.key == key
    assert list(root.glob(".strata-tmp/*.part")) == []
    assert [entry.path for entry in store.list_all()] == ["old"]
    assert store.read("old") == OLD
    store.write("fits", LARGE)
    assert store.read("fits") == LARGE


# -- leftovers ---------------------------------------------------------------------------------------------------------


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    root = tmp_path / "root"

    def die_writing() -> None:
        store = BlockingStorage(LocalStorage(root))
        with store.open_writer(KEY) as writer:
            writer.write(LARGE)
            os._exit(0)

    assert run_child(die_writing) == 0
    left = list(root.glob(".strata-tmp/*.part"))
    assert len(left) == 1
    store = BlockingStorage(LocalStorage(root))
    with store.open_writer(KEY) as writer:
        writer.write(NEW)
        assert left[0] not in root.glob(".strata-tmp/*.part")

        def write_beside() -> None:
            with BlockingStorage(LocalStorage(root)) as other:
                other.write("beside", OLD)

        assert run_child(write_beside) == 0
        assert len(list(root.glob(".strata-tmp/*.part"))) == 1
    assert store.read(KEY) == NEW
    assert store.read("beside") == OLD
    store.close()


def test_an_error_of_another_kind_keeps_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_many(*_: object) -> None:
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))

    with BlockingStorage(LocalStorage(tmp_path)) as store:
        store.write("a", OLD)
        monkeypatch.setattr(os, "link", too_many)
        with pytest.raises(StorageError, match="Too many links") as raised:
            store.put_if_absent("b", NEW)
        assert raised.value.key == "b"
        assert list(tmp_path.glob(".strata-tmp/*.part")) == []
