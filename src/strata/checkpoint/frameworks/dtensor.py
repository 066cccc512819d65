"""torch's tensors that many ranks hold together, as FSDP2 and tensor parallelism make them. Imported only where torch
is.

Where the elements of a rank lie is found here, from the tensor's placements: torch itself tells only where the first of
them does, and with FSDP over tensor parallelism of a size that does not divide it tells that wrongly.
"""

import sys
from collections.abc import Sequence
from itertools import accumulate, product
from math import prod
from typing import Any

import torch

from strata.checkpoint.frameworks.base import Piece, Shards, dense_strides
from strata.checkpoint.frameworks.placements import Cut, Span, spans_of
from strata.errors import Unstorable


def is_spread(value: torch.Tensor) -> bool:
    """Whether it is one of them. Who has not imported them has none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def shards_of(value: Any) -> Shards:
    """The pieces that are here: one, unless a dimension is interleaved; none on a rank that takes no part in it."""
    if any(placement.is_partial() for placement in value.placements):
        raise Unstorable(
            f"the tensor's placements are {value.placements}: a sum that is not made yet cannot be stored. Call "
            "redistribute() first"
        )
    place = value.device_mesh.get_coordinate()
    if place is None:
        return Shards([])
    spans, local = _spans(value, place), local_part(value)
    _check_shape(value, local, spans)
    copy, copies = 0, 1
    for size, at, placement in zip(value.device_mesh.shape, place, value.placements, strict=True):
        if placement.is_replicate():
            copy, copies = copy * size + at, copies * size
    if all(len(each) == 1 for each in spans):
        return Shards([Piece(tuple([each[0].at for each in spans]), local, copy, copies)])
    return Shards(
        [
            Piece(tuple([span.at for span, _ in box]), local[tuple([here for _, here in box])], copy, copies)
            for box in product(*map(_numbered, spans))
        ]
    )


def _check_shape(value: Any, local: torch.Tensor, spans: Sequence[Sequence[Span]]) -> None:
    """A part of another shape was not made by the placements: then nobody knows which elements are in it."""
    shape = [sum(span.length for span in each) for each in spans]
    if shape != list(local.shape):
        raise Unstorable(
            f"this rank has a part of shape {list(local.shape)} of the tensor, and its placements {value.placements} "
            f"on a mesh of {list(value.device_mesh.shape)} leave {shape} of {list(value.shape)}: which elements those "
            "are is not known. Make it with distribute_tensor() and placements of Shard and Replicate"
        )


def _spans(value: Any, place: Sequence[int]) -> list[list[Span]]:
    """What this rank has of each dimension."""
    cuts: list[list[Cut]] = [[] for _ in value.shape]
    ordered = _factors_of_order(value)
    for number, (size, at, placement) in enumerate(zip(value.device_mesh.shape, place, value.placements, strict=True)):
        if not placement.is_replicate():
            factor = ordered.get(number, 1) * getattr(placement, "split_factor", 1)
            cuts[_dimension(placement)].append(Cut(size, at, factor))
    return [spans_of(length, each) for length, each in zip(value.shape, cuts, strict=True)]


def _factors_of_order(value: Any) -> dict[int, int]:
    """By dimension of the mesh: what the placements do not say of the order of the cuts, newer versions of torch may
    say beside them."""
    sizes = value.device_mesh.shape
    return {
        own: prod(sizes[other] for other in dimensions[:place] if other > own)
        for _, dimensions in getattr(value._spec, "shard_order", None) or ()
        for place, own in enumerate(dimensions)
    }


def _dimension(placement: Any) -> int:
    """Of the tensor, that it cuts. A kind that torch adds may cut in other places."""
    if type(placement).__name__ not in ("Shard", "_StridedShard"):
        raise Unstorable(
            f"a tensor that lies as {placement} says cannot be stored: redistribute() it to Shard or Replicate first"
        )
    found: int = placement.dim
    return found


def _numbered(spans: Sequence[Span]) -> list[tuple[Span, slice]]:
    """Each with where in the part that is here it lies."""
    ends = list(accumulate(span.length for span in spans))
    return [(span, slice(end - span.length, end)) for span, end in zip(spans, ends, strict=True)]


def local_part(value: Any) -> torch.Tensor:
    """What of it is here, in the same memory."""
    with torch.no_grad():
        part: torch.Tensor = value.to_local()
    return part


def empty_spread(template: Any, dtype: torch.dtype | None = None) -> Any:
    """One of the same shape that lies on the same ranks in the same way, with nothing in it yet."""
    own = _empty(template, local_part(template).shape, dtype)
    return _joined(template, own, template.placements, template.shape, template.stride())


def empty_beside(template: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    """One of another shape on the same ranks, with nothing in it yet: cut as the template is in dimensions that are as
    long as the template's, and else whole on each."""
    from torch.distributed.tensor import Replicate

    local = local_part(template).shape
    cut = {place for place, (one, two) in enumerate(zip(shape, template.shape, strict=False)) if one == two}
    placements = [
        placement if not placement.is_replicate() and placement.dim in cut else Replicate()
        for placement in template.placements
    ]
    own = _empty(template, [local[place] if place in cut else length for place, length in enumerate(shape)], dtype)
    return _joined(template, own, placements, shape, dense_strides(shape, 1))


def _empty(template: Any, shape: Sequence[int], dtype: torch.dtype | None) -> torch.Tensor:
    """This rank's part."""
    local = local_part(template)
    where = template.device_mesh.device_type if local.device.type == "meta" else local.device
    return torch.empty(tuple(shape), dtype=dtype or local.dtype, device=where)


def _joined(
    template: Any, own: torch.Tensor, placements: Sequence[Any], shape: Sequence[int], stride: Sequence[int]
) -> Any:
    """What the ranks of the template have, as one."""
    whole = {"shape": torch.Size(shape), "stride": tuple(stride)}
    return type(template).from_local(own, template.device_mesh, placements, run_check=False, **whole)
