"""Where a tensor's bytes are copied from, some at a time."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint import CheckpointManager, CheckpointManagerConfig
from strata.checkpoint.preparing import Planner
from strata.checkpoint.sources import Room
from strata.storage import MemoryStorage
from tests.unit.checkpoint.states import assert_same

MIB = 1 << 20


def read(value: Any, length: int) -> bytes:
    """All of its bytes, so many at a time."""
    (source,) = Planner().prepare({"x": value}).sources
    room = Room(np.zeros(source.size, np.uint8))
    for start in range(0, source.size, length):
        source.read(start, min(length, source.size - start), room, start)
    return room.block.tobytes()


@pytest.mark.slow
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.data(),
    st.sampled_from(["u1", "f2", "i4", "f8", "c16"]),
    st.integers(1, 200),
)
def test_an_array_with_gaps_is_read_in_pieces(shape: list[int], data: st.DataObject, dtype: str, length: int) -> None:
    whole = np.arange(np.prod(shape) * 2 ** (len(shape) + 1)).astype(dtype).reshape([2 * each for each in shape] + [-1])
    steps = [slice(None, None, data.draw(st.sampled_from([1, 2, -1, -2]))) for _ in shape]
    at: tuple[Any, ...] = (*steps, 0)
    array = whole[at].transpose(data.draw(st.permutations(range(len(shape)))))
    assert read(array, length) == array.tobytes()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(120.0).reshape(4, 5, 6).permute(2, 0, 1),
        lambda: torch.arange(120).reshape(10, 12).to(torch.bfloat16).T[1:, ::3],
        lambda: torch.ones(6).expand(7, 6),
        lambda: torch.conj(torch.randn(9, 7, dtype=torch.complex64).T),
        lambda: torch.nn.Parameter(torch.randn(9, 7)).T,
    ],
)
def test_so_is_one_of_torch(make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    expected = tensor.detach().clone().resolve_conj().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    for length in (1, 3, 17, 64):
        assert read(tensor, length) == expected


def test_an_array_with_gaps_takes_no_more_memory_than_there_is_for_it() -> None:
    array = np.ones((1000, 16 * MIB // 8000)).T
    (source,) = Planner().prepare({"x": array}).sources
    room = Room(np.zeros(MIB, np.uint8))
    tracemalloc.start()
    try:
        for start in range(0, source.size - MIB, MIB):
            source.read(start, MIB, room, 0)
        assert tracemalloc.get_traced_memory()[1] < MIB // 2
    finally:
        tracemalloc.stop()


def test_a_state_with_gaps_that_takes_turns_is_saved_as_it_is() -> None:
    state = {
        "a": np.arange(6e6).reshape(2000, 3000).T,
        "b": np.arange(7.0),
        "c": torch.randn(900, 1000, 5).permute(1, 2, 0),
    }
    config = CheckpointManagerConfig(memory_bytes=32 * MIB)
    with CheckpointManager(MemoryStorage(), config=config) as manager:
        manager.save(state, step=1)
        assert_same(manager.load(), state)
