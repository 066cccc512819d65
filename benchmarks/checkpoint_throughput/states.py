"""States to be saved, of noise that nothing compresses, in memory that has been touched."""

from typing import Any, TypeAlias

import numpy as np
import torch

from benchmarks.checkpoint_throughput.scale import SMALL_TENSORS

State: TypeAlias = dict[str, torch.Tensor]

BLOCKS = 16
NOISE_BYTES = 32 << 20
_noise = torch.from_numpy(np.random.default_rng(7).integers(0, 256, NOISE_BYTES, np.uint8))


def layers(size: int) -> State:
    """64 tensors of float32: matrices, a kernel of three dimensions and a vector in each of 16 blocks."""
    found: State = {}
    sixteenth = size // 4 // BLOCKS // 16
    for block in range(BLOCKS):
        found[f"blocks.{block}.feed.weight"] = noise(8 * sixteenth).view(-1, 1024)
        found[f"blocks.{block}.attention.weight"] = noise(4 * sixteenth).view(-1, 1024)
        found[f"blocks.{block}.kernel"] = noise(3 * sixteenth).view(3, -1, 256)
        found[f"blocks.{block}.scale"] = noise(sixteenth)
    return found


def whole(size: int) -> State:
    """One tensor."""
    return {"weight": noise(size // 4)}


def many(size: int) -> State:
    """Small ones, a hundred thousand to the gibibyte."""
    count = size * SMALL_TENSORS >> 30
    return {f"blocks.{number}.weight": noise(size // 4 // count) for number in range(count)}


def noise(count: int) -> torch.Tensor:
    """So many floats, whose bits are any."""
    made = torch.empty(count)
    target = made.view(torch.uint8)
    for start in range(0, len(target), NOISE_BYTES):
        target[start : start + NOISE_BYTES] = _noise[: len(target) - start]
    return made


def room_for(state: State) -> State:
    """Tensors like these, touched, that hold something else."""
    return {name: torch.full_like(tensor, 0.5) for name, tensor in state.items()}


def bytes_of(state: State) -> int:
    return sum(tensor.nbytes for tensor in state.values())


def check_same(found: Any, state: State) -> None:
    """A benchmark of a load that loads something else would prove nothing."""
    for name, tensor in state.items():
        if not torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)):
            raise RuntimeError(f"{name} was not loaded as it was saved")
