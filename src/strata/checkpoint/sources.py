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

    def read(self, start: int, size: int, room: Room, at: int) -> None:
        """So many bytes from `start` on, into the room from `at` on."""
        ...


class HostMemory:
    """Bytes that lie there as they are to be stored. `owner` keeps them there."""

    __slots__ = ("_address", "_owner", "_size")

    def __init__(self, address: int, size: int, owner: object) -> None:
        self._address, self._size, self._owner = address, size, owner

    def read(self, start: int, size: int, room: Room, at: int) -> None:
        assert start + size <= self._size
        assert at + size <= len(room.block)
        copy = _copy_large if size >= LARGE_BYTES else _copy_small
        copy(room.address + at, self._address + start, size)


class Elsewhere:
    """An array on a device, or with gaps, or whose memory is nobody's business."""

    __slots__ = ("_framework", "_size", "_value", "_whole")

    def __init__(self, framework: Framework, value: Any, size: int) -> None:
        self._framework, self._value, self._size = framework, value, size
        self._whole: Block | None = None

    def read(self, start: int, size: int, room: Room, at: int) -> None:
        target = room.block[at : at + size]
        if size == self._size:
            self._framework.copy_out([(self._value, target)])
            return
        if self._whole is None:  # only where memory is too short for all of it at once
            self._whole = np.empty(self._size, np.uint8)
            self._framework.copy_out([(self._value, self._whole)])
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
    return Elsewhere(leaf.framework, leaf.value, stored.size)
