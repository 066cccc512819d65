"""A small training run with everything in it that a real one has, for tests."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from strata.torch import TrainState


class Counted(nn.Module):
    """Has state that is no tensor, and a buffer that is not kept."""

    scratch: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x

    def get_extra_state(self) -> Any:
        return {"calls": self.calls, "history": torch.arange(self.calls)}

    def set_extra_state(self, state: Any) -> None:
        assert len(state["history"]) == state["calls"]
        self.calls = state["calls"]


class Net(nn.Module):
    """Tied weights, dropout, running statistics, a frozen layer, one that is never used, and one called `module`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), Counted())
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.last = nn.Linear(8, 8)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.frozen(self.module(self.first(x))))
        return found


class Samples:
    """A loader that knows where it is."""

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.at = seed, 0

    def next(self) -> torch.Tensor:
        self.at += 1
        return torch.randn(16, 8, generator=torch.Generator().manual_seed(self.seed * 1000 + self.at))

    def state_dict(self) -> dict[str, int]:
        return {"seed": self.seed, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seed, self.at = state["seed"], state["at"]


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "one cycle": lambda optimizer: OneCycleLR(optimizer, max_lr=0.01, total_steps=50),
    "lambda": lambda optimizer: LambdaLR(optimizer, lambda step: 0.9**step),
}


class Run:
    """A model that is trained, and its TrainState. Different seeds make everything different."""

    def __init__(self, seed: int, scheduler: str = "one cycle", wrap: Callable[[nn.Module], nn.Module] | None = None):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        self.net = Net()
        self.model = self.net if wrap is None else wrap(self.net)
        self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=0.01)
        self.scheduler = SCHEDULERS[scheduler](self.optimizer)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.samples = Samples(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.state = TrainState(
            self.model,
            self.optimizer,
            self.scheduler,
            self.scaler,
            self.ema,
            self.samples,
            {"noise": self.generator},
            extra={"seed": seed},
        )

    def step(self) -> float:
        # The inner module, so that a model that was compiled is not.
        noise = torch.rand(16, 8, generator=self.generator) + random.random() + np.random.rand()
        loss = self.net(self.samples.next() + noise).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.scheduler.step()
        self.ema.update_parameters(self.model)
        return float(loss.item())

    def steps(self, count: int) -> list[float]:
        return [self.step() for _ in range(count)]
