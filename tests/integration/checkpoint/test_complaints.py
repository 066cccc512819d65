"""What users of other checkpoint libraries complain of, each as a test that would fail if it were so here."""

import ast
import asyncio
import fcntl
import os
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import strata
from strata.checkpoint import CheckpointManager, CheckpointManagerConfig, CheckpointReader
from strata.errors import CheckpointDamaged, SaveFailed, StorageUnavailable
from strata.storage import LocalStorage, MemoryStorage, StorageOptions
from strata.testing.faulty import Faults, FaultyStorage
from tests.integration.checkpoint.training import WAYS, beginning, train_one_step
from tests.integration.disks import Disk
from tests.unit.checkpoint.states import assert_same

HERE = Path(__file__).parent
MIB = 1 << 20


# -- a writer's failure is swallowed, and the save reports success (pytorch 191391) ------------------------------------


@pytest.mark.parametrize("outcome", ["before", "after", "partial"])
@pytest.mark.parametrize("state", [{"w": np.arange(1000)}, b"bytes"], ids=["tree", "bytes"])
def test_a_save_whose_writer_failed_reports_no_success(state: Any, outcome: Any) -> None:
    """Every call to the storage fails, one at a time. What was reported as saved is there and whole."""
    number, failed = 1, 0
    while True:
        inner = MemoryStorage()
        faulty = _FailsAt(inner, number, outcome)
        manager = CheckpointManager(faulty, keep_count=1)
        told = True
        try:
            manager.save({"first": 1}, step=1)
            manager.save(state, step=2)
        except StorageUnavailable:
            failed, told = failed + 1, False
            assert manager.saves[-1].status == "failed"
        with suppress(StorageUnavailable):
            manager.close()
        with CheckpointReader(inner) as reader:
            if told:
                assert reader.latest_step() == 2
                assert_same(reader.load(), state)
            for step in reader.list_checkpoints():
                reader.verify(step)
        if number > len(faulty.calls):
            break
        number += 1
    assert failed > 10


class _FailsAt(FaultyStorage):
    """The call of this number, over all methods."""

    def __init__(self, inner: MemoryStorage, at: int, outcome: Any) -> None:
        super().__init__(inner)
        self._at, self._outcome = at, outcome

    def draw(self, operation: str, path: str) -> Any:
        return (self._outcome if len(self.calls) + 1 == self._at else "done"), 0.0


# -- async saves silently rewrote the first checkpoint: three steps were bit-identical (NeMo-RL 3312) ------------------


@pytest.mark.parametrize("way", WAYS)
def test_no_two_steps_of_a_run_are_the_same(tmp_path: Path, way: str) -> None:
    state, expected = beginning(), beginning()
    with CheckpointManager(tmp_path, **WAYS[way]) as manager:
        for step in range(1, 7):
            train_one_step(state)
            manager.save_async(state, step=step)
        manager.wait()
        for step in range(1, 7):
            train_one_step(expected)
            assert_same(manager.load(step), expected)


# -- torn: step-2 optimizer beside step-1 weights (nvidia-resiliency-ext PR 376) ---------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_is_killed_again_and_again_ends_where_one_that_was_not_does(tmp_path: Path, way: str) -> None:
    """At any moment, by the clock: whatever is loaded is of one step."""
    steps, kills, began_at = 30, 0, 0
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    drawn = random.Random(seed)
    command = [sys.executable, str(HERE / "training.py"), str(tmp_path), str(steps), way]
    expected = {0: beginning()}
    for step in range(1, steps + 1):
        expected[step] = _deep_copied(expected[step - 1])
        train_one_step(expected[step])
    for _ in range(60):
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=_environment()) as process:
            assert process.stdout is not None
            began_at = int(process.stdout.readline().split()[1])
            if kills < 4:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(drawn.random() * 0.4)
                process.send_signal(signal.SIGKILL)
            code = process.wait()
        assert code in (0, -signal.SIGKILL)
        kills += code != 0
        with CheckpointReader(tmp_path) as reader:
            for step in reader.list_checkpoints():
                assert_same(reader.load(step), expected[step])
                reader.verify(step)
            if code == 0:
                break
    with CheckpointReader(tmp_path) as reader:
        left = reader.list_checkpoints()
    # Who is killed behind the commit of the very last step, before it deletes, leaves one more: no save tidies up.
    most = 4 if began_at == steps else 3
    assert left in [list(range(steps - count + 1, steps + 1)) for count in range(3, most + 1)]


def _deep_copied(state: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _deep_copied(each) if isinstance(each, dict) else each.copy() if hasattr(each, "copy") else each
        for key, each in state.items()
    }


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(strata.__file__).parents[1])}


# -- `latest` moves, and cleanup runs, before data is durable (KempnerForge 102); see also test_power_cuts -------------


