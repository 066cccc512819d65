"""One of the two tiers fails, or another machine takes over: nothing is lost, and nothing is mixed up."""

import time
from typing import Any

import pytest
import torch

from strata import background
from strata.checkpoint import CheckpointManager, CheckpointReader
from strata.core.settings import Retention
from strata.errors import Conflict, NotFound, SaveFailed, StorageUnavailable, Superseded
from strata.storage import BlockingStorage, MemoryStorage
from strata.testing.faulty import Faults, FaultyStorage, Outcome
from strata.testing.manager_seam import ManagerSeam
from tests.unit.checkpoint.states import assert_same
from tests.unit.checkpoint.tiered import DOWN, UP, Pair, paths_in, steps_in, where

NO_WRITES = Faults(
    before=1.0, only=frozenset({"write", "writer.write", "writer.commit", "put_if_absent", "compare_and_swap"})
)


def state(step: int, who: str = "") -> dict[str, Any]:
    return {"w": torch.full((100,), float(step)), "step": step, "who": who}


def abandoned(pair: Pair, *steps: int) -> CheckpointManager:
    """Saves these while the storage behind is away, and does not wait for it."""
    pair.far.faults = DOWN
    manager = pair.manager()
    for step in steps:
        manager.save(state(step, "abandoned"), step=step)
    with pytest.raises(StorageUnavailable):
        manager.close()
    pair.far.faults = UP
    return manager


def started(*steps: int) -> Pair:
    pair = Pair()
    with pair.manager() as manager:
        for step in steps:
            manager.save(state(step), step=step)
    return pair


# -- the storage behind is away ----------------------------------------------------------------------------------------


def test_saving_goes_on_while_the_storage_behind_is_away() -> None:
    pair = Pair()
    with pair.manager() as manager:
        manager.save(state(1), step=1)
        manager.wait()
        pair.far.faults = DOWN
        for step in (2, 3, 4, 5):
            manager.save_async(state(step), step=step).result()
        assert_same(manager.load(), state(5))
        assert manager.list_checkpoints() == [2, 3, 4, 5]
        assert where(manager) == dict.fromkeys((2, 3, 4, 5), "local waiting")
        pair.far.faults = UP
        manager.wait()
        assert where(manager) == {1: "remote", 2: "remote", 3: "remote", 4: "both", 5: "both"}
    assert steps_in(pair.far) == [1, 2, 3, 4, 5]
    with CheckpointReader(pair.far) as reader:
        for step in reader.list_checkpoints():
            reader.verify(step)


def test_a_return_to_an_earlier_step_while_it_is_away() -> None:
    pair = Pair()
    with pair.manager() as manager:
        for step in (1, 2, 3):
            manager.save(state(step), step=step)
        manager.wait()
        pair.far.faults = DOWN
        assert_same(manager.load(2), state(2))
        manager.save(state(3, "again"), step=3)
        assert_same(manager.load(), state(3, "again"))
        pair.far.faults = UP
        manager.wait()
    with CheckpointReader(pair.far) as reader:
        assert reader.list_checkpoints() == [1, 2, 3]
        assert_same(reader.load(), state(3, "again"))


def test_a_run_may_begin_on_the_local_disk_alone_and_is_settled_later(caplog: pytest.LogCaptureFixture) -> None:
    pair = started(1)
    with pair.manager() as manager:
        assert_same(manager.load(), state(1))
        pair.far.faults = DOWN
        manager.save(state(2), step=2)
        assert "saving on the local disk alone for now" in caplog.text
        pair.far.faults = UP
        manager.wait()
        manager.save(state(3), step=3)
        manager.wait()
        assert list(where(manager)) == [1, 2, 3]
    with CheckpointReader(pair.far) as reader:
        assert reader.list_checkpoints() == [1, 2, 3]


