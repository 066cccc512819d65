"""Saving and loading through the manager, on a memory and on a disk."""

import asyncio
import gc
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from safetensors.torch import load_file

from strata.checkpoint import CheckpointManager, CheckpointManagerConfig, CheckpointReader
from strata.checkpoint.manifest import decode_metadata, encode_metadata
from strata.core.events import Position
from strata.core.settings import Retention
from strata.errors import (
    CheckpointDamaged,
    CheckpointMismatch,
    Conflict,
    InvalidInput,
    NotFound,
    Refused,
    SaveFailed,
    SaveReplaced,
    SaveSkipped,
    StorageUnavailable,
    Superseded,
    Unstorable,
)
from strata.storage import BlockingStorage, LocalStorage, MemoryStorage, StorageBackend
from strata.testing.faulty import Faults, FaultyStorage
from strata.testing.manager_seam import ManagerSeam
from tests.unit.checkpoint.states import assert_same

STATE = {
    "model": {"weight": torch.arange(12.0).reshape(3, 4), "bias": torch.ones(3).bfloat16()},
    "optimizer": {"state": {0: {"step": torch.tensor(5.0), "exp_avg": torch.zeros(3, 4)}}, "lr": 0.1},
    "step": 7,
}


@pytest.fixture(params=["memory", "local"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StorageBackend]:
    made: StorageBackend = MemoryStorage() if request.param == "memory" else LocalStorage(tmp_path / "root")
    yield made
    BlockingStorage(made).close()


def keys_in(storage: StorageBackend) -> list[str]:
    return sorted(entry.path for entry in BlockingStorage(storage).list_all())


# -- back and forth ----------------------------------------------------------------------------------------------------


def test_a_tree_comes_back_as_it_was(storage: StorageBackend) -> None:
    with CheckpointManager(storage) as manager:
        report = manager.save(STATE, step=5, epoch=2, metrics={"loss": 0.5})
        assert report.state_bytes == report.written_bytes == 12 * 4 + 3 * 2 + 4 + 12 * 4
        assert_same(manager.load(), STATE)
        told = manager.describe()
        assert (told.step, told.epoch, told.metrics, told.job) == (5, 2, {"loss": 0.5}, "default")


@pytest.mark.parametrize("wrong", [5, None, "0", (0, 0, []), Position("1", 0, []), Position(0, 0, [0.5])])  # type: ignore[arg-type,list-item]
def test_a_position_that_no_checkpoint_could_be_read_with_is_refused(wrong: Any) -> None:
    with CheckpointManager(MemoryStorage()) as manager:
        manager.reads("rows", lambda: wrong)
        with pytest.raises(InvalidInput, match=r"where 'rows' is read, .* must be a position in a dataset"):
            manager.save(STATE, step=1)
        manager.reads("rows", lambda: Position(0, 1, [0, 8]))
        manager.save(STATE, step=1)
        manager.save(STATE, step=2)
        assert manager.describe(1).data == {"rows": Position(0, 1, [0, 8])}


def test_bytes_are_stored_as_they_are(tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    with CheckpointManager(tmp_path, job_id="gpt") as manager:
        manager.save(data, step=1000)
        assert (tmp_path / "gpt/checkpoints/step_1000/model.bin").read_bytes() == data
        assert (tmp_path / "gpt/checkpoints/step_1000/metadata.json").exists()
        assert manager.load() == data
        manager.save(bytearray(b"changes"), step=1001)
        manager.save(b"", step=1002)
        assert manager.load(1001) == b"changes"
        assert manager.load() == b""


def test_files_are_what_safetensors_reads(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(STATE, step=1)
    (file,) = tmp_path.rglob("*.safetensors")
    found = load_file(file)
    assert sorted(found) == ["model/bias", "model/weight", "optimizer/state/0/exp_avg", "optimizer/state/0/step"]
    assert torch.equal(found["model/weight"], STATE["model"]["weight"])  # type: ignore[index]
    assert found["model/bias"].dtype == torch.bfloat16


def test_tied_tensors_are_stored_once_and_tied_again(storage: StorageBackend) -> None:
    weight, flat = torch.randn(30, 20), np.arange(10.0)
    state = {"a": weight, "b": weight, "t": weight.t(), "flat": flat, "head": flat[:4], "odd": flat[8:0:-3]}
    with CheckpointManager(storage) as manager:
        assert manager.save(state, step=1).written_bytes == 2400 + 80
        back = manager.load()
    assert_same(back, state)
    assert back["a"] is back["b"]
    back["a"][0, 1] = 99.0
    assert back["t"][1, 0] == 99.0
    back["flat"][2] = -1.0
    assert back["head"][2] == -1.0
    assert back["odd"][2] == -1.0


def test_the_latest_and_any_other_can_be_loaded(storage: StorageBackend) -> None:
    with CheckpointManager(storage) as manager:
        for step in (10, 20, 30):
            manager.save({"step": step}, step=step)
        assert manager.list_checkpoints() == [10, 20, 30]
        assert manager.latest_step() == 30
        assert manager.load(20) == {"step": 20}
        with pytest.raises(NotFound, match=r"no committed checkpoint of step 25 .* 10, 20, 30"):
            manager.load(25)


def test_nothing_is_there_at_first(storage: StorageBackend) -> None:
    with CheckpointReader(storage) as reader:
        assert reader.list_checkpoints() == []
        assert reader.latest_step() is None
        with pytest.raises(NotFound, match="no committed checkpoint"):
            reader.load()


def test_async_forms(storage: StorageBackend) -> None:
    async def main() -> None:
        with CheckpointManager(storage) as manager:
            handle = manager.save_async(STATE, step=1)
            await handle
            await manager.wait_async()
            assert handle.done()
            assert await manager.latest_step_async() == 1
            assert_same(await manager.load_async(), STATE)
            assert await manager.list_checkpoints_async() == [1]
            assert await manager.verify_async() > 0
            await manager.delete_async(1)
            assert manager.latest_step() is None

    asyncio.run(main())


def test_memory_that_is_too_short_is_used_in_turns(storage: StorageBackend) -> None:
    state = {f"t{n}": torch.randn(1 << 20) for n in range(12)} | {"odd": torch.randn(2000, 1001).t()}
    with CheckpointManager(storage, config=CheckpointManagerConfig(memory_bytes=16 << 20)) as manager:
        manager.save(state, step=1)
        assert ManagerSeam(manager).arena_bytes <= 16 << 20
        assert_same(manager.load(), state)


# -- changing the state ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 1023, 1024, 262_143, 262_144, 2_097_152, 2_097_153, 10_000_000])
def test_what_is_changed_after_staging_never_shows(storage: StorageBackend, count: int) -> None:
    tensor, array = torch.ones(count), np.ones(count, np.float32)
    data = bytearray(b"x" * count)
    with CheckpointManager(storage) as manager:
        handle = manager.save_async({"t": tensor, "a": array, "view": tensor[::2]}, step=1)
        tensor.zero_()
        array[:] = 0
        handle.result()
        back = manager.load()
        assert bool((back["t"] == 1).all())
        assert bool((back["a"] == 1).all())
        handle = manager.save_async(data, step=2)
        data[:] = bytes(count)
        handle.result()
        assert manager.load() == b"x" * count


# -- loading a part, and into what is there ----------------------------------------------------------------------------


def test_only_some_keys(storage: StorageBackend) -> None:
    with CheckpointManager(storage) as manager:
        manager.save(STATE, step=1)
        assert_same(manager.load(keys="model/*"), {"model": STATE["model"]})
        assert manager.load(keys=["*bias", "*step"]).keys() == {"model", "optimizer", "step"}
        with pytest.raises(InvalidInput, match="no tensor of the checkpoint matches 'nothing'"):
            manager.load(keys="nothing")


def test_arrays_are_filled_in_place(storage: StorageBackend) -> None:
    mine = {"model": {"weight": torch.zeros(4, 3).t(), "bias": torch.zeros(3).bfloat16()}}
    weight = mine["model"]["weight"]
    with CheckpointManager(storage) as manager:
        manager.save({"model": STATE["model"], "step": 3}, step=1)
        back = manager.load(into=mine)
        assert back["model"]["weight"] is weight
        assert back["step"] == 3
        assert_same({"model": mine["model"]}, {"model": STATE["model"]})


def test_what_does_not_fit_is_told_and_nothing_changed(storage: StorageBackend) -> None:
    mine = {"model": {"weight": torch.zeros(3, 4), "bias": torch.zeros(4), "extra": torch.zeros(1)}}
    with CheckpointManager(storage) as manager:
        manager.save({"model": STATE["model"], "other": torch.ones(1)}, step=1)
        with pytest.raises(CheckpointMismatch) as raised:
            manager.load(into=mine)
        told = str(raised.value)
        assert "1 missing: model/extra" in told
        assert "1 unexpected: other" in told
        assert "model/bias (bfloat16[3] in the checkpoint, float32[4] here)" in told
        assert bool((mine["model"]["weight"] == 0).all())
        manager.load(into=mine, strict=False)
        assert torch.equal(mine["model"]["weight"], STATE["model"]["weight"])  # type: ignore[index]
        assert manager.last_load.missing == ["model/extra"]


def test_plain_values_are_given_back_beside_arrays_that_are_filled(storage: StorageBackend) -> None:
    state = {"a": torch.ones(2), "data": b"xyz", "scalar": np.float64(2.0), "empty": {}, "none": []}
    with CheckpointManager(storage) as manager:
        manager.save(state, step=1)
        mine = {"a": torch.zeros(2), "data": b"of another length", "scalar": np.float64(3.0)}
        assert_same(manager.load(into=mine), state)
        assert torch.equal(mine["a"], torch.ones(2))  # type: ignore[arg-type]


def test_two_arrays_are_not_loaded_into_one(storage: StorageBackend) -> None:
    mine = torch.zeros(2)
    with CheckpointManager(storage) as manager:
        manager.save({"a": torch.ones(2), "b": torch.full((2,), 2.0)}, step=1)
        with pytest.raises(CheckpointMismatch, match=r"b \(one array with a here, two in the checkpoint\)"):
            manager.load(into={"a": mine, "b": mine})
        assert torch.equal(mine, torch.zeros(2))
        manager.load(into={"a": mine, "b": mine}, strict=False)
        assert torch.equal(mine, torch.ones(2))
        one = torch.ones(2)
        manager.save({"a": one, "b": one}, step=2)
        manager.load(into={"a": mine, "b": mine})
        assert torch.equal(mine, one)


def test_names_can_be_changed(storage: StorageBackend) -> None:
    mine = {"net": {"weight": torch.zeros(3, 4), "bias": torch.zeros(3).bfloat16()}}
    with CheckpointManager(storage) as manager:
        manager.save({"model": STATE["model"]}, step=1)
        manager.load(into=mine, rename={"model/": "net/"})
        assert torch.equal(mine["net"]["weight"], STATE["model"]["weight"])  # type: ignore[index]
        manager.load(into=mine, rename=lambda name: name.replace("model", "net"))


# -- lineages ----------------------------------------------------------------------------------------------------------


def test_going_back_leaves_what_came_after_behind(storage: StorageBackend) -> None:
    with CheckpointManager(storage) as manager:
        for step in (10, 20, 30):
            manager.save({"run": 1, "step": step}, step=step)
    with CheckpointManager(storage) as manager:
        manager.load(10)
        manager.save({"run": 2, "step": 20}, step=20)
        assert manager.list_checkpoints() == [10, 20]
        assert manager.load()["run"] == 2
        assert manager.load(30)["run"] == 1  # still there for whoever asks for it
        manager.load(20)
        manager.save({"run": 2, "step": 25}, step=25)
        manager.save({"run": 2, "step": 40}, step=40)
        assert manager.list_checkpoints() == [10, 20, 25, 40]


def test_going_back_and_on_beyond_leaves_what_lies_between_behind(storage: StorageBackend) -> None:
    with CheckpointManager(storage) as manager:
        for step in (10, 20):
            manager.save({"step": step}, step=step)
        manager.load(10)
        manager.save({"step": 30}, step=30)
        assert manager.list_checkpoints() == [10, 30]


def test_a_run_that_starts_over_is_not_shadowed(storage: StorageBackend) -> None:
    for run in (1, 2, 3):
        with CheckpointManager(storage) as manager:
            for step in (0, 5):
                manager.save({"run": run}, step=step)
            assert manager.list_checkpoints() == [0, 5]
            assert manager.load()["run"] == run


def test_going_on_without_loading_stays_on_the_line(storage: StorageBackend) -> None:
    for first in (0, 3, 6):
        with CheckpointManager(storage) as manager:
            for step in range(first, first + 3):
                manager.save({}, step=step)
    with CheckpointReader(storage) as reader:
        assert reader.list_checkpoints() == list(range(9))


def test_a_step_that_is_saved_again_is_the_later_one(storage: StorageBackend) -> None:
    with CheckpointManager(storage) as manager:
        manager.save({"a": 1}, step=1)
        manager.save({"a": 2}, step=1)  # going back to before step 1, as it were
        assert manager.load() == {"a": 2}


def test_a_process_that_was_replaced_saves_no_more(storage: StorageBackend) -> None:
    with CheckpointManager(storage) as old, CheckpointManager(storage) as new:
        old.save({"who": "old"}, step=1)
        new.save({"who": "new"}, step=2)
        with pytest.raises(Superseded, match="another process writes the checkpoints"):
            old.save({"who": "old"}, step=3)
        assert new.list_checkpoints() == [1, 2]


# -- failures ----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_saved_is_refused_before_anything_is_written(storage: StorageBackend) -> None:
    with CheckpointManager(storage) as manager:
        bad: dict[str, Any] = {"model": STATE["model"], "hook": lambda: 1}
        for call in (manager.check, lambda state: manager.save(state, step=1)):
            with pytest.raises(Unstorable, match="hook"):
                call(bad)
        assert keys_in(storage) == []
        manager.check(STATE)


def test_a_failed_save_is_never_silent() -> None:
    faulty = FaultyStorage(MemoryStorage())
    manager = CheckpointManager(faulty)
    faulty.faults = Faults(before=1.0, only=frozenset({"put_if_absent"}))
    for step in (1, 2, 3):
        handle = manager.save_async(STATE, step=step)
        with pytest.raises(StorageUnavailable, match="on purpose"):
            manager.wait()
        manager.wait()  # once is enough
        with pytest.raises(StorageUnavailable, match="on purpose"):
            handle.result()
        assert handle.status == "failed"
    with pytest.raises(SaveFailed, match="3 saves in a row"):
        manager.save_async(STATE, step=4)
    assert manager.list_checkpoints() == []
    manager.close()


def test_a_save_that_succeeds_forgives() -> None:
    faulty = FaultyStorage(MemoryStorage())
    with CheckpointManager(faulty) as manager:
        for step in range(1, 10):
            faulty.faults = Faults(before=1.0 if step % 3 else 0.0, only=frozenset({"put_if_absent"}))
            handle = manager.save_async(STATE, step=step)
            if step % 3:
                with pytest.raises(StorageUnavailable):
                    handle.result()
            else:
                handle.result()
        assert manager.list_checkpoints() == [3, 6, 9]


class Blocked:
    """A storage whose streams stand still until they are let go."""

    def __init__(self) -> None:
        self.storage = FaultyStorage(MemoryStorage())
        self.storage.fail("put_if_absent", 1, "stuck")

    def go_on(self) -> None:
        self.storage.release()


def test_a_save_waits_for_the_one_before() -> None:
    blocked = Blocked()
    with CheckpointManager(blocked.storage) as manager:
        first = manager.save_async(STATE, step=1)
        threading.Timer(0.3, blocked.go_on).start()
        second = manager.save_async(STATE, step=2)
        assert first.done()
        assert second.result().waited_seconds > 0.2
        assert second.report.notes == ["waited for step 1"]
        assert manager.list_checkpoints() == [1, 2]


def test_a_save_can_be_skipped_while_another_runs() -> None:
    blocked = Blocked()
    with CheckpointManager(blocked.storage, config=CheckpointManagerConfig(when_busy="skip")) as manager:
        first = manager.save_async(STATE, step=1)
        second = manager.save_async(STATE, step=2)
        assert second.status == "skipped"
        with pytest.raises(SaveSkipped, match="step 2 was not saved: step 1 is still being written"):
            second.result()
        assert second.skipped == "step 1 is still being written"
        blocked.go_on()
        first.result()
        assert manager.list_checkpoints() == [1]


def test_a_save_can_take_the_place_of_another() -> None:
    blocked = Blocked()
    with CheckpointManager(blocked.storage, config=CheckpointManagerConfig(when_busy="replace")) as manager:
        first = manager.save_async(STATE, step=1)
        while not blocked.storage.made["put_if_absent"]:
            pass
        second = manager.save_async(STATE, step=2)
        second.result()
        with pytest.raises(SaveReplaced):
            first.result()
        assert manager.list_checkpoints() == [2]


def test_a_save_whose_handle_is_dropped_is_finished_before_python_ends(tmp_path: Path) -> None:
    program = (
        "import sys, numpy as np\n"
        "from strata.checkpoint import CheckpointManager\n"
        "CheckpointManager(sys.argv[1]).save_async({'a': np.ones(5_000_000)}, step=3)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
    with CheckpointReader(tmp_path) as reader:
        assert reader.list_checkpoints() == [3]


CHILD = """
import asyncio, multiprocessing, sys
from contextlib import asynccontextmanager
from strata import CheckpointManager, LocalStorage

class Slow(LocalStorage):
    @asynccontextmanager
    async def open_writer(self, path, **how):
        async with super().open_writer(path, **how) as writer:
            await asyncio.sleep(0.5)
            yield writer

def train(folder):
    CheckpointManager(Slow(folder)).save_async({"a": 1}, step=3)

if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[2]).Process(target=train, args=sys.argv[1:2])
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fork", "forkserver", "spawn"])
def test_a_save_whose_handle_is_dropped_is_finished_before_a_child_of_pythons_own_ends(
    tmp_path: Path, how: str
) -> None:
    """Which may end without what Python does at its end."""
    program = tmp_path / "program.py"
    program.write_text(CHILD)
    subprocess.run([sys.executable, program, tmp_path / "saved", how], check=True, timeout=60)
    with CheckpointReader(tmp_path / "saved") as reader:
        assert reader.list_checkpoints() == [3]


SLOW_TO_FREE = """
import atexit, sys, time
freed = []
atexit.register(lambda: print("freed" if freed else "in use"))

import numpy as np
from strata.checkpoint import CheckpointManager

class Slow:
    def __init__(self):
        self.array = np.ones(5)
        self.__array_interface__ = self.array.__array_interface__

    def __del__(self):
        time.sleep(0.3)
        freed.append(self)

class State:
    def strata_state(self):
        return {"a": np.asarray(Slow())}

CheckpointManager(sys.argv[1], job_id="alone").save(State(), step=3)
"""


def test_python_does_not_end_while_the_loop_still_holds_arrays(tmp_path: Path) -> None:
    """Torch's would be freed by a thread that Python has given up, which ends in an abort."""
    done = subprocess.run(
        [sys.executable, "-c", SLOW_TO_FREE, str(tmp_path)], check=False, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "freed", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_save_for_its_parent(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save({"a": 1}, step=1)
        child = os.fork()
        if not child:
            try:
                loaded = manager.load() == {"a": 1}
                try:
                    manager.save({"a": 2}, step=2)
                except InvalidInput:
                    os._exit(0 if loaded else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert manager.list_checkpoints() == [1]


# -- keeping and deleting ----------------------------------------------------------------------------------------------


def test_only_so_many_are_kept(storage: StorageBackend) -> None:
    with CheckpointManager(storage, keep_count=2) as manager:
        for step in range(6):
            manager.save({"t": torch.ones(1)}, step=step)
            if step == 1:
                manager.pin(1)
        manager.wait()
        assert manager.list_checkpoints() == [1, 4, 5]
        folders = {key.split("/")[2] for key in keys_in(storage)} - {"lineage.json", "pins"}
        assert folders == {"step_1", "step_4", "step_5"}
        manager.unpin(1)
        manager.save({"t": torch.ones(1)}, step=6)
        manager.wait()
        assert manager.list_checkpoints() == [5, 6]


def test_the_best_and_every_so_many_are_kept(storage: StorageBackend) -> None:
    rule = Retention(keep_count=1, keep_every=4, best_metric="loss")
    with CheckpointManager(storage, config=CheckpointManagerConfig(retention=rule)) as manager:
        for step, loss in enumerate([5.0, 4.0, 1.0, 3.0, 2.0, float("nan"), 2.5]):
            manager.save({}, step=step, metrics={"loss": loss})
        manager.wait()
        assert manager.list_checkpoints() == [0, 2, 4, 6]


def test_a_checkpoint_can_be_deleted(storage: StorageBackend) -> None:
    with CheckpointManager(storage) as manager:
        manager.save(STATE, step=1)
        manager.save(STATE, step=2)
        manager.delete(1)
        assert manager.list_checkpoints() == [2]
        assert not [key for key in keys_in(storage) if "step_1/" in key]
        with pytest.raises(NotFound):
            manager.delete(1)


def test_nothing_is_deleted_from_under_a_reader() -> None:
    inner = MemoryStorage()
    slow = FaultyStorage(inner)
    with CheckpointManager(inner, keep_count=1) as manager, CheckpointReader(slow) as reader:
        manager.save(STATE, step=1)
        slow.fail("read_into", 1, "stuck")
        found: list[Any] = []
        reading = threading.Thread(target=lambda: found.append(reader.load()))
        reading.start()
        while not slow.made["read_into"]:
            pass
        manager.save({}, step=2)
        manager.wait()
        assert manager.list_checkpoints() == [2]
        slow.release()
        reading.join()
        assert_same(found[0], STATE)
        manager.save({}, step=3)
        manager.wait()
        assert {key.split("/")[2] for key in keys_in(inner)} == {"lineage.json", "step_3"}


def test_a_mark_of_a_dead_reader_runs_out() -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage, keep_count=1) as manager:
        manager.save({}, step=1)
        blocking = BlockingStorage(storage)
        for name, until in (("dead", "5"), ("of-a-clock-gone-mad", "1e300")):
            mark = f'{{"folders":["step_1"],"until_unix_seconds":{until}}}'.encode()
            blocking.write(f"default/checkpoints/readers/{name}.json", mark)
        blocking.write("default/checkpoints/readers/junk.json", b"\xff")
        manager.save({}, step=2)
        manager.wait()
        assert {key.split("/")[2] for key in keys_in(storage)} == {"lineage.json", "step_2"}


def test_whoever_may_not_write_can_read() -> None:
    faulty = FaultyStorage(MemoryStorage())
    with CheckpointManager(faulty) as manager:
        manager.save(STATE, step=1)
        faulty.faults = Faults(before=1.0, only=frozenset({"write"}))
        assert_same(manager.load(), STATE)


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("every", [13, pytest.param(1, marks=pytest.mark.long)])
def test_no_flipped_bit_goes_unnoticed(tmp_path: Path, every: int) -> None:
    """A bit of each byte of small files, or of every so-maniest."""
    state = {"w": torch.arange(300.0), "b": torch.ones(2).bfloat16(), "n": 3, "raw": b"bytes"}
    with CheckpointManager(tmp_path) as manager:
        manager.save({"good": 1}, step=1)
        manager.save(state, step=2)
    folder = tmp_path / "default/checkpoints/step_2"
    for file in sorted(folder.iterdir()):
        whole = file.read_bytes()
        for place in range(0, len(whole), every if len(whole) < 5000 else 97 * every):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
            with CheckpointReader(tmp_path) as reader:
                try:
                    found = reader.load(2)
                except (CheckpointDamaged, NotFound, InvalidInput):
                    pass
                else:
                    assert_same(found, state)
                    with pytest.raises(CheckpointDamaged):
                        reader.verify(2)
        for short in (0, len(whole) // 2, len(whole) - 1):
            file.write_bytes(whole[:short])
            with CheckpointReader(tmp_path) as reader, pytest.raises((CheckpointDamaged, NotFound)):
                reader.load(2)
        file.unlink()
        with CheckpointReader(tmp_path) as reader:
            with pytest.raises((CheckpointDamaged, NotFound)):
                reader.load(2)
            assert reader.load(1) == {"good": 1}
        file.write_bytes(whole)
    with CheckpointReader(tmp_path) as reader:
        assert_same(reader.load(), state)
        assert reader.verify() > 1200


def test_damage_is_named(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save({"model": {"weight": torch.zeros(1000)}}, step=1)
        (file,) = tmp_path.rglob("*.safetensors")
        data = bytearray(file.read_bytes())
        data[-5] ^= 1
        file.write_bytes(data)
        with pytest.raises(
            CheckpointDamaged, match=r"part-0-.*\.safetensors is damaged: tensor 'model/weight', 4,000 bytes"
        ):
            manager.load()


def test_the_same_step_by_another_process_is_a_conflict(storage: StorageBackend) -> None:
    """A zombie that passed its last check before it was replaced."""
    with CheckpointManager(storage) as manager:
        manager.save({}, step=1)
        blocking = BlockingStorage(storage)
        original = storage.put_if_absent

        async def late(path: str, data: Any) -> None:
            if path.endswith("step_2/metadata.json"):
                others = structs.replace(decode_metadata(bytes(data), path), attempt="1-another")
                await original(path, encode_metadata(others))
            await original(path, data)

        storage.put_if_absent = late  # type: ignore[method-assign]
        with pytest.raises(Conflict, match="step 2 is committed already"):
            manager.save({}, step=2)
        assert blocking.exists("default/checkpoints/step_2/metadata.json")


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"when_busy": "panic"}, 'must be "wait", "skip" or "replace"'),
        ({"memory_bytes": 5}, "at least"),
        ({"max_failed_saves": 0}, "at least 1"),
        ({"retention": {"keep_count": 3}}, "retention must be Retention"),
        ({"incremental": "no"}, "incremental must be True or False"),
        ({"stuck_seconds": "5"}, "stuck_seconds must be a number"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        CheckpointManagerConfig(**settings)


def test_arguments_are_checked(storage: StorageBackend) -> None:
    with CheckpointManager(storage) as manager:
        for arguments in (
            {"step": -1},
            {"step": 1.5},
            {"step": 1, "epoch": -1},
            {"step": 1, "metrics": {"loss": "low"}},
        ):
            with pytest.raises(InvalidInput):
                manager.save(b"", **arguments)
        with pytest.raises(InvalidInput, match="is not a valid id"):
            CheckpointManager(storage, job_id="../other")
        assert keys_in(storage) == []


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (lambda m: m.save({}, step=2, metrics=[1]), "metrics must be a dict"),
        (lambda m: m.save({}, step=2, metrics={"l": 10**400}), "must be a number"),
        (lambda m: m.save({}, step=2, metrics={"a\nb": 1}), "printable"),
        (lambda m: m.load("1"), "step must be an integer"),
        (lambda m: m.load(True), "step must be an integer"),
        (lambda m: m.load(-1), "step must be at least 0"),
        (lambda m: m.delete("1"), "step must be an integer"),
        (lambda m: m.load(keys=5), "keys are patterns"),
        (lambda m: m.load(keys=[5]), "keys are patterns"),
        (lambda m: m.load(keys=[]), "keys is empty"),
        (lambda m: m.load(like={"a": torch.ones(1)}, rename=5), "rename is a dict"),
        (lambda m: m.load(like={"a": torch.ones(1)}, rename=lambda name: None), "gave None for 'a'"),
        (lambda m: m.listen(None), "listener must be a function"),
        (lambda m: CheckpointManager(MemoryStorage(), rank=1), "rank 1 does not exist"),
        (lambda m: CheckpointManager(MemoryStorage(), world_size=2), "need a name for their run"),
    ],
)
def test_wrong_arguments_are_told(use: Callable[[CheckpointManager], object], why: str) -> None:
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save({"a": torch.ones(1)}, step=1)
        with pytest.raises(InvalidInput, match=why):
            use(manager)


def test_numbers_of_numpy_are_steps_and_metrics(storage: StorageBackend) -> None:
    with CheckpointManager(storage) as manager:
        manager.save({}, step=np.int64(4), epoch=np.int32(2), metrics={"val/loss": np.float32(0.5), "bad": math.nan})  # type: ignore[arg-type, dict-item]
        assert manager.load(np.int64(4)) == {}  # type: ignore[arg-type]
        told = manager.describe()
        assert (told.step, told.epoch, told.metrics["val/loss"]) == (4, 2, 0.5)
        assert math.isnan(float(told.metrics["bad"]))
        assert isinstance(told.metrics["bad"], float)


def test_what_is_pinned_is_not_deleted(storage: StorageBackend) -> None:
    with CheckpointManager(storage) as manager:
        manager.save({}, step=5)
        manager.pin(5)
        with pytest.raises(Refused, match=r"step 5 in .* is pinned: unpin it first"):
            manager.delete(5)
        manager.unpin(5)
        manager.delete(5)
        assert manager.list_checkpoints() == []


def test_a_closed_manager_says_so(storage: StorageBackend) -> None:
    manager = CheckpointManager(storage)
    manager.close()
    manager.close()
    for use in (lambda: manager.save({}, 1), lambda: manager.save_async({}, 1), lambda: manager.prepare({})):
        with pytest.raises(InvalidInput, match="is closed: make another"):
            use()


def test_the_environment_names_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_JOB_ID", "from-environment")
    monkeypatch.setenv("LOCAL_STORAGE_PATH", str(tmp_path))
    with CheckpointManager() as manager:
        manager.save(b"x", step=1)
    assert (tmp_path / "from-environment/checkpoints/step_1/model.bin").read_bytes() == b"x"


def test_the_budget_is_said() -> None:
    with CheckpointManager(MemoryStorage()) as manager:
        assert "40% of the" in manager.budget.reason


def test_who_was_superseded_does_not_take_over_again(storage: StorageBackend) -> None:
    first, second = CheckpointManager(storage), CheckpointManager(storage)
    first.save({"w": 1}, step=1)
    second.save({"w": 2}, step=2)
    for step in (3, 1, 3):
        with pytest.raises(Superseded):
            first.save({"w": 3}, step=step)
    second.save({"w": 4}, step=3)
    assert second.list_checkpoints() == [1, 2, 3]
    first.close()
    second.close()


def test_a_failure_that_the_copy_raised_is_not_raised_again() -> None:
    faulty = FaultyStorage(MemoryStorage(), faults=Faults(before=1.0, only=frozenset({"writer.write"})))
    manager = CheckpointManager(faulty, config=CheckpointManagerConfig(memory_bytes=16 << 20))
    with pytest.raises(StorageUnavailable):
        manager.save({"w": np.zeros(40 << 20, np.uint8)}, step=1)
    manager.wait()
    manager.close()


def test_other_jobs_are_told_where_there_is_nothing_of_this_one(storage: StorageBackend) -> None:
    with CheckpointManager(storage, job_id="gpt") as manager:
        manager.save({}, step=1)
    with pytest.raises(NotFound, match="there are some of gpt: say which with job_id"):
        CheckpointReader(storage).load()


@pytest.mark.filterwarnings("error")
def test_a_listener_that_asks_the_manager_is_told_that_it_cannot(caplog: pytest.LogCaptureFixture) -> None:
    with CheckpointManager(MemoryStorage()) as manager:
        manager.listen(lambda event: manager.latest_step())  # type: ignore[arg-type]
        manager.save({}, step=1)
        gc.collect()
    assert "on its own loop thread" in caplog.text
