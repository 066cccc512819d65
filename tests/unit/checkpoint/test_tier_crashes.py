"""The process dies at each call that it makes to either of its storages, in the middle of saving and uploading."""

import threading
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch

from strata import background
from strata.checkpoint import CheckpointManager, CheckpointReader
from strata.errors import StorageUnavailable, Superseded
from strata.storage import BlockingStorage, MemoryStorage
from strata.testing.manager_seam import ManagerSeam
from tests.unit.checkpoint.dying import DyingStorage, Life, Paused, save_in_its_place
from tests.unit.checkpoint.states import assert_same

pytestmark = pytest.mark.slow

OLD = {"w": torch.zeros(50), "n": 1}
NEW = {"w": torch.ones(60), "n": 2}
PARTLY_NEW = {"w": torch.zeros(50), "v": torch.ones(3), "n": 2}
STATES = [
    pytest.param(NEW, id="tree"),
    pytest.param(b"new bytes", id="bytes", marks=pytest.mark.long),
    pytest.param(PARTLY_NEW, id="incremental", marks=pytest.mark.long),
]


def before() -> tuple[MemoryStorage, MemoryStorage]:
    """Two checkpoints, both uploaded."""
    near, far = MemoryStorage(name="near"), MemoryStorage(name="far")
    with CheckpointManager(far, local=near, keep_count=2) as manager:
        manager.save({"oldest": True}, step=1)
        manager.save(OLD, step=2)
    return near, far


def save(near: Any, far: Any, state: Any) -> None:
    """Saves the third, uploads it, and deletes the first."""
    manager = CheckpointManager(far, local=near, keep_count=2, incremental=state is PARTLY_NEW)
    with suppress(StorageUnavailable):
        manager.save(state, step=3)
    with suppress(StorageUnavailable):
        manager.close()


def calls_of(state: Any) -> int:
    near, far = before()
    life = Life(100_000)
    save(DyingStorage(near, life=life), DyingStorage(far, life=life), state)
    return life.calls


def files_in(storage: MemoryStorage) -> set[str]:
    return {entry.path.removeprefix("default/checkpoints/") for entry in BlockingStorage(storage).list_all()}


def let_marks_run_out(storage: MemoryStorage) -> None:
    BlockingStorage(storage).delete_many(
        [f"default/checkpoints/{path}" for path in files_in(storage) if "readers/" in path]
    )


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_leaves_the_one_before_or_the_new_one_and_uploads_go_on(state: Any, after: bool) -> None:
    count = calls_of(state)
    assert count > 50
    outcomes = set()
    for at in range(1, count + 1):
        near, far = before()
        life = Life(at, after=after)
        save(DyingStorage(near, life=life), DyingStorage(far, life=life), state)
        assert life.is_over
        with CheckpointReader(far) as remote:
            for step in remote.list_checkpoints():
                remote.verify(step)
            uploaded = remote.latest_step()
        with CheckpointReader(far, local=near) as reader:
            latest = reader.latest_step()
            assert_same(reader.load(), OLD if latest == 2 else state)
        outcomes.add((latest, uploaded))
        let_marks_run_out(near)
        let_marks_run_out(far)
        _goes_on(near, far, latest, at)
    assert outcomes == {(2, 2), (3, 2), (3, 3)}


def _goes_on(near: MemoryStorage, far: MemoryStorage, latest: int | None, at: int) -> None:
    with CheckpointManager(far, local=near, keep_count=2) as manager:
        manager.wait()
        assert [(each.step, each.remote) for each in manager.tiers().steps][-1] == (latest, True)
        manager.load()
        manager.save({"next": at}, step=4)
        manager.wait()
        assert manager.list_checkpoints() == [latest, 4]
        tiers = ManagerSeam(manager).tiers
        kept = background.run(tiers.near.files_needed()), background.run(tiers.far.files_needed())
    with CheckpointReader(far) as remote:
        assert remote.list_checkpoints() == [latest, 4]
        for step in (latest, 4):
            assert remote.verify(step) >= 0
    marks = {f"uploaded/{path.partition('/')[0]}" for path in kept[0] if path.endswith("metadata.json")}
    assert files_in(near) - {"lineage.json", "far.json"} == kept[0] | marks
    assert files_in(far) - {"lineage.json"} == kept[1]


# -- another machine takes over ----------------------------------------------------------------------------------------