def test_one_that_dies_before_it_is_settled_is_taken_up_by_the_next() -> None:
    pair = started(1)
    abandoned(pair, 2, 3)
    abandoned(pair, 4)
    with CheckpointReader(pair.far, local=pair.near) as reader:
        assert reader.list_checkpoints() == [1, 2, 3, 4]
    with pair.manager() as manager:
        assert_same(manager.load(), state(4, "abandoned"))
        manager.save(state(5), step=5)
        manager.wait()
    with CheckpointReader(pair.far) as reader:
        assert reader.list_checkpoints() == [1, 2, 3, 4, 5]
        for step in reader.list_checkpoints():
            reader.verify(step)


def test_an_answer_that_was_lost_does_no_harm() -> None:
    """The term had begun behind, but nobody heard."""
    pair = started(1)
    pair.far.fail("compare_and_swap", 2, "after")
    with pair.manager() as manager:
        manager.save(state(2), step=2)
        manager.save(state(3), step=3)
    assert steps_in(pair.far) == [1, 2, 3]


def test_of_a_job_whose_storage_was_seen_empty_the_first_save_may_come_while_it_is_away() -> None:
    pair = Pair()
    with pair.manager() as manager:
        assert manager.latest_step() is None
        pair.far.faults = DOWN
        manager.save(state(1), step=1)
        pair.far.faults = UP
    assert steps_in(pair.far) == [1]


def test_nothing_is_begun_where_nothing_is_known() -> None:
    pair = started(1).elsewhere()
    pair.far.faults = DOWN
    manager = pair.manager()
    with pytest.raises(StorageUnavailable, match=r"no save can begin: memory://far.* cannot be reached"):
        manager.save(state(2), step=2)
    pair.far.faults = UP
    manager.save(state(2), step=2)
    manager.close()
    assert steps_in(pair.far) == [1, 2]


def test_the_latest_is_not_guessed_while_it_is_away() -> None:
    pair = started(1)
    pair.far.faults = DOWN
    manager = pair.manager()
    with pytest.raises(StorageUnavailable, match=r"may be left behind.*CheckpointReader\('memory://near'\)"):
        manager.load()
    with CheckpointReader(pair.near) as reader:
        assert_same(reader.load(), state(1))
    standing = manager.tiers()
    assert "does not answer" in standing.problem
    assert [(each.step, each.local, each.remote) for each in standing.steps] == [(1, True, True)]
    pair.far.faults = UP
    manager.close()


# -- another machine ---------------------------------------------------------------------------------------------------


def test_of_two_machines_the_older_one_commits_nothing_behind() -> None:
    pair = started(1)
    old = pair.manager()
    old.save(state(2, "old"), step=2)
    old.wait()
    new = pair.elsewhere().manager()
    new.load()
    new.save(state(3, "new"), step=3)
    new.wait()
    handle = old.save_async(state(3, "old"), step=3)
    handle.result()
    with pytest.raises(Superseded, match="another process writes"):
        handle.wait_uploaded()
    with pytest.raises(Superseded):
        old.save(state(4, "old"), step=4)
    assert where(old) == {1: "remote", 2: "both", 3: "remote"}
    assert "another process writes" in old.tiers().problem
    new.save(state(4, "new"), step=4)
    old.close()
    new.close()
    with CheckpointReader(pair.far) as reader:
        assert reader.list_checkpoints() == [1, 2, 3, 4]
        assert_same(reader.load(3), state(3, "new"))
        assert_same(reader.load(4), state(4, "new"))


def test_a_failure_to_notice_is_raised_once_by_whoever_waits() -> None:
    pair = Pair()
    old = pair.manager()
    old.save(state(1), step=1)
    old.wait()
    with pair.elsewhere().manager() as new:
        new.save(state(2), step=2)
    old.save(state(3), step=3)
    with pytest.raises(Superseded):
        old.wait()
    old.close()


