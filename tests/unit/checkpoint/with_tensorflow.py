"""Checkpoints of TensorFlow's arrays, as a program: `python -m tests.unit.checkpoint.with_tensorflow`."""

from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from strata.checkpoint import CheckpointManager
from strata.errors import Unstorable
from strata.storage import MemoryStorage

NUMBERS = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
)
ONLY_TENSORS = ("float8_e4m3fnuz", "float8_e5m2fnuz")
"""TensorFlow has no variables of these."""
SMALLER_THAN_BYTES = ("int2", "int4", "uint2", "uint4", "float4_e2m1fn")


def array(dtype: str) -> np.ndarray:
    return np.array([[0, 1], [1, 0]], getattr(ml_dtypes, dtype, dtype))


def bits(value: Any) -> bytes:
    return np.asarray(value.numpy()).tobytes()


def tensors_and_variables_come_back_as_they_were() -> None:
    state = {dtype: tf.constant(array(dtype)) for dtype in (*NUMBERS, *ONLY_TENSORS)}
    state |= {"scalar": tf.constant(1.5), "empty": tf.zeros([0, 3])}
    state |= {f"variable {dtype}": tf.Variable(array(dtype)) for dtype in NUMBERS}
    state["frozen"] = tf.Variable(2.0, trainable=False)
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save(state, step=1)
        back = manager.load()
    assert list(back) == list(state)
    for name, value in state.items():
        assert isinstance(back[name], tf.Variable) == isinstance(value, tf.Variable), name
        assert (back[name].dtype, back[name].shape) == (value.dtype, value.shape), name
        assert bits(back[name]) == bits(value), name
    assert (back["frozen"].trainable, back["variable float32"].trainable) == (False, True)


def a_dict_of_nothing_but_variables_is_one_again() -> None:
    state = {"a": tf.Variable(1.0), "b": tf.Variable([2.0, 3.0], trainable=False)}
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save(state, step=1)
        for back in (manager.load(), manager.load(like=state)):
            assert [type(each) for each in back.values()] == [type(each) for each in state.values()]
            assert [each.trainable for each in back.values()] == [True, False]
            assert [bits(each) for each in back.values()] == [bits(each) for each in state.values()]


def variables_are_filled_in_place() -> None:
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save({dtype: tf.Variable(array(dtype)) for dtype in NUMBERS}, step=1)
        mine = {dtype: tf.Variable(np.zeros_like(array(dtype))) for dtype in NUMBERS}
        held = dict(mine)
        back = manager.load(into=mine)
    for dtype, variable in held.items():
        assert back[dtype] is variable
        assert bits(variable) == array(dtype).tobytes(), dtype


def models_of_keras_go_on() -> None:
    def made() -> Any:
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(4), keras.layers.BatchNormalization()])
        model.compile("adam", "mse")
        return model

    def train(model: Any, steps: int) -> list[float]:
        data = np.linspace(0, 1, 24, dtype=np.float32).reshape(8, 3)
        return [float(model.train_on_batch(data, np.ones((8, 4), np.float32))) for _ in range(steps)]

    def state(model: Any) -> dict[str, Any]:
        return {"model": model.variables, "optimizer": model.optimizer.variables}

    first, second = made(), made()
    train(first, 3)
    train(second, 1)
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save(state(first), step=1)
        manager.load(into=state(second))
        assert all(isinstance(each, tf.Variable) for each in manager.load()["model"])
    for mine, theirs in zip(second.variables, first.variables, strict=True):
        assert bits(mine) == bits(theirs)
    # Each keeps a count of its own of what it lost so far.
    first.reset_metrics()
    second.reset_metrics()
    assert train(second, 3) == train(first, 3)


def what_it_cannot_do_is_said() -> None:
    with CheckpointManager(MemoryStorage()) as manager:
        for bad, told in (
            (tf.constant(["text"]), "a tensor of string cannot be stored"),
            (tf.Variable(["text"]), "a tensor of string cannot be stored"),
            (tf.Variable([1.0], shape=tf.TensorShape(None)), "without a definite shape"),
            (tf.ragged.constant([[1], [2, 3]]), "RaggedTensor cannot be stored"),
            (tf.sparse.from_dense([1, 0]), "SparseTensor cannot be stored"),
            *((tf.constant(array(dtype)), f"a tensor of {dtype} cannot be stored") for dtype in SMALLER_THAN_BYTES),
        ):
            with pytest.raises(Unstorable, match=told):
                manager.check({"a": bad})
        symbolic: list[Any] = []
        tf.function(symbolic.append, autograph=False)(tf.constant(1.0))
        with pytest.raises(Unstorable, match="a symbolic tensor"):
            manager.check({"a": symbolic[0]})
        manager.save({"a": tf.ones(2), "b": np.ones(2)}, step=1)
        into = {"a": tf.zeros(2), "b": np.zeros(2)}
        with pytest.raises(Unstorable, match="a: a tensor of TensorFlow cannot be changed in place"):
            manager.load(into=into)
        assert not into["b"].any()


if __name__ == "__main__":
    tensors_and_variables_come_back_as_they_were()
    a_dict_of_nothing_but_variables_is_one_again()
    variables_are_filled_in_place()
    models_of_keras_go_on()
    what_it_cannot_do_is_said()
