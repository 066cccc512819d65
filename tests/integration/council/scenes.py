"""Ranks of the test's job that save through a coordinator, and what that and the storage know of their checkpoints."""

from pathlib import Path
from typing import Any

import numpy as np

from strata import background
from strata.checkpoint import CheckpointManagerConfig, CheckpointReader
from strata.checkpoint.marks import PerRank, Replicated
from strata.testing.manager_seam import ManagerSeam
from tests.servers.coordinator import Client, CoordinatorProcess
from tests.unit.checkpoint.crews import Crew

CONFIG = CheckpointManagerConfig(ranks_seconds=20)
HASTY = CheckpointManagerConfig(ranks_seconds=20, coordinator_seconds=3)
"""For a coordinator that goes: not so hasty that a busy one which is there would be done without."""


def state_of(rank: int, step: int) -> dict[str, Any]:
    return {
        "w": np.full(50, step),
        "same": Replicated(np.arange(6) + step),
        "own": PerRank(np.array([rank, step])),
        f"stage{rank}": np.full(3, rank),
    }


def bare(rank: int, step: int, size: int = 2) -> dict[str, Any]:
    stages = {f"stage{each}": np.full(3, each) for each in range(size)}
    return {"w": np.full(50, step), "same": np.arange(6) + step, "own": np.array([rank, step]), **stages}


def a_crew(where: Path, running: CoordinatorProcess, size: int = 2, **given: Any) -> Crew:
    return Crew(where, size, run="", coordinator_url=running.address, **{"config": CONFIG, **given})


def save(crew: Crew, step: int, **given: Any) -> None:
    crew.save([state_of(rank, step) for rank in range(len(crew.managers))], step, **given)


def load(crew: Crew, **given: Any) -> list[Any]:
    return crew.each(lambda rank, manager: manager.load(**given))


def listed(running: CoordinatorProcess) -> list[tuple[int, str]]:
    """What the coordinator knows, oldest first: the step of each, and where it is."""
    with Client(running.address) as client:
        found = client.call("ListCheckpoints").checkpoints
    return [(each.step, each.place) for each in reversed(found)]


def stored(where: Path) -> list[tuple[int, str]]:
    """The same, as the storage has it."""
    with CheckpointReader(where) as reader:
        found = background.run(ManagerSeam(reader).checkpoints.all())
    return sorted((metadata.step, f"{folder.name} {metadata.attempt}") for folder, metadata in found)


def is_back(crew: Crew) -> bool:
    """Whether all of them are heard by the coordinator again."""
    return all(manager.session is not None and not manager.session.is_silent for manager in crew.managers)