def test_a_machine_that_was_left_behind_goes_on_from_where_the_job_is() -> None:
    pair = started(1)
    abandoned(pair, 2, 3)
    with pair.elsewhere().manager() as other:
        assert_same(other.load(), state(1))
        other.save(state(2, "other"), step=2)
    with pair.manager() as manager:
        manager.wait()
        assert manager.list_checkpoints() == [1, 2]
        assert_same(manager.load(), state(2, "other"))
        manager.save(state(3, "back"), step=3)
        manager.save(state(4, "back"), step=4)
        manager.wait()
        assert_same(manager.load(3), state(3, "back"))
        assert manager.list_checkpoints() == [1, 2, 3, 4]
        assert not [path for path in paths_in(pair.near) if path.startswith("step_2/")]
    with CheckpointReader(pair.far) as reader:
        assert reader.list_checkpoints() == [1, 2, 3, 4]
        assert_same(reader.load(2), state(2, "other"))
        assert_same(reader.load(3), state(3, "back"))


def test_two_that_begin_without_seeing_each_other_have_one_number_and_are_not_mixed_up() -> None:
    """Both are the second run; the one that was settled first is the job."""
    pair = started(1)
    pair.far.faults = DOWN
    alone = pair.manager()
    alone.save(state(2, "alone"), step=2)
    with pair.elsewhere().manager() as other:
        other.load()
        other.save(state(2, "other"), step=2)
        other.save(state(3, "other"), step=3)
        other.wait()
        assert other.describe().term == 2
    pair.far.faults = UP
    with pytest.raises(Superseded):
        alone.wait()
    with pytest.raises(Superseded):
        alone.save(state(3, "alone"), step=3)
    alone.close()
    with pair.manager() as manager:
        assert manager.list_checkpoints() == [1, 2, 3]
        assert_same(manager.load(2), state(2, "other"))
        manager.load()
        manager.save(state(4), step=4)
    with CheckpointReader(pair.far) as reader:
        assert_same(reader.load(2), state(2, "other"))
        assert reader.list_checkpoints() == [1, 2, 3, 4]


@pytest.mark.parametrize("what", ["tree", "bytes"])
def test_a_machine_that_dies_while_uploading_leaves_the_next_one_nothing_to_trip_over(what: str) -> None:
    """The same step, of the same size, saved by another: what the first left behind is not taken for it."""

    def made(who: bytes) -> Any:
        return {"who": torch.frombuffer(bytearray(who), dtype=torch.uint8)} if what == "tree" else who

    pair = started(1)
    puts = sum(call.operation == "put_if_absent" for call in pair.far.calls)
    for call in range(2, 100):  # all but the manifest of the part
        pair.far.fail("put_if_absent", puts + call)
    first = pair.manager()
    first.save(made(b"first "), step=2)
    with pytest.raises(StorageUnavailable):
        first.wait()
    ManagerSeam(first).uploader.stop()
    assert [path for path in paths_in(pair.far) if path.startswith("step_2/")]
    with pair.elsewhere().manager() as second:
        second.load()
        second.save(made(b"second"), step=2)
    with CheckpointReader(pair.far) as reader:
        assert reader.list_checkpoints() == [1, 2]
        assert_same(reader.load(), made(b"second"))
        reader.verify()
    with pair.manager() as again:
        again.wait()
        assert_same(again.load(), made(b"second"))


def test_who_was_superseded_deletes_nothing_of_who_came_after() -> None:
    """What the other is about to commit looks like a leftover."""
    pair = started(1)
    old = pair.manager()
    old.save(state(2), step=2)
    old.wait()
    with pair.elsewhere().manager() as new:
        new.save(state(3), step=3)
    about = "default/checkpoints/step_4/part-0-about-to-be.safetensors"
    BlockingStorage(pair.far.inner).write(about, b"data")
    tiers = ManagerSeam(old).tiers
    with pytest.raises(Superseded):
        background.run(tiers.far.sweep())
    with pytest.raises(Superseded):
        background.run(tiers.far.retain(Retention(keep_count=1)))
    assert BlockingStorage(pair.far.inner).exists(about)
    assert steps_in(pair.far) == [1, 2, 3]
    old.close()


# -- the wrong disk ----------------------------------------------------------------------------------------------------


def test_a_disk_that_stands_before_another_storage_is_refused() -> None:
    pair = started(1)
    wrong = FaultyStorage(MemoryStorage(name="wrong"))
    with CheckpointManager(wrong, local=pair.near) as manager:
        for use in (manager.latest_step, lambda: manager.save(state(1), step=1)):
            with pytest.raises(Conflict, match="is the local tier of memory://far, not of memory://wrong"):
                use()
    assert paths_in(wrong) == set()


