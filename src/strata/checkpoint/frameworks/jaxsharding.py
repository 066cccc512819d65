"""JAX's arrays that lie on several devices, of this process and of others. Imported only where JAX is.

The law: a sharding says which box of an array lies on which device of which process, and says the same on all of them.
So each process knows what others have, and which share of the work is its own, without a word.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from strata.checkpoint.boxes import Box
from strata.checkpoint.frameworks.base import Piece, Shards
from strata.checkpoint.slices import Index, box_of
from strata.errors import Unstorable

KEPT = 8192
"""Of shardings and shapes, for how many their places are kept: on thousands of devices they take a while to find."""


class Place(NamedTuple):
    """A box of an array that lies here. Of so many processes that have it, this one is the `copy`th."""

    box: Box
    copy: int = 0
    copies: int = 1


def dealt(held: Iterable[tuple[Box, int]], here: int) -> Sequence[Place]:
    """Of boxes and the processes that have them, on each of its devices: each box of this process, once."""
    processes: dict[Box, set[int]] = {}
    for box, process in held:
        processes.setdefault(box, set()).add(process)
    own = ((box, sorted(those)) for box, those in processes.items() if here in those)
    return tuple([Place(box, those.index(here), len(those)) for box, those in own])


@lru_cache(maxsize=KEPT)
def places(sharding: jax.sharding.Sharding, shape: tuple[int, ...]) -> Sequence[Place]:
    """Those of an array of this shape. Unstorable if the sharding has no devices, or cannot divide it so."""
    try:
        indices: Mapping[Any, Index] = sharding.devices_indices_map(shape)
        here = {device.process_index for device in indices.keys() & sharding.addressable_devices}
    except (ValueError, NotImplementedError) as error:
        raise Unstorable(f"its sharding gives it no place on any device: {error}") from error
    held = ((box_of(shape, index), device.process_index) for device, index in indices.items())
    return dealt(held, here.pop()) if here else ()


def shards_of(array: jax.Array) -> Shards:
    """Its pieces that are here; none on a process that takes no part in it."""
    held = {box_of(array.shape, shard.index): shard.data for shard in array.addressable_shards}
    own = places(array.sharding, array.shape)
    return Shards([Piece(box.at, Portion(held[box], box.shape), copy, copies) for box, copy, copies in own])


def parts_of(array: jax.Array) -> Iterator[tuple[Index, NDArray[Any]]]:
    """What to put where for all of an array that lies here. JAX puts them together by itself, too, but keeps what it
    made for as long as the array lives."""
    if array.is_fully_replicated:
        yield (), np.asarray(array)
        return
    if is_on_device(array):
        array.copy_to_host_async()
    held = {box_of(array.shape, shard.index): shard for shard in array.addressable_shards}
    yield from ((shard.index, np.asarray(shard.data)) for shard in held.values())


class Portion:
    """What lies on one device, or some rows of it. Those are cut out when they are copied, and take no memory before:
    JAX would copy them at once, on the device."""

    __slots__ = ("_array", "_first", "shape")

    def __init__(self, array: jax.Array, shape: tuple[int, ...], first: int = 0) -> None:
        self._array, self.shape, self._first = array, shape, first

    def __getitem__(self, rows: slice) -> "Portion":
        start, stop, _ = rows.indices(self.shape[0])
        return Portion(self._array, (stop - start, *self.shape[1:]), self._first + start)

    @property
    def dtype(self) -> Any:
        return self._array.dtype

    @property
    def size(self) -> int:
        return Box.whole(self.shape).size

    @property
    def on_device(self) -> bool:
        return is_on_device(self._array)

    def elements(self) -> NDArray[Any]:
        """In host memory, which may be the array's own: not to be changed."""
        if self.size == self._array.size:
            return np.asarray(self._array)
        rows = slice(self._first, self._first + self.shape[0])
        return cut(self._array, rows, there=self.on_device)


def cut(array: jax.Array, rows: slice, *, there: bool) -> NDArray[Any]:
    """Some rows of what lies on one device: cut out there, so that no others are copied from it; or here, where its
    memory is the host's."""
    return np.asarray(array[rows] if there else np.asarray(array)[rows])


def is_on_device(array: jax.Array) -> bool:
    """Whether it must be copied to be in the host's memory."""
    devices: Iterable[Any] = array.sharding.device_set
    return bool(next(iter(devices)).platform != "cpu")
