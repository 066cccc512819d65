"""JAX's arrays in every layout that a mesh can give them. Imported only where JAX is."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import permutations, product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

SHAPES: dict[tuple[int, ...], Any] = {
    (48, 24): jnp.float32,
    (24,): jnp.float8_e4m3fn,
    (3, 24, 24): jnp.bfloat16,
    (): jnp.int32,
    (0, 24): jnp.bool,
}
"""And the type of each: all that meshes of 1, 2, 3, 4 and 8 devices can divide."""
BIG = (1 << 12, 1 << 11)
"""Whose rows are shared by those that have them."""


@cache
def value(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Any bits, also those of what is not a number; the same in every process."""
    drawn = np.random.default_rng(len(shape)).integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
    return drawn.view(dtype).reshape(shape) if dtype is not jnp.bool else (drawn > 127).reshape(shape)


def meshes() -> dict[str, Mesh]:
    """Of all devices. In the last, those of one process do not stand side by side."""
    devices = np.array(jax.devices())
    found = {"line": Mesh(devices, ("x",))}
    if len(devices) % 2 == 0:
        found["grid"] = Mesh(devices.reshape(2, -1), ("x", "y"))
        found["mixed"] = Mesh(devices.reshape(-1, 2)[::-1].T, ("x", "y"))
    return found


def specs(axes: tuple[str, ...], ndim: int) -> Iterator[PartitionSpec]:
    """Each axis divides one dimension, or none; where several divide one, in either order."""
    for order, where in product(permutations(axes), product(range(-1, ndim), repeat=len(axes))):
        if order == axes or len(set(where)) < len(where):
            chosen = dict(zip(order, where, strict=True))
            yield PartitionSpec(*(tuple([axis for axis in order if chosen[axis] == d]) or None for d in range(ndim)))


def shardings(shape: tuple[int, ...]) -> list[Sharding]:
    found: list[Sharding] = [SingleDeviceSharding(jax.local_devices()[-1])]
    for mesh in meshes().values():
        found += [NamedSharding(mesh, spec) for spec in dict.fromkeys(specs(mesh.axis_names, len(shape)))]
    return [each for each in found if fits(each, shape)]


def fits(sharding: Sharding, shape: tuple[int, ...]) -> bool:
    try:
        sharding.shard_shape(shape)
    except ValueError:
        return False
    return True


def made(whole: np.ndarray[Any, Any], sharding: Sharding) -> jax.Array:
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index], dtype=whole.dtype)


def arrays(shape: tuple[int, ...], kinds: Callable[[tuple[int, ...]], Iterable[Sharding]]) -> dict[str, jax.Array]:
    """The same array in each of these layouts."""
    whole = value(shape, SHAPES.get(shape, jnp.float32))
    return {str(number): made(whole, sharding) for number, sharding in enumerate(kinds(shape))}


def assert_holds(array: jax.Array, whole: np.ndarray[Any, Any], sharding: Sharding | None = None) -> None:
    """To the bit, on each device of this process."""
    assert isinstance(array, jax.Array)
    assert (array.shape, array.dtype) == (whole.shape, whole.dtype)
    assert sharding is None or array.sharding == sharding
    for shard in array.addressable_shards:
        assert np.asarray(shard.data).tobytes() == whole[shard.index].tobytes()
