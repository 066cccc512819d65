"""Disks that are full, that fail, and that may only be read: a save fails in clear words, and loses nothing."""

import errno
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager, CheckpointManagerConfig, CheckpointReader
from strata.errors import AccessDenied, SaveFailed, StorageError, StorageFull
from tests.integration.checkpoint.scenes import (
    JOB,
    KINDS,
    TREE,
    Kind,
    files_in,
    found_afterwards,
    is_state_of,
    manager_of,
    needed_in,
    two_saved,
)
from tests.integration.checkpoint.stages import chosen, some_and_all
from tests.integration.disks import Disk
from tests.integration.storage.crashing import CHANGES, at_call, calls_of, run_child
from tests.integration.tracing import under_strace
from tests.unit.checkpoint.states import assert_same

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

BLOCK = 4096
BIG_BYTES = 6 << 20
BIG = np.arange(BIG_BYTES // 8)
LITTLE_BYTES = 256 << 10
"""Of metadata, and of a block here and there."""
TAKING_TURNS = CheckpointManagerConfig(memory_bytes=16 << 20)


@pytest.fixture(params=["tmpfs", "ext4"])
def root(request: pytest.FixtureRequest) -> Iterator[Path]:
    """On a disk of its own: one that takes direct writes, or one that does not."""
    if request.param == "tmpfs":
        yield request.getfixturevalue("small_disk")
    else:
        disk: Disk = request.getfixturevalue("disk")
        yield disk.path / "root"


def free_bytes(root: Path) -> int:
    found = os.statvfs(root)
    return found.f_bfree * found.f_frsize


def fill(root: Path, leaving: int) -> Path:
    """Something else on the disk, that leaves so much room."""
    filler = root.parent / "filler" if os.path.ismount(root.parent) else root / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(BLOCK, (free_bytes(root) - leaving) // BLOCK * BLOCK))
        os.fsync(file.fileno())
    return filler


def states(kind: str) -> Any:
    return BIG.tobytes() if kind == "bytes" else {"w": BIG, "step": 2}


# -- full --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_fit_fails_in_clear_words_and_loses_nothing(root: Path, kind: str) -> None:
    way = KINDS[kind]
    with CheckpointManager(root, incremental=way.incremental) as manager:
        manager.save(way.state(1), step=1)
        filler = fill(root, leaving=BIG_BYTES // 2)
        before = free_bytes(root)
        with pytest.raises(StorageFull) as raised:
            manager.save(states(kind), step=2)
        told = str(raised.value)
        assert re.search(r"step 2 \(6\.0 MiB\) does not fit: cannot write 'default/checkpoints/step_2/", told)
        assert re.search(r"in file://.*: No space left on device \(.* of .* are free\)\. Make room", told)
        assert free_bytes(root) > before - LITTLE_BYTES
        assert manager.list_checkpoints() == [1]
        assert is_state_of(1, manager.load(), way)
        manager.verify()
        filler.unlink()
        manager.save(states(kind), step=2)
        assert_same(manager.load(), states(kind))
    assert files_in(root) == needed_in(root)


@pytest.mark.parametrize("kind", KINDS)
def test_full_at_whichever_write(small_disk: Path, kind: str) -> None:
    """The data fits, and its manifest does not, or the checkpoint's, or the line's: a block more each time."""
    way, failed, step = KINDS[kind], 0, 2
    with CheckpointManager(small_disk, incremental=way.incremental) as manager:
        manager.save(states(kind), step=1)
        manager.save(b"another kind, that nothing refers to", step=2)
        for blocks in range(12):
            manager.load(2)  # so that the line is written as well
            filler = fill(small_disk, leaving=BIG_BYTES + blocks * BLOCK)
            step += 1
            try:
                manager.save(states(kind), step=step)
            except StorageFull:
                failed += 1
            else:
                assert_same(manager.load(step), states(kind))
                manager.delete(step)
            assert free_bytes(small_disk) > BIG_BYTES - LITTLE_BYTES
            assert manager.load(2) == b"another kind, that nothing refers to"
            filler.unlink()
            assert files_in(small_disk) == needed_in(small_disk)
        manager.save(states(kind), step=step + 1)
    assert 1 < failed < 12


@pytest.mark.parametrize("config", [CheckpointManagerConfig(), TAKING_TURNS], ids=["whole", "in turns"])
def test_a_loop_that_only_saves_is_warned_and_then_stopped(
    disk: Disk, config: CheckpointManagerConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards against: a failed save kills training (Megatron 1435), or is swallowed (pytorch 191391)."""
    root, state = disk.path / "root", {f"w{n}": BIG for n in range(4)} | {"x": BIG + 1, "y": BIG + 2, "z": BIG + 3}
    caplog.set_level(logging.ERROR, "strata.checkpoint")
    with CheckpointManager(root, config=config) as manager:
        manager.save({"good": 1}, step=1)
        filler = fill(root, leaving=BIG_BYTES)
        trained = []

        def train() -> None:
            for step in range(2, 20):
                manager.save_async(state, step=step)
                trained.append(step)

        stopped = r"3 saves in a row have failed; the last, of step 4 \(24\.0 MiB\): .*No space left"
        with pytest.raises(SaveFailed, match=stopped):
            train()
        assert trained == [2, 3, 4]
        assert [f"({n} in a row)" in record.message for n, record in enumerate(caplog.records, 1)] == [True] * 3
        assert manager.load() == {"good": 1}
        filler.unlink()
        manager.save_async(state, step=5).result()  # whoever made room may go on
        assert manager.latest_step() == 5


def test_a_failed_save_gives_back_the_files_that_it_finished(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a state in several files, some may fit."""
    monkeypatch.setattr("strata.checkpoint.plan.plan_files.__defaults__", (4 << 20,))
    state = {f"w{n}": np.full(200_000, n, np.float64) for n in range(8)}
    with CheckpointManager(small_disk) as manager:
        manager.save({"good": 1}, step=1)
        filler = fill(small_disk, leaving=9 << 20)
        before = free_bytes(small_disk)
        with pytest.raises(StorageFull):
            manager.save(state, step=2)
        assert free_bytes(small_disk) > before - LITTLE_BYTES
        assert files_in(small_disk) - {"filler"} == needed_in(small_disk)
        filler.unlink()
        manager.save(state, step=3)
        assert len(list((small_disk / "default/checkpoints/step_3").glob("*.safetensors"))) > 2


# -- for reading only --------------------------------------------------------------------------------------------------


def test_where_nobody_may_write_there_is_still_reading(small_disk: Path) -> None:
    with CheckpointManager(small_disk) as manager:
        manager.save(TREE.state(1), step=1)
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        with pytest.raises(AccessDenied, match="mounted for reading only"):
            manager.save(TREE.state(2), step=2)
        assert is_state_of(1, manager.load(), TREE)
        manager.verify()
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
        manager.save(TREE.state(2), step=2)


# -- failing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", ["fsync", "pwrite64"])
def test_a_disk_that_fails_every_time(tmp_path: Path, strace: str, call: str, kind: str) -> None:
    root, way = tmp_path / "root", KINDS[kind]
    two_saved(root, way)

    def body() -> None:
        manager = manager_of(root, way, config=CheckpointManagerConfig(max_failed_saves=2))
        for step in (3, 4):
            with pytest.raises(StorageError, match=r"the disk failed|could not be synced"):
                manager.save_async(way.state(step), step=step).result()
        with pytest.raises(SaveFailed, match="2 saves in a row"):
            manager.save_async(way.state(5), step=5)
        with CheckpointReader(root) as reader:
            assert reader.list_checkpoints() == [1, 2]

    assert under_strace(strace, f"{call}:error=EIO", body, tmp_path) == 0
    assert found_afterwards(root, way) == [1, 2]


FAULTS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}


@pytest.mark.timeout(900)
@some_and_all
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_call_fails_once(tmp_path: Path, kind: str, fault: str, how_many: str) -> None:
    """Whatever fails, it is the save before or this one, and the next one is well, and leaves no rubbish."""
    root, way = tmp_path / "root", KINDS[kind]

    def fail() -> None:
        raise OSError(FAULTS[fault], os.strerror(FAULTS[fault]))

    count = len(_calls(root, way, tmp_path))
    outcomes = set()
    for at in chosen(count, how_many):
        _set_up(root, way)
        assert run_child(lambda at=at: _fail_once(root, way, at, fail)) == 0  # type: ignore[misc]
        with CheckpointReader(root) as reader:
            outcomes.add(tuple(reader.list_checkpoints()))
        if not list((root / JOB).glob("readers/*")):  # one that could not be removed runs out by itself
            left = {path for path in files_in(root) if not path.endswith(".part")}  # the next process removes these
            assert left == needed_in(root), f"at call {at} of {count}"
        assert found_afterwards(root, way)[-1] == 6
    assert outcomes == {(5, 6)}


def _set_up(root: Path, way: Kind) -> None:
    before = root.parent / "before"
    if not before.exists():
        two_saved(before, way)
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(before, root)


def _calls(root: Path, way: Kind, folder: Path) -> list[str]:
    _set_up(root, way)
    return calls_of(lambda: _save_next(root, way, manager_of(root, way)), folder / "calls")


def _save_next(root: Path, way: Kind, manager: CheckpointManager) -> None:
    manager.load()
    manager.save(way.state(3), step=3)
    manager.wait()


def _fail_once(root: Path, way: Kind, at: int, fail: Any) -> None:
    logging.disable()
    manager = manager_of(root, way)
    at_call(at, fail, calls=CHANGES)
    with suppress(StorageError):
        _save_next(root, way, manager)
    assert manager.latest_step() in (2, 3)
    steps = manager.list_checkpoints()
    assert is_state_of(steps[-1], manager.load(), way)
    for step in (4, 5, 6):
        manager.save(way.state(step), step=step)
        manager.wait()
    manager.close()
