"""All processes die between the decision to commit a checkpoint and its commit. Those who are started again recover
before they have a manager that could commit it."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata import CheckpointManager, OrchestratorConfig, TrainingOrchestrator
from strata.checkpoint import CheckpointReader
from strata.checkpoint.settings import CheckpointManagerConfig
from strata.errors import RankFailed, StrataError
from strata.storage import MemoryStorage
from strata.testing.manager_seam import ManagerSeam, Point
from tests.servers.coordinator import Client, CoordinatorProcess
from tests.unit.checkpoint.crews import Crew

pytestmark = pytest.mark.usefixtures("job")

CONFIG = CheckpointManagerConfig(ranks_seconds=20.0, coordinator_seconds=10.0)


class Dead(BaseException):
    """What a process that is killed raises: nobody gets to see it."""


async def never(*_: Any, **__: Any) -> None:
    raise Dead


async def fails(*_: Any, **__: Any) -> None:
    raise RankFailed("this process is dead")


async def nothing(*_: Any, **__: Any) -> None:
    pass


def die_decided(where: Any, running: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step 10 is committed, and step 20 decided."""
    with Crew(where, 2, run="", coordinator_url=running.address, config=CONFIG) as crew, monkeypatch.context() as dying:
        crew.save([{"w": np.full(3, 10)}] * 2, 10)
        dying.setattr("strata.checkpoint.crewsaver.commit", never)
        dying.setattr("strata.checkpoint.recovering.Recovery.put_manifest", never)
        dying.setattr("strata.checkpoint.council.Council.outcome", fails)
        ManagerSeam(crew.managers[0]).instead(Point.TELL_FAILURE, nothing)

        def die(rank: int, manager: CheckpointManager) -> None:
            with suppress(Dead, StrataError):  # what becomes of it is looked at afterwards
                manager.save({"w": np.full(3, 20)}, 20)
            with suppress(Dead, StrataError):
                manager.close()

        crew.each(die)
    with Client(running.address) as client:
        assert "DECIDED" in str(client.call("ListCheckpoints").checkpoints[0])


def recovered(running: CoordinatorProcess, seconds: float = 60.0) -> int:
    config = OrchestratorConfig(helper=False, recover_seconds=seconds)
    member = TrainingOrchestrator("w0", running.address, config=config)
    member.blocking.register_worker()
    try:
        return member.blocking.recover().step
    finally:
        member.blocking.deregister()


def test_it_is_committed_by_who_recovers(
    tmp_path: Path, running: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_decided(tmp_path / "ck", running, monkeypatch)
    assert recovered(running) == 20
    with CheckpointReader(tmp_path / "ck") as reader:
        assert reader.list_checkpoints() == [10, 20]
        assert reader.load()["w"].tolist() == [20, 20, 20]


def test_where_the_storage_cannot_be_opened_a_manager_is_waited_for(
    running: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_decided(MemoryStorage(), running, monkeypatch)
    with pytest.raises(RankFailed, match="step 20 is decided, and a checkpoint manager has to commit it"):
        recovered(running, seconds=1.0)
