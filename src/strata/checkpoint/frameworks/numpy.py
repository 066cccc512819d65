"""numpy's arrays and scalars, and any other object that says how it becomes an array."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from strata.checkpoint.boxes import Box
from strata.checkpoint.dtypes import name_of_numpy, numpy_dtype
from strata.checkpoint.frameworks.base import COPIED, Block, Copying, Described, Layout, carved, span
from strata.errors import Unstorable

_PLAIN = (np.ndarray, np.memmap)
"""Those that are their elements and nothing more: a mask or a unit beside them would be lost."""


class NumpyArrays:
    """numpy."""

    name = "numpy"

    def owns(self, value: object) -> bool:
        return isinstance(value, np.ndarray)

    def describe(self, value: np.ndarray[Any, Any]) -> Described:
        kind, dtype = type(value), name_of_numpy(value.dtype)
        if kind not in _PLAIN:
            raise Unstorable(f"a {kind.__module__}.{kind.__name__} cannot be stored: store the plain arrays in it")
        if dtype is None:
            raise Unstorable(f"an array of {value.dtype} cannot be stored: give it elements that are plain numbers")
        if not value.size:
            return Described(dtype, value.shape, 0)
        start: int = value.__array_interface__["data"][0]
        if value.flags.c_contiguous:
            return Described(dtype, value.shape, value.nbytes, start, value.nbytes, is_dense=True)
        first, last = span(value.shape, value.strides, value.itemsize)
        return Described(dtype, value.shape, value.nbytes, start + first, last - first, value.strides)

    def copy_out(self, pairs: Iterable[tuple[Any, Block]]) -> Copying:
        for value, target in pairs:
            np.copyto(target.view(value.dtype).reshape(value.shape), value)
        return COPIED

    def device_bytes(self, value: Any) -> Any:
        return None

    def make(self, dtype: str, shape: tuple[int, ...], data: Block) -> Any:
        return data.view(numpy_dtype(dtype)).reshape(shape)

    def carve(self, dtype: str, shapes: Iterable[tuple[int, ...]], data: Block) -> list[Any] | None:
        return carved(data.view(numpy_dtype(dtype)), shapes)

    def view(self, layout: Layout, data: Block) -> Any:
        dtype = numpy_dtype(layout.dtype)
        return np.ndarray(layout.shape, dtype, buffer=data, offset=layout.offset, strides=layout.strides)

    def is_writable(self, value: np.ndarray[Any, Any]) -> bool:
        return bool(value.flags.writeable)

    def memory(self, value: np.ndarray[Any, Any]) -> Block | None:
        if not (value.flags.c_contiguous and value.flags.writeable):
            return None
        return value.reshape(-1).view(np.uint8)

    def refusal(self, value: np.ndarray[Any, Any]) -> str | None:
        return None if value.flags.writeable else "the array is read-only"

    def copy_in(self, value: np.ndarray[Any, Any], data: Block) -> None:
        np.copyto(value, data.view(value.dtype).reshape(value.shape))

    def part(self, value: Any, index: tuple[slice, ...]) -> Any:
        return None

    def copy_to_device(self, pairs: Iterable[tuple[Any, Block]]) -> Copying:
        raise AssertionError("its arrays lie in the host's memory")

    def outline(self, template: np.ndarray[Any, Any]) -> tuple[str, tuple[int, ...]]:
        found = self.describe(template)
        return found.dtype, found.shape

    def empty_like(self, template: np.ndarray[Any, Any]) -> Any:
        return np.empty(template.shape, template.dtype)

    def boxes_like(self, template: np.ndarray[Any, Any]) -> list[Box]:
        raise AssertionError("its arrays are filled")

    def make_like(self, template: np.ndarray[Any, Any], blocks: Sequence[Block]) -> Any:
        raise AssertionError("its arrays are filled")
