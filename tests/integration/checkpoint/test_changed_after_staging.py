"""What is changed the instant `save_async` has returned never shows, at any size, from any thread.

Guards against: async saves that silently rewrote the first checkpoint (NeMo-RL 3312), and torn ones (step-2 optimizer
beside step-1 weights, nvidia-resiliency-ext PR 376).
"""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.checkpoint import CheckpointManager, CheckpointManagerConfig
from strata.storage import MemoryStorage
from strata.testing.faulty import FaultyStorage
from tests.unit.checkpoint.states import assert_same

MIB = 1 << 20
SIZES = [0, 1, 63, 64, 65, 4095, 4096, 4097, MIB - 1, MIB, MIB + 1, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 33 * MIB]
WAYS = {
    "whole": CheckpointManagerConfig(),
    "in turns": CheckpointManagerConfig(memory_bytes=16 * MIB),
    "incremental": CheckpointManagerConfig(incremental=True),
    "incremental, in turns": CheckpointManagerConfig(incremental=True, memory_bytes=16 * MIB),
}
THREADS, CHANGES = 3, 20


def random_bytes(size: int, seed: int) -> "np.ndarray[Any, Any]":
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def state_of(size: int, seed: int) -> dict[str, Any]:
    """So many bytes, in every way in which they can lie; of very many, only one."""
    base = random_bytes(size, seed)
    size = size if size < 9 * MIB else MIB
    wide = random_bytes(2 * size, seed + 1).reshape(size, 2)
    shared = random_bytes(size, seed + 2)
    return {
        "numpy": base,
        "torch": torch.from_numpy(random_bytes(size, seed + 3)),
        "transposed": wide.T,
        "every other": torch.from_numpy(random_bytes(2 * size, seed + 4))[::2],
        "tied": [shared, shared, shared[: size // 2]],
        "inside": bytearray(random_bytes(min(size, MIB), seed + 5).tobytes()),
        "scalar": np.float32(seed),
        "n": seed,
    }


def arrays_of(state: dict[str, Any]) -> list[Any]:
    return [state["numpy"], state["torch"], state["transposed"], state["every other"], *state["tied"], state["inside"]]


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """What it is now; nothing in it is shared."""
    return {
        "numpy": state["numpy"].copy(),
        "torch": state["torch"].clone(),
        "transposed": state["transposed"].copy(),
        "every other": state["every other"].clone(),
        "tied": [each.copy() for each in state["tied"]],
        "inside": bytearray(state["inside"]),
        "scalar": state["scalar"],
        "n": state["n"],
    }


class Changing:
    """Threads that wait for a word, and then change everything, again and again."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._begin, self._stop = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=self._change, args=(state, number)) for number in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def begin(self) -> None:
        self._begin.set()

    def end(self) -> None:
        self._begin.set()
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _change(self, state: dict[str, Any], number: int) -> None:
        self._begin.wait()
        for _ in range(CHANGES):
            for array in arrays_of(state)[number:]:
                if isinstance(array, bytearray):
                    array[:] = bytes(len(array))
                else:
                    array[...] = 255 - number
            if self._stop.is_set():
                return


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", SIZES)
def test_what_is_changed_at_once_by_several_threads_never_shows(tmp_path: Path, size: int, way: str) -> None:
    state = state_of(size, seed=1)
    with CheckpointManager(tmp_path, config=WAYS[way]) as manager:
        for step in (1, 2):
            expected, changing = copied(state), Changing(state)
            handle = manager.save_async(state, step=step)
            changing.begin()
            handle.result()
            changing.end()
            assert_same(manager.load(), expected)
            state["n"] += 1
        manager.verify(1)


@pytest.mark.parametrize("size", [1, 4097, 9 * MIB])
def test_what_is_changed_before_anything_is_written_never_shows(size: int) -> None:
    """The storage does not take a byte before everything is changed."""
    storage, state = FaultyStorage(MemoryStorage()), state_of(size, seed=9)
    storage.fail("write", 1, "stuck")
    with CheckpointManager(storage) as manager:
        expected = copied(state)
        handle = manager.save_async(state, step=1)
        for array in arrays_of(state):
            array[:] = bytes(len(array)) if isinstance(array, bytearray) else 0
        state.clear()
        storage.release()
        handle.result()
        assert_same(manager.load(), expected)


def test_awaiting_is_enough(tmp_path: Path) -> None:
    state = state_of(5 * MIB, seed=3)
    expected = copied(state)

    async def train() -> None:
        with CheckpointManager(tmp_path) as manager:
            await manager.save_async(state, step=1)
            for array in arrays_of(state):
                array[:] = bytes(len(array)) if isinstance(array, bytearray) else 0
            await manager.wait_async()
            assert_same(await manager.load_async(), expected)

    asyncio.run(train())


@pytest.mark.parametrize("make", [bytearray, lambda data: memoryview(bytearray(data))], ids=["bytearray", "memoryview"])
@pytest.mark.parametrize("size", [0, 1, 4097, 9 * MIB])
def test_bytes_that_can_change_are_copied(tmp_path: Path, size: int, make: Callable[[bytes], Any]) -> None:
    data = make(random_bytes(size, 1).tobytes())
    expected = bytes(data)
    with CheckpointManager(tmp_path) as manager:
        handle = manager.save_async(data, step=1)
        data[:] = bytes(size)
        handle.result()
        assert manager.load() == expected


def test_what_was_saved_may_grow_and_go_at_once() -> None:
    """Nothing of the caller's is held any longer than until it is copied."""
    storage = FaultyStorage(MemoryStorage())
    storage.fail("write", 1, "stuck")
    text, array = bytearray(b"text"), np.ones(100)
    with CheckpointManager(storage) as manager:
        handle = manager.save_async({"text": text, "array": array}, step=1)
        text.extend(b" and more")
        array.resize(1000)  # refused if anything refers to it
        storage.release()
        handle.result()
        assert_same(manager.load(), {"text": bytearray(b"text"), "array": np.ones(100)})


@pytest.mark.parametrize("way", WAYS)
def test_many_small_ones(tmp_path: Path, way: str) -> None:
    state = {f"t{n}": torch.full((n % 65,), float(n)) for n in range(4000)}
    expected = {name: tensor.clone() for name, tensor in state.items()}
    with CheckpointManager(tmp_path, config=WAYS[way]) as manager:
        for step in (1, 2):
            handle = manager.save_async(state, step=step)
            for tensor in state.values():
                tensor.fill_(-1.0)
            handle.result()
            assert_same(manager.load(), expected)
            for name, tensor in state.items():
                tensor.copy_(expected[name])


DTYPES = [np.uint8, np.int16, np.float32, np.float64, np.complex128]


@st.composite
def arrays(draw: st.DrawFn) -> "np.ndarray[Any, Any]":
    """Of any shape, type and order, and as a view with steps."""
    shape = draw(st.lists(st.integers(0, 9), max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    steps = tuple(draw(st.sampled_from([slice(None), slice(None, None, 2), slice(None, None, -1)])) for _ in shape)
    whole = np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)
    return np.array(whole, order=draw(st.sampled_from(["C", "F"])))[(*steps, ...)]


@settings(max_examples=60)
@given(st.lists(arrays(), min_size=1, max_size=6), st.booleans(), st.sampled_from(["whole", "incremental"]))
def test_arrays_of_any_shape(found: list[Any], as_torch: bool, way: str) -> None:
    if as_torch:
        found = [torch.from_numpy(each.copy()) for each in found]
    state = {"list": found, "again": found[0], "part": found[-1][:1] if found[-1].ndim else found[-1]}
    expected = {
        "list": [each.clone() if as_torch else each.copy() for each in found],
        "again": found[0].clone() if as_torch else found[0].copy(),
        "part": state["part"].clone() if as_torch else state["part"].copy(),
    }
    with CheckpointManager(MemoryStorage(), config=WAYS[way]) as manager:
        handle = manager.save_async(state, step=1)
        for each in found:
            each[...] = 1
        handle.result()
        assert_same(manager.load(), expected)


@pytest.mark.parametrize("when_busy", ["wait", "skip", "replace"])
def test_states_that_several_threads_save_are_not_mixed(tmp_path: Path, when_busy: str) -> None:
    """Of different shapes, so that the plan of one would not do for the other."""
    committed: dict[int, Any] = {}
    errors: list[BaseException] = []
    config = CheckpointManagerConfig(when_busy=when_busy)
    lock = threading.Lock()
    with CheckpointManager(tmp_path, config=config) as manager:
        steps = iter(range(1, 1000))

        def save(number: int) -> None:
            try:
                for turn in range(12):
                    with lock:  # steps go up
                        step = next(steps)
                        state = {f"w{n}": np.full(50 * number + n, step) for n in range(number * 7 + turn)}
                        handle = manager.save_async(state, step=step)
                    expected = {name: array.copy() for name, array in state.items()}
                    for array in state.values():
                        array[:] = -1
                    manager.check({f"other{n}": np.zeros(n + number) for n in range(number * 3)})
                    committed[step] = (handle, expected)
            except BaseException as error:  # noqa: BLE001  told below
                errors.append(error)

        threads = [threading.Thread(target=save, args=(number,)) for number in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        manager.wait()
        assert not errors
        there = manager.list_checkpoints()
        assert there
        for step in there:
            assert_same(manager.load(step), committed[step][1])
        assert there == sorted(step for step, (handle, _) in committed.items() if handle.status == "committed")
