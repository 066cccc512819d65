"""torch's tensors that many ranks hold together, as FSDP2 and tensor parallelism make them. Imported only where torch
is."""

import sys
from typing import Any

import torch

from strata.checkpoint.frameworks.base import Piece, Shards
from strata.errors import Unstorable


def is_spread(value: torch.Tensor) -> bool:
    """Whether it is one of them. Who has not imported them has none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def shards_of(value: Any) -> Shards:
    """The one piece that is here; none on a rank that takes no part in it."""
    if any(placement.is_partial() for placement in value.placements):
        raise Unstorable(
            f"the tensor's placements are {value.placements}: a sum that is not made yet cannot be stored. Call "
            "redistribute() first"
        )
    place = value.device_mesh.get_coordinate()
    if place is None:
        return Shards([])
    (chunk,) = value.__create_chunk_list__()
    copy, copies = 0, 1
    for size, at, placement in zip(value.device_mesh.shape, place, value.placements, strict=True):
        if placement.is_replicate():
            copy, copies = copy * size + at, copies * size
    return Shards([Piece(tuple(chunk.offsets), local_part(value), copy, copies)])


def local_part(value: Any) -> torch.Tensor:
    """What of it is here, in the same memory."""
    with torch.no_grad():
        part: torch.Tensor = value.to_local()
    return part


def empty_spread(template: Any, dtype: torch.dtype | None = None) -> Any:
    """One of the same shape that lies on the same ranks in the same way, with nothing in it yet."""
    local = local_part(template)
    where = template.device_mesh.device_type if local.device.type == "meta" else local.device
    own = torch.empty(local.shape, dtype=dtype or local.dtype, device=where)
    return type(template).from_local(
        own,
        template.device_mesh,
        template.placements,
        run_check=False,
        shape=template.shape,
        stride=template.stride(),
    )
