"""Writes the golden files of this version: `python -m tests.golden.make`. Run it once for a release, and commit them.

Each archive holds what one writer left on the disk. `expected.json` says what it must be read as.
"""

import json
import random
import shutil
import sys
import tempfile
import zipfile
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import strata
from strata import CheckpointManager, Retention, Training, data
from strata.checkpoint import CheckpointManagerConfig
from strata.coordinator.journal import Journal
from strata.core.machine import Machine
from strata.data import index_dataset, save_index
from strata.torch import TrainState
from tests.golden.description import JOB, describe, describe_index, steps_in
from tests.unit.checkpoint.crews import Crew, state_of
from tests.unit.core.test_replay_hashseed import scenario

HERE = Path(__file__).parent
Point = namedtuple("Point", ["x", "y"])


def tree() -> dict[str, Any]:
    """A state with a leaf of each kind that a checkpoint can hold."""
    numbers = np.arange(24, dtype=np.float32).reshape(4, 6)
    dtypes = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float64")
    return {
        "dtypes": {name: np.arange(5).astype(name) for name in (*dtypes, "complex64", "complex128")},
        "scalar": np.float32(1.5),
        "zero dimensions": np.array(7),
        "empty": np.zeros((0, 3)),
        "strided": numbers[:, ::2],
        "whole": numbers,
        "shares memory": numbers[1:3],
        "plain": [None, True, -1, 2**80, 0.1, float("inf"), float("nan"), "text \u2713", b"\x00bytes"],
        "sets": [{1, 2, 3}, frozenset("ab")],
        "containers": [OrderedDict(b=1, a=2), Counter("abba"), (1, (2, 3)), Point(1, np.ones(2))],
        "keys": {1: "int", "1": "text", (2, "b"): "tuple", None: "none"},
        "bfloat16": torch.arange(6, dtype=torch.bfloat16),
        "float8": torch.ones(3).to(torch.float8_e4m3fn),
    }


def expect(folder: Path, expected: Any) -> None:
    (folder / "expected.json").write_text(json.dumps(expected, indent=1))


def write_bytes(folder: Path) -> None:
    with CheckpointManager(folder, job_id=JOB) as manager:
        manager.save(b"any bytes \x00\xff", step=5000, epoch=2, metrics={"loss": 0.25, "nan": float("nan")})
    expect(folder, steps_in(folder))


def write_tree(folder: Path) -> None:
    with CheckpointManager(folder, job_id=JOB) as manager:
        manager.save(tree(), step=7)
    expect(folder, steps_in(folder))


def write_incremental(folder: Path) -> None:
    """Three steps of an array of three chunks; each save changes one chunk, or none."""
    state = {"large": np.zeros(3 << 20, np.float64), "small": np.ones(3)}
    with CheckpointManager(folder, job_id=JOB, incremental=True) as manager:
        for step in (1, 2, 3):
            state["large"][(1 << 20) * (step - 1)] = step if step < 3 else 0
            manager.save(state, step=step)
    expect(folder, steps_in(folder))


def write_lineages(folder: Path) -> None:
    """Step 20 is saved, left behind by a return to step 10, and saved again; step 10 is pinned."""
    config = CheckpointManagerConfig(retention=Retention(keep_count=5))
    with CheckpointManager(folder, job_id=JOB, config=config) as manager:
        for step in (10, 20, 30):
            manager.save({"w": np.full(4, step)}, step=step)
    with CheckpointManager(folder, job_id=JOB, config=config) as manager:
        manager.load(10)
        manager.save({"w": np.full(4, -20)}, step=20)
        manager.pin(10)
    expect(folder, steps_in(folder))


def write_ranks(folder: Path) -> None:
    """Two ranks save together; `rank_0` and `rank_1` are what each of them loads."""
    with Crew(folder, 2, job_id=JOB) as crew:
        crew.save([state_of(rank, 4) for rank in range(2)], step=4)
        loaded = crew.each(lambda rank, manager: describe(manager.load(4)))
    expect(folder, {"latest": 4, "rank_0": loaded[0], "rank_1": loaded[1]})


def write_tiers(folder: Path) -> None:
    with CheckpointManager(folder / "remote", job_id=JOB, local=folder / "local") as manager:
        for step in (1, 2):
            manager.save({"w": np.full(8, step)}, step=step)
        manager.wait()
    expect(folder, steps_in(folder / "remote"))


def write_training(folder: Path) -> None:
    """A PyTorch run and its place in the data: the first samples of the batch after the checkpoint are known."""
    torch.manual_seed(1)
    random.seed(1)
    pq.write_table(pa.table({"x": np.arange(640, dtype="f4")}), folder / "rows.parquet", row_group_size=64)
    model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    state = TrainState(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 10))
    loader = data.Loader(folder / "rows.parquet", 64, format="parquet", output="torch", shuffle=True, seed=3)
    manager = CheckpointManager(folder / "checkpoints", job_id=JOB)
    after: list[float] = []
    with Training(state, loader, manager, epochs=2, save_every=4) as training:
        for batch in training:
            if training.completed == 12:
                after = batch["x"].tolist()
            loss = model(batch["x"][:, None]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with CheckpointManager(folder / "checkpoints", job_id=JOB) as manager:
        manager.delete(20)
        manager.delete(16)
    expect(folder, {**steps_in(folder / "checkpoints"), "batch after step 12": after})


def write_index(folder: Path) -> None:
    table = pa.table({"x": np.arange(100), "name": [f"row {row}" for row in range(100)]})
    pq.write_table(table, folder / "rows.parquet", row_group_size=30)
    (folder / "lines.jsonl").write_text("".join(f'{{"x": {row}}}\n' for row in range(50)))
    (folder / "table.csv").write_text("x,y\n" + "".join(f"{row},{row / 2}\n" for row in range(40)))
    expected = {}
    for name in ("rows.parquet", "lines.jsonl", "table.csv"):
        index = index_dataset(folder / name, name.rpartition(".")[2])
        save_index(index, folder / f"{name}.index")
        expected[name] = describe_index(index)
    expect(folder, expected)


def write_journal(folder: Path) -> None:
    """A journal with every kind of record, some before a snapshot and some after it."""
    records = scenario().records
    machine, half = Machine(), len(records) // 2
    journal = Journal(folder / "state")
    for first in range(0, len(records), 10):
        batch = records[first : first + 10]
        journal.append(first, 1, batch)
        for record in batch:
            machine.apply(record)
        if first <= half < first + 10:
            journal.save_snapshot(machine.index, 1, machine.snapshot())
    journal.close()
    (folder / "state" / "lock").unlink()
    kinds = sorted({type(record).__name__ for record in records})
    state = msgspec.msgpack.decode(machine.snapshot())
    expect(folder, {"records": len(records), "kinds": kinds, "state": json.loads(msgspec.json.encode(state))})


WRITERS: dict[str, Callable[[Path], None]] = {
    "bytes": write_bytes,
    "tree": write_tree,
    "incremental": write_incremental,
    "lineages": write_lineages,
    "ranks": write_ranks,
    "tiers": write_tiers,
    "training": write_training,
    "index": write_index,
    "journal": write_journal,
}


def main() -> None:
    target = HERE / strata.__version__
    if target.exists():
        sys.exit(f"{target} is there already, and golden files are never changed: raise the version first")
    target.mkdir()
    for name, write in WRITERS.items():
        folder = Path(tempfile.mkdtemp())
        write(folder)
        with zipfile.ZipFile(target / f"{name}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    archive.write(path, path.relative_to(folder))
        shutil.rmtree(folder)
        print(f"{name}: {(target / f'{name}.zip').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
