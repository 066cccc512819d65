"""Copies that go on while the next step computes. A device is played here: its copies are made at the last moment, when
somebody waits for them, or holds what comes after.
"""

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch

from strata.checkpoint import CheckpointManager, CheckpointManagerConfig, overlap
from strata.checkpoint.frameworks.base import Block, Copying, Described
from strata.checkpoint.frameworks.torch import TorchArrays
from strata.errors import Conflict, InvalidInput
from strata.storage import MemoryStorage
from strata.testing.manager_seam import ManagerSeam
from tests.unit.checkpoint.states import assert_same

OVERLAPPED = CheckpointManagerConfig(overlap="optimizer")


class LateCopies:
    """Made when they are waited for, and not before."""

    def __init__(self, pairs: Iterable[tuple[Any, Block]]) -> None:
        self.pairs = list(pairs)
        self.lock = threading.Lock()

    def wait(self) -> None:
        with self.lock:
            pairs, self.pairs = self.pairs, []
            for value, block in pairs:
                block[:] = value.detach().contiguous().view(-1).view(torch.uint8).numpy()

    hold = wait


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors with at least four elements lie on it."""
    describe = TorchArrays.describe

    def described(self: TorchArrays, value: torch.Tensor) -> Described:
        found = describe(self, value)
        if value.numel() < 4:
            return found
        return Described(found.dtype, found.shape, found.size, found.start, found.reach, on_device=True)

    def copy_out(self: TorchArrays, pairs: Iterable[tuple[Any, Block]]) -> Copying:
        return LateCopies(pairs)

    monkeypatch.setattr(TorchArrays, "describe", described)
    monkeypatch.setattr(TorchArrays, "copy_out", copy_out)
    monkeypatch.setattr(overlap, "address_of", torch.Tensor.data_ptr)


class Training:
    def __init__(self) -> None:
        self.model = torch.nn.BatchNorm1d(8)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.step()

    def step(self) -> None:
        self.model(torch.randn(4, 8)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def copy(self) -> dict[str, Any]:
        optimizer = self.optimizer.state_dict()
        state = {
            number: {key: value.clone() for key, value in each.items()} for number, each in optimizer["state"].items()
        }
        model = self.model.state_dict()
        for name in model:
            model[name] = model[name].clone()
        return {"model": model, "optimizer": {"state": state, "param_groups": optimizer["param_groups"]}}


@pytest.mark.usefixtures("device")
def test_what_is_saved_is_what_it_was_at_the_call() -> None:
    training = Training()
    with CheckpointManager(MemoryStorage(), config=OVERLAPPED) as manager:
        training.step()  # from here on the optimizer is known
        for step in range(1, 4):
            expected = training.copy()
            handle = manager.save_async(training.state, step)
            training.step()
            handle.result()
            assert_same(manager.load(step), expected)


@pytest.mark.usefixtures("device")
def test_what_no_optimizer_owns_is_copied_before_the_call_returns() -> None:
    buffer = torch.zeros(100)
    training = Training()
    with CheckpointManager(MemoryStorage(), config=OVERLAPPED) as manager:
        training.step()
        handle = manager.save_async({"buffer": buffer, **training.state}, 1)
        buffer += 1
        training.step()
        handle.result()
        assert manager.load()["buffer"].tolist() == [0.0] * 100


@pytest.mark.usefixtures("device")
def test_some_rows_of_what_an_optimizer_owns_are_its_own() -> None:
    """As ranks write them that share the work."""
    training, buffer = Training(), torch.zeros(8)
    known = overlap.OptimizerOverlap()
    training.optimizer.step()
    weight = training.model.weight.detach()
    is_owned = known.owned()
    assert [is_owned(each) for each in (weight, weight[4:], buffer, buffer[4:])] == [True, True, False, False]
    copies = LateCopies([])
    deferred = known.defer(copies, [weight[4:]])
    training.step()
    deferred.finish()
    late = known.defer(copies, [weight[4:]])
    with torch.no_grad():
        weight += 1
    with pytest.raises(Conflict):
        late.finish()
    known.close()


@pytest.mark.usefixtures("device")
def test_an_optimizer_that_has_not_stepped_owns_nothing() -> None:
    weight = torch.nn.Parameter(torch.zeros(100))
    torch.optim.SGD([weight])
    with CheckpointManager(MemoryStorage(), config=OVERLAPPED) as manager:
        handle = manager.save_async({"w": weight.detach()}, 1)
        with torch.no_grad():
            weight.add_(1)
        handle.result()
        assert manager.load()["w"].sum() == 0


@pytest.mark.usefixtures("device")
def test_a_step_that_may_be_replayed_as_a_graph_is_not_overlapped() -> None:
    training = Training()
    with CheckpointManager(MemoryStorage(), config=OVERLAPPED) as manager:
        training.step()
        for group in training.optimizer.param_groups:
            group["capturable"] = True
        expected = training.copy()
        handle = manager.save_async(training.state, 1)
        with torch.no_grad():
            for parameter in training.model.parameters():
                parameter.add_(1)  # as a graph would, without the hook
        handle.result()
        assert_same(manager.load(), expected)


@pytest.mark.usefixtures("device")
def test_a_change_that_nobody_waited_for_fails_the_save(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    manager = CheckpointManager(MemoryStorage(), config=OVERLAPPED)
    training.step()
    deferred = overlap.OptimizerOverlap.defer

    def changed(self: Any, copying: Copying, values: list[torch.Tensor]) -> Any:
        found = deferred(self, copying, values)
        values[0].add_(1)
        return found

    monkeypatch.setattr(overlap.OptimizerOverlap, "defer", changed)
    handle = manager.save_async(training.state, 1)
    with pytest.raises(Conflict, match="changed while it was being saved"):
        handle.result()
    assert manager.latest_step() is None
    manager.close()


class CountedHolds:
    """Copies that are never over by themselves."""

    def __init__(self) -> None:
        self.holds = 0

    def wait(self) -> None:
        pass

    def hold(self) -> None:
        self.holds += 1


@pytest.fixture
def two(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[overlap.OptimizerOverlap, list[torch.nn.Parameter], list[torch.optim.SGD]]]:
    """Two optimizers that own a parameter each."""
    monkeypatch.setattr(overlap, "address_of", torch.Tensor.data_ptr)
    known = overlap.OptimizerOverlap()
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    for each in parameters:
        each.grad = torch.ones(3)
    yield known, parameters, [torch.optim.SGD([each], lr=1.0) for each in parameters]
    known.close()


def test_each_optimizer_waits_at_each_step_until_the_copies_are_made(two: Any) -> None:
    known, parameters, (first, second) = two
    copies = CountedHolds()
    deferred = known.defer(copies, parameters)
    for optimizer in (first, second, first):
        optimizer.step()
    assert copies.holds == 3
    deferred.finish()
    second.step()
    assert copies.holds == 3


@pytest.mark.parametrize("steps_then", [True, False])
def test_a_change_after_another_optimizer_waited_fails_the_save(two: Any, steps_then: bool) -> None:
    known, parameters, (first, second) = two
    deferred = known.defer(CountedHolds(), [each.detach() for each in parameters])
    first.step()
    with torch.no_grad():
        parameters[1].add_(1)
    if steps_then:
        second.step()
    with pytest.raises(Conflict, match="changed while it was being saved"):
        deferred.finish()


@pytest.mark.usefixtures("device")
def test_a_save_that_takes_its_turn_waits_for_copies_still_landing() -> None:
    training = Training()
    config = CheckpointManagerConfig(overlap="optimizer", when_busy="replace")
    with CheckpointManager(MemoryStorage(), config=config) as manager:
        training.step()
        expected: Any = None
        handle: Any = None
        for step in range(1, 20):
            expected = training.copy()
            handle = manager.save_async(training.state, step)
            training.step()
        handle.result()
        assert_same(manager.load(), expected)


def test_a_manager_that_is_closed_hooks_no_more_steps() -> None:
    manager = CheckpointManager(MemoryStorage(), config=OVERLAPPED)
    known = ManagerSeam(manager).overlap
    manager.close()
    training = Training()
    assert training.optimizer not in known.optimizers


def test_an_unknown_overlap_is_refused() -> None:
    with pytest.raises(InvalidInput, match='overlap must be "none" or "optimizer"'):
        CheckpointManagerConfig(overlap="everything")
