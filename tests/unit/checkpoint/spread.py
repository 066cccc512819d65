"""Tensors of many ranks in one process: made for each rank in its turn, by torch's process group that never speaks."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Placement, distribute_tensor
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore

NAMES = ("data", "tensor")


@contextmanager
def rank_of(rank: int, mesh: tuple[int, ...], device: str = "cpu") -> Iterator[DeviceMesh]:
    """This process as one of many that never speak with each other. torch keeps what it found out for a mesh, with the
    rank that it had then, so that is forgotten."""
    _clear_sharding_prop_cache()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=prod(mesh))
    try:
        yield init_device_mesh(device, mesh, mesh_dim_names=NAMES[: len(mesh)])
    finally:
        dist.destroy_process_group()


def on_ranks(make: Callable[[DeviceMesh], Any], mesh: tuple[int, ...], device: str = "cpu") -> list[Any]:
    """What is made on each rank, which knows its place from then on."""
    found = []
    for rank in range(prod(mesh)):
        with rank_of(rank, mesh, device) as own:
            found.append(make(own))
    return found


def spread(
    value: torch.Tensor, mesh: tuple[int, ...], placements: Sequence[Placement], device: str = "cpu"
) -> list[Any]:
    """Each rank's, all of the same values."""
    return on_ranks(lambda own: distribute_tensor(value.to(device), own, placements, src_data_rank=None), mesh, device)
