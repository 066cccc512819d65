"""A run on a GPU goes on exactly, as a program for a machine that has one: `python -m tests.unit.torch.with_cuda`."""

import sys
from typing import Any

import torch
from torch import nn

from strata.checkpoint import CheckpointManager
from strata.storage import MemoryStorage
from strata.torch import TrainState
from tests.unit.checkpoint.states import assert_same

OPTIONS: tuple[dict[str, Any], ...] = ({}, {"fused": True}, {"capturable": True}, {"foreach": True})


def run(device: str, seed: int, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer, TrainState]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 64)).to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **options)
    return model, optimizer, TrainState(model, optimizer, rng={"own": torch.Generator(device).manual_seed(seed)})


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, state: TrainState, device: str) -> list[float]:
    losses = []
    for _ in range(5):
        noise = torch.rand(8, 64, device=device, generator=state.rng["own"])  # type: ignore[index]
        loss = model((torch.randn(8, 64, device=device) + noise).bfloat16()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def goes_on_exactly(device: str, options: dict[str, Any], used: bool) -> None:
    first, second = run(device, 1, **options), run(device, 2, **options)
    with CheckpointManager(MemoryStorage()) as manager:
        steps(*first, device)
        manager.save(first[2], step=1)
        losses = steps(*first, device)
        if used:
            steps(*second, device)
        manager.load(into=second[2])
        assert steps(*second, device) == losses
    mine, theirs = second[1].state_dict(), first[1].state_dict()
    for state, other in zip(mine["state"].values(), theirs["state"].values(), strict=True):
        assert {key: each.device for key, each in state.items()} == {key: each.device for key, each in other.items()}
        assert_same({key: each.cpu() for key, each in state.items()}, {key: each.cpu() for key, each in other.items()})


if __name__ == "__main__":
    where = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    for chosen in OPTIONS:
        if "capturable" not in chosen or where != "cpu":
            goes_on_exactly(where, chosen, used=False)
            goes_on_exactly(where, chosen, used=True)
