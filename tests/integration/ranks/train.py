"""A training run of several ranks, started by torchrun: how it goes on from a checkpoint is what is tested.

Everything is in float64, and each global batch is the same however many ranks share it.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from strata.checkpoint import CheckpointManager
from strata.torch import TrainState

BATCH = 12
WIDTH = 24
TENSOR = 2
"""So many ranks share a batch and the layers, where FSDP goes over tensor parallelism."""


def model_of(how: str, world: int) -> nn.Module:
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(WIDTH, 38), nn.Tanh(), nn.Linear(38, 29), nn.Tanh(), nn.Linear(29, 1)).double()
    if how == "ddp":
        return DistributedDataParallel(model)
    if how == "hsdp":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("copies", "shards"))
    elif how == "tp":
        grid = init_device_mesh("cpu", (world // TENSOR, TENSOR), mesh_dim_names=("data", "tensor"))
        parallelize_module(model, grid["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        mesh = grid["data"]
    else:
        mesh = init_device_mesh("cpu", (world,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def loss_at(step: int, model: nn.Module, share: int, shares: int) -> torch.Tensor:
    """Of this rank's share of the step's batch; their mean is that of the batch."""
    inputs = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    own = inputs.chunk(shares)[share]
    found: torch.Tensor = model(own)
    return (found - own.sum(1, keepdim=True)).square().mean()


def whole(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return found.detach()


def told(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, list[float]]:
    """Every parameter and its moments, put together."""
    found = {}
    for full_name, parameter in model.named_parameters():
        name = full_name.removeprefix("module.")
        found[name] = whole(parameter).flatten().tolist()
        for key, value in optimizer.state[parameter].items():
            found[f"{name}/{key}"] = whole(value).flatten().tolist()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--how", default="fsdp")
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--until", type=int, required=True)
    parser.add_argument("--save-at", type=int, default=-1)
    parser.add_argument("--tell", type=Path, required=True)
    given = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model, together = model_of(given.how, world), TENSOR if given.how == "tp" else 1
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = TrainState(model, optimizer, rng=True, extra={"step": 0})
    with CheckpointManager(given.folder, rank=rank, world_size=world) as manager:
        document: dict[str, Any] = {"losses": {}}
        if given.load:
            manager.load(into=state)
            document["loaded"] = told(model, optimizer)
        for step in range(state.extra["step"], given.until):
            loss = loss_at(step, model, rank // together, world // together)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            mean = loss.detach() / world
            dist.all_reduce(mean)
            document["losses"][step] = float(mean)
            state.extra["step"] = step + 1
            if step + 1 == given.save_at:
                document["saved"] = told(model, optimizer)
                manager.save_async(state, step + 1)
        manager.wait()
    if rank == 0:
        given.tell.write_text(json.dumps(document))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
    # A thread of gloo's that lets go of its last tensor only when Python has ended would abort the process.
    os._exit(0)
