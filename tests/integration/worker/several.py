"""One of several training processes without a coordinator, with RANK and WORLD_SIZE as torchrun says them:

    python -m tests.integration.worker.several FOLDER NOTICE_SECONDS

With MASTER_PORT they are processes of torch.distributed, and meet at each step; else each goes its own way.
"""

import logging
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from strata import CheckpointManager
from strata.checkpoint.settings import CheckpointManagerConfig
from strata.data import Loader
from strata.worker.training import Training
from tests.integration.worker.trainee import BATCH


def main(folder: Path, notice_seconds: float) -> None:
    logging.basicConfig(level="INFO", format="%(asctime)s %(name)s %(message)s")
    place: dict[str, Any] = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    (folder / f"process-{place['rank']}").write_text(str(os.getpid()))
    meet: Callable[[], object] | None = None
    if "MASTER_PORT" in os.environ:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        meet = partial(dist.all_reduce, torch.zeros(1))
    loader = Loader(folder / "rows", BATCH, format="parquet", tail="short", **place)
    config = CheckpointManagerConfig(ranks_seconds=600.0)
    manager = CheckpointManager(folder / "checkpoints", config=config, **place)
    state = {"total": np.zeros(1, np.int64)}
    plan: dict[str, Any] = {"epochs": 40, "save_every": 1000, "notice_seconds": notice_seconds}
    log = (folder / f"made-{place['rank']}").open("a", buffering=1)
    with log, Training(state, loader, manager, **plan) as training:
        for batch in training:
            time.sleep(0.01 * (1 + place["rank"]))
            if meet is not None:
                meet()
            state["total"] += batch["id"].sum()
            log.write(f"{training.completed + 1}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
