"""What only a folder can do to a storage: links that lead out, filesystems without O_DIRECT, mounts that hang."""

import errno
import fcntl
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from strata.errors import AccessDenied, InvalidInput, ObjectChanged, ObjectNotFound, StorageError, StorageUnavailable
from strata.storage import BlockingStorage, LocalStorage, StorageOptions, direct, filelock
from strata.testing.local_seam import LocalSeam
from tests.integration.storage.crashing import run_child

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

DATA = np.random.default_rng(3).integers(0, 256, 21_234_567, np.uint8)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def store(root: Path) -> Iterator[BlockingStorage]:
    with BlockingStorage(LocalStorage(root)) as store:
        yield store


# -- links -------------------------------------------------------------------------------------------------------------


def test_a_link_that_leaves_the_root_is_refused(root: Path, store: BlockingStorage, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"not for you")
    store.write("a", b"x")
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "secret")
    for call in (
        lambda: store.read("folder/secret"),
        lambda: store.read("file"),
        lambda: store.size("file"),
        lambda: store.exists("file"),
        lambda: store.write("folder/new", b"x"),
        lambda: store.put_if_absent("folder/new", b"x"),
        lambda: store.compare_and_swap("folder/new", b"x", None),
        lambda: store.delete("folder/secret"),
    ):
        with pytest.raises(InvalidInput, match=r"leads out of .* through a symbolic link"):
            call()
    assert sorted(entry.path for entry in store.list_all()) == ["a"]
    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_a_write_replaces_a_link_and_never_follows_it(root: Path, store: BlockingStorage, tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"untouched")
    store.write("a", b"x")
    (root / "link").symlink_to(tmp_path / "target")
    store.write("link", b"an object now")
    assert store.read("link") == b"an object now"
    assert (tmp_path / "target").read_bytes() == b"untouched"


def test_a_link_inside_the_root_is_followed(root: Path, store: BlockingStorage) -> None:
    store.write("a/b", b"x")
    (root / "link").symlink_to(root / "a" / "b")
    assert store.read("link") == b"x"
    assert [entry.path for entry in store.list_all()] == ["a/b", "link"]


def test_an_empty_folder_that_a_dead_process_left_is_not_in_the_way(root: Path, store: BlockingStorage) -> None:
    for key, write in (("a", store.write), ("b", store.put_if_absent), ("c", store.write)):
        (root / key / "deep" / "er").mkdir(parents=True)
        assert not store.exists(key)
        write(key, b"x")
        assert store.read(key) == b"x"


def test_a_loop_of_links_is_no_object(root: Path, store: BlockingStorage) -> None:
    store.write("a", b"x")
    (root / "loop").symlink_to(root / "loop")
    assert [entry.path for entry in store.list_all()] == ["a"]
    assert [entry.path for entry in store.list_folder()] == ["a"]


def test_all_are_tried_before_the_first_error(root: Path, store: BlockingStorage, tmp_path: Path) -> None:
    store.write("a", b"x")
    store.write("z", b"x")
    (root / "out").symlink_to(tmp_path)
    with pytest.raises(InvalidInput, match="'out/b' leads out"):
        store.delete_many(["a", "out/b", "z"])
    assert list(store.list_all()) == []


def test_the_root_of_the_filesystem_is_a_root() -> None:
    """Nothing is written: only the way up must end."""
    with BlockingStorage(LocalStorage("/")) as store:
        store.delete(f"strata-{secrets.token_hex(12)}")  # syncs the folders up to the root
        assert store.exists(os.path.realpath(__file__).lstrip("/"))


def test_a_new_file_that_a_sweeper_holds_is_not_used(root: Path, store: BlockingStorage) -> None:
    store.write("a", b"x")
    locked, tried = filelock.try_lock, []

    def sweeper_first(fd: int) -> bool | None:
        tried.append(fd)
        return False if len(tried) == 1 else locked(fd)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filelock, "try_lock", sweeper_first)
        store.write("a", b"y")
    assert store.read("a") == b"y"
    assert len(tried) == 2


