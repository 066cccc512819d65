"""One rank of the benchmark, started by torchrun."""

import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from benchmarks.checkpoint_throughput.places import sync_folder
from benchmarks.storage.turns import nothing
from strata.checkpoint import CheckpointManager

ROUNDS, SMALL_ROUNDS = 5, 20
TENSORS = 32
KINDS = ("strata", "dcp", "strata load", "dcp load", "one", "agree", "coordinated")


def main(folder: Path, mib: int, told: Path, coordinator: str) -> None:
    dist.init_process_group("gloo")
    warnings.simplefilter("ignore")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    rows = (mib << 20) // 4 // TENSORS // 1024 // world

    def state() -> dict[str, Any]:
        own = [torch.randn(rows, 1024) for _ in range(TENSORS)]
        return {str(n): DTensor.from_local(each, mesh, [Shard(0)], run_check=False) for n, each in enumerate(own)}

    saved, room = state(), state()
    found: dict[str, list[float]] = {name: [] for name in KINDS}
    manager = CheckpointManager(folder / "strata", rank=rank, world_size=world, keep_count=1)
    for number in range(1, ROUNDS + 2):
        path = folder / f"dcp-{number}"

        def with_dcp(path: Path = path) -> None:
            save(saved, storage_writer=FileSystemWriter(path, sync_files=True))
            if rank == 0:
                sync_folder(path)
                sync_folder(folder)

        acts: dict[str, Callable[[], object]] = {
            "strata": partial(manager.save, saved, number),
            "dcp": with_dcp,
            "strata load": partial(manager.load, into=room),
            "dcp load": partial(load, room, storage_reader=FileSystemReader(path)),
        }
        for name, act in acts.items():
            seconds = timed(act)
            manager.wait()
            if number > 1:
                found[name].append(seconds)
        for mine, theirs in zip(saved.values(), room.values(), strict=True):
            assert torch.equal(mine.to_local(), theirs.to_local())
        dist.barrier()
        if rank == 0:
            shutil.rmtree(path)
            os.sync()
    manager.close()
    small = {"w": torch.ones(100)}
    manager = CheckpointManager(folder / "agree", rank=rank, world_size=world, keep_count=1)
    through = CheckpointManager(
        folder / "coordinated", rank=rank, world_size=world, keep_count=1, coordinator_url=coordinator
    )
    alone = CheckpointManager(folder / "one", keep_count=1) if rank == 0 else None
    for number in range(1, SMALL_ROUNDS + 2):
        one = timed(partial(alone.save, small, number) if alone else nothing) * 1000
        many = timed(partial(manager.save, small, number)) * 1000
        coordinated = timed(partial(through.save, small, number)) * 1000
        if number > 1:
            found["one"].append(one)
            found["agree"].append(many)
            found["coordinated"].append(coordinated)
        for each in (manager, through, alone):
            if each is not None:
                each.wait()
    manager.close()
    through.close()
    if rank == 0:
        told.write_text(json.dumps(found))
    dist.destroy_process_group()


def timed(act: Callable[[], object]) -> float:
    """Until the last of all ranks is done."""
    dist.barrier()
    began = time.perf_counter()
    act()
    dist.barrier()
    return time.perf_counter() - began


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
