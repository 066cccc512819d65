"""A run that trains: a stack of transformer-like blocks with Adam, its step made as long as asked for."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

WIDTH = 4096
LAYERS = 4
"""Few and wide, or starting the kernels alone takes longer than 20 ms."""


class Block(nn.Module):
    """As many weights as a layer of a language model, in as many tensors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.norm1(x)
        x = x + self.o(self.q(found) * torch.sigmoid(self.k(found)) + self.v(found))
        y: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return y


class Run:
    """A model in training. Every step ends when the GPU has done it."""

    def __init__(self, layers: int = LAYERS, width: int = WIDTH) -> None:
        torch.manual_seed(0)
        self.width = width
        self.model = nn.Sequential(*(Block(width) for _ in range(layers))).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self.tokens = 256
        self.before_update: Callable[[], None] = lambda: None
        for _ in range(3):
            self.step()

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())

    def tensors(self) -> list[torch.Tensor]:
        owned = [value for state in self.optimizer.state.values() for value in state.values()]
        return [*self.model.state_dict().values(), *owned]

    def step(self) -> float:
        """One step; how long it took."""
        began = time.perf_counter()
        x = torch.randn(self.tokens, self.width, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = self.model(x).square().mean()
        loss.backward()
        self.before_update()
        self.optimizer.step()
        self.optimizer.zero_grad()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    def last(self, seconds: float) -> float:
        """Choose the batch so that a step takes about so long; how long it takes."""
        times = {}
        for tokens in (256, 8192):
            self.tokens = tokens
            times[tokens] = self.usual()
        per_token = (times[8192] - times[256]) / (8192 - 256)
        self.tokens = max(64, round((256 + (seconds - times[256]) / per_token) / 64) * 64)
        return self.usual()

    def usual(self, steps: int = 8) -> float:
        for _ in range(2):
            self.step()
        return statistics.median(self.step() for _ in range(steps))