def test_an_error_after_the_rename_says_that_the_object_is_there(
    store: BlockingStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("a", b"old")
    synced, calls = os.fsync, []

    def fail_for_the_folder(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        synced(fd)

    monkeypatch.setattr(os, "fsync", fail_for_the_folder)
    with pytest.raises(StorageError, match="may not survive a power cut"):
        store.write("a", b"new")
    assert store.read("a") == b"new"


def test_an_object_cannot_be_a_folder_too(store: BlockingStorage) -> None:
    store.write("a", b"x")
    with pytest.raises(InvalidInput, match="cannot be a folder as well"):
        store.write("a/b", b"y")
    store.write("c/d", b"x")
    with pytest.raises(InvalidInput, match="there is a folder of that name"):
        store.write("c", b"y")
    store.delete("c")
    assert store.read("c/d") == b"x"


def test_what_is_written_has_ordinary_permissions(root: Path, store: BlockingStorage) -> None:
    store.write("a", b"x")
    umask = os.umask(0)
    os.umask(umask)
    assert (root / "a").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_root_that_is_no_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with BlockingStorage(LocalStorage(tmp_path / "file" / "root")) as store:
        with pytest.raises(ObjectNotFound):
            store.read("a")
        with pytest.raises(InvalidInput, match="cannot write 'a'"):
            store.write("a", b"x")
    for bad in ("", "nul\0"):
        with pytest.raises(InvalidInput, match="root must be a path"):
            LocalStorage(bad)


def test_a_root_that_may_not_be_written_is_told(store: BlockingStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write("a", b"x")

    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "replace", denied)  # the tests may run as root, whom nothing is denied
    with pytest.raises(AccessDenied, match="must be allowed to") as raised:
        store.write("a", b"y")
    assert raised.value.key == "a"


# -- O_DIRECT ----------------------------------------------------------------------------------------------------------


def at_offset(offset: int) -> memoryview:
    """The data at so many bytes past a block's border."""
    memory = direct.aligned(len(DATA) + direct.ALIGNMENT)[offset : offset + len(DATA)]
    np.copyto(memory, DATA)
    return memory.data


@pytest.mark.parametrize("offset", [0, 16, 512, 4095])
@pytest.mark.parametrize("size", [len(DATA), 3 * direct.WINDOW_BYTES // 2, direct.DIRECT_FROM_BYTES, 4096, 1])
def test_every_alignment_is_written_right(store: BlockingStorage, offset: int, size: int) -> None:
    data = at_offset(offset)[:size]
    store.write("whole", data)
    with store.open_writer("stream") as writer:
        for start in range(0, size, 2_345_678):
            writer.write(data[start : start + 2_345_678])
    assert store.read("whole") == data
    assert store.read("stream") == data


@pytest.mark.parametrize("refuses", ["the flag", "the write", "a later write"])
def test_without_o_direct_it_writes_all_the_same(
    store: BlockingStorage, monkeypatch: pytest.MonkeyPatch, refuses: str
) -> None:
    wrote = os.pwrite
    calls: list[int] = []

    def refuse(fd: int, data: memoryview, offset: int) -> int:
        calls.append(fd)
        is_direct = direct.fcntl.fcntl(fd, direct.fcntl.F_GETFL) & os.O_DIRECT
        if is_direct and len(calls) > (1 if refuses == "a later write" else 0):
            raise OSError(errno.EINVAL, "no direct writes here")
        return wrote(fd, data, offset)

    if refuses == "the flag":
        monkeypatch.setattr(direct, "set_direct", lambda _fd, wanted: not wanted)
    else:
        monkeypatch.setattr(os, "pwrite", refuse)
    store.write("whole", DATA)
    with store.open_writer("stream") as writer:
        writer.write(DATA[:5_000_001])
        writer.write(DATA[5_000_001:])
    assert store.read("whole") == DATA.tobytes()
    assert store.read("stream") == DATA.tobytes()
    assert isinstance(store.storage, LocalStorage)
    assert not LocalSeam(store.storage).is_direct


def test_short_writes_are_finished(store: BlockingStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    wrote = os.pwrite

    def short(fd: int, data: memoryview, offset: int) -> int:
        return wrote(fd, data[: 4096 if len(data) > 4096 and offset % 3 else max(1, len(data) * 2 // 3)], offset)

    def shorter(fd: int, data: memoryview, offset: int) -> int:
        return wrote(fd, data[: max(512, len(data) // 2 // 512 * 512)], offset)

    for replacement in (short, shorter):
        monkeypatch.setattr(os, "pwrite", replacement)
        data = DATA[:9_000_001]
        store.write("a", data)
        monkeypatch.setattr(os, "pwrite", wrote)
        assert store.read("a") == data.tobytes()


# -- time --------------------------------------------------------------------------------------------------------------


def test_a_mount_that_hangs_is_an_error_that_names_the_object(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrote, go_on = os.pwrite, threading.Event()

    def hang(fd: int, data: memoryview, offset: int) -> int:
        go_on.wait(30)
        return wrote(fd, data, offset)

    with BlockingStorage(LocalStorage(root, options=StorageOptions(timeout_seconds=0.2))) as store:
        store.write("warm", b"x")
        monkeypatch.setattr(os, "pwrite", hang)
        with pytest.raises(StorageUnavailable, match=r"cannot write 'a/b' .* did nothing for 0.2 seconds") as raised:
            store.write("a/b", b"x")
        assert raised.value.retry
        with pytest.raises(StorageUnavailable), store.open_writer("c") as writer:
            writer.write(DATA)
        go_on.set()
    assert [path.name for path in root.iterdir() if path.name != ".strata-tmp"] == ["warm"]
    assert list(root.glob(".strata-tmp/*.part")) == []


def test_what_was_given_up_does_not_appear_later(root: Path) -> None:
    """A newer object must not be replaced by a write that its caller was told had failed."""
    with BlockingStorage(LocalStorage(root, options=StorageOptions(timeout_seconds=0.2))) as store:
        store.write("a", b"newer")
        with (root / ".strata-tmp" / "lock").open("r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(StorageUnavailable):
                store.write("a", b"given up")
    with BlockingStorage(LocalStorage(root)) as store:
        store.write("b", b"whatever waited for the lock has had it by now")
        assert store.read("a") == b"newer"


def test_a_mount_that_hangs_holds_up_neither_later_calls_nor_the_end(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, go_on = os.open, threading.Event()

    def hang(path: str, *args: object, **kwargs: object) -> int:
        if str(root / "a") in str(path):
            go_on.wait(30)
        return opened(path, *args, **kwargs)  # type: ignore[arg-type]

    store = BlockingStorage(LocalStorage(root, options=StorageOptions(timeout_seconds=0.2, concurrency=2)))
    store.write("a", b"x")
    monkeypatch.setattr(os, "open", hang)
    for _ in range(4):  # more than there are threads
        with pytest.raises(StorageUnavailable, match=r"did nothing for 0\.2 seconds"):
            store.read("a")
    with pytest.raises(StorageUnavailable, match="closed while the filesystem hangs"):
        store.close()
    go_on.set()


def test_a_child_does_not_keep_the_lock(root: Path, store: BlockingStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    replace, children = os.replace, list[int]()

    def fork_while_it_is_held(source: str, target: str) -> None:
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        children.append(child)
        replace(source, target)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", fork_while_it_is_held)
            store.write("a", b"x")
        assert len(children) == 1
        with BlockingStorage(LocalStorage(root, options=StorageOptions(timeout_seconds=5))) as other:
            other.write("a", b"y")
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_a_child_leaves_its_parents_stream_alone(root: Path, store: BlockingStorage) -> None:
    with store.open_writer("a") as writer:
        writer.write(b"from the parent")

        def give_up() -> None:
            writer.abort()

        run_child(give_up)
        assert len(list(root.glob(".strata-tmp/*.part"))) == 1
    assert store.read("a") == b"from the parent"


def test_a_lock_that_was_removed_is_not_the_lock(root: Path, store: BlockingStorage) -> None:
    """Whoever waited for it would hold one file, and the next writer another."""
    store.write("a", b"x")
    lock = root / ".strata-tmp" / "lock"
    with lock.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with ThreadPoolExecutor(1) as waiting:
            written = waiting.submit(store.write, "a", b"y")
            time.sleep(0.1)
            lock.unlink()
            fcntl.flock(held, fcntl.LOCK_UN)
            written.result()
    assert lock.exists()
    assert store.read("a") == b"y"


# -- many at once ------------------------------------------------------------------------------------------------------


def test_folders_come_and_go_under_writers(store: BlockingStorage) -> None:
    def churn(worker: int) -> None:
        for number in range(60):
            key = f"shared/folder/{worker}"
            store.write(key, bytes([number]))
            assert store.read(key) == bytes([number])
            store.delete(key)

    with ThreadPoolExecutor(4) as workers:
        list(workers.map(churn, range(4)))
    assert list(store.list_all()) == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_swap_without_losing_a_count(root: Path, store: BlockingStorage) -> None:
    store.write("counter", b"0")

    def count() -> None:
        with BlockingStorage(LocalStorage(root)) as mine:
            left = 10
            while left:
                value, version = mine.read_versioned("counter")
                try:
                    mine.compare_and_swap("counter", str(int(value) + 1).encode(), version)
                    left -= 1
                except ObjectChanged:
                    continue

    with ThreadPoolExecutor(3) as processes:
        assert list(processes.map(lambda _: run_child(count), range(3))) == [0, 0, 0]
    assert store.read("counter") == b"30"


def test_a_folder_that_may_not_be_read_is_named_and_hides_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BlockingStorage(LocalStorage(tmp_path))
    store.write("a", b"1")
    (tmp_path / "lost+found").mkdir()
    scan = os.scandir

    def guarded(path: str) -> object:
        if str(path).endswith("lost+found"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", guarded)
    assert [entry.path for entry in store.list_folder()] == ["a", "lost+found/"]
    with pytest.raises(AccessDenied, match=r"cannot list file:.* at 'lost\+found': Permission denied"):
        list(store.list_all())
    store.close()


def test_what_a_storage_below_has_not_finished_is_not_listed(tmp_path: Path) -> None:
    below, above = BlockingStorage(LocalStorage(tmp_path / "run")), BlockingStorage(LocalStorage(tmp_path))
    with below.open_writer("slow") as writer:
        writer.write(b"1")
        assert list(above.list_all()) == []
    assert [entry.path for entry in above.list_all()] == ["run/slow"]
    for store in (below, above):
        store.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_writer_stays_with_the_process_that_opened_it(tmp_path: Path) -> None:
    store = BlockingStorage(LocalStorage(tmp_path))
    with store.open_writer("a") as writer:
        writer.write(b"1")
        child = os.fork()
        if child == 0:
            try:
                writer.write(b"2")
            except InvalidInput as error:
                os._exit(0 if "parent process" in str(error) else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
    assert store.read("a") == b"1"
    store.close()
