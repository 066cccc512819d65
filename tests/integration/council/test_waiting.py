"""Who waits for other ranks of a job with a coordinator says so; and who has left is not waited for."""

import logging
import re
import threading
from pathlib import Path

import pytest

from strata.checkpoint import CheckpointManager, CheckpointManagerConfig, waiting
from strata.errors import RankFailed
from strata.testing.manager_seam import ManagerSeam
from tests.integration.council.scenes import a_crew, save, state_of
from tests.servers.coordinator import CoordinatorProcess
from tests.until import until

pytestmark = pytest.mark.usefixtures("job")


def test_who_is_waited_for_is_told_and_asked_for_by_its_step(
    tmp_path: Path, running: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), a_crew(tmp_path / "ck", running, 3) as crew:
        save(crew, 1)
        for each in crew.managers:
            ManagerSeam(each).seat.asking.patience = 2.0
        monkeypatch.setattr(waiting, "FIRST_SECONDS", 0.1)

        def act(rank: int, manager: CheckpointManager) -> str:
            step = 11 if rank == 1 else 10
            with pytest.raises(RankFailed) as caught:
                manager.save(state_of(rank, step), step=step)
            return str(caught.value)

        first, second, _ = crew.each(act)
    assert "the parts of rank 1 are not there after 2 s: did rank 1 call save(step=10)?" in first
    assert "rank 0 has not begun to save step 11 after 2 s: did rank 0 call save(step=11)" in second
    assert re.search(r"step 10 is not saved yet: waiting for rank 1 for \d s, until all parts are there", caplog.text)
    assert re.search(r"step 11 is not saved yet: waiting for rank 0 for \d s, to begin it", caplog.text)


def test_a_manager_that_is_closed_is_not_waited_for(tmp_path: Path, running: CoordinatorProcess) -> None:
    patient = CheckpointManagerConfig(ranks_seconds=600)
    with a_crew(tmp_path / "ck", running, 2, config=patient) as crew:
        save(crew, 1)
        crew.managers[1].close()
        with pytest.raises(RankFailed, match="step 2 cannot be saved without rank 1: it has left"):
            crew.managers[0].save_async(state_of(0, 2), step=2).result(60)


def test_that_a_rank_never_came_is_told(
    tmp_path: Path, running: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting, "FIRST_SECONDS", 0.5)

    made = {"world_size": 2, "coordinator_url": running.address, "config": CheckpointManagerConfig(ranks_seconds=30)}
    first = CheckpointManager(tmp_path / "ck", rank=0, **made)  # type: ignore[arg-type]
    saving = threading.Thread(target=lambda: first.save(state_of(0, 1), step=1))
    saving.start()
    until(lambda: "waiting for all ranks to be there for" in caplog.text)
    with CheckpointManager(tmp_path / "ck", rank=1, **made) as second:  # type: ignore[arg-type]
        second.save(state_of(1, 1), step=1)
        saving.join()
        first.close()
    assert "nobody is registered for rank 1" in caplog.text
