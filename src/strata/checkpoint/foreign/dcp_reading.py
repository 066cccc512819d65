"""Folders of torch.distributed.checkpoint in any storage: what they hold, and the bytes of their tensors on request.

Each shard is an archive that torch.load opens with weights_only=True. A tensor is put together whole, of its shards: so
memory holds the largest tensor, and one shard of it twice.
"""

import asyncio
import io
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

from strata.checkpoint.assembling import WINDOW_BYTES, Stretch
from strata.checkpoint.dtypes import dtype_of
from strata.checkpoint.foreign.dcp_metadata import DcpContents, DcpTensor, Shard, Slice, read_dcp_metadata
from strata.checkpoint.foreign.items import Item, Streamed
from strata.checkpoint.foreign.unpickling import unpickled
from strata.checkpoint.frameworks import Block
from strata.checkpoint.together import together
from strata.errors import InvalidInput, ObjectCorrupt, ObjectNotFound
from strata.storage import StorageBackend

METADATA = ".metadata"
READS_AT_ONCE = 4


class DcpSource:
    """One such folder."""

    def __init__(self, storage: StorageBackend, contents: DcpContents) -> None:
        self._storage, self._contents = storage, contents
        self._turn = asyncio.Semaphore(READS_AT_ONCE)
        self._known: dict[int, Block] = {}

    @classmethod
    async def open(cls, storage: StorageBackend) -> "DcpSource":
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise InvalidInput(f"torch reads these folders, and it is not installed here: {error}") from error
        data = await storage.read(METADATA)
        contents = read_dcp_metadata(data, f"{storage.url}/{METADATA}")
        await _check_files(storage, contents)
        return cls(storage, contents)

    @property
    def tensors(self) -> list[Item]:
        return [Item(each.path, _streamed(number, each)) for number, each in enumerate(self._contents.tensors)]

    @property
    def values(self) -> list[Item]:
        """By where they are: see `value`."""
        return [Item(each.path, each.slice) for each in self._contents.values]

    async def value(self, place: Slice, name: str) -> Any:
        """InvalidInput for one that is more than numbers and text."""
        return await self._load(place, name)

    async def supply(self, stretches: Sequence[Stretch]) -> None:
        wanted = {stretch.tensor for stretch in stretches}
        self._known = {number: block for number, block in self._known.items() if number in wanted}
        await together(self._make(number) for number in wanted if number not in self._known)
        for stretch in stretches:
            block = self._known[stretch.tensor]
            stretch.target[:] = block[stretch.start : stretch.start + len(stretch.target)]
        self._known = {number: block for number, block in self._known.items() if len(block) > WINDOW_BYTES}

    async def _make(self, number: int) -> None:
        import torch

        from strata.checkpoint.frameworks.torch import torch_dtype

        told = self._contents.tensors[number]
        async with self._turn:
            if [shard.sizes for shard in told.shards] == [told.shape]:
                whole = await self._piece(told, told.shards[0])
            else:
                whole = torch.empty(told.shape, dtype=torch_dtype(told.dtype))
                for shard in told.shards:
                    where = tuple(slice(at, at + size) for at, size in zip(shard.offsets, shard.sizes, strict=True))
                    whole[where].copy_(await self._piece(told, shard))
            self._known[number] = whole.contiguous().reshape(-1).view(torch.uint8).numpy()

    async def _piece(self, told: DcpTensor, shard: Shard) -> Any:
        piece = await self._load(shard.slice, told.name)
        _check(piece, shard, told)
        return piece

    async def _load(self, place: Slice, name: str) -> Any:
        try:
            data = await self._storage.read_range(place.key, place.at, place.length)
        except (ObjectNotFound, ObjectCorrupt) as error:
            raise InvalidInput(f"{name!r} cannot be read: {error}") from error
        return await asyncio.to_thread(_unpickled, data, name)


async def _check_files(storage: StorageBackend, contents: DcpContents) -> None:
    """All of them are there, and as long as they must be: nothing larger than a file is ever asked for."""
    ends: dict[str, int] = {}
    places = [value.slice for value in contents.values]
    places += [shard.slice for tensor in contents.tensors for shard in tensor.shards]
    for place in places:
        ends[place.key] = max(ends.get(place.key, 0), place.at + place.length)
    for key, end in ends.items():
        try:
            size = await storage.size(key)
        except ObjectNotFound as error:
            raise InvalidInput(f"{storage.url}/{key} is missing, and {METADATA} says that it is needed") from error
        if size < end:
            raise InvalidInput(f"{storage.url}/{key} is cut off: it has {size:,} bytes, and {end:,} are needed")


def _streamed(number: int, told: DcpTensor) -> Streamed:
    return Streamed(number, told.dtype, told.shape, dtype_of(told.dtype).bytes * prod(told.shape))


def _check(piece: object, shard: Shard, told: DcpTensor) -> None:
    import torch

    from strata.checkpoint.frameworks.torch import torch_dtype

    if not isinstance(piece, torch.Tensor) or piece.shape != shard.sizes or piece.dtype != torch_dtype(told.dtype):
        raise InvalidInput(f"a shard of {told.name!r} is not what {METADATA} says")


class _Memory(io.RawIOBase):
    """Bytes in memory as a file, without a copy of them."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence])
        return self._at

    def readinto(self, target: Any, /) -> int:
        view = memoryview(target).cast("B")
        found = self._data[self._at : self._at + len(view)]
        view[: len(found)] = found
        self._at += len(found)
        return len(found)


def _unpickled(data: memoryview, name: str) -> Any:
    """By torch's own unpickler that makes nothing but tensors and plain values."""
    import torch

    with io.BufferedReader(_Memory(data)) as file:
        return unpickled(partial(torch.load, file), repr(name), "Leave it out by choosing keys")
