"""A run on a GPU goes on exactly, and what lies in pieces comes to it, as a program for a machine that has one:
`python -m tests.unit.torch.with_cuda`."""

import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from strata.checkpoint import CheckpointManager, devices
from strata.checkpoint.frameworks import Block, Copying, framework_named
from strata.storage import MemoryStorage
from strata.torch import TrainState
from tests.unit.checkpoint.crews import Crew
from tests.unit.checkpoint.spread import spread
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
        noise = torch.rand(8, 64, device=device, generator=state.rng["own"])  # type: ignore[arg-type, index]
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


HALF = (2 << 20) - 64
"""More than a chunk of what is stored here, and no multiple of a page."""
LAYOUTS: tuple[tuple[Placement, ...], ...] = (
    (Shard(0), Replicate()),
    (Shard(0), Shard(1)),
    (_StridedShard(0, split_factor=2), Shard(0)),
    (Shard(1), _StridedShard(1, split_factor=3)),
)


@contextmanager
def in_turns(device: str) -> Iterator[list[int]]:
    """How many bytes were copied to the device at once, each time, from memory that is pinned."""
    found: list[int] = []
    arrays: Any = framework_named("torch")
    copy = arrays.copy_to_device

    def recorded(pairs: Iterable[tuple[Any, Block]]) -> Copying:
        own = list(pairs)
        found.append(sum(block.nbytes for _, block in own))
        assert device == "cpu" or all(torch.from_numpy(block).is_pinned() for _, block in own)
        return copy(own)  # type: ignore[no-any-return]

    with patch.object(devices, "HALF_BYTES", HALF), patch.object(arrays, "copy_to_device", recorded):
        yield found


def copies_in(layout: tuple[Placement, ...]) -> int:
    """How often all of a tensor lies on four ranks."""
    return 1 << sum(placement.is_replicate() for placement in layout)


def pieces_come(device: str, folder: Path) -> None:
    """Of every layout into every other, and into tensors that are whole, or do not lie in one."""
    whole = torch.arange(1000 * 1501, dtype=torch.float32).reshape(1000, 1501)
    for number, stored in enumerate(LAYOUTS):
        with Crew(folder / str(number), 4) as crew:
            crew.save([{"w": each} for each in spread(whole, (2, 2), stored, device)], 1)
            with in_turns(device) as sent:
                for other in LAYOUTS:
                    room = spread(torch.zeros_like(whole), (2, 2), other, device)

                    def fill(rank: int, manager: CheckpointManager, room: Any = room) -> None:
                        manager.load(into={"w": room[rank]})

                    crew.each(fill)
                    for mine, theirs in zip(room, spread(whole, (2, 2), other, device), strict=True):
                        assert mine.to_local().device.type == device
                        assert torch.equal(mine.to_local(), theirs.to_local())
                for plain in (torch.zeros(1000, 1501, device=device), torch.zeros(1501, 1000, device=device).t()):
                    crew.managers[0].load(into={"w": plain})
                    assert torch.equal(plain.cpu(), whole)
            assert max(sent) <= HALF + 64
            if device != "cpu":  # on the host most is read into its own memory
                assert sum(sent) == (sum(map(copies_in, LAYOUTS)) + 2) * whole.nbytes


if __name__ == "__main__":
    where = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    for chosen in OPTIONS:
        if "capturable" not in chosen or where != "cpu":
            goes_on_exactly(where, chosen, used=False)
            goes_on_exactly(where, chosen, used=True)
    with tempfile.TemporaryDirectory() as made:
        pieces_come(where, Path(made))
