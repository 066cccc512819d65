"""Small tensors in runs: read together, and each still what it was."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint import CheckpointManager
from strata.checkpoint.manifest import Chunk, Tensor
from strata.checkpoint.runs import RUN_BYTES, SMALL_BYTES, runs_of
from strata.errors import CheckpointDamaged, Unstorable
from tests.unit.checkpoint.states import assert_same


def tensor(size: int, at: int, *, file: int = 0, shift: int = 0, dtype: str = "uint8") -> Tensor:
    return Tensor("t", dtype, (size,), [Chunk(file, at, size, "")] if size else [], shift)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from([0, 1, 700, SMALL_BYTES, SMALL_BYTES + 1]),
            st.booleans(),
            st.sampled_from(["uint8", "int8"]),
        )
    )
)
def test_every_tensor_is_in_one_run_or_alone(wanted: list[tuple[int, int, bool, str]]) -> None:
    ends = [0, 0, 0]
    tensors = []
    for file, size, gap, dtype in wanted:
        tensors.append(tensor(size, ends[file] + gap, file=file, dtype=dtype))
        ends[file] += size + gap
    runs, alone = runs_of(tensors, reversed(range(len(tensors))))
    assert sorted([*alone, *(number for run in runs for number in run.numbers)]) == list(range(len(tensors)))
    assert all(not 0 < tensors[number].shape[0] <= SMALL_BYTES for number in alone)
    for run in runs:
        chunks = [tensors[number].chunks[0] for number in run.numbers]
        assert len({chunk.file for chunk in chunks}) == 1
        assert {tensors[number].dtype for number in run.numbers} == {run.dtype}
        assert (chunks[0].at, chunks[-1].at + chunks[-1].size) == (run.start, run.end)
        assert all(one.at + one.size == other.at for one, other in pairwise(chunks))
        assert run.end - run.start <= RUN_BYTES + SMALL_BYTES


def test_what_is_not_small_and_simple_is_read_alone() -> None:
    tensors = [
        tensor(8, 0),
        tensor(0, 8),
        tensor(8, 16, shift=3),
        Tensor("two", "uint8", (8,), [Chunk(0, 24, 4, ""), Chunk(0, 28, 4, "")]),
        Tensor("between", "float64", (1,), [Chunk(0, 34, 8, "")]),
    ]
    runs, alone = runs_of(tensors, range(5))
    assert ([run.numbers for run in runs], alone) == ([[0]], [1, 2, 3, 4])


def test_runs_are_of_a_fair_length() -> None:
    tensors = [tensor(SMALL_BYTES, number * SMALL_BYTES) for number in range(200)]
    runs, _ = runs_of(tensors, range(200))
    assert [run.end - run.start for run in runs] == [RUN_BYTES] * 3 + [8 * SMALL_BYTES]


def mixed() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    kinds = [np.float64, np.float32, np.int16, np.uint8]
    state: dict[str, Any] = {
        f"t{n}": rng.integers(0, 100, rng.integers(0, 300)).astype(kinds[n % 4]) for n in range(3000)
    }
    state["large"] = rng.integers(0, 100, 50_000)
    state |= {f"b{n}": torch.full((n % 5, 3), float(n), dtype=torch.bfloat16) for n in range(300)}
    state |= {f"s{n}": torch.tensor(float(n), dtype=torch.bfloat16) for n in range(50)}
    state |= {f"i{n}": np.full((2, n % 3 + 1, 2), n, np.int16) for n in range(50)}
    state |= {f"j{n}": torch.full((n % 7 + 1,), n, dtype=torch.int16) for n in range(50)}
    state["part"], state["whole"] = state["t5"][3:], state["t5"]
    return state


@pytest.mark.slow
def test_very_many_small_arrays_come_back(tmp_path: Path) -> None:
    state = mixed() | {"bytes": b"between", "j3": torch.nn.Parameter(torch.ones(2, 3), requires_grad=False)}
    with CheckpointManager(tmp_path) as manager:
        manager.save(state, 1)
        found = manager.load()
        assert_same(found, state)
        assert all(each.flags.aligned for each in found.values() if isinstance(each, np.ndarray))
        every_third = [f"t{n}" for n in range(0, 3000, 3)]
        assert_same(manager.load(keys=every_third), {name: state[name] for name in every_third})


def test_each_can_be_changed_without_the_others(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save({f"t{n}": torch.zeros(3) for n in range(100)}, 1)
        found = manager.load()
    found["t7"].fill_(1)
    assert sum(each.sum() for each in found.values()) == 3
    assert found["t7"].untyped_storage().nbytes() == 12


@pytest.mark.parametrize("number", [0, 1234, 2998])
def test_the_one_that_is_damaged_is_named(tmp_path: Path, number: int) -> None:
    state = {f"t{n}": np.full(40, n, np.int64) for n in range(3000)}
    with CheckpointManager(tmp_path) as manager:
        manager.save(state, 1)
        (file,) = tmp_path.rglob("*.safetensors")
        data = bytearray(file.read_bytes())
        data[data.index(state[f"t{number}"].tobytes()) + 100] ^= 1
        file.write_bytes(data)
        with pytest.raises(CheckpointDamaged, match=f"tensor 't{number}', 320 bytes"):
            manager.load()


def emptied(state: dict[str, Any]) -> dict[str, Any]:
    """The same arrays, of zeros, and tied in the same way."""
    found = {name: each.clone() if isinstance(each, torch.Tensor) else each.copy() for name, each in state.items()}
    for each in found.values():
        each[...] = 0
    if "whole" in found:
        found["t5"] = found["whole"]
        found["part"] = found["whole"][3:]
    return found


def test_very_many_small_arrays_are_filled_in_place(tmp_path: Path) -> None:
    state = mixed()
    into = emptied(state)
    into["t1"] = np.zeros((2, *into["t1"].shape), np.float32).T[..., 0]  # with gaps
    into["b1"] = torch.nn.Parameter(into["b1"])
    arrays = dict(into)
    with CheckpointManager(tmp_path) as manager:
        manager.save(state, 1)
        found = manager.load(into=into)
    assert all(found[name] is arrays[name] for name in arrays)
    assert_same({**found, "b1": found["b1"].detach()}, state)


def test_what_may_not_be_written_to_is_refused(tmp_path: Path) -> None:
    state = {"a": np.ones(3), "b": np.ones(4), "c": torch.ones(1).expand(5)}
    into = emptied(state) | {"c": torch.zeros(1).expand(5)}
    into["b"].flags.writeable = False
    with CheckpointManager(tmp_path) as manager:
        manager.save(state, 1)
        with pytest.raises(Unstorable, match=r"nothing was loaded. b: the array is read-only; c: several elements"):
            manager.load(into=into)
    assert not any(each.any() for each in into.values())


def test_nothing_that_comes_with_damage_is_filled_in(tmp_path: Path) -> None:
    state = {f"t{n}": np.full(40, n + 1, np.int64) for n in range(100)}
    into = emptied(state)
    with CheckpointManager(tmp_path) as manager:
        manager.save(state, 1)
        (file,) = tmp_path.rglob("*.safetensors")
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        with pytest.raises(CheckpointDamaged, match="tensor 't99'"):
            manager.load(into=into)
    assert not any(each.any() for each in into.values())