def made(state: Any, who: str) -> Any:
    """Of the same size for each."""
    data = bytearray(who.encode())
    return bytes(data) if isinstance(state, bytes) else {"who": torch.frombuffer(data, dtype=torch.uint8)}


@pytest.mark.parametrize("state", STATES[:2])
@pytest.mark.parametrize("after", [False, pytest.param(True, marks=pytest.mark.long)], ids=["before", "after"])
def test_a_machine_that_dies_is_replaced_and_comes_back(state: Any, after: bool) -> None:
    """The same step is saved by another, which has only what was uploaded."""
    for at in range(1, calls_of(made(state, "first.")) + 1):
        near, far = before()
        life = Life(at, after=after)
        save(DyingStorage(near, life=life), DyingStorage(far, life=life), made(state, "first."))
        with CheckpointReader(far) as remote:
            uploaded = remote.latest_step()
        other = MemoryStorage(name="other")
        with CheckpointManager(far, local=other, keep_count=2) as manager:
            assert_same(manager.load(), OLD if uploaded == 2 else made(state, "first."))
            manager.load(2)
            manager.save(made(state, "second"), step=3)
        with CheckpointManager(far, local=near, keep_count=2) as manager:
            manager.wait()
            assert manager.list_checkpoints() == [2, 3]
            assert_same(manager.load(), made(state, "second"))
            manager.save(made(state, "third."), step=4)
        with CheckpointReader(far) as remote:
            assert remote.list_checkpoints() == [3, 4]
            for step, who in ((3, "second"), (4, "third.")):
                remote.verify(step)
                assert_same(remote.load(step), made(state, who))


@pytest.mark.parametrize("state", STATES[:2])
def test_a_machine_that_is_paused_changes_nothing_when_it_wakes_up(state: Any) -> None:
    """At any of its calls to the storage behind, another saves the same step in its place."""
    owners = set()
    for at in count(1):
        near, far = before()
        paused = Paused(far, at)
        first = partial(_save_as_first, near, paused, made(state, "first."))
        with CheckpointManager(far, local=MemoryStorage(name="other"), keep_count=2) as second:
            is_second = save_in_its_place(paused, first, second, made(state, "second"))
            owners.add(is_second)
            with CheckpointReader(far) as remote:
                steps = remote.list_checkpoints()
                assert steps == ([3, 4] if is_second else [3])  # it went on from 2, which retention has deleted since
                for step in steps:
                    remote.verify(step)
                assert_same(remote.load(), made(state, "second" if is_second else "first."))
        if not paused.reached.is_set():
            break
    assert owners == {True, False}


def _save_as_first(near: MemoryStorage, far: Paused, state: Any) -> None:
    manager = CheckpointManager(far, local=near, keep_count=2)
    with suppress(Superseded):
        manager.save(state, step=3)
    with suppress(Superseded):
        manager.wait()
    with suppress(Superseded):
        manager.close()


def test_an_upload_that_is_taken_up_again_ends_when_the_job_has_gone_on_elsewhere() -> None:
    """Paused at any of its calls to the storage behind: it has no term of its own that could be superseded."""
    for at in count(1):
        near, far = before()
        dead = DyingStorage(far, life=Life(100_000))
        with suppress(StorageUnavailable), CheckpointManager(dead, local=near, keep_count=2) as manager:
            manager.load()
            dead.life = Life(0)
            manager.save(NEW, step=3)
        paused = Paused(far, at)
        first = threading.Thread(target=_upload, args=(near, paused))
        first.start()
        while first.is_alive() and not paused.reached.wait(0.01):
            pass
        with CheckpointManager(far, local=MemoryStorage(name="other"), keep_count=2) as second:
            second.load(2)
            second.save({"who": "second"}, step=3)
            second.wait()
            paused.release()
            first.join()
        with CheckpointReader(far) as remote:
            assert_same(remote.load(3), {"who": "second"})
            remote.verify(3)
        commits = [path for path in files_in(far) if path.startswith("step_3") and path.endswith("/metadata.json")]
        begun = [call.path for call in paused.calls[:at] if call.operation == "put_if_absent"]
        assert len(commits) == 1 + any(path.endswith("/metadata.json") for path in begun)
        if not paused.reached.is_set():
            break
    assert at > 10


def _upload(near: MemoryStorage, far: Paused) -> None:
    CheckpointManager(far, local=near, keep_count=2).close()
