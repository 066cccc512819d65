"""The bytes of a tensor, wherever they are: in host memory as they are stored, or to be asked for."""

import ctypes
from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.checkpoint.dtypes import dtype_of, raw
from strata.checkpoint.frameworks import Block, Described, Framework
from strata.checkpoint.frameworks.base import span
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
    """An array on a device, or with gaps, or whose memory is nobody's business. `strided` is what lies in the host's
    memory with gaps, as numpy sees it."""

    __slots__ = ("_strided", "_whole", "framework", "on_device", "size", "value")
    address = 0

    def __init__(
        self, framework: Framework, value: Any, size: int, *, on_device: bool, strided: "Strided | None" = None
    ) -> None:
        self.framework, self.value, self.size, self.on_device = framework, value, size, on_device
        self._strided = strided
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
        # From here on only where memory is too short for all of it at once.
        if self._strided is not None:
            self._strided.read(start, target)
            return
        if self._whole is None:
            self._whole = np.empty(self.size, np.uint8)
            self.framework.copy_out([(self.value, self._whole)]).wait()
        np.copyto(target, self._whole[start : start + size])
        if start + size == self.size:
            self._whole = None


class Strided(NamedTuple):
    """An array with gaps in the host's memory, which `value` keeps there. Some of it is read without the rest."""

    value: Any
    described: Described

    def read(self, start: int, target: Block) -> None:
        """Its bytes from `start` on, in order. They may begin and end within an element."""
        elements = self._elements
        number, within = divmod(start, self.item)
        if within:
            head, target = target[: self.item - within], target[self.item - within :]
            head[:] = _bytes_of(elements, number)[within : within + len(head)]
            number += 1
        count, rest = divmod(len(target), self.item)
        _copy_some(elements, number, target[: count * self.item].view(elements.dtype))
        if rest:
            target[-rest:] = _bytes_of(elements, number + count)[:rest]

    @property
    def item(self) -> int:
        return dtype_of(self.described.dtype).bytes

    @property
    def _elements(self) -> NDArray[Any]:
        shape, strides = self.described.shape, self.described.strides
        assert strides is not None
        memory = (ctypes.c_uint8 * self.described.reach).from_address(self.described.start)
        offset = -span(shape, strides, self.item)[0]
        return np.ndarray(shape, raw(self.item), memoryview(memory), offset, strides)


def _bytes_of(elements: NDArray[Any], number: int) -> Block:
    made = np.empty(1, elements.dtype)
    _copy_some(elements, number, made)
    return made.view(np.uint8)


def _copy_some(elements: NDArray[Any], first: int, target: NDArray[Any]) -> None:
    """From this one on, in the order of C: the end of a row, whole rows, and the beginning of another."""
    if not len(target):
        return
    if elements.ndim == 1:
        np.copyto(target, elements[first : first + len(target)])
        return
    row = prod(elements.shape[1:])
    number, within = divmod(first, row)
    if within:
        some = min(row - within, len(target))
        _copy_some(elements[number], within, target[:some])
        number, target = number + 1, target[some:]
    whole = len(target) // row
    np.copyto(target[: whole * row].reshape(whole, *elements.shape[1:]), elements[number : number + whole])
    if len(target) % row:
        _copy_some(elements[number + whole], 0, target[whole * row :])


def sources_of(stored: Sequence[Stored], leaves: Sequence[Leaf]) -> list[Source]:
    """One for each."""
    return [_source(each, leaves[each.leaf]) for each in stored]


def _source(stored: Stored, leaf: Leaf) -> Source:
    described, value = leaf.described, leaf.value
    if leaf.shares is not None:
        _, value, described = leaf.shares[stored.share]
    if stored.shared is not None:
        return HostMemory(stored.shared.ctypes.data, stored.size, value)
    if described.is_dense:
        return HostMemory(described.start, described.size, value)
    strided = Strided(value, described) if described.strides and not described.on_device else None
    return Elsewhere(leaf.framework, value, stored.size, on_device=described.on_device, strided=strided)
