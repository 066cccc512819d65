"""TensorFlow's tensors and variables, and Keras' variables on it, through numpy. Imported only where TensorFlow is."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strata.checkpoint.boxes import Box
from strata.checkpoint.dtypes import name_of_numpy, numpy_dtype
from strata.checkpoint.frameworks.base import COPIED, Block, Copying, Described, Layout
from strata.errors import Unstorable

_OWN = (tf.Tensor, tf.Variable)


class TensorflowArrays:
    """TensorFlow. A variable comes back as a variable of TensorFlow's, whether it was Keras' or not."""

    name = "tensorflow"

    def owns(self, value: object) -> bool:
        return isinstance(value, _OWN) or (
            _is_of_keras(value) and isinstance(getattr(value, "value", None), tf.Variable)
        )

    def describe(self, value: Any) -> Described:
        value = _inside(value)
        if not hasattr(value, "numpy"):
            raise Unstorable("a symbolic tensor of TensorFlow has no data: store the values of an eager one")
        if not value.shape.is_fully_defined():
            raise Unstorable("a tensor of TensorFlow without a definite shape cannot be stored")
        dtype = name_of_numpy(np.dtype(value.dtype.as_numpy_dtype))
        if dtype is None:
            raise Unstorable(
                f"a tensor of {value.dtype.name} cannot be stored: give it elements that are plain numbers"
            )
        size = value.shape.num_elements() * value.dtype.size
        return Described(dtype, tuple(value.shape), size, on_device="CPU" not in (value.device or "CPU"))

    def copy_out(self, pairs: Iterable[tuple[Any, Block]]) -> Copying:
        for value, target in pairs:
            found = np.asarray(_inside(value).numpy())
            np.copyto(target.view(found.dtype).reshape(found.shape), found)
        return COPIED

    def device_bytes(self, value: Any) -> Any:
        return None

    def make(self, dtype: str, shape: tuple[int, ...], data: Block) -> Any:
        return tf.convert_to_tensor(data.view(numpy_dtype(dtype)).reshape(shape))

    def carve(self, dtype: str, shapes: Iterable[tuple[int, ...]], data: Block) -> list[Any] | None:
        return None

    def view(self, layout: Layout, data: Block) -> Any:
        raise AssertionError("its memory is not told, so it is never found to share any")

    def is_writable(self, value: Any) -> bool:
        return False

    def memory(self, value: Any) -> Block | None:
        return None

    def refusal(self, value: Any) -> str | None:
        if isinstance(_inside(value), tf.Variable):
            return None
        return "a tensor of TensorFlow cannot be changed in place: a variable can"

    def copy_in(self, value: Any, data: Block) -> None:
        value = _inside(value)
        value.assign(data.view(numpy_dtype(value.dtype.name)).reshape(tuple(value.shape)))

    def part(self, value: Any, index: tuple[slice, ...]) -> Any:
        return None

    def copy_to_device(self, pairs: Iterable[tuple[Any, Block]]) -> Copying:
        raise AssertionError("its memory is not told")

    def outline(self, template: Any) -> tuple[str, tuple[int, ...]]:
        found = self.describe(template)
        return found.dtype, found.shape

    def empty_like(self, template: Any) -> Any:
        return None

    def boxes_like(self, template: Any) -> list[Box]:
        return [Box.whole(tuple(template.shape))]

    def make_like(self, template: Any, blocks: Sequence[Block]) -> Any:
        made = self.make(*self.outline(template), blocks[0])
        return tf.Variable(made, trainable=template.trainable) if hasattr(template, "assign") else made


def _is_of_keras(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "keras"


def _inside(value: Any) -> Any:
    """A variable of Keras' holds one of TensorFlow's."""
    return value if isinstance(value, _OWN) else value.value
