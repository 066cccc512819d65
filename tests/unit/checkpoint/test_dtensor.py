"""torch's tensors on many ranks, each rank's in its turn in this process: what each has, and where that lies."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry, TensorMeta
from torch.distributed.tensor.placement_types import _StridedShard

from strata.checkpoint.frameworks.dtensor import empty_beside, shards_of
from strata.errors import Unstorable
from tests.unit.checkpoint.spread import rank_of

WIDTH = 3


def numbered(length: int) -> torch.Tensor:
    return torch.arange(length * WIDTH, dtype=torch.float32).reshape(length, WIDTH)


def gathered(shape: tuple[int, int], length: int, make: Callable[[DeviceMesh], Any]) -> tuple[torch.Tensor, int]:
    """What all ranks have, each where it says that it lies; and how many pieces that were."""
    found, count = torch.full((length, WIDTH), -1.0), 0
    for rank in range(shape[0] * shape[1]):
        with rank_of(rank, shape) as mesh:
            for piece in shards_of(make(mesh)).pieces:
                box = tuple(slice(at, at + size) for at, size in zip(piece.at, piece.value.shape, strict=True))
                assert (found[box] == -1).all(), f"rank {rank} has what another has"
                found[box] = piece.value
                count += 1
    return found, count


@pytest.mark.parametrize("mesh", [(2, 2), (3, 2), (2, 3), (3, 4)])
@pytest.mark.parametrize("length", [1, 5, 7, 12, 27])
def test_fsdp_over_tensor_parallelism_of_the_same_dimension(mesh: tuple[int, int], length: int) -> None:
    def make(mesh: DeviceMesh) -> Any:
        module = nn.Linear(WIDTH, length, bias=False)
        own = distribute_tensor(numbered(length), mesh["tensor"], [Shard(0)], src_data_rank=None)
        module.weight = nn.Parameter(own)
        fully_shard(module, mesh=mesh["data"])
        return module.weight

    found, count = gathered(mesh, length, make)
    assert torch.equal(found, numbered(length))
    assert count == mesh[0] * mesh[1]


@pytest.mark.parametrize("length", [7, 8, 12])
def test_an_interleaved_dimension_is_several_pieces(length: int) -> None:
    def make(mesh: DeviceMesh) -> Any:
        placements = [Shard(0), _StridedShard(0, split_factor=3)]
        return distribute_tensor(numbered(length), mesh, placements, src_data_rank=None)

    found, count = gathered((2, 2), length, make)
    assert torch.equal(found, numbered(length))
    assert count > 4


def test_an_order_that_only_the_spec_tells() -> None:
    def make(mesh: DeviceMesh) -> Any:
        whole, here = numbered(7), mesh.get_coordinate()
        assert here is not None
        first = whole.chunk(2)[here[1]]
        own = first.chunk(2)[here[0]]
        meta = TensorMeta(whole.shape, whole.stride(), whole.dtype)
        spec = DTensorSpec(mesh, (Shard(0), Shard(0)), meta, (ShardOrderEntry(0, (1, 0)),))
        return DTensor(own, spec, requires_grad=False)

    found, _ = gathered((2, 2), 7, make)
    assert torch.equal(found, numbered(7))


def laid_out(mesh: DeviceMesh, rows: int, placements: list[Any]) -> Any:
    """Of four rows, so many of them here."""
    shape, stride = torch.Size([4, WIDTH]), (WIDTH, 1)
    return DTensor.from_local(torch.zeros(rows, WIDTH), mesh, placements, shape=shape, stride=stride)


def test_a_part_of_another_shape_than_its_placements_say_is_refused() -> None:
    with rank_of(1, (2, 2)) as mesh:
        value = laid_out(mesh, 3, [Shard(0), Shard(0)])
        with pytest.raises(Unstorable, match=r"of shape \[3, 3\] of.* leave \[1, 3\] of \[4, 3\]"):
            shards_of(value)


def test_a_kind_of_placement_that_is_not_known_is_refused() -> None:
    class Shuffled(Shard):
        pass

    with rank_of(0, (2, 2)) as mesh:
        value = laid_out(mesh["data"], 2, [Shuffled(0)])
        with pytest.raises(Unstorable, match="redistribute"):
            shards_of(value)


@pytest.mark.parametrize(
    ("shape", "placements"),
    [
        ((7, 1), [Shard(0), Replicate()]),
        ((7,), [Shard(0), Replicate()]),
        ((1, WIDTH), [Replicate(), Shard(1)]),
        ((WIDTH, 7), [Replicate(), Replicate()]),
        ((), [Replicate(), Replicate()]),
    ],
)
def test_one_of_another_shape_is_cut_as_the_template_is(shape: tuple[int, ...], placements: list[Any]) -> None:
    for rank in range(4):
        with rank_of(rank, (2, 2)) as mesh:
            template = distribute_tensor(numbered(7), mesh, [Shard(0), Shard(1)], src_data_rank=None)
            made = empty_beside(template, shape, torch.float64)
            expected = distribute_tensor(torch.zeros(shape), mesh, placements, src_data_rank=None)
            assert (made.dtype, made.shape, list(made.placements)) == (torch.float64, torch.Size(shape), placements)
            assert made.to_local().shape == expected.to_local().shape
            assert made.stride() == expected.stride()
            shards_of(made)
