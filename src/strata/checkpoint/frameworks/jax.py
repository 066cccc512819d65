"""JAX's arrays, whose memory nobody may change: read through numpy, and made anew. Imported only where JAX is."""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from strata.checkpoint.boxes import Box
from strata.checkpoint.dtypes import name_of_numpy, numpy_dtype
from strata.checkpoint.frameworks.base import COPIED, Block, Copying, Described, Layout
from strata.checkpoint.frameworks.jaxsharding import Portion, is_on_device, parts_of, places, shards_of
from strata.checkpoint.slices import box_of
from strata.errors import Unstorable


class JaxArrays:
    """JAX."""

    name = "jax"

    def owns(self, value: object) -> bool:
        return isinstance(value, jax.Array | jax.ShapeDtypeStruct)

    def describe(self, value: Any) -> Described:
        if isinstance(value, Portion):
            size = value.size * value.dtype.itemsize
            return Described(_name(value.dtype), value.shape, size, on_device=value.on_device)
        if isinstance(value, jax.ShapeDtypeStruct):
            raise Unstorable("a jax.ShapeDtypeStruct has no data: it is a template, to load `like`")
        dtype = _name(value.dtype)
        if value.is_deleted():
            raise Unstorable("the JAX array has no data any more: it was deleted, or donated to a function")
        if not value.is_fully_addressable:
            return Described(dtype, value.shape, value.nbytes, shards=shards_of(value))
        return Described(dtype, value.shape, value.nbytes, on_device=is_on_device(value))

    def copy_out(self, pairs: Iterable[tuple[Any, Block]]) -> Copying:
        for value, target in pairs:
            room = target.view(value.dtype).reshape(value.shape)
            for index, part in [((), value.elements())] if isinstance(value, Portion) else parts_of(value):
                np.copyto(room[(*index, ...)], part)
        return COPIED

    def device_bytes(self, value: Any) -> Any:
        return None

    def make(self, dtype: str, shape: tuple[int, ...], data: Block) -> Any:
        return jnp.asarray(np.array(data.view(_held_dtype(dtype)).reshape(shape)))

    def carve(self, dtype: str, shapes: Iterable[tuple[int, ...]], data: Block) -> list[Any] | None:
        return None

    def view(self, layout: Layout, data: Block) -> Any:
        raise AssertionError("its memory is not told, so it is never found to share any")

    def is_writable(self, value: jax.Array) -> bool:
        return False

    def memory(self, value: jax.Array) -> Block | None:
        return None

    def refusal(self, value: jax.Array) -> str | None:
        return "a JAX array cannot be changed in place: load it as a new one, with `like`"

    def copy_in(self, value: jax.Array, data: Block) -> None:
        raise AssertionError("its arrays cannot be changed")

    def part(self, value: Any, index: tuple[slice, ...]) -> Any:
        return None

    def copy_to_device(self, pairs: Iterable[tuple[Any, Block]]) -> Copying:
        raise AssertionError("its arrays cannot be changed")

    def outline(self, template: Any) -> tuple[str, tuple[int, ...]]:
        self.boxes_like(template)  # refused by its name, if its sharding is none that it could have
        return _name(template.dtype), tuple(template.shape)

    def empty_like(self, template: Any) -> Any:
        return None

    def boxes_like(self, template: Any) -> list[Box]:
        shape, where = tuple(template.shape), template.sharding
        return [Box.whole(shape)] if where is None else [place.box for place in places(where, shape)]

    def make_like(self, template: Any, blocks: Sequence[Block]) -> Any:
        """On each device what lies there; on several of this process it may be one in memory."""
        dtype, shape = self.outline(template)
        where = template.sharding
        if where is None:
            return self.make(dtype, shape, blocks[0])
        own = _held_dtype(dtype)
        if not blocks:
            return jax.make_array_from_single_device_arrays(shape, where, [], dtype=own)
        parts = {
            box: block.view(own).reshape(box.shape)
            for box, block in zip(self.boxes_like(template), blocks, strict=True)
        }
        return jax.make_array_from_callback(shape, where, lambda index: parts[box_of(shape, index)], dtype=own)


@cache
def _name(dtype: Any) -> str:
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        raise Unstorable(f"a JAX array of {dtype} cannot be stored: store jax.random.key_data of a key")
    found = name_of_numpy(np.dtype(dtype))
    if found is None:
        raise Unstorable(f"a JAX array of {dtype} cannot be stored")
    return found


def _held_dtype(name: str) -> Any:
    """JAX's own, in which it holds elements of that type."""
    found = numpy_dtype(name)
    if jax.dtypes.canonicalize_dtype(found) != found:
        raise Unstorable(f"JAX holds no {name} unless told to: set JAX_ENABLE_X64=1")
    return found
