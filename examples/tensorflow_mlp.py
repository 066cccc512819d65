"""TensorFlow: a Keras model and its optimizer, saved and loaded as their variables. `pip install tensorflow` first.

    python examples/tensorflow_mlp.py

Kill it (-9 is fine) and run it again: it goes on from the last checkpoint, to the same numbers. Loading fills the
variables that the model and the optimizer have.
"""

import argparse
from pathlib import Path

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from strata import CheckpointManager, Training
from strata.data import Loader

BATCH = 64


def make_data(folder: Path, rows: int = 4096) -> None:
    if (folder / "rows.parquet").exists():
        return
    x = np.random.default_rng(0).normal(size=(rows, 8)).astype(np.float32)
    columns = {"x": pa.FixedSizeListArray.from_arrays(x.ravel(), 8), "y": np.sin(x).sum(1), "id": np.arange(rows)}
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / ".unfinished", row_group_size=256)
    (folder / ".unfinished").rename(folder / "rows.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("example-data"), help="for data and checkpoints")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--save-every", type=int, default=20, help="steps between two checkpoints")
    given = parser.parse_args()
    make_data(given.folder / "rows")

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64, "tanh"), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(3e-3)
    optimizer.build(model.trainable_variables)  # now, so that there is something to load into

    @tf.function  # type: ignore[untyped-decorator]
    def trained(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """The loss before the step."""
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x)[:, 0] - y) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    state = {
        "model": {variable.path: variable for variable in model.variables},
        "optimizer": {variable.path: variable for variable in optimizer.variables},
    }
    loader = Loader(given.folder / "rows", BATCH, format="parquet")
    manager = CheckpointManager(given.folder / "tensorflow_mlp", keep_count=3)
    print(f"from step {manager.latest_step() or 0}")
    with Training(state, loader, manager, epochs=given.epochs, save_every=given.save_every) as training:
        for batch in training:
            loss = trained(tf.constant(batch["x"]), tf.constant(batch["y"]))
            if (training.completed + 1) % 32 == 0:
                print(f"step {training.completed + 1}, epoch {loader.epoch}: loss {loss.numpy():.4f}")
    print(f"done after {training.completed} steps")


if __name__ == "__main__":
    main()
