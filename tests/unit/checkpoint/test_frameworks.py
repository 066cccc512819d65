"""Arrays of packages other than torch and numpy."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from strata.checkpoint import CheckpointManager
from strata.errors import Unstorable
from strata.storage import MemoryStorage
from tests.unit.checkpoint.states import assert_same

ROOT = Path(__file__).parents[3]
TENSORFLOW = "tensorflow-cpu==2.21.0"


@pytest.mark.slow
def test_arrays_of_jax() -> None:
    """In a process of its own: JAX warns of every fork, and other tests fork."""
    subprocess.run([sys.executable, "-m", "tests.unit.checkpoint.with_jax"], check=True, timeout=120, cwd=ROOT)


@pytest.mark.slow
def test_arrays_of_jax_on_many_devices() -> None:
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    program = [sys.executable, "-m", "tests.unit.checkpoint.with_jax_devices"]
    subprocess.run(program, check=True, timeout=240, cwd=ROOT, env=environment)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it has another name")
def test_arrays_of_tensorflow() -> None:
    """In a folder of its own: it is too large to be a dependency of every developer's."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-warn-conflicts"]
        wanted = ["--constraint", str(ROOT / "constraints.txt"), "--target", folder, TENSORFLOW]
        done = subprocess.run([*pip, *wanted], check=False, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"missing component: {TENSORFLOW} ({done.stderr.strip().splitlines()[-1]})")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([folder, *filter(None, sys.path)])}
        program = [sys.executable, "-m", "tests.unit.checkpoint.with_tensorflow"]
        subprocess.run(program, check=True, timeout=300, cwd=ROOT, env=environment)


class Exotic:
    """An array of a package that nobody here knows."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.arange(3)


def test_anything_that_becomes_an_array_is_stored_as_one() -> None:
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save({"a": Exotic()}, step=1)
        assert manager.load()["a"].tolist() == [0, 1, 2]
        with pytest.raises(Unstorable, match="read-only"):  # nothing that is read would reach it
            manager.load(into={"a": Exotic()})


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"])
def test_numbers_of_few_bits(dtype: str) -> None:
    array = np.array([0, 1, 2], getattr(ml_dtypes, dtype))
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save({"a": array}, step=1)
        assert_same(manager.load()["a"], array)


def test_an_array_in_a_file_is_stored_as_any_other(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "array", np.int32, "w+", shape=(3,))
    mapped[:] = [1, 2, 3]
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save({"a": mapped}, step=1)
        mapped[:] = 0
        assert_same(manager.load()["a"], np.array([1, 2, 3], np.int32))
        manager.load(into={"a": mapped})
    assert mapped.tolist() == [1, 2, 3]


def test_a_template_that_is_more_than_an_array_is_refused_too() -> None:
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save({"a": np.ones(2)}, step=1)
        for load in (lambda tree: manager.load(into=tree), lambda tree: manager.load(like=tree)):
            with pytest.raises(Unstorable, match=r"a: a numpy.ma\S*MaskedArray cannot be stored"):
                load({"a": np.ma.zeros(2)})


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
