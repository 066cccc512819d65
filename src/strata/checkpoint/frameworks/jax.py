"""JAX's arrays, whose memory nobody may change: read through numpy, and made anew. Imported only where JAX is."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from strata.checkpoint.dtypes import name_of_numpy, numpy_dtype
from strata.checkpoint.frameworks.base import COPIED, Block, Copying, Described, Layout
from strata.errors import Unstorable


class JaxArrays:
    """JAX."""

    name = "jax"

    def owns(self, value: object) -> bool:
        return isinstance(value, jax.Array | jax.ShapeDtypeStruct)

    def describe(self, value: jax.Array) -> Described:
        if isinstance(value, jax.ShapeDtypeStruct):
            raise Unstorable("a jax.ShapeDtypeStruct has no data: it is a template, to load `like`")
        if jnp.issubdtype(value.dtype, jax.dtypes.extended):
            raise Unstorable(f"a JAX array of {value.dtype} cannot be stored: store jax.random.key_data of a key")
        if not value.is_fully_addressable:
            raise Unstorable("a JAX array that lies on other processes too cannot be stored from one alone")
        dtype = name_of_numpy(value.dtype)
        if dtype is None:
            raise Unstorable(f"a JAX array of {value.dtype} cannot be stored")
        on_device = value.devices().pop().platform != "cpu"
        return Described(dtype, tuple(value.shape), value.nbytes, on_device=on_device)

    def copy_out(self, pairs: Iterable[tuple[Any, Block]]) -> Copying:
        for value, target in pairs:
            np.copyto(target.view(value.dtype).reshape(value.shape), np.asarray(value))
        return COPIED

    def device_bytes(self, value: Any) -> Any:
        return None

    def make(self, dtype: str, shape: tuple[int, ...], data: Block) -> Any:
        made = jnp.asarray(np.array(data.view(numpy_dtype(dtype)).reshape(shape)))
        if made.dtype != numpy_dtype(dtype):
            raise Unstorable(f"JAX holds no {dtype} unless told to: set JAX_ENABLE_X64=1")
        return made

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

    def copy_to_device(self, pairs: Iterable[tuple[Any, Block]]) -> Copying:
        raise AssertionError("its arrays cannot be changed")

    def outline(self, template: Any) -> tuple[str, tuple[int, ...]]:
        dtype = name_of_numpy(np.dtype(template.dtype))
        if dtype is None:
            raise Unstorable(f"a JAX array of {template.dtype} cannot be stored")
        return dtype, tuple(template.shape)

    def empty_like(self, template: Any) -> Any:
        return None

    def make_like(self, template: Any, data: Block) -> Any:
        made = self.make(*self.outline(template), data)
        where = getattr(template, "sharding", None)
        return made if where is None else jax.device_put(made, where)
