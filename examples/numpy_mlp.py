"""No framework at all: a network in numpy, trained by hand. One process alone,

    python examples/numpy_mlp.py

or, with a coordinator, as many as there are at the moment: they may be killed and joined by others while it trains.

    strata coordinator &
    export COORDINATOR_URL=127.0.0.1:50051
    for each in 1 2 3; do python examples/numpy_mlp.py --processes 3 & done; wait
"""

import argparse
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from strata import CheckpointManager, DatasetRegistry, Training, TrainingOrchestrator
from strata.data import Loader
from strata.demo.summing import Summing, listen

BATCH = 64  # samples of a step, over all processes
RATE = 0.05


def make_data(folder: Path, rows: int = 4096) -> None:
    if (folder / "rows.parquet").exists():
        return
    x = np.random.default_rng(0).normal(size=(rows, 8)).astype(np.float32)
    columns = {"x": pa.FixedSizeListArray.from_arrays(x.ravel(), 8), "y": np.sin(x).sum(1), "id": np.arange(rows)}
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".unfinished-{os.getpid()}"
    pq.write_table(pa.table(columns), unfinished, row_group_size=256)
    with suppress(FileExistsError):  # another process was first
        os.link(unfinished, folder / "rows.parquet")
    unfinished.unlink()


def new_network() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    sizes = {"w1": (8, 64), "b1": (64,), "w2": (64, 1), "b2": (1,)}
    return {name: (random.normal(size=size) * 0.3).astype(np.float32) for name, size in sizes.items()}


def gradients(network: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> tuple[dict[str, np.ndarray], float]:
    """Of the mean squared error, which comes with them."""
    hidden = np.tanh(x @ network["w1"] + network["b1"])
    error = hidden @ network["w2"] + network["b2"] - y[:, None]
    back = 2 * error / len(x)
    inner = back @ network["w2"].T * (1 - hidden**2)
    found = {"w1": x.T @ inner, "b1": inner.sum(0), "w2": hidden.T @ back, "b2": back.sum(0)}
    return found, float((error**2).mean())


class Crew:
    """This process and the others of the job, on this machine, who average their gradients."""

    def __init__(self, rows: Path, least: int) -> None:
        with DatasetRegistry() as registry:  # each says so, and it counts once
            registry.register("rows", rows.resolve(), "parquet", shard_size=256, shuffle=True)
        self._listener = listen()
        self.orchestrator = TrainingOrchestrator.from_env()
        self.orchestrator.blocking.register_worker("127.0.0.1", self._listener.getsockname()[1])
        self.orchestrator.blocking.recover(least)
        self._summing: Summing | None = None

    def meet(self) -> None:
        """Whenever the job goes on with others than before."""
        if self._summing is not None:
            self._summing.close()
        self.orchestrator.blocking.gather()  # none of them is with those from before any more
        place = self.orchestrator.session.place
        assert place is not None
        peers = [(peer.ip, peer.port) for peer in self.orchestrator.blocking.peers()]
        self._summing = Summing(place.rank, peers, self._listener, self.orchestrator.world_id)
        print(f"process {place.rank} of {len(peers)}")

    def mean(self, arrays: list[np.ndarray], weight: int) -> list[np.ndarray]:
        assert self._summing is not None, "meet first"
        return self._summing.mean(arrays, weight)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("example-data"), help="for data and checkpoints")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--save-every", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument("--processes", type=int, default=1, help="in a job: wait for so many at the start")
    given = parser.parse_args()
    make_data(given.folder / "rows")

    network = new_network()
    crew = Crew(given.folder / "rows", given.processes) if os.environ.get("COORDINATOR_URL") else None
    source = {"dataset": given.folder / "rows", "format": "parquet"} if crew is None else {"dataset_id": "rows"}
    loader = Loader(global_batch_size=BATCH, **source)
    saved = "numpy_mlp" if crew is None else "numpy_mlp_job"  # apart: where the data was is a job's own to say
    manager = CheckpointManager(given.folder / saved, keep_count=3)
    print(f"from step {manager.latest_step() or 0}")
    plan = {"epochs": given.epochs, "save_every": given.save_every}
    orchestrator = None if crew is None else crew.orchestrator
    with Training(network, loader, manager, orchestrator=orchestrator, **plan) as training:
        if crew is not None:
            training.on_world.append(crew.meet)
        for batch in training:
            with training.step():  # in a job: if another process is lost in it, it is made again without that one
                found, loss = gradients(network, batch["x"], batch["y"])
                if crew is not None:
                    *means, mean_loss = crew.mean([*found.values(), np.array(loss)], len(batch["y"]))
                    found, loss = dict(zip(found, means, strict=True)), float(mean_loss)
                for name, gradient in found.items():
                    network[name] -= RATE * gradient
                if (training.completed + 1) % 32 == 0:
                    print(f"step {training.completed + 1}, epoch {loader.epoch}: loss {loss:.4f}")
    print(f"done after {training.completed} steps")
    if crew is not None:
        crew.orchestrator.blocking.deregister()


if __name__ == "__main__":
    main()
