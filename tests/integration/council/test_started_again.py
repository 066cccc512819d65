"""Ranks that are started again, all of them or one, or go back, with the same coordinator: what was before is not in
their way.
"""

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from strata.checkpoint import CheckpointManager, CheckpointManagerConfig
from strata.errors import RankFailed, SaveReplaced, Unstorable
from strata.storage import LocalStorage
from strata.storage.backend import Data
from strata.testing.faulty import FaultyStorage
from strata.testing.manager_seam import ManagerSeam
from tests.integration.council.scenes import (
    HASTY,
    a_crew,
    bare,
    is_back,
    listed,
    load,
    save,
    state_of,
    stored,
)
from tests.servers.coordinator import CoordinatorProcess, own_job
from tests.unit.checkpoint.states import assert_same
from tests.until import until

pytestmark = pytest.mark.usefixtures("job")


def test_what_earlier_runs_said_is_forgotten(tmp_path: Path, running: CoordinatorProcess) -> None:
    said: list[set[Path]] = []
    for step in (1, 2, 3):
        with a_crew(tmp_path / "ck", running) as crew:
            save(crew, step)
        said.append(set((tmp_path / "ck").glob("*/checkpoints/runs/*")))
    assert [len(each) for each in said] == [1, 1, 1]
    assert len(set.union(*said)) == 3


def test_what_was_removed_without_a_word_is_told_by_the_next_run(tmp_path: Path, running: CoordinatorProcess) -> None:
    with a_crew(tmp_path / "ck", running) as crew:
        for step in (1, 2):
            save(crew, step)
    shutil.rmtree(tmp_path / "ck" / own_job() / "checkpoints" / "step_1")
    assert [step for step, _ in listed(running)] == [1, 2]
    with a_crew(tmp_path / "ck", running) as crew:
        save(crew, 3)
    assert [step for step, _ in listed(running)] == [2, 3]
    assert listed(running) == stored(tmp_path / "ck")


@pytest.mark.parametrize("loads", [False, True], ids=["from-the-start", "by-its-step"])
def test_a_step_that_was_given_up_is_saved_by_the_next_run(
    tmp_path: Path, running: CoordinatorProcess, loads: bool
) -> None:
    """Whoever asks for it before rank 0 has begun is not told of the one that was given up."""
    with a_crew(tmp_path / "ck", running) as crew:
        if loads:
            save(crew, 1)

        def fail(rank: int, manager: CheckpointManager) -> None:
            state = {**state_of(rank, 2), **({"f": print} if rank else {})}
            with pytest.raises(Unstorable if rank else RankFailed):
                manager.save(state, 2)

        crew.each(fail)

    def rank_0_is_late(rank: int, manager: CheckpointManager) -> None:
        assert rank or is_asked_for.wait(20)
        manager.save(state_of(rank, 2), 2)

    with a_crew(tmp_path / "ck", running) as crew:
        if loads:
            load(crew, step=1)
        is_asked_for = ManagerSeam(crew.managers[1]).when_called("AwaitCheckpoint")
        crew.each(rank_0_is_late)
        for rank, found in enumerate(load(crew)):
            assert_same(found, bare(rank, 2))


def test_the_latest_is_loaded_when_what_was_gone_on_from_is_gone(tmp_path: Path, running: CoordinatorProcess) -> None:
    with a_crew(tmp_path / "ck", running, keep_count=2) as crew:
        for step in (1, 2):
            save(crew, step)
    with a_crew(tmp_path / "ck", running, keep_count=2) as crew:
        load(crew, step=2)
        for step in (3, 4):
            save(crew, step)
        crew.each(lambda rank, manager: manager.wait())
        assert crew.managers[0].list_checkpoints() == [3, 4]
        for rank, found in enumerate(load(crew)):
            assert_same(found, bare(rank, 4))
        save(crew, 5)


def test_a_rank_that_is_started_anew_goes_on_with_those_who_stayed(tmp_path: Path, running: CoordinatorProcess) -> None:
    """It hears which arrays rank 0 has, though rank 0 has said so long before."""
    with a_crew(tmp_path / "ck", running) as crew:
        save(crew, 1)
        crew.managers[1].close()
        crew.managers[1] = a_crew(tmp_path / "ck", running).managers[1]
        load(crew)
        save(crew, 2)
        for rank, found in enumerate(load(crew)):
            assert_same(found, bare(rank, 2))


class LastAct(FaultyStorage):
    """The coordinator dies the moment before the checkpoint of step 2 is committed."""

    def __init__(self, where: Path, running: CoordinatorProcess) -> None:
        super().__init__(LocalStorage(where))
        self._running = running

    async def put_if_absent(self, path: str, data: Data) -> None:
        if path.endswith("step_2/metadata.json"):
            self._running.kill()
        await super().put_if_absent(path, data)


def test_all_ranks_hear_of_a_commit_though_the_coordinator_is_gone(
    tmp_path: Path, own_coordinator: CoordinatorProcess
) -> None:
    storage: Any = LastAct(tmp_path / "ck", own_coordinator)
    with a_crew(storage, own_coordinator, config=HASTY) as crew:
        save(crew, 1)
        save(crew, 2)
        own_coordinator.start()
        until(lambda: is_back(crew))
        save(crew, 3)
    assert listed(own_coordinator) == stored(tmp_path / "ck")


class Late(FaultyStorage):
    """Rank 1's part of step 2 takes until it is let go."""

    def __init__(self, where: Path) -> None:
        super().__init__(LocalStorage(where))
        self.reached, self.let_go = threading.Event(), threading.Event()

    async def put_if_absent(self, path: str, data: Data) -> None:
        if "/step_2/part-1-" in path:
            self.reached.set()
            await asyncio.to_thread(self.let_go.wait, 20)
        await super().put_if_absent(path, data)


def test_a_rank_that_is_late_hears_that_a_later_save_took_the_place_of_this_one(
    tmp_path: Path, running: CoordinatorProcess
) -> None:
    storage: Any = Late(tmp_path / "ck")
    config = CheckpointManagerConfig(when_busy="replace", ranks_seconds=20)
    with a_crew(storage, running, config=config) as crew:
        save(crew, 1)

        def act(rank: int, manager: CheckpointManager) -> None:
            replaced = manager.save_async(state_of(rank, 2), step=2)
            assert storage.reached.wait(20)
            later = manager.save_async(state_of(rank, 3), step=3)
            if not rank:
                storage.let_go.set()
            later.result()
            with pytest.raises(SaveReplaced):
                replaced.result()

        crew.each(act)
    assert [step for step, _ in listed(running)] == [1, 3]
