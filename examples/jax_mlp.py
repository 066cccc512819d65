"""JAX: a network as a tree of arrays, and a step that is one compiled function.

    python examples/jax_mlp.py

Kill it (-9 is fine) and run it again: it goes on from the last checkpoint, to the same numbers. What is saved is the
tree itself; loaded, it is JAX's arrays again.
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from strata import CheckpointManager, Training
from strata.data import Loader

BATCH = 64
RATE, MOMENTUM = 0.02, 0.9
Tree = dict[str, Any]


def make_data(folder: Path, rows: int = 4096) -> None:
    if (folder / "rows.parquet").exists():
        return
    x = np.random.default_rng(0).normal(size=(rows, 8)).astype(np.float32)
    columns = {"x": pa.FixedSizeListArray.from_arrays(x.ravel(), 8), "y": np.sin(x).sum(1), "id": np.arange(rows)}
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / ".unfinished", row_group_size=256)
    (folder / ".unfinished").rename(folder / "rows.parquet")


def new_network() -> Tree:
    first, second = jax.random.split(jax.random.key(0))
    return {
        "hidden": {"w": 0.3 * jax.random.normal(first, (8, 64)), "b": jnp.zeros(64)},
        "output": {"w": 0.1 * jax.random.normal(second, (64, 1)), "b": jnp.zeros(1)},
    }


def mean_squared_error(network: Tree, x: jax.Array, y: jax.Array) -> jax.Array:
    hidden = jnp.tanh(x @ network["hidden"]["w"] + network["hidden"]["b"])
    found = hidden @ network["output"]["w"] + network["output"]["b"]
    return jnp.mean((found[:, 0] - y) ** 2)


@jax.jit
def trained(state: Tree, x: jax.Array, y: jax.Array) -> tuple[Tree, jax.Array]:
    """The state after a step of gradient descent with momentum, and the loss before it."""
    loss, gradients = jax.value_and_grad(mean_squared_error)(state["network"], x, y)
    speed = jax.tree.map(lambda old, gradient: MOMENTUM * old + gradient, state["speed"], gradients)
    network = jax.tree.map(lambda weights, by: weights - RATE * by, state["network"], speed)
    return {"network": network, "speed": speed}, loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("example-data"), help="for data and checkpoints")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--save-every", type=int, default=20, help="steps between two checkpoints")
    given = parser.parse_args()
    make_data(given.folder / "rows")

    network = new_network()
    state = {"network": network, "speed": jax.tree.map(jnp.zeros_like, network)}
    loader = Loader(given.folder / "rows", BATCH, format="parquet")
    manager = CheckpointManager(given.folder / "jax_mlp", keep_count=3)
    print(f"from step {manager.latest_step() or 0}")
    with Training(state, loader, manager, epochs=given.epochs, save_every=given.save_every) as training:
        for batch in training:
            after, loss = trained(state, batch["x"], batch["y"])
            state.update(after)  # the dict that Training saves
            if (training.completed + 1) % 32 == 0:
                print(f"step {training.completed + 1}, epoch {loader.epoch}: loss {loss:.4f}")
    print(f"done after {training.completed} steps")


if __name__ == "__main__":
    main()
