"""The bytes of a tensor, wherever they are: in host memory as they are stored, or to be asked for."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from strata.checkpoint.frameworks import Block, Framework
from strata.checkpoint.ties import Stored, is_dense
from strata.checkpoint.tree import Leaf


class Source(Protocol):
    """What a tensor's bytes are copied from."""

    def read(self, start: int, target: Block) -> None:
        """As many bytes as the target takes, from `start` on."""
        ...


class HostMemory:
    """Bytes that lie there as they are to be stored."""

    __slots__ = ("block",)

    def __init__(self, block: Block) -> None:
        self.block = block

    def read(self, start: int, target: Block) -> None:
        np.copyto(target, self.block[start : start + len(target)])


class Elsewhere:
    """An array on a device, or with gaps, or whose memory is nobody's business."""

    __slots__ = ("_framework", "_size", "_value", "_whole")

    def __init__(self, framework: Framework, value: Any, size: int) -> None:
        self._framework, self._value, self._size = framework, value, size
        self._whole: Block | None = None

    def read(self, start: int, target: Block) -> None:
        if len(target) == self._size:
            self._framework.copy_out([(self._value, target)])
            return
        if self._whole is None:  # only where memory is too short for all of it at once
            self._whole = np.empty(self._size, np.uint8)
            self._framework.copy_out([(self._value, self._whole)])
        np.copyto(target, self._whole[start : start + len(target)])
        if start + len(target) == self._size:
            self._whole = None


def sources_of(stored: Sequence[Stored], leaves: Sequence[Leaf]) -> list[Source]:
    """One for each."""
    return [_source(each, leaves[each.leaf]) for each in stored]


def _source(stored: Stored, leaf: Leaf) -> Source:
    if stored.shared is not None:
        return HostMemory(stored.shared)
    if is_dense(leaf) and not leaf.described.on_device:
        memory = leaf.framework.memory(leaf.value)
        if memory is not None:
            return HostMemory(memory)
    return Elsewhere(leaf.framework, leaf.value, stored.size)
