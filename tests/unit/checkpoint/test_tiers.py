"""A local disk before another storage: saved here, uploaded behind, loaded from the nearest."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from strata import background
from strata.checkpoint import CheckpointManager, CheckpointManagerConfig, CheckpointReader
from strata.checkpoint.copies import View
from strata.checkpoint.manifest import CHUNK_BYTES
from strata.checkpoint.tiers import Tiers
from strata.core.settings import Retention
from strata.errors import CheckpointDamaged, InvalidInput, NotFound, SaveReplaced, StorageUnavailable
from strata.storage import BlockingStorage, LocalStorage
from strata.testing.faulty import Faults
from strata.testing.manager_seam import ManagerSeam, Point
from strata.torch import TrainState
from tests.unit.checkpoint.states import assert_same
from tests.unit.checkpoint.tiered import DOWN, UP, Pair, damage, paths_in, steps_in, where

STATE = {"w": torch.arange(1000.0), "b": torch.ones(3).bfloat16(), "step": 7}
STUCK = Faults(stuck=1.0, only=frozenset({"writer.write"}))


# -- saving ------------------------------------------------------------------------------------------------------------


def test_a_save_is_committed_on_the_local_disk_and_goes_on_from_there() -> None:
    pair = Pair()
    with pair.manager() as manager:
        handle = manager.save_async(STATE, step=5, epoch=2, metrics={"loss": 0.5})
        report = handle.wait_uploaded()
        assert 0 < report.durable_seconds <= report.uploaded_seconds
        assert where(manager) == {5: "both"}
    files = {path for path in paths_in(pair.near) if path.startswith("step_5/")}
    assert len(files) == 3
    assert {path for path in paths_in(pair.far) if path.startswith("step_5/")} == files
    for path in files:
        key = f"default/checkpoints/{path}"
        assert BlockingStorage(pair.near.inner).read(key) == BlockingStorage(pair.far.inner).read(key)
    with CheckpointReader(pair.far) as reader:
        assert reader.describe().metrics == {"loss": 0.5}
        assert_same(reader.load(), STATE)


def test_nobody_waits_for_the_upload_unless_asked() -> None:
    pair = Pair()
    with pair.manager() as manager:
        pair.far.faults = STUCK
        manager.save(STATE, step=1)
        manager.save(STATE, step=2)
        assert manager.latest_step() == 2
        assert steps_in(pair.far) == []
        handle = manager.saves[0]
        with pytest.raises(TimeoutError):
            handle.wait_uploaded(timeout=0.05)
        with pytest.raises(TimeoutError, match="2 checkpoints are not in memory://far"):
            manager.wait(timeout=0.05)
        assert where(manager) == {1: "local uploading", 2: "local waiting"}
        assert manager.tiers().behind == 2
        pair.far.release()
        handle.wait_uploaded()
        manager.wait()
        assert where(manager) == {1: "both", 2: "both"}
        assert manager.tiers().behind == 0


def test_how_far_an_upload_is_can_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.checkpoint.uploading.STRETCH_BYTES", CHUNK_BYTES)
    pair = Pair()
    with pair.manager() as manager:
        pair.far.fail("writer.write", 3, "stuck")
        manager.save({"w": np.zeros(3 * CHUNK_BYTES, np.uint8)}, step=1)
        while pair.far.stuck < 1:
            manager.latest_step()
        (standing,) = manager.tiers().steps
        assert (standing.upload, standing.uploaded_bytes) == ("uploading", CHUNK_BYTES + 4096)
        assert standing.upload_bytes == 3 * CHUNK_BYTES + 4096
        pair.far.release()


@pytest.mark.parametrize("size", [0, 5, 5_000_000])
def test_bytes_go_up_as_they_are(size: int) -> None:
    pair, state = Pair(), np.random.default_rng(0).bytes(size)
    with pair.manager() as manager:
        manager.save(state, step=1)
        manager.wait()
        assert manager.load() == state
    assert BlockingStorage(pair.far).read("default/checkpoints/step_1/model.bin") == state


def test_on_real_disks(tmp_path: Path) -> None:
    state = {f"t{n}": torch.randn(1 << 20) for n in range(12)} | {"odd": torch.randn(2000, 1001).t()}
    with CheckpointManager(tmp_path / "far", local=tmp_path / "near", keep_count=2) as manager:
        for step in (1, 2, 3):
            manager.save(state | {"step": step}, step=step)
        manager.wait()
        assert where(manager) == {2: "both", 3: "both"}
        assert manager.verify() > 2 * 48 << 20
    (tmp_path / "near" / "default").rename(tmp_path / "gone")
    with CheckpointManager(str(tmp_path / "far"), local=str(tmp_path / "near")) as manager:
        assert_same(manager.load(), state | {"step": 3})


def test_incremental_checkpoints_bring_what_they_refer_to() -> None:
    pair, state = Pair(), {"frozen": torch.randn(1000), "moving": torch.zeros(10)}
    with pair.manager(incremental=True, keep_count=1, local_keep=1) as manager:
        for step in range(1, 5):
            state["moving"] += 1
            report = manager.save(state, step=step)
            manager.wait()
            assert (report.written_bytes < 100) == (step > 1)
        assert steps_in(pair.near) == steps_in(pair.far) == [4]
    with CheckpointReader(pair.far) as reader:
        reader.verify()
        assert_same(reader.load(), state)


def test_what_is_there_already_is_not_sent_again() -> None:
    pair = Pair()
    with pair.manager(incremental=True) as manager:
        manager.save({"frozen": torch.randn(1000), "moving": torch.zeros(1)}, step=1)
        manager.wait()
        sent = [call.path for call in pair.far.calls if call.operation == "writer.commit"]
        manager.save({"frozen": manager.load()["frozen"], "moving": torch.ones(1)}, step=2)
        manager.wait()
        more = [call.path for call in pair.far.calls if call.operation == "writer.commit"][len(sent) :]
    assert [path.split("/")[2] for path in more] == ["step_2"]


# -- which ones --------------------------------------------------------------------------------------------------------


def test_the_local_disk_keeps_a_few_and_the_storage_behind_what_retention_says() -> None:
    pair = Pair()
    with pair.manager(retention=Retention(keep_count=3, keep_every=4), local_keep=1) as manager:
        for step in range(1, 9):
            manager.save({"step": step}, step=step)
            manager.wait()
        assert where(manager) == {4: "remote", 6: "remote", 7: "remote", 8: "both"}
    assert steps_in(pair.near) == [8]


def save_during_an_outage(pair: Pair, manager: CheckpointManager) -> None:
    """Step 0 before it, and four more."""
    manager.save({"step": 0}, step=0)
    manager.wait()
    pair.far.faults = DOWN
    for step in (1, 2, 3, 4):
        manager.save({"step": step}, step=step)


def test_what_is_not_uploaded_stays_on_the_local_disk() -> None:
    pair = Pair()
    with pair.manager(local_keep=1) as manager:
        save_during_an_outage(pair, manager)
        assert steps_in(pair.near) == [1, 2, 3, 4]
        pair.far.faults = UP
        manager.wait()
        assert steps_in(pair.near) == [4]
        assert steps_in(pair.far) == [0, 1, 2, 3, 4]


def test_after_an_outage_the_newest_goes_first_and_what_retention_would_delete_does_not_go() -> None:
    pair = Pair()
    with pair.manager(keep_count=2) as manager:
        save_during_an_outage(pair, manager)
        pair.far.faults = UP
        manager.wait()
        commits = [call.path for call in pair.far.calls if call.path.endswith("metadata.json")]
        commits = [path.split("/")[2] for path in commits if path]
        assert list(dict.fromkeys(commits))[-2:] == ["step_4", "step_3"]
        with pytest.raises(SaveReplaced, match="step 1 is not uploaded"):
            manager.saves[1].wait_uploaded()
        assert steps_in(pair.near) == steps_in(pair.far) == [3, 4]
        assert manager.tiers().steps[-1].problem == ""


def test_only_the_newest_if_so_configured() -> None:
    pair = Pair()
    with pair.manager(upload="newest", local_keep=1) as manager:
        pair.far.faults = STUCK
        for step in (1, 2, 3, 4):
            manager.save({"w": torch.ones(1), "step": step}, step=step)
        pair.far.release()
        manager.wait()
        assert where(manager) == {1: "remote", 4: "both"} or where(manager) == {4: "both"}
    assert steps_in(pair.near) == [4]


def test_a_long_way_behind_is_said(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair()
    with pair.manager() as manager:
        manager.save({"step": 0}, step=0)
        manager.wait()
        pair.far.faults = DOWN
        reports = [manager.save({"step": step}, step=step) for step in range(1, 5)]
        assert "3 checkpoints are on the local disk alone" in caplog.text
        assert "3 checkpoints are on the local disk alone" in reports[-1].notes[0]
        assert "failed on purpose" in caplog.text
        standing = manager.tiers()
        assert standing.failed_uploads > 0
        assert "failed on purpose" in standing.problem
        pair.far.faults = UP


# -- loading -----------------------------------------------------------------------------------------------------------


def test_what_is_on_the_local_disk_is_loaded_from_there() -> None:
    pair = Pair()
    with pair.manager() as manager:
        manager.save(STATE, step=1)
        manager.wait()
        count = len(pair.far.calls)
        assert_same(manager.load(), STATE)
        assert not [call for call in pair.far.calls[count:] if "part-" in call.path]


def test_a_machine_with_an_empty_disk_loads_from_behind() -> None:
    pair = Pair()
    with pair.manager() as manager:
        manager.save(STATE, step=1)
    with pair.elsewhere().manager() as manager:
        assert manager.list_checkpoints() == [1]
        assert_same(manager.load(), STATE)
        manager.save(STATE, step=2)
        manager.wait()
        assert where(manager) == {1: "remote", 2: "both"}


@pytest.mark.parametrize("broken", ["part-0.safetensors", "part-0.json", "metadata.json"])
@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_damaged_copy_is_loaded_from_behind_and_removed(
    broken: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Pair()
    with pair.manager() as manager:
        manager.save({"step": 0}, step=0)
        manager.save(STATE, step=1)
    first, _, last = broken.partition(".")
    (path,) = [p for p in paths_in(pair.near) if p.startswith(f"step_1/{first}") and p.endswith(last)]
    if how == "damaged":
        damage(pair.near, path, 10 if last == "json" else -1)
    else:
        BlockingStorage(pair.near).delete(f"default/checkpoints/{path}")
    with pair.manager() as manager:
        into = {"w": torch.zeros(1000), "b": torch.zeros(3).bfloat16(), "step": 0}
        assert_same(manager.load(into=into), STATE)
        assert torch.equal(into["w"], STATE["w"])  # type: ignore[arg-type]
        assert_same(manager.load(), STATE)
        if (broken, how) != ("metadata.json", "missing"):
            assert path in caplog.text
        assert where(manager)[1] == "remote"
        manager.save(STATE, step=2)
        manager.wait()
        assert not [each for each in paths_in(pair.near) if each.startswith("step_1/")]
        assert where(manager)[2] == "both"


@pytest.mark.parametrize("broken", ["nothing", ".safetensors", ".json"])
def test_an_object_is_loaded_into_from_the_nearest(broken: str, caplog: pytest.LogCaptureFixture) -> None:
    pair, model = Pair(), torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.Linear(20, 20))
    then = {name: value.clone() for name, value in model.state_dict().items()}
    with pair.manager() as manager:
        manager.save(TrainState(model), step=1)
    files = [path for path in paths_in(pair.near) if path.startswith("step_1/part") and path.endswith(broken)]
    for path in files:
        damage(pair.near, path, 5000 if broken == ".safetensors" else -1)
    other = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.Linear(20, 10))
    with pair.manager() as manager:
        manager.load(into=TrainState(other), strict=False)
        assert where(manager) == {1: "remote" if files else "both"}
        assert len(manager.last_load.mismatched) == 2
    assert_same(dict(other[0].state_dict()), {"weight": then["0.weight"], "bias": then["0.bias"]})
    assert all(path in caplog.text for path in files)


def test_a_part_of_a_tensor_is_loaded_from_the_nearest() -> None:
    pair = Pair()
    with pair.manager() as manager:
        manager.save(STATE, step=1)
        manager.wait()
        damage(pair.near, next(path for path in paths_in(pair.near) if path.endswith(".safetensors")))
        assert manager.load_slice("w", np.s_[10:12]).tolist() == [10.0, 11.0]
        assert manager.load_slice("b").tolist() == [1.0, 1.0, 1.0]
        assert where(manager) == {1: "remote"}


def test_a_reader_reads_from_the_nearest_and_changes_nothing() -> None:
    pair = Pair()
    with pair.manager() as manager:
        manager.save(STATE, step=1)
        manager.wait()
        pair.far.faults = Faults(before=1.0, only=frozenset({"writer.commit"}))
        manager.save(STATE, step=2)
        with pytest.raises(StorageUnavailable):
            manager.close()
    pair.far.faults = UP
    damage(pair.near, next(path for path in paths_in(pair.near) if path.startswith("step_1/part") and "saf" in path))
    before = paths_in(pair.near), paths_in(pair.far)
    with CheckpointReader(pair.far, local=pair.near) as reader:
        assert reader.list_checkpoints() == [1, 2]
        assert_same(reader.load(1), STATE)
        assert_same(reader.load(2), STATE)
        assert reader.describe().step == 2
        standing = [(each.step, each.local, each.remote, each.upload) for each in reader.tiers().steps]
        assert standing == [(1, True, True, ""), (2, True, False, "waiting")]
    assert (paths_in(pair.near), paths_in(pair.far)) == before


def test_an_explicit_step_never_falls_back_to_another() -> None:
    pair = Pair()
    with pair.manager() as manager:
        manager.save(STATE, step=1)
        with pytest.raises(NotFound, match=r"no committed checkpoint of step 2 in memory://far.*: 1"):
            manager.load(2)
    with pair.elsewhere("third").manager(), Pair().manager() as manager, pytest.raises(NotFound, match="nor in"):
        manager.load()


def test_each_copy_is_verified() -> None:
    pair = Pair()
    with pair.manager() as manager:
        manager.save(STATE, step=1)
        manager.wait()
        size = manager.verify()
        with CheckpointReader(pair.far) as reader:
            assert size == 2 * reader.verify()
        path = next(path for path in paths_in(pair.far) if "safetensors" in path)
        damage(pair.far, path)
        with pytest.raises(CheckpointDamaged, match=r"memory://far.*The copy in memory://near.* is whole"):
            manager.verify()
        assert_same(manager.load(), STATE)
        damage(pair.near, path)
        with pytest.raises(CheckpointDamaged, match=r"memory://near.*memory://far"):
            manager.verify()
        with pytest.raises(CheckpointDamaged):
            manager.load()


# -- damage before the upload ------------------------------------------------------------------------------------------


def test_damage_of_the_only_copy_is_not_passed_over_in_silence() -> None:
    pair = Pair()
    with pair.manager() as manager:
        manager.save(STATE, step=1)
    manager = pair.manager()
    manager.load()
    pair.far.faults = DOWN
    manager.save({"step": 2}, step=2)
    (path,) = [each for each in paths_in(pair.near) if each.startswith("step_2") and each.endswith("metadata.json")]
    damage(pair.near, path, 10)
    with pytest.raises(CheckpointDamaged, match="the latest checkpoint, of step 2, cannot be read"):
        manager.load()
    pair.far.faults = UP
    with pytest.raises(CheckpointDamaged, match=r"of step 2, cannot be read.*\(there are: 1\), or delete step 2"):
        manager.load()
    with pytest.raises(CheckpointDamaged, match=r"memory://near.*step_2.*/metadata.json"):
        manager.load(2)
    assert_same(manager.load(1), STATE)
    manager.delete(2)
    assert_same(manager.load(), STATE)
    manager.close()


def test_damage_behind_is_told_and_can_be_deleted() -> None:
    pair = Pair()
    with pair.manager() as manager:
        manager.save(STATE, step=1)
        manager.save({"step": 2}, step=2)
    damage(pair.far, "step_2/metadata.json", 10)
    with pair.elsewhere().manager() as other:
        with pytest.raises(CheckpointDamaged, match="the latest checkpoint, of step 2, cannot be read"):
            other.latest_step()
        with pytest.raises(CheckpointDamaged, match=r"memory://far.*step_2/metadata.json"):
            other.load(2)
        other.delete(2)
        assert_same(other.load(), STATE)


@pytest.mark.parametrize("at", [0, 5000, -1], ids=["header", "first", "last"])
def test_damage_on_the_local_disk_is_never_uploaded(at: int, caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair()
    manager = pair.manager()
    manager.save({"w": torch.zeros(1)}, step=0)
    manager.wait()
    pair.far.faults = DOWN
    manager.save(STATE, step=1)
    damage(pair.near, next(path for path in paths_in(pair.near) if path.startswith("step_1/") and "saf" in path), at)
    manager.save(STATE, step=2)
    pair.far.faults = UP
    with pytest.raises(CheckpointDamaged, match=r"memory://near.*step_1/part.* is damaged"):
        manager.wait()
    with pytest.raises(CheckpointDamaged):
        manager.saves[1].wait_uploaded()
    assert "step 1 is not uploaded, and will not be" in caplog.text
    assert where(manager) == {0: "remote", 1: "local refused", 2: "both"}
    assert "is damaged" in manager.tiers().steps[1].problem
    assert steps_in(pair.far) == [0, 2]
    assert not [path for path in paths_in(pair.far) if path.startswith("step_1/") and "saf" in path]
    manager.close()


def test_damage_in_what_only_an_older_one_needs_keeps_back_the_older_one_alone() -> None:
    """The newest goes first, and takes the file with it that both refer to."""
    pair = Pair()
    big = np.random.default_rng(0).integers(0, 255, 2 * CHUNK_BYTES, np.uint8)
    manager = pair.manager(incremental=True)
    manager.save({"w": torch.zeros(1)}, step=0)
    manager.wait()
    pair.far.faults = DOWN
    manager.save({"big": big}, step=1)
    then = big.copy()
    then[-1] ^= 1
    assert manager.save({"big": then}, step=2).referenced_bytes == CHUNK_BYTES
    damage(pair.near, next(path for path in paths_in(pair.near) if path.startswith("step_1/") and "saf" in path))
    pair.far.faults = UP
    with pytest.raises(CheckpointDamaged, match="step_1/part"):
        manager.wait()
    assert steps_in(pair.far) == [0, 2]
    manager.close()
    with CheckpointReader(pair.far) as reader:
        reader.verify(2)
        assert_same(reader.load(2), {"big": then})


def test_a_file_of_another_is_not_taken_for_its_own() -> None:
    """Of the same name and size: a run that died before this one may have put it there late."""
    pair = Pair()
    with pair.manager() as manager:
        manager.save({"step": 0}, step=0)
        manager.wait()
        pair.far.faults = DOWN
        manager.save(b"mine..", step=1)
        BlockingStorage(pair.far.inner).write("default/checkpoints/step_1/model.bin", b"theirs")
        pair.far.faults = UP
        manager.wait()
    with CheckpointReader(pair.far) as reader:
        assert reader.load() == b"mine.."


def test_nobody_deletes_what_is_being_referred_to() -> None:
    pair, frozen = Pair(), torch.randn(1000)
    with pair.manager(incremental=True) as manager:
        manager.save({"frozen": frozen, "moving": torch.zeros(10)}, step=1)
        manager.wait()
        puts = sum(call.operation == "put_if_absent" for call in pair.far.calls)
        pair.far.fail("put_if_absent", puts + 2, "stuck")  # the commit
        manager.save({"frozen": frozen, "moving": torch.ones(10)}, step=2)
        while not pair.far.stuck:
            manager.latest_step()
        with CheckpointManager(pair.far.inner) as other:
            other.delete(1)
        pair.far.release()
        manager.wait()
    with CheckpointReader(pair.far) as reader:
        assert reader.list_checkpoints() == [2]
        reader.verify()


def test_what_a_crash_left_is_taken_up_and_not_swept_away() -> None:
    pair = Pair()
    with pair.manager() as manager:
        manager.save({"step": 0}, step=0)
        manager.wait()
        puts = sum(call.operation == "put_if_absent" for call in pair.far.calls)
        for call in range(2, 100):  # all but the manifest of the part
            pair.far.fail("put_if_absent", puts + call)
        manager.save(STATE, step=1)
        with pytest.raises(StorageUnavailable):
            manager.close()
    again = Pair(pair.near.inner, pair.far.inner)
    with again.manager() as manager:
        manager.save({"step": 2}, step=2)
        manager.wait()
    assert steps_in(pair.far) == [0, 1, 2]
    assert not [call for call in again.far.calls if call.operation == "writer.commit" and "step_1/" in call.path]


# -- pins and deleting -------------------------------------------------------------------------------------------------


def test_a_pin_goes_up_with_its_checkpoint() -> None:
    pair = Pair()
    with pair.manager(keep_count=1, local_keep=1) as manager:
        manager.save({"step": 0}, step=0)
        manager.wait()
        pair.far.faults = Faults(before=1.0, only=frozenset({"writer.commit", "compare_and_swap"}))
        manager.save(STATE, step=1)
        manager.pin(1)
        pair.far.faults = UP
        for step in (2, 3):
            manager.save({"step": step}, step=step)
            manager.wait()
        assert where(manager) == {1: "remote", 3: "both"}
        manager.unpin(1)
        manager.save({"step": 4}, step=4)
        manager.wait()
        assert where(manager) == {4: "both"}


def test_who_waits_is_not_told_of_a_try_that_was_under_way_before() -> None:
    pair = Pair()
    with pair.manager() as manager:
        reached, let_go = threading.Event(), threading.Event()

        async def fails_late(_: object) -> None:
            late.undo()
            reached.set()
            while not let_go.is_set():
                await asyncio.sleep(0.01)
            raise StorageUnavailable("there was an outage", storage="memory://far")

        late = ManagerSeam(manager).instead(Point.FIND_UPLOAD, fails_late)
        manager.save(STATE, step=1)
        assert reached.wait(20)
        threading.Timer(0.2, let_go.set).start()
        manager.wait(20)
        assert where(manager) == {1: "both"}


def test_deleting_deletes_both_and_uploads_nothing_again() -> None:
    pair = Pair()
    with pair.manager() as manager:
        manager.save(STATE, step=1)
        manager.save(STATE, step=2)
        manager.wait()
        manager.delete(1)
        manager.save(STATE, step=3)
        manager.wait()
        assert where(manager) == {2: "both", 3: "both"}
    assert not [path for path in paths_in(pair.near) | paths_in(pair.far) if "step_1" in path]


def test_what_is_being_uploaded_can_be_deleted() -> None:
    pair = Pair()
    with pair.manager() as manager:
        pair.far.faults = STUCK
        manager.save(STATE, step=1)
        manager.save(STATE, step=2)
        while not pair.far.stuck:
            manager.latest_step()
        manager.delete(1)
        with pytest.raises(NotFound, match="step 1 was deleted before it was uploaded"):
            manager.saves[0].wait_uploaded()
        pair.far.release()
        manager.wait()
        assert where(manager) == {2: "both"}
        manager.save(STATE, step=3)
    assert steps_in(pair.far) == [2, 3]


def test_what_was_deleted_behind_counts_on_the_local_disk_neither() -> None:
    pair = Pair()
    with pair.manager() as manager:
        manager.save(STATE, step=1)
        manager.save(STATE, step=2)
        manager.wait()
        with CheckpointManager(pair.far) as other:
            other.delete(2)
        assert manager.list_checkpoints() == [1]
        manager.save(STATE, step=3)
        manager.wait()
        assert where(manager) == {1: "both", 3: "both"} or where(manager) == {1: "remote", 3: "both"}
    assert steps_in(pair.far) == [1, 3]


# -- odds and ends -----------------------------------------------------------------------------------------------------


def test_what_cannot_be_a_local_tier_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"a folder on a disk of this machine, not s3://b"):
        CheckpointManager(tmp_path, local="s3://b/x")
    with pytest.raises(InvalidInput, match="two places"):
        CheckpointManager(tmp_path, local=tmp_path)
    with pytest.raises(InvalidInput, match="local_keep"):
        CheckpointManagerConfig(local_keep=0)
    with pytest.raises(InvalidInput, match='upload must be "all" or "newest"'):
        CheckpointManagerConfig(upload="some")


def test_without_a_local_tier_there_is_one(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        handle = manager.save_async(STATE, step=1)
        assert handle.wait_uploaded().uploaded_seconds == 0.0
        standing = manager.tiers()
        assert (standing.local, standing.behind) == ("", 0)
        assert [(each.step, each.local, each.remote) for each in standing.steps] == [(1, False, True)]


def test_what_is_committed_while_others_are_let_go_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not there when it was looked what is on the line, and then taken for something that is not."""
    looked, go = threading.Event(), threading.Event()
    plain = Tiers.near_view

    async def slowly(tiers: Tiers) -> View:
        found = await plain(tiers)
        if not looked.is_set():
            looked.set()
            while not go.is_set():
                await asyncio.sleep(0.001)
        return found

    with CheckpointManager(tmp_path / "far", local=tmp_path / "near") as manager:
        for step in (0, 1):  # as many as stay
            manager.save({"step": step}, step=step)
        manager.wait()
        monkeypatch.setattr(Tiers, "near_view", slowly)
        letting_go = asyncio.run_coroutine_threadsafe(
            ManagerSeam(manager).uploader.retain(far=False), background.loop()
        )
        assert looked.wait(20)
        manager.save({"step": 2}, step=2)
        go.set()
        letting_go.result(20)
        manager.wait()
        assert manager.load() == {"step": 2}
    with CheckpointReader(tmp_path / "far") as reader:
        assert reader.list_checkpoints() == [0, 1, 2]


