"""What the demo trains: a small network in numpy that learns another one from rows in Parquet files.

All of it follows from one seed, so every run and every process begins with the same.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strata.data.columnar import arrow

Floats: TypeAlias = NDArray[np.float32]
State: TypeAlias = dict[str, NDArray[Any]]

FEATURES, HIDDEN = 32, 512
ROWS, FILES = 96_000, 8
BATCH = 1_200
SHARD_SIZE = 2_000
SEED = 7
RATE, MOMENTUM = 0.02, 0.9
LAYERS = ("in", "in_bias", "hidden", "hidden_bias", "out", "out_bias")
SAMPLES = "samples"
"""Of the state: how many samples its parameters have learned from."""


def write_rows(folder: Path, rows: int = ROWS) -> None:
    """The dataset: points, and what a network that nobody sees says of each, with some noise."""
    pa, parquet = arrow(), arrow("parquet")
    random = np.random.default_rng(SEED)
    x = random.standard_normal((rows, FEATURES), np.float32)
    hidden = np.tanh(x @ random.standard_normal((FEATURES, 16), np.float32) / np.sqrt(FEATURES))
    y = (hidden @ random.standard_normal(16, np.float32) / 2 + 0.05 * random.standard_normal(rows)).astype(np.float32)
    folder.mkdir(parents=True)
    for number, part in enumerate(np.array_split(np.arange(rows), FILES)):
        points = pa.FixedSizeListArray.from_arrays(pa.array(x[part].ravel()), FEATURES)
        table = pa.table({"x": points, "y": pa.array(y[part])})
        parquet.write_table(table, folder / f"rows-{number}.parquet", row_group_size=SHARD_SIZE)


def beginning() -> State:
    """The state before the first step: parameters, their momentum, and no samples."""
    random = np.random.default_rng(SEED + 1)
    shapes = [(FEATURES, HIDDEN), (HIDDEN,), (HIDDEN, HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,)]
    state: State = {SAMPLES: np.zeros(1, np.int64)}
    for name, shape in zip(LAYERS, shapes, strict=True):
        scale = 1 / np.sqrt(shape[0]) if len(shape) > 1 else 0.0
        state[name] = (scale * random.standard_normal(shape)).astype(np.float32)
        state[f"{name}_momentum"] = np.zeros(shape, np.float32)
    return state


def gradients(state: State, x: Floats, y: Floats) -> tuple[float, list[Floats]]:
    """The sum over these rows of the squared error, and of its gradient for each layer."""
    into, in_bias, hidden, hidden_bias, out, out_bias = (state[name] for name in LAYERS)
    first = np.maximum(x @ into + in_bias, 0)
    second = np.maximum(first @ hidden + hidden_bias, 0)
    error = (second @ out + out_bias)[:, 0] - y
    back = 2 * error[:, None]
    to_second = (back @ out.T) * (second > 0)
    to_first = (to_second @ hidden.T) * (first > 0)
    found = [x.T @ to_first, to_first.sum(0), first.T @ to_second, to_second.sum(0), second.T @ back, back.sum(0)]
    return float(np.square(error).sum()), [each.astype(np.float32) for each in found]


def descend(state: State, means: list[Floats], samples: int) -> None:
    """One step, in place."""
    for name, mean in zip(LAYERS, means, strict=True):
        momentum = state[f"{name}_momentum"]
        momentum *= MOMENTUM
        momentum += mean
        state[name] -= RATE * momentum
    state[SAMPLES] += samples


def fingerprint(state: Mapping[str, NDArray[Any]]) -> str:
    """The same for equal states, to the last bit, and for no others."""
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(state[name]).data)
    return digest.hexdigest()
