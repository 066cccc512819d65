"""States for tests, and whether two of them are the same to the last bit."""

import math
from typing import Any

import numpy as np
import torch

from strata.checkpoint.marks import PerRank, Replicated


def assert_same(one: Any, other: Any, path: str = "state") -> None:
    """The same types, structure and bits."""
    if isinstance(one, torch.Tensor):
        assert isinstance(other, torch.Tensor), path
        assert type(one) is type(other), path
        assert (one.dtype, one.shape) == (other.dtype, other.shape), path
        assert bits(one) == bits(other), path
    elif isinstance(one, np.ndarray | np.generic):
        assert type(one) is type(other), path
        assert one.dtype == other.dtype, path
        assert one.shape == other.shape, path
        assert one.tobytes() == other.tobytes(), path
    elif isinstance(one, dict):
        assert type(one) is type(other), path
        assert list(one) == list(other), path
        for key in one:
            assert type(key) is type(next(each for each in other if each == key)), path
            assert_same(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list | tuple):
        assert type(one).__name__ == type(other).__name__, path
        assert len(one) == len(other), path
        for place, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            assert_same(mine, theirs, f"{path}/{place}")
    elif isinstance(one, PerRank | Replicated):
        assert type(one) is type(other), path
        assert_same(one.value, other.value, path)
    elif isinstance(one, float):
        assert type(other) is float, path
        assert one == other or (math.isnan(one) and math.isnan(other)), path
        assert math.copysign(1, one) == math.copysign(1, other), path
    else:
        assert type(one) is type(other), path
        assert one == other, path


def bits(tensor: torch.Tensor) -> bytes:
    """Of its elements in order, whatever they are."""
    dense = tensor.detach().contiguous().reshape(-1)
    return dense.view(torch.uint8).numpy().tobytes() if dense.numel() else b""
