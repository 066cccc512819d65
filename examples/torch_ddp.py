"""PyTorch with DistributedDataParallel: as many processes as you like, and another number of them the next time.

    torchrun --nproc_per_node=2 examples/torch_ddp.py

Kill it (-9 is fine) and run it again: it goes on from the last checkpoint, in the middle of an epoch, with the batches
that it would have had. The batches are the same however many processes share them.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from strata import CheckpointManager, Training
from strata.data import Loader
from strata.torch import TrainState

BATCH = 64  # samples of a step, over all processes


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
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        make_data(given.folder / "rows")
    dist.barrier()

    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    state = TrainState(model, optimizer, rng=True)
    rows = given.folder / "rows"
    loader = Loader(rows, BATCH, format="parquet", output="torch", rank=rank, world_size=world_size)
    manager = CheckpointManager(given.folder / "torch_ddp", keep_count=3, rank=rank, world_size=world_size)
    if rank == 0:
        print(f"world size {world_size}, from step {manager.latest_step() or 0}")
    with Training(state, loader, manager, epochs=given.epochs, save_every=given.save_every) as training:
        for batch in training:
            x, y = batch["x"].to(device), batch["y"].to(device)
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if (training.completed + 1) % 32 == 0:
                mean = loss.detach() / world_size
                dist.all_reduce(mean)
                if rank == 0:
                    print(f"step {training.completed + 1}, epoch {loader.epoch}: loss {mean.item():.4f}")
    if rank == 0:
        print(f"done after {training.completed} steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
