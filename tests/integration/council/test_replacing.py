"""Saves that rank 0 gives up, or leaves out, as the others hear of it through the coordinator: at once, and as what it
is."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata import background
from strata.checkpoint import CheckpointManager, CheckpointManagerConfig
from strata.checkpoint.council import is_replaced
from strata.checkpoint.marks import PerRank
from strata.errors import RankFailed, SaveAbandoned, SaveReplaced, SaveSkipped, Unstorable
from strata.testing.manager_seam import ManagerSeam, Point
from tests.integration.council.scenes import a_crew, listed
from tests.servers.coordinator import CoordinatorProcess
from tests.until import until

pytestmark = pytest.mark.usefixtures("job")

PATIENT = 60.0
"""Far longer than these tests take: nobody waits for so long."""
REPLACE = CheckpointManagerConfig(when_busy="replace", ranks_seconds=PATIENT)


def state_of(rank: int, step: int) -> dict[str, Any]:
    return {"w": np.full(1000, step), f"stage{rank}": np.full(5, step), "own": PerRank(np.array([rank, step]))}


def end_of(handle: Any) -> str:
    try:
        handle.result(PATIENT)
    except SaveReplaced:
        assert handle.status == "replaced"
    except SaveSkipped:
        assert handle.status == "skipped"
    return str(handle.status)


@pytest.mark.parametrize(
    "where", [Point.SETTLE, Point.AGREE_ON_BASE, Point.TELL_NAMES, Point.ANNOUNCE, Point.GATHER_PARTS]
)
def test_who_comes_late_hears_that_a_save_was_replaced_wherever_it_was(
    tmp_path: Path, running: CoordinatorProcess, where: Point
) -> None:
    with a_crew(tmp_path / "ck", running, 3, config=REPLACE) as crew:
        held = ManagerSeam(crew.managers[0]).hold(where)
        has_gone_on = threading.Event()

        def act(rank: int, manager: CheckpointManager) -> list[str]:
            if rank:
                assert has_gone_on.wait(20)
            handles = [manager.save_async(state_of(rank, 1), step=1)]
            if not rank:
                assert held.reached.wait(20)
            handles.append(manager.save_async(state_of(rank, 2), step=2))
            if not rank:
                until(lambda: 2 in [step for step, _ in listed(running)])
                has_gone_on.set()
            return [end_of(handle) for handle in handles]

        assert crew.each(act) == [["replaced", "committed"]] * 3
        assert [ManagerSeam(manager).failures for manager in crew.managers] == [0, 0, 0]
    assert [step for step, _ in listed(running)] == [2]


def test_saves_that_come_faster_than_they_are_written_end_alike_and_the_last_is_committed(
    tmp_path: Path, running: CoordinatorProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with a_crew(tmp_path / "ck", running, 3, config=REPLACE) as crew:

        def act(rank: int, manager: CheckpointManager) -> list[str]:
            handles = []
            for step in range(1, 9):
                handles.append(manager.save_async(state_of(rank, step), step=step))
                time.sleep(0.02 * (1 + rank))
            return [end_of(handle) for handle in handles]

        first, *others = crew.each(act)
        assert others == [first] * 2
        assert set(first) <= {"replaced", "committed"}
        assert first[-1] == "committed"
        steps = [step for step, end in enumerate(first, 1) if end == "committed"]
        assert crew.managers[0].list_checkpoints() == steps
        assert "in a row" not in caplog.text


def test_who_asks_for_names_at_a_save_that_is_left_out_leaves_it_out(
    tmp_path: Path, running: CoordinatorProcess
) -> None:
    config = CheckpointManagerConfig(when_busy="skip", ranks_seconds=PATIENT)
    with a_crew(tmp_path / "ck", running, 2, config=config) as crew:
        one, other = crew.managers
        held = ManagerSeam(one).hold(Point.WRITE)
        first = one.save_async(state_of(0, 1), step=1)
        assert held.reached.wait(20)
        assert end_of(one.save_async(state_of(0, 2), step=2)) == "skipped"
        with pytest.raises(Unstorable):
            other.save_async({"w": object()}, step=1)
        left_out = other.save_async(state_of(1, 2), step=2)
        assert end_of(left_out) == "skipped"
        assert ManagerSeam(other).failures == 0
        held.let_go.set()
        with pytest.raises(RankFailed, match="rank-1 could not save its part"):
            first.result(PATIENT)
        crew.save([state_of(rank, 3) for rank in range(2)], 3)


@pytest.mark.parametrize(("who", "where"), [(0, Point.ANNOUNCE), (0, Point.GATHER_PARTS), (1, Point.PART_IS_DONE)])
def test_a_save_that_one_rank_gives_up_without_another_fails_on_all(
    tmp_path: Path, running: CoordinatorProcess, who: int, where: Point, caplog: pytest.LogCaptureFixture
) -> None:
    """No later save takes its place: who waits for it must not take it for committed."""
    with a_crew(tmp_path / "ck", running, 3) as crew:
        held = ManagerSeam(crew.managers[who]).hold(where)
        was_given_up = threading.Event()

        def act(rank: int, manager: CheckpointManager) -> str:
            if rank and not who and where is Point.ANNOUNCE:  # it asks rank 0 which arrays it has
                assert was_given_up.wait(20)
            handle = manager.save_async(state_of(rank, 1), step=1)
            if rank == who:
                assert held.reached.wait(20)
                manager.give_up()
                was_given_up.set()
                manager.wait(PATIENT)
                with pytest.raises(SaveAbandoned, match="others now"):
                    handle.result()
            else:
                with pytest.raises(RankFailed, match="those who save together are others now"):
                    manager.wait(PATIENT)
            return handle.status

        assert crew.each(act) == ["failed"] * 3
        assert caplog.text.count("the save of step 1 failed (1 in a row)") == 2
        assert [ManagerSeam(manager).failures for manager in crew.managers] == [int(rank != who) for rank in range(3)]
        assert crew.managers[0].list_checkpoints() == []


def test_a_save_that_is_given_up_before_it_has_begun_is_told_to_the_others(
    tmp_path: Path, running: CoordinatorProcess
) -> None:
    with a_crew(tmp_path / "ck", running, 2) as crew:
        crew.save([state_of(rank, 1) for rank in range(2)], 1)
        was_given_up = threading.Event()

        def act(rank: int, manager: CheckpointManager) -> None:
            if rank:
                assert was_given_up.wait(20)
                manager.save_async(state_of(rank, 2), step=2)
                with pytest.raises(RankFailed, match="those who save together are others now"):
                    manager.wait(PATIENT)
                return
            background.loop().call_soon_threadsafe(was_given_up.wait, 20)  # it begins nothing meanwhile
            handle = manager.save_async(state_of(rank, 2), step=2)
            manager.give_up()
            was_given_up.set()
            with pytest.raises(SaveAbandoned):
                handle.result(PATIENT)

        crew.each(act)


@pytest.mark.parametrize(
    ("reason", "is_so"),
    [
        ("a later save took its place", True),
        ("it failed: a later save took its place", True),
        ("attempt 3 was abandoned: rank-0 could not save its part: a later save took its place", True),
        ("rank-0 could not save its part: it failed: a later save took its place", True),
        ("rank-2 could not save its part: 3 saves in a row have failed: a later save took its place", False),
        ("rank-2 could not save its part: a disk could not save its part: a later save took its place", False),
        ("rank-1 was lost before its part was durable", False),
    ],
)
def test_only_rank_0_says_that_a_save_was_replaced(reason: str, is_so: bool) -> None:
    assert is_replaced(reason) is is_so
