"""Models whose state_dict is not simply what they hold."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from strata.checkpoint import CheckpointManager
from strata.errors import CheckpointMismatch, Unstorable
from strata.storage import MemoryStorage
from strata.torch import TrainState


@pytest.fixture
def manager() -> Iterator[CheckpointManager]:
    with CheckpointManager(MemoryStorage()) as made:
        yield made


class Halved(nn.Module):
    """Its state_dict gives copies of what it holds, in another type, and has its own way to load them."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), value))
        self.register_state_dict_post_hook(self._halve)
        self.register_load_state_dict_pre_hook(self._double)

    @staticmethod
    def _halve(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        state[f"{prefix}weight"] = state[f"{prefix}weight"].detach() / 2
        state[f"{prefix}kind"] = "halved"

    @staticmethod
    def _double(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        state[f"{prefix}weight"] = state[f"{prefix}weight"] * 2
        assert state.pop(f"{prefix}kind") == "halved"


def test_hooks_have_their_say(manager: CheckpointManager) -> None:
    manager.save(TrainState(nn.Sequential(Halved(3.0), nn.Linear(2, 2))), step=1)
    model = nn.Sequential(Halved(5.0), nn.Linear(2, 2))
    assert manager.load()["model"]["0.weight"].tolist() == [1.5] * 3
    manager.load(into=TrainState(model))
    assert model.get_parameter("0.weight").tolist() == [3.0] * 3
    with pytest.raises(CheckpointMismatch, match=r"unexpected: model/0\.weight, .*model/0\.kind"):
        manager.load(into=TrainState(nn.Sequential(nn.Identity(), nn.Linear(2, 2))))


def test_a_hook_that_is_to_run_after_loading_runs(manager: CheckpointManager) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    seen: list[torch.Tensor] = []
    model[0].register_load_state_dict_post_hook(lambda module, keys: seen.append(module.weight.detach().clone()))
    manager.save(TrainState(model), step=1)
    expected = model.get_parameter("0.weight").detach().clone()
    nn.init.zeros_(model.get_parameter("0.weight"))
    manager.load(into=TrainState(model))
    (found,) = seen
    assert torch.equal(found, expected)


def test_a_load_state_dict_of_ones_own_is_called(manager: CheckpointManager) -> None:
    class Own(nn.Linear):
        loaded: Any = None

        def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
            self.loaded = sorted(state_dict)
            return super().load_state_dict(state_dict, strict, assign)

    model = Own(2, 2)
    manager.save(TrainState(model), step=1)
    manager.load(into=TrainState(model))
    assert model.loaded == ["bias", "weight"]


def test_a_state_of_which_the_model_takes_only_a_part_is_told(manager: CheckpointManager) -> None:
    model = nn.Linear(2, 2)
    model.register_state_dict_post_hook(lambda module, state, prefix, metadata: state.update({"more": torch.ones(1)}))
    manager.save(TrainState(model), step=1)
    with pytest.raises(CheckpointMismatch, match=r"model did not take .* its load_state_dict does not take more"):
        manager.load(into=TrainState(model))


def test_only_adapters_can_be_a_state(manager: CheckpointManager) -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.adapter = nn.Linear(2, 2), nn.Linear(2, 2)

        def state_dict(self, *arguments: Any, **named: Any) -> Any:
            found = super().state_dict(*arguments, **named)
            return {key: each for key, each in found.items() if key.startswith("adapter.")}

    first, second = Adapted(), Adapted()
    base = second.base.weight.clone()
    manager.save(TrainState(first), step=1)
    manager.load(into=TrainState(second))
    assert torch.equal(second.adapter.weight, first.adapter.weight)
    assert torch.equal(second.base.weight, base)


def test_a_model_without_data_is_refused_by_name(manager: CheckpointManager) -> None:
    manager.save(TrainState(nn.Linear(2, 2)), step=1)
    with pytest.raises(Unstorable, match="the device `meta`"):
        manager.load(into=TrainState(nn.Linear(2, 2, device="meta")))


def test_a_model_without_anything_is_one_too(manager: CheckpointManager) -> None:
    manager.save(TrainState(nn.ReLU()), step=1)
    manager.load(into=TrainState(nn.ReLU()))


def test_another_type_is_refused_and_not_cast(manager: CheckpointManager) -> None:
    manager.save(TrainState(nn.Linear(2, 2)), step=1)
    with pytest.raises(CheckpointMismatch, match=r"weight \(float32\[2, 2\] in the checkpoint, bfloat16\[2"):
        manager.load(into=TrainState(nn.Linear(2, 2).bfloat16()))


class Flat(nn.Module):
    """A buffer of it is its parameter, seen otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("flat", self.w.detach().view(-1))


def test_a_buffer_that_is_a_view_of_a_parameter_is_filled_with_it(manager: CheckpointManager) -> None:
    first, second = Flat(), Flat()
    manager.save(TrainState(first), step=1)
    manager.load(into=TrainState(second))
    assert torch.equal(second.w, first.w)
    assert second.flat.data_ptr() == second.w.data_ptr()  # type: ignore[operator]
