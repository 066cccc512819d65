"""One of several ranks that save one state with torch.distributed.checkpoint: `sharded_save FOLDER RANK WORLD`."""

import sys
from pathlib import Path
from typing import Any

import torch

ROWS, COLUMNS = 7, 5


def whole() -> dict[str, torch.Tensor]:
    """What all of them save together."""
    return {
        "rows": torch.arange(ROWS * 4.0).reshape(ROWS, 4),
        "columns": torch.arange(3 * COLUMNS).reshape(3, COLUMNS),
        "both": torch.arange(6.0 * 8).reshape(6, 8).bfloat16(),
        "replicated": torch.ones(3),
    }


def save(folder: Path, rank: int, world: int) -> None:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{folder}.rendezvous", rank=rank, world_size=world)
    line = init_device_mesh("cpu", (world,))
    grid = init_device_mesh("cpu", (2, world // 2))
    state = whole()
    sharded: dict[str, Any] = {
        "rows": distribute_tensor(state["rows"], line, [Shard(0)]),
        "columns": distribute_tensor(state["columns"], line, [Shard(1)]),
        "both": distribute_tensor(state["both"], grid, [Shard(0), Shard(1)]),
        "replicated": distribute_tensor(state["replicated"], line, [Replicate()]),
    }
    dcp.save({"model": sharded, "step": 9}, checkpoint_id=folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    save(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
