"""Train a small network on two workers of Ray Train, one of which dies on the way, with checkpoints by Strata.

    python examples/ray_train.py [FOLDER]

Ray starts the workers again, and they go on from the last checkpoint that Strata has committed.
"""

import os
import sys
from pathlib import Path
from typing import Any

import ray
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model

from strata.integrations.ray import from_ray_context, report, resume_step
from strata.torch import TrainState

STEPS = 12


def train(config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state = TrainState(model, optimizer, rng=True)
    with from_ray_context(config["checkpoints"], keep_count=2) as manager:
        last = resume_step(manager)
        if last is not None:
            manager.load(last, into=state)
        rank = ray.train.get_context().get_world_rank()
        for step in range((last or 0) + 1, STEPS + 1):
            features = torch.randn(16, 8, generator=torch.Generator().manual_seed(1000 * rank + step))
            loss = (model(features) - features.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 3 == 0:
                manager.save_async(state, step=step, metrics={"loss": loss.item()})
                report({"loss": loss.item(), "went_on_from": last or 0}, manager, wait=step == STEPS)
            if step == 8 and rank == 1 and last is None and config["dies"]:
                os._exit(1)


def fit(folder: Path, *, dies: bool) -> dict[str, Any]:
    """What was reported last."""
    trainer = TorchTrainer(
        train,
        train_loop_config={"checkpoints": str(folder / "strata"), "dies": dies},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(
            name="linear", storage_path=str(folder / "ray"), failure_config=FailureConfig(max_failures=1)
        ),
    )
    told = trainer.fit().metrics
    assert told is not None
    return dict(told)


def start() -> None:
    """On this machine, and for it alone."""
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, _node_ip_address="127.0.0.1")


if __name__ == "__main__":
    start()
    told = fit(Path(sys.argv[1] if sys.argv[1:] else "ray_train").absolute(), dies=True)
    ray.shutdown()
    print(f"went on from step {told['went_on_from']}, to a loss of {told['loss']:.6f}")
