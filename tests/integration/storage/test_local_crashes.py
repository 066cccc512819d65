"""Local writes die at every call to the system, and lose power, and run out of room: the old object or the new one."""

import errno
import fcntl
import os
import re
import shutil
import signal
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strata.errors import StorageError, StorageFull
from strata.storage import BlockingStorage, LocalStorage
from strata.storage.backend import byte_view
from strata.storage.staging import Job
from tests.integration.storage.crashing import Action, act_and_die, kill, run_child

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

OLD, NEW = b"old", b"new"
LARGE = b"large" * 600_000  # two megabytes and more are written directly
KEY = "job/checkpoints/step_10/object"
MOST_CALLS = 200
SHUTDOWN, WITHOUT_FLUSHING = 0x8004587D, 2


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
@pytest.mark.parametrize("change", CHANGES)
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


@pytest.fixture
def strace() -> str:
    program = shutil.which("strace")
    if program is None:
        pytest.skip("missing component: strace")
    return program


NOT_ALWAYS_MADE = ("futex", "brk", "mmap", "munmap", "madvise")
"""For locks and memory, which differ from run to run and touch no file."""


def under_strace(strace: str, inject: str, body: Callable[[], None], tmp_path: Path) -> int:
    """Run it in a child, with strace attached just before it begins: when it sleeps, waiting for that."""
    begin_read, begin_write = os.pipe()
    ready_read, ready_write = os.pipe()

    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(begin_write)
            os.write(ready_write, b"x")
            if os.read(begin_read, 1):
                body()
            code = 0
        finally:
            os._exit(code)
    os.close(begin_read)
    os.close(ready_write)
    os.read(ready_read, 1)
    os.close(ready_read)
    while Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        os.sched_yield()
    log = tmp_path / "strace.log"
    log.unlink(missing_ok=True)
    tracer = subprocess.Popen(
        [strace, "-f", "-e", "trace=all", "-e", f"inject={inject}", "-o", str(log), "-p", str(child)],
        stderr=subprocess.PIPE,
    )
    try:
        assert tracer.stderr is not None
        assert b"attached" in tracer.stderr.readline()
        os.write(begin_write, b"x")
    finally:
        os.close(begin_write)
        _, status = os.waitpid(child, 0)
        tracer.terminate()
        tracer.communicate()
    return os.waitstatus_to_exitcode(status)


def write_here(root: Path, data: bytes) -> None:
    """A write in this very thread, as the storage's own thread does it."""
    storage = LocalStorage(root)
    storage._write(KEY, byte_view(data), Job(None), storage.replace)


def test_killed_at_every_system_call(tmp_path: Path, strace: str) -> None:
    root = tmp_path / "root"
    prepare(root, OLD)
    assert under_strace(strace, "fsync:delay_enter=1", lambda: write_here(root, NEW), tmp_path) == 0
    made: Counter[str] = Counter()
    outcomes = []
    calls = re.findall(r"^\d+ +(\w+)\(", (tmp_path / "strace.log").read_text(), re.MULTILINE)
    # The last one is the exit. The first is the wait for the beginning, during which strace attached itself or not.
    calls = [call for call in calls[:-1] if call not in ("read", "restart_syscall", *NOT_ALWAYS_MADE)]
    assert len(calls) > 30
    for call in calls:
        made[call] += 1
        prepare(root, OLD)
        where = f"{call}:signal=KILL:when={made[call]}"
        assert under_strace(strace, where, lambda: write_here(root, NEW), tmp_path) == -signal.SIGKILL
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
        storage = LocalStorage(root)
        with pytest.raises(StorageError, match="the disk failed"):
            storage._attempt(
                KEY, "write", lambda job: storage._write(KEY, byte_view(data), job, storage.replace), Job(None)
            )
        assert list(root.glob(".strata-tmp/*.part")) == []

    assert under_strace(strace, f"{call}:error=EIO:when=1", body, tmp_path) == 0
    assert found(root) == OLD


# -- a disk of its own -------------------------------------------------------------------------------------------------


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"missing component: the right to mount ({done.stderr.strip()})")


class Disk:
    """An ext4 filesystem in a file, whose power can be cut."""

    def __init__(self, folder: Path) -> None:
        self.image, self.path = folder / "disk.img", folder / "disk"
        self.path.mkdir()
        with self.image.open("wb") as image:
            image.truncate(96 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(self.image)], check=True)
        mount("-o", "loop", str(self.image), str(self.path))

    def cut_power(self) -> None:
        """What was not synced is gone, as in life."""
        fd = os.open(self.path, os.O_RDONLY)
        fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", WITHOUT_FLUSHING))
        os.close(fd)

    def power_up(self) -> None:
        self.unmount()
        mount("-o", "loop", str(self.image), str(self.path))

    def unmount(self) -> None:
        for _ in range(50):
            if subprocess.run(["umount", str(self.path)], capture_output=True, check=False).returncode == 0:
                return
            time.sleep(0.1)
        pytest.fail("the disk is still in use")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if not shutil.which("mkfs.ext4"):
        pytest.skip("missing component: mkfs.ext4")
    disk = Disk(tmp_path)
    yield disk
    disk.unmount()


@pytest.mark.parametrize("change", CHANGES)
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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder))
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


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
