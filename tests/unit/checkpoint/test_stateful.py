"""Objects that say themselves what their state is."""

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
import torch

from strata.checkpoint import CheckpointManager, CheckpointReader
from strata.checkpoint.stateful import Outline, Plan
from strata.errors import CheckpointMismatch, InvalidInput, NotFound, Unstorable
from strata.storage import BlockingStorage, MemoryStorage
from tests.unit.checkpoint.states import assert_same


class Counter:
    """A class of a user's, with the two methods."""

    def __init__(self, value: float, size: int = 3) -> None:
        self.weights = torch.full((size,), value)
        self.name, self.data, self.scale = f"at {value}", str(value).encode(), np.float32(value)
        self.threads: set[int] = set()

    def strata_state(self) -> dict[str, Any]:
        self.threads.add(threading.get_ident())
        return {"weights": self.weights, "name": self.name, "data": self.data, "scale": self.scale, "empty": {}}

    def load_strata_state(self, tree: dict[str, Any]) -> None:
        self.threads.add(threading.get_ident())
        assert tree["weights"] is self.weights
        assert tree["empty"] == {}
        self.name, self.data, self.scale = tree["name"], tree["data"], tree["scale"]


def test_it_is_saved_and_loaded_like_a_tree() -> None:
    with CheckpointManager(MemoryStorage()) as manager:
        saved, loaded = Counter(10.0), Counter(0.5)
        manager.check(saved)
        manager.prepare(saved)
        manager.save(saved, step=1)
        assert manager.load(into=loaded) is loaded
        assert_same(loaded.strata_state(), saved.strata_state())
        assert_same(manager.load(), saved.strata_state())
        manager.save_async(Counter(2.0), step=2).result()
        assert asyncio.run(manager.load_async(into=loaded)) is loaded
        assert loaded.name == "at 2.0"
        assert saved.threads == loaded.threads == {threading.get_ident()}


def test_what_does_not_fit_is_told_and_nothing_changed() -> None:
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save({**Counter(1.0).strata_state(), "more": torch.ones(1)}, step=1)
        other = Counter(2.0, size=4)
        with pytest.raises(CheckpointMismatch, match=r"1 unexpected: more; 1 mismatched: weights \(float32\[3\]"):
            manager.load(into=other)
        assert_same(other.strata_state(), Counter(2.0, size=4).strata_state())


def test_a_load_goes_on_from_the_step_that_was_loaded() -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage) as manager:
        for step in (1, 2, 3):
            manager.save(Counter(float(step)), step=step)
    with CheckpointManager(storage) as manager:
        manager.load(2, into=Counter(0.0))
        manager.save(Counter(9.0), step=4)
        assert manager.list_checkpoints() == [1, 2, 4]
        assert manager.latest_step() == 4


class Choosy:
    """Looks before it loads."""

    def __init__(self) -> None:
        self.big = torch.zeros(4)
        self.seen: Any = None
        self.tree: Any = None

    def strata_state(self) -> Any:
        raise AssertionError("it is not saved")

    def plan_strata_load(self, outline: Outline) -> Plan:
        self.seen = outline
        return Plan({"big": self.big, "inner/new": None}, self.take)

    def take(self, tree: Any) -> None:
        self.tree = tree


def test_an_object_can_choose_what_is_read() -> None:
    state = {"big": torch.ones(4), "inner": {"new": torch.arange(3), "left": b"bytes"}, "count": 3}
    with CheckpointManager(MemoryStorage()) as manager:
        manager.save(state, step=1)
        choosy = Choosy()
        manager.load(into=choosy, rename={"big": "large"})
    outline, tree = choosy.seen, choosy.tree
    assert {spec.name: (spec.dtype, spec.shape, spec.kind) for spec in outline.arrays} == {
        "big": ("float32", (4,), "torch"),
        "inner/new": ("int64", (3,), "torch"),
        "inner/left": ("uint8", (5,), "bytes"),
    }
    assert outline.tree["big"] is outline.arrays[0]
    assert outline.tree["count"] == 3
    assert outline.rename("big") == "large"
    assert tree["big"] is choosy.big
    assert torch.equal(choosy.big, torch.ones(4))
    assert torch.equal(tree["inner"]["new"], torch.arange(3))
    assert tree["inner"]["left"] is None


class Failing(Counter):
    """Fails when it is given its state."""

    def load_strata_state(self, tree: Any) -> None:
        raise RuntimeError("on purpose")


def test_no_mark_of_a_reader_stays_whatever_happens() -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage) as manager:
        manager.save(Counter(1.0), step=1)
        manager.load(into=Counter(0.0))
        with pytest.raises(RuntimeError, match="on purpose"):
            manager.load(into=Failing(0.0))
        with pytest.raises(CheckpointMismatch):
            manager.load(into=Counter(0.0, size=4))
        manager.save(b"bytes", step=2)
        with pytest.raises(InvalidInput, match="state of bytes"):
            manager.load(into=Counter(0.0))
        assert manager.load(1, into=Counter(0.0)).name == "at 1.0"
        manager.delete(1)
        with pytest.raises(NotFound):
            manager.load(1, into=Counter(0.0))
        assert not [path for path in _paths(storage) if "/readers/" in path]
        assert not [path for path in _paths(storage) if "/step_1/" in path]


def test_what_makes_no_sense_is_said() -> None:
    class OnlySaved:
        def strata_state(self) -> Any:
            return {"a": 1}

    with CheckpointManager(MemoryStorage()) as manager:
        manager.save(OnlySaved(), step=1)
        with pytest.raises(InvalidInput, match=r"OnlySaved has strata_state\(\), but no load_strata_state\(tree\)"):
            manager.load(into=OnlySaved())
        with pytest.raises(InvalidInput, match="give keys"):
            manager.load(into=Counter(1.0), keys="a")
        with pytest.raises(Unstorable, match=r"inner: .*save it as the whole state, or store its strata_state\(\)"):
            manager.check({"inner": Counter(1.0)})


def _paths(storage: MemoryStorage) -> list[str]:
    return [entry.path for entry in BlockingStorage(storage).list_all()]


def test_a_reader_beside_the_job_loads_too() -> None:
    storage = MemoryStorage()
    with CheckpointManager(storage) as manager, CheckpointReader(storage) as reader:
        manager.save(Counter(1.0), step=1)
        assert reader.load(into=Counter(0.0)).name == "at 1.0"
