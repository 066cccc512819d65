"""A small training run that can be killed at any time: `python training.py FOLDER STEPS WAY`.

What it computes depends on nothing but the step, so that a run which was killed and went on ends where one that was not
does. Weights and optimizer are changed in place, all the time, while saves are being written.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from strata.checkpoint import CheckpointManager, CheckpointManagerConfig

SIZE = 200_000
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "in turns": {"config": CheckpointManagerConfig(memory_bytes=16 << 20)},
    "incremental": {"incremental": True},
}


def beginning() -> dict[str, Any]:
    """Before step 1."""
    return {
        "weights": np.zeros(SIZE),
        "optimizer": {"momentum": np.zeros(SIZE), "step": np.zeros((), np.int64)},
        "frozen": np.ones(SIZE),
        "step": 0,
    }


def train_one_step(state: dict[str, Any]) -> None:
    step = state["step"] + 1
    gradient = np.sin(np.arange(SIZE) + step)
    state["optimizer"]["momentum"] *= 0.9
    state["optimizer"]["momentum"] += gradient
    state["weights"] -= 0.1 * state["optimizer"]["momentum"]
    state["optimizer"]["step"][...] = step
    state["step"] = step


def main(folder: str, steps: int, way: str) -> None:
    with CheckpointManager(Path(folder), keep_count=3, **WAYS[way]) as manager:
        state = beginning() if manager.latest_step() is None else manager.load()
        print("from", state["step"], flush=True)
        while state["step"] < steps:
            train_one_step(state)
            manager.save_async(state, step=state["step"])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
