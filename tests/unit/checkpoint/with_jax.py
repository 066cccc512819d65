"""Checkpoints of JAX's arrays, as a program: `python -m tests.unit.checkpoint.with_jax`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from strata.checkpoint import CheckpointManager, CheckpointManagerConfig
from strata.checkpoint.marks import Replicated
from strata.errors import RankFailed, Unstorable
from strata.storage import MemoryStorage
from tests.unit.checkpoint.crews import Crew


def arrays_come_back_as_they_were() -> None:
    state = {
        "f32": jnp.arange(6.0).reshape(2, 3),
        "bf16": jnp.ones(4, jnp.bfloat16),
        "f8": jnp.ones(4, jnp.float8_e4m3fn),
        "scalar": jnp.float32(1.5),
        "empty": jnp.zeros((0, 2)),
        "key": jax.random.key_data(jax.random.key(0)),
    }
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save(state, step=1)
        back = manager.load()
    for name, array in state.items():
        assert isinstance(back[name], jax.Array)
        assert back[name].dtype == array.dtype
        assert back[name].shape == array.shape
        assert np.asarray(back[name]).tobytes() == np.asarray(array).tobytes()


def what_it_cannot_do_is_said() -> None:
    with CheckpointManager(MemoryStorage()) as manager:
        with pytest.raises(Unstorable, match="key_data"):
            manager.check({"key": jax.random.key(0)})
        manager.save({"a": jnp.ones(2), "b": np.ones(2)}, step=1)
        into: dict[str, Any] = {"a": jnp.zeros(2), "b": np.zeros(2)}
        with pytest.raises(Unstorable, match="a: a JAX array cannot be changed in place"):
            manager.load(into=into)
        assert not into["b"].any()


def copies_that_differ_are_found() -> None:
    with Crew(MemoryStorage(), 2, config=CheckpointManagerConfig(ranks_seconds=60)) as crew:
        with pytest.raises(RankFailed, match="other values than rank 0 for x, which is marked Replicated"):
            crew.save([{"x": Replicated(jnp.full((1200, 1200), rank))} for rank in range(2)], 1)
        (note,) = crew.save([{"x": Replicated(jnp.ones(3)), "y": jnp.full(3, rank)} for rank in range(2)], 2)[0].notes
        assert "rank 1 has other values than rank 0 for y:" in note


if __name__ == "__main__":
    arrays_come_back_as_they_were()
    what_it_cannot_do_is_said()
    copies_that_differ_are_found()
