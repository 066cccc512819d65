"""The questions that are put to every package with arrays."""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from strata.checkpoint.boxes import Box

Block: TypeAlias = NDArray[np.uint8]
"""Bytes in memory, contiguous."""


class Piece(NamedTuple):
    """A part of an array that this process has: where in it that lies, and the array that it is. Of so many processes
    that have the same part, this one is the `copy`th."""

    at: tuple[int, ...]
    value: Any
    copy: int = 0
    copies: int = 1


class Shards(NamedTuple):
    """An array that many processes hold together: those of its pieces that are here."""

    pieces: list[Piece]

    def alone(self) -> "Shards":
        """For a process that shares the work with nobody."""
        return Shards([Piece(piece.at, piece.value) for piece in self.pieces])


class Described(msgspec.Struct, frozen=True, gc=False):
    """An array as a checkpoint sees it.

    `is_dense`: its elements lie in host memory one after the other, as they are stored.
    """

    dtype: str
    shape: tuple[int, ...]
    size: int
    start: int = 0
    """The address of its first byte; 0 where memory is never shared, or not the caller's to see."""
    reach: int = 0
    """How many bytes there are from the first to the last of its own."""
    strides: tuple[int, ...] | None = None
    """How far apart its elements are, in bytes; None if they lie one after the other."""
    is_dense: bool = False
    on_device: bool = False
    shards: Shards | None = None
    """Where it lies on many processes. `shape` and `size` are then those of the whole."""

    @property
    def end(self) -> int:
        """Behind its last byte."""
        return self.start + self.reach


class Layout(NamedTuple):
    """Of an array within bytes that it shares: where its first element is, and how far apart they are, in bytes."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]


class Copying(Protocol):
    """Copies under way."""

    def wait(self) -> None:
        """Until they are made."""
        ...

    def hold(self) -> None:
        """What the caller gives the device to do from now on waits for them, there."""
        ...


class _Copied:
    def wait(self) -> None:
        pass

    def hold(self) -> None:
        pass


COPIED: Copying = _Copied()
"""Those that are made already."""


class Framework(Protocol):
    """One package with arrays."""

    @property
    def name(self) -> str:
        """What manifests call it."""
        ...

    def owns(self, value: object) -> bool: ...

    def describe(self, value: Any) -> Described:
        """Raises Unstorable."""
        ...

    def copy_out(self, pairs: Iterable[tuple[Any, Block]]) -> Copying:
        """Each array's elements in order, into as many bytes. From a device they may take a while: until then neither
        the array nor the bytes may be changed."""
        ...

    def device_bytes(self, value: Any) -> Any:
        """The bytes of an array on a device, there, in order, to be cut and copied in parts; None where there are none
        such."""
        ...

    def make(self, dtype: str, shape: tuple[int, ...], data: Block) -> Any:
        """A new array that may use these bytes as its own."""
        ...

    def carve(self, dtype: str, shapes: Iterable[tuple[int, ...]], data: Block) -> list[Any] | None:
        """New arrays, one behind the other in these bytes, which they may use as their own; None where `make` must do:
        arrays of other packages have memory of their own."""
        ...

    def view(self, layout: Layout, data: Block) -> Any:
        """An array that lies within these bytes, and shares them with others."""
        ...

    def is_writable(self, value: Any) -> bool:
        """Whether the memory where an array says it lies may be written to."""
        ...

    def memory(self, value: Any) -> Block | None:
        """The bytes of an array that can be written in place; None where `copy_in` must do."""
        ...

    def refusal(self, value: Any) -> str | None:
        """Why an array cannot be changed in place; None for one that `copy_in` can change."""
        ...

    def copy_in(self, value: Any, data: Block) -> None:
        """Change the array to these elements."""
        ...

    def part(self, value: Any, index: tuple[slice, ...]) -> Any:
        """Some elements of an array, for `copy_to_device`; None where `copy_in` must do, for all of them."""
        ...

    def copy_to_device(self, pairs: Iterable[tuple[Any, Block]]) -> Copying:
        """Into each of these, which are `device_bytes` or cut from such, or a `part`, as many bytes."""
        ...

    def outline(self, template: Any) -> tuple[str, tuple[int, ...]]:
        """Type and shape of what may have no data."""
        ...

    def empty_like(self, template: Any) -> Any:
        """A new array where the template is, to be filled; None for a package whose arrays cannot be changed."""
        ...

    def boxes_like(self, template: Any) -> list[Box]:
        """Which parts of a new array where the template is are this process's, each once. The whole, mostly."""
        ...

    def make_like(self, template: Any, blocks: Sequence[Block]) -> Any:
        """A new array where the template is, of the elements of each of its boxes. It may use this memory as its
        own."""
        ...


def carved(elements: NDArray[Any], shapes: Iterable[tuple[int, ...]]) -> list[NDArray[Any]]:
    """Arrays of these shapes, one behind the other."""
    made, at = [], 0
    for shape in shapes:
        if len(shape) == 1:
            end = at + shape[0]
            made.append(elements[at:end])
        else:
            end = at + prod(shape)
            made.append(elements[at:end].reshape(shape))
        at = end
    return made


def dense_strides(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    """Of elements that lie one after the other, in the order of C."""
    strides, step = [], item
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def span(shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> tuple[int, int]:
    """From where to where its elements lie, counted from the first of them."""
    reach = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    return sum(step for step in reach if step < 0), sum(step for step in reach if step > 0) + item
