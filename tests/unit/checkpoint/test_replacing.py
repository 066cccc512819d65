"""`when_busy="replace"`: what became of a save is the same truth on all ranks, and in the storage."""

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager, CheckpointManagerConfig
from strata.checkpoint.marks import PerRank
from strata.errors import SaveReplaced
from strata.storage import MemoryStorage
from strata.storage.backend import Data
from strata.testing.faulty import FaultyStorage
from strata.testing.manager_seam import ManagerSeam, Point
from tests.unit.checkpoint.crews import Crew

REPLACE = CheckpointManagerConfig(when_busy="replace", ranks_seconds=20)


def state_of(rank: int, step: int) -> dict[str, Any]:
    return {"w": np.full(1000, step), "own": PerRank(np.full(3, rank + step))}


class Held(FaultyStorage):
    """Its first call to write such an object does not return before it is let go; by then it is done, or not yet."""

    def __init__(self, name: str, *, is_done: bool) -> None:
        super().__init__(MemoryStorage())
        self._name, self._is_done = name, is_done
        self.reached, self.let_go = threading.Event(), threading.Event()

    async def put_if_absent(self, path: str, data: Data) -> None:
        if self._name not in path or self.reached.is_set():
            await super().put_if_absent(path, data)
            return
        if self._is_done:
            await super().put_if_absent(path, data)
        self.reached.set()
        while not self.let_go.is_set():
            await asyncio.sleep(0.01)
        if not self._is_done:
            await super().put_if_absent(path, data)


def ends_of(handles: list[Any]) -> list[str]:
    for handle in handles:
        try:
            handle.result(30)
        except SaveReplaced:
            assert handle.status == "replaced"
    return [handle.status for handle in handles]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("is_done", [True, False])
def test_a_save_whose_commit_may_have_been_made_is_finished_and_not_replaced(
    size: int, is_done: bool, caplog: pytest.LogCaptureFixture
) -> None:
    storage = Held("step_1/metadata.json", is_done=is_done)
    with Crew(storage, size, config=REPLACE) as crew:

        def act(rank: int, manager: CheckpointManager) -> list[str]:
            first = manager.save_async(state_of(rank, 1), step=1)
            assert storage.reached.wait(20)
            threading.Timer(0.2, storage.let_go.set).start()
            second = manager.save_async(state_of(rank, 2), step=2)
            assert rank or second.report.notes == ["waited for step 1"]
            return ends_of([first, second])

        assert crew.each(act) == [["committed", "committed"]] * size
        assert crew.managers[0].list_checkpoints() == [1, 2]
    assert "given up" not in caplog.text


@pytest.mark.parametrize("size", [1, 3])
def test_a_save_whose_commit_was_not_begun_is_replaced_on_all_ranks(size: int) -> None:
    storage = Held("step_1/part-0-", is_done=False)
    with Crew(storage, size, config=REPLACE) as crew:

        def act(rank: int, manager: CheckpointManager) -> list[str]:
            first = manager.save_async(state_of(rank, 1), step=1)
            assert storage.reached.wait(20)
            return ends_of([first, manager.save_async(state_of(rank, 2), step=2)])

        assert crew.each(act) == [["replaced", "committed"]] * size
        assert crew.managers[0].list_checkpoints() == [2]


def test_a_save_may_be_given_up_by_a_signal_handler_in_the_middle_of_saving(tmp_path: Path) -> None:
    """What asks for a save holds a lock, and the handler runs in the same thread."""
    with CheckpointManager(tmp_path) as manager:
        manager.save(state_of(0, 1), step=1)
        before = signal.signal(signal.SIGUSR2, lambda *_: manager.give_up())

        def stage(real: Any, *given: Any) -> Any:
            os.kill(os.getpid(), signal.SIGUSR2)
            return real(*given)

        ManagerSeam(manager).instead(Point.STAGE, stage)
        try:
            manager.save(state_of(0, 2), step=2)
        finally:
            signal.signal(signal.SIGUSR2, before)
        assert manager.list_checkpoints() == [1, 2], "and what was given up was over before"


def test_what_was_given_up_before_it_decided_decides_nothing_any_more() -> None:
    """The task hears a moment later that it is given up."""
    with CheckpointManager(MemoryStorage(), config=REPLACE) as manager:

        async def commit(real: Any, *given: Any) -> None:
            save = given[2]
            if save.handle.step == 1:
                save.handle.give_up(SaveReplaced("replaced by step 2"))
            await real(*given)

        ManagerSeam(manager).instead(Point.COMMIT, commit)
        first = manager.save_async(state_of(0, 1), step=1)
        with pytest.raises(SaveReplaced):
            first.result(20)
        manager.save(state_of(0, 2), step=2)
        assert manager.list_checkpoints() == [2]