def test_nothing_is_committed_before_its_data_and_nothing_deleted_before_that() -> None:
    storage = FaultyStorage(MemoryStorage())
    with CheckpointManager(storage, keep_count=1) as manager:
        manager.save({"w": np.ones(10)}, step=1)
        manager.wait()
        storage.calls.clear()
        manager.save({"w": np.ones(10)}, step=2)
        manager.wait()
    made = [f"{call.operation} {call.path.removeprefix('default/checkpoints/')}" for call in storage.calls]
    commit = made.index("put_if_absent step_2/metadata.json")
    writes = [
        place for place, call in enumerate(made) if call.split()[0] in ("write", "put_if_absent", "writer.commit")
    ]
    assert max(place for place in writes if "step_2/" in made[place]) == commit
    assert len([place for place in writes if "step_2/" in made[place]]) == 3
    assert min(place for place, call in enumerate(made) if call.startswith("delete") and "step_1" in call) > commit


# -- bit rot drifts silently (torchtitan 4011, safetensors 220); see also test_damage ----------------------------------


def test_bit_rot_is_found_and_named(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save({"model": {"layers.7.weight": torch.ones(1000, 100)}}, step=1)
        (file,) = tmp_path.rglob("*.safetensors")
        data = bytearray(file.read_bytes())
        data[-2] ^= 64  # 1.0 becomes 4.7e-38
        file.write_bytes(data)
        for read in (manager.load, manager.verify):
            with pytest.raises(CheckpointDamaged, match=rf"{file.name} is damaged: tensor 'model/layers\.7\.weight'"):
                read()


# -- metadata is raw pickle (pytorch 189308); see also tests/unit/checkpoint/test_hostile.py ---------------------------


class _Bomb:
    def __reduce__(self) -> Any:
        return os.abort, ()


def test_loading_never_runs_code(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save({"w": np.ones(5)}, step=1)
    for file in [path for path in (tmp_path / "default").rglob("*") if path.is_file()]:
        whole = file.read_bytes()
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            file.write_bytes(pickle.dumps(_Bomb(), protocol))
            with CheckpointReader(tmp_path) as reader, pytest.raises(CheckpointDamaged):
                reader.load(1)
        file.write_bytes(whole)


def test_nothing_that_reads_checkpoints_can_unpickle() -> None:
    """What takes in foreign formats reads pickles by a reader that makes nothing of them, and has tests of its own."""
    for file in (Path(strata.__file__).parent / "checkpoint").rglob("*.py"):
        if file.parent.name == "foreign":
            continue
        found = [
            each
            for each in ast.walk(ast.parse(file.read_text("utf-8")))
            if isinstance(each, ast.Import | ast.ImportFrom)
        ]
        names = {name.name for each in found for name in each.names} | {getattr(each, "module", "") for each in found}
        assert not names & {"pickle", "marshal", "shelve", "cloudpickle", "dill", "joblib"}, file
        assert "torch.load(" not in file.read_text("utf-8"), file


# -- async_save leaks memory (pytorch 170163) --------------------------------------------------------------------------

LEAKS = """
import gc, os, sys, threading
import numpy as np
from strata.checkpoint import CheckpointManager, CheckpointManagerConfig, CheckpointReader

def used():
    gc.collect()
    resident = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident, threading.active_count(), len(os.listdir("/proc/self/fd"))

def save(manager, first, last):
    for step in range(first, last):
        for array in state.values():
            array += 1
        manager.save_async(bytes(state["w0"]) if way == "bytes" else state, step=step)
        if step % 10 == 9:
            manager.wait()
            with CheckpointReader(sys.argv[1]) as reader:
                reader.load()
    manager.wait()

way = sys.argv[2]
state = {f"w{n}": np.zeros(1 << 18) for n in range(8)}  # 16 MiB
settings = {"memory_bytes": 16 << 20} if way == "in turns" else {}
config = CheckpointManagerConfig(incremental=way == "incremental", **settings)
with CheckpointManager(sys.argv[1], keep_count=2, config=config) as manager:
    save(manager, 0, 15)
    for first in range(15, 215, 50):  # a pool of threads may still be growing at first; what leaks never ends
        before = used()
        save(manager, first, first + 50)
        after = used()
        if after[0] < before[0] + (16 << 20) and after[1] <= before[1]:
            break
print(*before, *after)
"""


@pytest.mark.parametrize("way", ["whole", "in turns", "incremental", "bytes"])
def test_fifty_saves_more_take_no_more_memory(tmp_path: Path, way: str) -> None:
    """Nor threads, nor files: not one state more is held in the end."""
    command = [sys.executable, "-c", LEAKS, str(tmp_path), way]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=_environment(), timeout=250)
    memory, threads, files, memory_then, threads_then, files_then = map(int, done.stdout.split())
    assert memory_then < memory + 16 * MIB
    assert threads_then <= threads
    assert files_then <= files


# -- a failed save kills training (Megatron 1435); see also test_failing_disks -----------------------------------------


def test_training_goes_on_when_a_save_fails_and_is_stopped_when_three_have() -> None:
    storage = FaultyStorage(MemoryStorage())
    state, trained = beginning(), []

    async def train(until: int) -> None:
        while state["step"] < until:
            train_one_step(state)
            trained.append(state["step"])
            await manager.save_async(state, step=state["step"])

    with CheckpointManager(storage) as manager:
        asyncio.run(train(until=2))
        manager.wait()
        storage.faults = Faults(before=1.0, only=frozenset({"write", "put_if_absent"}))
        asyncio.run(train(until=4))
        with suppress(StorageUnavailable):
            manager.wait()
        storage.faults = Faults()
        asyncio.run(train(until=6))
        manager.wait()
        assert manager.list_checkpoints() == [1, 2, 5, 6]
        storage.faults = Faults(before=1.0, only=frozenset({"write", "put_if_absent"}))
        with pytest.raises(SaveFailed, match="3 saves in a row"):
            asyncio.run(train(until=100))
    assert trained == [*range(1, 11)]


# -- one stuck storage target hangs the whole save (nvidia-resiliency-ext PR 373) --------------------------------------

FREEZE, THAW = 0xC0045877, 0xC0045878


@contextmanager
def frozen(disk: Disk) -> Iterator[None]:
    """A filesystem that takes no write, and answers none, until it is thawed."""
    fd = os.open(disk.path, os.O_RDONLY)
    fcntl.ioctl(fd, FREEZE, 0)
    try:
        yield
    finally:
        fcntl.ioctl(fd, THAW, 0)
        os.close(fd)


def test_a_disk_that_hangs_fails_the_save_by_name_and_hangs_nothing_else(disk: Disk) -> None:
    storage = LocalStorage(disk.path / "root", options=StorageOptions(timeout_seconds=0.5))
    state = {"w": np.ones(1 << 20)}
    with CheckpointManager(storage) as manager:
        manager.save(state, step=1)
        with frozen(disk):
            handle = manager.save_async(state, step=2)
            with pytest.raises(TimeoutError, match=r"the save of step 2 to file://.*/default/checkpoints is not over"):
                manager.wait(0.05)
            with pytest.raises(
                StorageUnavailable, match=r"default/checkpoints/.*the filesystem did nothing for 0\.5 sec"
            ):
                handle.result()
            assert_same(manager.load(), state)  # what is only read does not hang
        manager.save_async(state, step=3).result()
        assert manager.list_checkpoints() == [1, 3]


def test_whoever_closes_does_not_wait_for_ever() -> None:
    storage = FaultyStorage(MemoryStorage(), faults=Faults(stuck=1.0, only=frozenset({"put_if_absent"})))
    manager = CheckpointManager(storage, config=CheckpointManagerConfig(stuck_seconds=0.3))
    manager.save_async({"w": np.ones(5)}, step=1)
    with pytest.raises(StorageUnavailable, match=r"step 1 .* given up: .* nothing came of write memory:///default/"):
        manager.close()
    storage.release()


@pytest.mark.parametrize("operation", ["delete_many", "list_all"])
def test_what_hangs_after_the_commit_fails_no_save_and_holds_up_no_other(operation: str) -> None:
    storage = FaultyStorage(MemoryStorage())
    config = CheckpointManagerConfig(stuck_seconds=0.3)
    with CheckpointManager(storage, keep_count=1, config=config) as manager:
        manager.save({"w": 1}, step=1)
        manager.wait()
        storage.faults = Faults(stuck=1.0, only=frozenset({operation}))
        manager.save({"w": 2}, step=2)
        handle = manager.save_async({"w": 3}, step=3)
        handle.result()
        storage.faults = Faults()
        storage.release()
        manager.wait()
        assert manager.load() == {"w": 3}


STUCK_AT_EXIT = """
import logging
import numpy as np
from strata.checkpoint import CheckpointManager, CheckpointManagerConfig
from strata.storage import MemoryStorage
from strata.testing.faulty import Faults, FaultyStorage

logging.basicConfig()
storage = FaultyStorage(MemoryStorage(), faults=Faults(stuck=1.0, only=frozenset({"write"})))
manager = CheckpointManager(storage, config=CheckpointManagerConfig(stuck_seconds=1.0))
manager.save_async({"w": np.ones(5)}, step=1)
"""


def test_a_process_that_ends_does_not_wait_for_ever_and_says_what_for() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STUCK_AT_EXIT],
        capture_output=True,
        text=True,
        env=_environment(),
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert "the save of step 1" in done.stderr
    assert "nothing came of write memory:///default/checkpoints/step_1/part-0-" in done.stderr


# -- no restore timeout: one rank blocked 704 GPUs for 4.5 h (marin 8534) ----------------------------------------------


def test_a_load_from_what_hangs_ends_and_names_it() -> None:
    inner = MemoryStorage()
    with CheckpointManager(inner) as manager:
        manager.save({"w": np.ones(5)}, step=1)
    storage = FaultyStorage(inner, faults=Faults(stuck=1.0, only=frozenset({"read_into"})))
    with (
        CheckpointReader(storage) as reader,
        pytest.raises(StorageUnavailable, match=r"read memory:///default/.*step_1"),
    ):
        reader.load(timeout=0.3)
