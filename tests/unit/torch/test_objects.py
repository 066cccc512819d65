"""Anything with state_dict and load_state_dict."""

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

from strata.checkpoint import CheckpointManager
from strata.errors import CheckpointMismatch
from strata.storage import MemoryStorage
from strata.torch import TrainState
from strata.torch.objects import without_code
from tests.unit.checkpoint.states import assert_same


@pytest.fixture
def manager() -> Iterator[CheckpointManager]:
    with CheckpointManager(MemoryStorage()) as made:
        yield made


class Warmup:
    """A callable with a state of its own."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self, step: int) -> float:
        return min(1.0, (step + 1) / self.steps)


def _falling(step: int, factor: float = 0.9) -> float:
    return factor**step


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "lambda object": lambda o: lr_scheduler.LambdaLR(o, Warmup(5)),
    "lambda partial": lambda o: lr_scheduler.LambdaLR(o, functools.partial(_falling, factor=0.8)),
    "multiplicative": lambda o: lr_scheduler.MultiplicativeLR(o, _falling),
    "multistep": lambda o: lr_scheduler.MultiStepLR(o, [1, 2, 4]),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.LambdaLR(o, _falling)], [3]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.2, step_size_up=3, scale_fn=lambda x: 0.5),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "swa": lambda o: SWALR(o, 0.05, anneal_epochs=4),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_each_scheduler_goes_on_exactly(manager: CheckpointManager, name: str) -> None:
    def made() -> tuple[Any, Any, TrainState]:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = SCHEDULERS[name](optimizer)
        return optimizer, scheduler, TrainState(model, optimizer, scheduler)

    def rates(optimizer: Any, scheduler: Any) -> list[Any]:
        found = []
        for _ in range(4):
            optimizer.step()
            scheduler.step()
            found.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
        return found

    (*first, state), (*second, other) = made(), made()
    rates(*first)
    manager.save(state, step=1)
    manager.load(into=other)
    assert rates(*second) == rates(*first)


def test_a_plateau_is_remembered(manager: CheckpointManager) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler, other = (lr_scheduler.ReduceLROnPlateau(optimizer, patience=2) for _ in range(2))
    for loss in (3.0, 2.0, 2.5, 2.5):
        scheduler.step(loss)
    manager.save(TrainState(model, optimizer, scheduler), step=1)
    manager.load(into=TrainState(model, optimizer, other))
    assert (other.best, other.num_bad_epochs) == (2.0, 2)


class WithCode:
    """As schedulers of older versions of torch: functions among what they keep."""

    def __init__(self, value: int) -> None:
        self.value, self.anneal, self.made = value, lambda: value, {"by": WithCode, "parts": [1, _falling], "n": value}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.made.update(state.pop("made"))
        self.__dict__.update(state)


def test_code_is_not_stored_and_stays_what_it_is(manager: CheckpointManager) -> None:
    first, second = WithCode(1), WithCode(2)
    manager.save(TrainState(nn.Linear(1, 1), scheduler=first), step=1)
    assert manager.load()["scheduler"] == {"value": 1, "made": {"n": 1}}
    manager.load(into=TrainState(nn.Linear(1, 1), scheduler=second))
    assert (second.value, second.made["n"], second.anneal(), second.made["by"]) == (1, 1, 2, WithCode)


def test_what_holds_no_code_is_left_as_it_is() -> None:
    state = {"a": OrderedDict(b=[1, (2, {"c": torch.ones(1)})]), 3: None, "d": {4, 5}}
    assert without_code(state) is state
    assert without_code({"a": 1, "f": len, "g": [[max]], "h": [{"f": str}]}) == {"a": 1, "h": [{}]}


class Kept:
    """Keeps whatever it is told to."""

    def __init__(self, **kept: Any) -> None:
        self.kept: Any = kept

    def state_dict(self) -> Any:
        return self.kept

    def load_state_dict(self, state: Any) -> None:
        self.kept = state


class Other(Kept):
    """Of another name."""


def test_arrays_and_values_of_objects_come_back(manager: CheckpointManager) -> None:
    first, second = Kept(a=torch.arange(3), b=b"bytes", c=[(1, None)], d={}), Kept()
    manager.save(TrainState(nn.Linear(1, 1), ema=first, scaler=first), step=1)
    manager.load(into=TrainState(nn.Linear(1, 1), scaler=second))
    assert_same(second.kept, first.kept)


def test_another_kind_of_object_is_refused_unless_its_state_is_alike(manager: CheckpointManager) -> None:
    manager.save(TrainState(nn.Linear(1, 1), scheduler=Kept(a=1)), step=1)
    with pytest.raises(CheckpointMismatch, match=r"scheduler \(a Kept in the checkpoint, a Other here\)"):
        manager.load(into=TrainState(nn.Linear(1, 1), scheduler=Other(b=1)))
    same = Other(a=2)
    manager.load(into=TrainState(nn.Linear(1, 1), scheduler=same))
    assert same.kept == {"a": 1}
    grown = Kept(b=1)  # of the same kind, which may keep more at one time than at another
    manager.load(into=TrainState(nn.Linear(1, 1), scheduler=grown))
    assert grown.kept == {"a": 1}


def test_a_scaler_that_was_off_is_not_loaded_into_one_that_is_on(manager: CheckpointManager) -> None:
    model, on, off = nn.Linear(1, 1), torch.amp.GradScaler("cpu"), torch.amp.GradScaler("cpu", enabled=False)
    manager.save(TrainState(model, scaler=off), step=1)
    manager.load(into=TrainState(model, scaler=off))
    with pytest.raises(CheckpointMismatch, match=r"scaler \(nothing in the checkpoint, where it was not in use"):
        manager.load(into=TrainState(model, scaler=on))
    manager.save(TrainState(model, scaler=on), step=2)
    manager.load(into=TrainState(model, scaler=off))


def test_a_loader_is_not_asked_for_its_state_when_it_is_loaded(manager: CheckpointManager) -> None:
    class Shy(Kept):
        asked = 0

        def state_dict(self) -> Any:
            self.asked += 1
            return super().state_dict()

    manager.save(TrainState(nn.Linear(1, 1), loader=Shy(at=4)), step=1)
    shy = Shy()
    manager.load(into=TrainState(nn.Linear(1, 1), loader=shy))
    assert (shy.kept, shy.asked) == ({"at": 4}, 0)
