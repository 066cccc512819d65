"""The bytes of a tensor, wherever they are: in host memory as they are stored, or to be asked for."""

import ctypes
import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from strata.checkpoint.frameworks import Block, Framework
from strata.checkpoint.ties import Stored
from strata.checkpoint.tree import Leaf

LARGE_BYTES = 64 << 10
"""Copied while other threads may run Python; for less, to let them costs more than the copy."""
_copy_large = ctypes.memmove
_copy_small = (
    ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
        ("memmove", ctypes.PyDLL(None))
    )
    if os.name != "nt"
    else ctypes.memmove
)


class Room:
    """Memory that tensors are copied into, and its address."""

    __slots__ = ("address", "block")

    def __init__(self, block: Block) -> None:
        self.block = block
        self.address = block.ctypes.data


class Source(Protocol):
    """What a tensor's bytes are copied from."""

    @property
    def on_device(self) -> bool:
        """Whether a copy is begun, and then goes on by itself."""
        ...

    @property
    def is_cuda(self) -> bool: ...

    def read(self, start: int, size: int, room: Room, at: int) -> None:
        """So many bytes from `start` on, into the room from `at` on."""
        ...


class HostMemory:
    """Bytes that lie there as they are to be stored. `owner` keeps them there."""

    __slots__ = ("_address", "_owner", "_size")
    on_device = is_cuda = False

    def __init__(self, address: int, size: int, owner: object) -> None:
        self._address, self._size, self._owner = address, size, owner

    def read(self, start: int, size: int, room: Room, at: int) -> None:
        assert start + size <= self._size
        assert at + size <= len(room.block)
        copy = _copy_large if size >= LARGE_BYTES else _copy_small
        copy(room.address + at, self._address + start, size)


class Elsewhere:
    """An array on a device, or with gaps, or whose memory is nobody's business."""

    __slots__ = ("_size", "_whole", "framework", "on_device", "value")

    def __init__(self, framework: Framework, value: Any, size: int, *, on_device: bool) -> None:
        self.framework, self.value, self._size, self.on_device = framework, value, size, on_device
        self._whole: Block | None = None

    @property
    def is_cuda(self) -> bool:
        """Whether torch's copies are faster into pinned memory."""
        return self.framework.name == "torch" and self.value.device.type == "cuda"

    def part(self, start: int, size: int) -> Any:
        """Those bytes, where they are; None if they cannot be had alone."""
        if size == self._size:
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
            self._whole = np.empty(self._size, np.uint8)
            self.framework.copy_out([(self.value, self._whole)]).wait()
        np.copyto(target, self._whole[start : start + size])
        if start + size == self._size:
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
