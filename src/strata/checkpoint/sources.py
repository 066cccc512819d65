"""The bytes of a tensor, wherever they are: in host memory as they are stored, or to be asked for."""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import msgspec
import numpy as np

from strata.checkpoint.frameworks import Block, Framework
from strata.checkpoint.moves import move
from strata.checkpoint.ties import Stored
from strata.checkpoint.tree import Leaf


class Room:
    """Memory that tensors are copied into, and its address."""

    __slots__ = ("address", "block")

    def __init__(self, block: Block) -> None:
        self.block = block
        self.address = block.ctypes.data


class Source(Protocol):
    """What a tensor's bytes are copied from."""

    @property
    def address(self) -> int:
        """Where they lie in host memory, one after the other; 0 if they do not."""
        ...

    @property
    def size(self) -> int: ...

    @property
    def on_device(self) -> bool:
        """Whether a copy is begun, and then goes on by itself."""
        ...

    @property
    def is_cuda(self) -> bool: ...

    def read(self, start: int, size: int, room: Room, at: int) -> None:
        """So many bytes from `start` on, into the room from `at` on."""
        ...


class HostMemory(msgspec.Struct, gc=False):
    """Bytes that lie there as they are to be stored. `owner` keeps them there."""

    address: int
    size: int
    owner: Any
    on_device: ClassVar[bool] = False
    is_cuda: ClassVar[bool] = False

    def read(self, start: int, size: int, room: Room, at: int) -> None:
        assert start + size <= self.size
        assert at + size <= len(room.block)
        move(room.address + at, self.address + start, size)


class Elsewhere:
    """An array on a device, or with gaps, or whose memory is nobody's business."""

    __slots__ = ("_whole", "framework", "on_device", "size", "value")
    address = 0

    def __init__(self, framework: Framework, value: Any, size: int, *, on_device: bool) -> None:
        self.framework, self.value, self.size, self.on_device = framework, value, size, on_device
        self._whole: Block | None = None

    @property
    def is_cuda(self) -> bool:
        """Whether torch's copies are faster into pinned memory."""
        return self.framework.name == "torch" and self.value.device.type == "cuda"

    def part(self, start: int, size: int) -> Any:
        """Those bytes, where they are; None if they cannot be had alone."""
        if size == self.size:
            return self.value
        found = self.framework.device_bytes(self.value)
        return None if found is None else found[start : start + size]

    def read(self, start: int, size: int, room: Room, at: int) -> None:
        target = room.block[at : at + size]
        part = self.part(start, size)
        if part is not None:
            self.framework.copy_out([(part, target)]).wait()
            return
        if self._whole is None:  # only where memory is too short for all of it at once
            self._whole = np.empty(self.size, np.uint8)
            self.framework.copy_out([(self.value, self._whole)]).wait()
        np.copyto(target, self._whole[start : start + size])
        if start + size == self.size:
            self._whole = None


def sources_of(stored: Sequence[Stored], leaves: Sequence[Leaf]) -> list[Source]:
    """One for each."""
    return [_source(each, leaves[each.leaf]) for each in stored]


def _source(stored: Stored, leaf: Leaf) -> Source:
    described = leaf.described
    if stored.shared is not None:
        return HostMemory(stored.shared.ctypes.data, stored.size, leaf.value)
    if described.is_dense and described.region is not None:
        return HostMemory(described.region.start, described.size, leaf.value)
    return Elsewhere(leaf.framework, leaf.value, stored.size, on_device=described.on_device)
