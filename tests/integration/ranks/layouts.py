"""Arrays in every layout that ranks can hold them in, saved by some ranks and loaded by others; started by torchrun."""

import argparse
import os
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from strata.checkpoint import CheckpointManager

SHAPES = [(8, 6), (5, 7), (3,), (2, 3, 5), (1, 9), (0, 4), (640, 1030)]
DTYPES = [torch.float32, torch.bfloat16, torch.int64]


def meshes(world: int) -> dict[str, DeviceMesh]:
    found = {"line": init_device_mesh("cpu", (world,))}
    if world % 2 == 0 and world > 2:
        found["grid"] = init_device_mesh("cpu", (2, world // 2))
    return found


def placements_of(mesh: DeviceMesh, shape: tuple[int, ...]) -> list[tuple[Placement, ...]]:
    """Also as FSDP over tensor parallelism cuts, and interleaved as no order of cuts explains."""
    kinds: list[Placement] = [Replicate(), *(Shard(d) for d in range(len(shape)))]
    found = list(product(kinds, repeat=mesh.ndim))
    for d in range(len(shape)) if mesh.ndim == 2 and shape in SHAPES[:3] else ():
        found += [(_StridedShard(d, split_factor=mesh.size(1)), Shard(d)), (Shard(0), _StridedShard(d, split_factor=3))]
    return found


def value(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(prod(shape)).reshape(shape).to(dtype)


def arrays(world: int) -> dict[str, Any]:
    """One of each, by what it holds and how it lies."""
    found: dict[str, Any] = {}
    for (name, mesh), (number, shape) in product(meshes(world).items(), enumerate(SHAPES)):
        dtype = DTYPES[number % len(DTYPES)]
        for way, placements in enumerate(placements_of(mesh, shape)):
            whole = value(shape, dtype)
            found[f"{number}.{name}.{way}"] = distribute_tensor(whole, mesh, placements, src_data_rank=None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    with CheckpointManager(given.folder, rank=rank, world_size=world) as manager:
        own = arrays(world)
        if given.save:
            manager.save(own, 1)
        saved = sorted(manager.load())
        for number in range(len(SHAPES)):
            there = [name for name in saved if name.startswith(f"{number}.")]
            here = [name for name in own if name.startswith(f"{number}.")]
            for name in here:  # every layout here from every layout there
                room: dict[str, Any] = {other: torch.zeros_like(own[name]) for other in there}
                manager.load(into=room, strict=False)
                for other, found in room.items():
                    check(found, own[name], f"{other} into {name}")
            templates = dict.fromkeys(there, own[here[0]])
            for name, made in manager.load(like=templates, strict=False).items():
                assert isinstance(made, DTensor), name
                check(made, own[here[0]], f"{name} like {here[0]}")
            for name in there:
                plain = manager.load_slice(name)
                assert torch.equal(plain, own[here[0]].full_tensor()), name
    dist.destroy_process_group()


def check(found: DTensor, expected: DTensor, what: str) -> None:
    assert found.placements == expected.placements, what
    assert torch.equal(found.to_local(), expected.to_local()), what


if __name__ == "__main__":
    main()
    # A thread of gloo's that lets go of its last tensor only when Python has ended would abort the process.
    os._exit(0)