def test_a_disk_of_checkpoints_without_a_storage_behind_is_refused() -> None:
    pair = Pair()
    with CheckpointManager(pair.near) as alone:
        alone.save(state(1), step=1)
    with pair.manager() as manager:
        with pytest.raises(Conflict, match="saved with no storage behind"):
            manager.load()
        with pytest.raises(Conflict):
            manager.close()
    assert paths_in(pair.far) == set()


def test_work_on_the_local_disk_alone_is_taken_on() -> None:
    """As if the storage behind had been away."""
    pair = started(1)
    with CheckpointManager(pair.near) as offline:
        offline.load()
        offline.save(state(2), step=2)
    with pair.manager() as manager:
        manager.wait()
    with CheckpointReader(pair.far) as reader:
        assert_same(reader.load(), state(2))


def test_a_storage_that_was_emptied_is_noticed() -> None:
    pair = started(1, 2)
    inner = BlockingStorage(pair.far.inner)
    inner.delete_many([entry.path for entry in inner.list_all()])
    manager = pair.manager()
    with pytest.raises(Conflict, match=r"memory://far.* knows nothing of the runs .* If it was emptied on purpose"):
        manager.load()
    with pytest.raises(Conflict):
        manager.save(state(3), step=3)
    manager.close()
    assert paths_in(pair.far) == set()


def test_a_damaged_lineage_on_the_local_disk_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    pair = started(1)
    for name in ("lineage.json", "far.json"):
        BlockingStorage(pair.near.inner).write(f"default/checkpoints/{name}", b"{")
        with pair.manager() as manager:
            assert_same(manager.load(), state(1))
            manager.save(state(2), step=2)
        assert f"{name} is damaged" in caplog.text
        assert steps_in(pair.far) == [1, 2]
        BlockingStorage(pair.far.inner).delete("default/checkpoints/step_2/metadata.json")


# -- the local disk is away --------------------------------------------------------------------------------------------


def test_a_disk_that_fails_loses_no_save(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    with pair.manager(keep_count=3) as manager:
        manager.save(state(1), step=1)
        manager.wait()
        pair.near.faults = NO_WRITES
        report = manager.save_async(state(2), step=2).wait_uploaded()
        assert "written straight to memory://far" in report.notes[0]
        assert "the local disk is left alone" in caplog.text
        manager.save(state(3), step=3)
        assert where(manager) == {1: "both", 2: "remote", 3: "remote"}
        pair.near.faults = UP
        manager.save(state(4), step=4)
        manager.wait()
        assert where(manager) == {2: "remote", 3: "remote", 4: "remote"}
        monkeypatch.setattr(time, "monotonic", lambda: float("inf"))
        manager.save(state(5), step=5)
        manager.wait()
        assert where(manager) == {3: "remote", 4: "remote", 5: "both"}
        for step in (3, 4, 5):
            assert_same(manager.load(step), state(step))
            manager.verify(step)


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["write", "writer.commit", "put_if_absent", "read_versioned"])
@pytest.mark.parametrize("outcome", ["before", "after"])
def test_wherever_it_fails(operation: str, outcome: Outcome, caplog: pytest.LogCaptureFixture) -> None:
    for call in range(1, 10):
        pair = started(1)
        made = sum(each.operation == operation for each in pair.near.calls)
        pair.near.fail(operation, made + call, outcome)
        with pair.manager(incremental=True) as manager:
            manager.save(state(2), step=2)
            manager.wait()
            assert_same(manager.load(), state(2))
            assert where(manager) in ({1: "both", 2: "both"}, {1: "both", 2: "remote"})
            if where(manager)[2] == "remote":
                assert not [path for path in paths_in(pair.near) if path.startswith("step_2/")]
        with CheckpointReader(pair.far) as reader:
            assert_same(reader.load(), state(2))
            reader.verify()
    assert "will not be" not in caplog.text


