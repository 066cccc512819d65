"""Several ranks of torch.distributed.checkpoint in one process, one after the other: what torch calls, in its order."""

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import LoadPlanner, SavePlanner, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter


class Sharded(torch.Tensor):
    """A tensor of which this rank has a part, as a DTensor is; it needs no process group."""

    part: torch.Tensor
    at: tuple[int, ...]

    @staticmethod
    def __new__(cls, whole: torch.Tensor, index: tuple[slice, ...]) -> "Sharded":
        made: Sharded = torch.Tensor._make_wrapper_subclass(cls, whole.shape, dtype=whole.dtype)
        made.part = whole[index].clone()
        starts = [each.indices(length)[0] for each, length in zip(index, whole.shape, strict=False)]
        made.at = (*starts, *[0] * (whole.ndim - len(starts)))
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError(f"{function} of a part")

    @property
    def own_chunk(self) -> ChunkStorageMetadata:
        return ChunkStorageMetadata(torch.Size(self.at), self.part.size())

    def __create_write_items__(self, fqn: str, value: Any) -> list[WriteItem]:
        data = TensorWriteData(self.own_chunk, TensorProperties(dtype=self.dtype), self.size())
        return [WriteItem(MetadataIndex(fqn, self.at), WriteItemType.SHARD, tensor_data=data)]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [self.own_chunk]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        return self.part


def rows(whole: torch.Tensor, rank: int, ranks: int) -> Sharded:
    """As Shard(0) deals them out: the last ranks may have none."""
    return Sharded(whole, (_share(whole.shape[0], rank, ranks),))


def columns(whole: torch.Tensor, rank: int, ranks: int) -> Sharded:
    return Sharded(whole, (slice(0, whole.shape[0]), _share(whole.shape[1], rank, ranks)))


def _share(length: int, rank: int, ranks: int) -> slice:
    each = -(-length // ranks)
    return slice(min(length, rank * each), min(length, (rank + 1) * each))


def save_together(
    states: Sequence[dict[str, Any]],
    writers: Sequence[StorageWriter],
    planners: Sequence[SavePlanner] | None = None,
    coordinator: int = 0,
) -> None:
    """What `dcp.save` does on each rank. An error of one is raised when the others have done their part, too."""
    ranks = range(len(states))
    planners = planners or [DefaultSavePlanner() for _ in ranks]
    plans = []
    for rank in ranks:
        planners[rank].set_up_planner(states[rank], None, rank == coordinator)
        writers[rank].set_up_storage_writer(rank == coordinator, rank=rank, use_collectives=True)
        plans.append(writers[rank].prepare_local_plan(planners[rank].create_local_plan()))
    plans, metadata = planners[coordinator].create_global_plan(plans)
    plans = writers[coordinator].prepare_global_plan(plans)
    results, errors = [], []
    for rank in ranks:
        try:
            results.append(writers[rank].write_data(planners[rank].finish_plan(plans[rank]), planners[rank]).value())
        except Exception as error:  # noqa: BLE001  raised below, as torch does
            errors.append(error)
    if errors:
        raise errors[0]
    writers[coordinator].finish(metadata, results)


def load_together(
    states: Sequence[dict[str, Any]],
    readers: Sequence[StorageReader],
    planner: Callable[[], LoadPlanner] = DefaultLoadPlanner,
) -> None:
    """What `dcp.load` does on each rank."""
    ranks = range(len(states))
    planners = [planner() for _ in ranks]
    plans = []
    for rank in ranks:
        metadata = readers[rank].read_metadata()
        planners[rank].set_up_planner(states[rank], metadata, rank == 0)
        readers[rank].set_up_storage_reader(metadata, rank == 0)
        plans.append(readers[rank].prepare_local_plan(planners[rank].create_local_plan()))
    plans = readers[0].prepare_global_plan(planners[0].create_global_plan(plans))
    for rank in ranks:
        readers[rank].read_data(planners[rank].finish_plan(plans[rank]), planners[rank]).wait()


class Halving(DefaultSavePlanner):
    """One that has its own way with values and with tensors."""

    def create_local_plan(self) -> Any:
        plan = super().create_local_plan()
        return replace(plan, items=[_halved(item) for item in plan.items])

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        if write_item.type != WriteItemType.BYTE_IO:
            return object.half()
        stream = io.BytesIO()
        torch.save(object, stream)
        return stream


def _halved(item: WriteItem) -> WriteItem:
    if item.tensor_data is None:
        return item
    properties = replace(item.tensor_data.properties, dtype=torch.float16)
    return replace(item, tensor_data=replace(item.tensor_data, properties=properties))
