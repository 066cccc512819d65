"""Two workers of Ray Train, each of which notes who `from_env` takes it for: run by `test_ray`, which reads that."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import ray
import ray_train  # type: ignore[import-not-found]  # of examples/
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from strata import TrainingOrchestrator


def note(config: dict[str, Any]) -> None:
    """As on a Slurm cluster, where all of a node have the rank of the process that started Ray there."""
    os.environ |= {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    found = [TrainingOrchestrator.from_env().who]
    os.environ["STRATA_RANK"] = "7"
    found.append(TrainingOrchestrator.from_env(world_size=9).who)
    rank = ray.train.get_context().get_world_rank()
    (Path(config["folder"]) / str(rank)).write_text(json.dumps([(each.rank, each.world_size) for each in found]))


def main(folder: Path) -> None:
    ray_train.start()
    try:
        DataParallelTrainer(
            note,
            train_loop_config={"folder": str(folder)},
            scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
            run_config=RunConfig(name="places", storage_path=str(folder / "ray")),
        ).fit()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
