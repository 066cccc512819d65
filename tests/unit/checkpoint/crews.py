"""Jobs of several ranks, each a manager in a thread of this process."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from strata.checkpoint import CheckpointManager
from strata.checkpoint.marks import PerRank, Replicated
from strata.storage import StorageBackend


def state_of(rank: int, step: int) -> dict[str, Any]:
    """With something of each kind: rank 0's for all, a share of each, and each rank's own."""
    return {
        "w": np.full(50, step),
        "same": Replicated({str(n): np.full(3, step + n) for n in range(4)}),
        "own": PerRank(np.full(4, 100 * step + rank)),
        "step": step,
    }


def bare(rank: int, step: int) -> dict[str, Any]:
    """As that rank loads it."""
    state = state_of(rank, step)
    return {**state, "same": state["same"].value, "own": state["own"].value}


class Crew:
    """Ranks of one run."""

    def __init__(self, where: StorageBackend | Path, size: int, run: str = "run", **given: Any) -> None:
        self.managers = [
            CheckpointManager(where, rank=rank, world_size=size, run_id=run, **given) for rank in range(size)
        ]

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        self.each(lambda rank, manager: manager.close())

    def each(self, act: Callable[[int, CheckpointManager], Any]) -> list[Any]:
        """What it gives on each rank, all at once; raises what the lowest of those that fail raised."""
        results: list[Any] = [None] * len(self.managers)
        errors: list[BaseException | None] = [None] * len(self.managers)

        def run(rank: int) -> None:
            try:
                results[rank] = act(rank, self.managers[rank])
            except BaseException as error:  # noqa: BLE001  raised below
                errors[rank] = error

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(self.managers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in errors:
            if error is not None:
                raise error
        return results

    def save(self, states: Sequence[Any], step: int, **given: Any) -> list[Any]:
        return self.each(lambda rank, manager: manager.save(states[rank], step, **given))