def test_a_job_may_begin_with_a_broken_disk() -> None:
    pair = Pair()
    pair.near.faults = DOWN
    manager = pair.manager()
    manager.save(state(1), step=1)
    manager.save(b"bytes", step=2)
    assert manager.load() == b"bytes"
    assert manager.list_checkpoints() == [1, 2]
    with pytest.raises(StorageUnavailable):
        manager.close()
    assert steps_in(pair.far) == [1, 2]


def test_when_both_fail_the_save_fails_and_says_so() -> None:
    pair = Pair()
    with pair.manager(max_failed_saves=2) as manager:
        manager.save(state(1), step=1)
        manager.wait()
        pair.near.faults = pair.far.faults = NO_WRITES
        with pytest.raises(StorageUnavailable, match=r"neither tier could take it. The local disk: .* Behind it: "):
            manager.save(state(2), step=2)
        manager.save_async(state(3), step=3)
        with pytest.raises(StorageUnavailable):
            manager.wait()
        with pytest.raises(SaveFailed):
            manager.save_async(state(4), step=4)
        pair.near.faults = pair.far.faults = UP
        assert manager.list_checkpoints() == [1]


def test_what_was_copied_in_turns_cannot_be_written_twice() -> None:
    pair = Pair()
    large = {f"t{n}": torch.ones(1 << 20) for n in range(12)}
    with pair.manager(memory_bytes=16 << 20) as manager:
        manager.save(state(1), step=1)
        manager.wait()
        pair.near.faults = NO_WRITES
        with pytest.raises(StorageUnavailable, match="failed on purpose"):
            manager.save(large, step=2)
        manager.wait()  # once is enough
        manager.save(large, step=3)
        assert where(manager) == {1: "both", 3: "remote"}
        assert_same(manager.load(), large)


def test_a_disk_that_is_emptied_meanwhile_is_filled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    inner = BlockingStorage(pair.near.inner)
    with pair.manager(incremental=True) as manager:
        manager.save(state(1), step=1)
        manager.wait()
        pair.far.faults = DOWN
        lost = manager.save_async(state(2), step=2)
        lost.result()
        inner.delete_many([entry.path for entry in inner.list_all()])
        pair.far.faults = UP
        manager.save(state(3), step=3)
        with pytest.raises(NotFound, match="step_2 is on the local disk no longer"):
            lost.wait_uploaded()
        monkeypatch.setattr(time, "monotonic", lambda: float("inf"))
        manager.save(state(4), step=4)
        manager.wait()
        assert where(manager) == {1: "remote", 3: "remote", 4: "both"}
        for step in (1, 3, 4):
            assert_same(manager.load(step), state(step))


def test_another_process_on_the_same_machine_takes_over() -> None:
    pair = Pair()
    old = pair.manager()
    old.save(state(1), step=1)
    with pair.manager() as new:
        new.load()
        new.save(state(2, "new"), step=2)
    with pytest.raises(Superseded):
        old.save(state(2, "old"), step=2)
    with pytest.raises(Superseded):
        old.save(state(3, "old"), step=3)
    old.close()
    with CheckpointReader(pair.far) as reader:
        assert reader.list_checkpoints() == [1, 2]
        assert_same(reader.load(), state(2, "new"))


def test_a_disk_on_which_nothing_happens_is_passed_by() -> None:
    pair = Pair()
    with pair.manager(stuck_seconds=0.3) as manager:
        manager.save(state(1), step=1)
        manager.wait()
        pair.near.faults = Faults(stuck=1.0, only=frozenset({"write"}))
        report = manager.save(state(2), step=2)
        assert "nothing came of write memory://near" in report.notes[0]
        assert where(manager) == {1: "both", 2: "remote"}
        pair.near.release()


def test_an_upload_of_which_nothing_comes_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair()
    with pair.manager(stuck_seconds=0.3) as manager:
        pair.far.fail("writer.write", 1, "stuck")
        manager.save(state(1), step=1)
        manager.saves[0].wait_uploaded()
    assert "nothing came of write memory://far" in caplog.text
    assert steps_in(pair.far) == [1]
