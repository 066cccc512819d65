"""The next draw is the one that would have been next."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from strata.checkpoint import CheckpointManager
from strata.errors import CheckpointMismatch
from strata.storage import MemoryStorage
from strata.torch import TrainState
from strata.torch.rng import remembered


@pytest.fixture
def manager() -> Iterator[CheckpointManager]:
    with CheckpointManager(MemoryStorage()) as made:
        yield made


def generators(seed: int) -> dict[str, Any]:
    return {
        "torch's": torch.Generator().manual_seed(seed),
        "PCG64": np.random.default_rng(seed),
        "Philox": np.random.Generator(np.random.Philox(seed)),
        "old": np.random.RandomState(seed),
        "Python's": random.Random(seed),
    }


def draw(own: dict[str, Any]) -> list[Any]:
    """Of a normal distribution too: of those, two are made at a time and one is kept."""
    return [
        [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(1).item()],
        torch.randn(1, generator=own["torch's"]).item(),
        own["PCG64"].normal(),
        own["PCG64"].integers(100, dtype=np.uint32),
        own["Philox"].normal(),
        own["old"].normal(),
        own["Python's"].gauss(0, 1),
    ]


def test_all_of_them_go_on_exactly(manager: CheckpointManager) -> None:
    first, second = generators(1), generators(2)
    draw(first)
    manager.save(TrainState(nn.Linear(1, 1), rng=first), step=1)
    expected = [draw(first) for _ in range(3)]
    draw(second)
    manager.load(into=TrainState(nn.Linear(1, 1), rng=second))
    assert [draw(second) for _ in range(3)] == expected


def test_a_generator_of_another_kind_is_refused_and_none_is_changed(manager: CheckpointManager) -> None:
    manager.save(TrainState(nn.Linear(1, 1), rng={"a": np.random.default_rng(1), "b": random.Random(1)}), step=1)
    mine: Any = {"a": np.random.RandomState(1), "c": random.Random(1)}
    before = random.getstate()
    with pytest.raises(CheckpointMismatch) as raised:
        manager.load(into=TrainState(nn.Linear(1, 1), rng=mine))
    told = str(raised.value)
    assert "1 missing: rng/c; 1 unexpected: rng/b; 1 mismatched: rng/a (numpy PCG64 there, numpy MT19937 here)" in told
    assert random.getstate() == before
    manager.load(into=TrainState(nn.Linear(1, 1), rng=mine), strict=False)


def test_devices_that_are_not_here_are_left_out(manager: CheckpointManager) -> None:
    state = TrainState(nn.Linear(1, 1), rng=True).strata_state()
    state["rng"].value["cuda:7"] = {"kind": "torch cuda of 16 bytes", "state": torch.zeros(16, dtype=torch.uint8)}
    manager.save(state, step=1)
    manager.load(into=TrainState(nn.Linear(1, 1), rng=True))


def test_no_generators_are_none(manager: CheckpointManager) -> None:
    manager.save(TrainState(nn.Linear(1, 1)), step=1)
    with pytest.raises(CheckpointMismatch, match="1 missing: rng"):
        manager.load(into=TrainState(nn.Linear(1, 1), rng={}))


def test_what_is_remembered_is_put_back() -> None:
    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))

    put_back = remembered()
    first = drawn()
    drawn()
    put_back()
    assert drawn() == first
