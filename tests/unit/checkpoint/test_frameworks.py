"""Arrays of packages other than torch and numpy."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from strata.checkpoint import CheckpointManager
from strata.storage import MemoryStorage

ROOT = Path(__file__).parents[3]


def test_arrays_of_jax() -> None:
    """In a process of its own: JAX warns of every fork, and other tests fork."""
    subprocess.run([sys.executable, "-m", "tests.unit.checkpoint.with_jax"], check=True, timeout=120, cwd=ROOT)


class Exotic:
    """An array of a package that nobody here knows."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.arange(3)


def test_anything_that_becomes_an_array_is_stored_as_one() -> None:
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save({"a": Exotic()}, step=1)
        assert manager.load()["a"].tolist() == [0, 1, 2]


def test_tensors_with_gaps_and_other_ways_to_lie() -> None:
    base = torch.randn(6, 7, 8)
    state = {
        "columns": base[:, 1:4, ::3].clone(memory_format=torch.preserve_format)[:, ::2],
        "permuted": base.permute(2, 0, 1).clone()[::2],
        "expanded": torch.randn(3, 1).expand(3, 5),
        "last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "conj": torch.randn(4, dtype=torch.complex64).conj(),
        "negative": torch.randn(4, dtype=torch.complex64).conj().imag,
        "fortran": np.asfortranarray(np.random.rand(3, 4)),
        "reversed": np.arange(10)[::-1],
    }
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save(state, step=1)
        back = manager.load()
    for name, value in state.items():
        assert np.array_equal(_plain(back[name]), _plain(value)), name


def test_a_view_that_negates_is_filled_in_place() -> None:
    mine = torch.zeros(4, dtype=torch.complex64).conj()
    with CheckpointManager(MemoryStorage()) as manager:
        wanted = torch.randn(4, dtype=torch.complex64)
        manager.save({"a": wanted}, step=1)
        manager.load(into={"a": mine})
    assert torch.equal(mine.resolve_conj(), wanted)


def _plain(value: Any) -> np.ndarray:
    return np.asarray(value.resolve_conj().resolve_neg() if isinstance(value, torch.Tensor) else value)