def test_a_full_run_of_a_process_waits_for_its_uploads(tmp_path: Path) -> None:
    program = """
import sys
from strata import CheckpointManager
manager = CheckpointManager(sys.argv[1] + "/far", local=sys.argv[1] + "/near", job_id="alone")
for step in range(3):
    manager.save_async(bytes(5_000_000), step=step)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    with CheckpointReader(tmp_path / "far", job_id="alone") as reader:
        assert reader.list_checkpoints() == [0, 1, 2]


def test_a_forked_child_leaves_uploads_to_its_parent(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "far", local=tmp_path / "near") as manager:
        manager.save({"step": 1}, step=1)
        manager.wait()
        child = os.fork()
        if child == 0:
            os._exit(0 if manager.load() == {"step": 1} else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        manager.save({"step": 2}, step=2)
    with CheckpointReader(tmp_path / "far") as reader:
        assert reader.list_checkpoints() == [1, 2]


def test_async_forms() -> None:
    async def main() -> None:
        pair = Pair()
        manager = pair.manager()
        await manager.save_async(STATE, step=1)
        await manager.wait_async()
        assert [each.remote for each in (await manager.tiers_async()).steps] == [True]
        assert_same(await manager.load_async(), STATE)
        await manager.delete_async(1)
        assert await manager.list_checkpoints_async() == []
        await asyncio.to_thread(manager.close)

    asyncio.run(main())


def test_closing_while_the_storage_behind_is_away_says_so_and_the_next_manager_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pair = Pair()
    with pair.manager() as manager:
        manager.save({"step": 0}, step=0)
        manager.wait()
        pair.far.faults = DOWN
        handle = manager.save_async(STATE, step=1)
        handle.result()
        with pytest.raises(StorageUnavailable, match=r"not everything is in memory://far.*whole in memory://near"):
            manager.close()
        with pytest.raises(StorageUnavailable, match="closed first"):
            handle.wait_uploaded()
        manager.close()
    assert steps_in(pair.far) == [0]
    pair.far.faults = UP
    with caplog.at_level(logging.INFO), pair.manager() as manager:
        manager.wait()
    assert "uploaded step 1" in caplog.text
    assert steps_in(pair.far) == [0, 1]


def test_a_local_storage_can_be_given(tmp_path: Path) -> None:
    near = LocalStorage(tmp_path / "near")
    with CheckpointManager(tmp_path / "far", local=near) as manager:
        manager.save(STATE, step=1)
    assert BlockingStorage(near).exists("default/checkpoints/step_1/metadata.json")
    BlockingStorage(near).close()
