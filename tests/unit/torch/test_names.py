"""The names of tensors, without those of wrappers."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.swa_utils import AveragedModel

from strata.errors import InvalidInput
from strata.torch import TrainState
from strata.torch.names import canonical


class Own(nn.Module):
    """Calls its own modules what wrappers call theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)
        self.layers = nn.ModuleList([nn.Linear(2, 2)])


NAMES = ["module.weight", "module.bias", "layers.0.weight", "layers.0.bias"]


def names(model: nn.Module) -> list[str]:
    return [canonical(model, name) for name in model.state_dict()]


def test_a_module_of_ones_own_may_be_called_module() -> None:
    assert names(Own()) == NAMES
    assert names(nn.DataParallel(Own())) == NAMES
    assert names(nn.DataParallel(torch.compile(Own(), backend="eager"))) == NAMES  # type: ignore[type-var]


def test_wrappers_may_be_anywhere() -> None:
    model = Own()
    model.layers[0] = torch.compile(nn.DataParallel(model.layers[0]), backend="eager")  # type: ignore[assignment]
    assert list(model.state_dict())[2] == "layers.0._orig_mod.module.weight"
    assert names(model) == NAMES


def test_a_wrapper_that_leaves_no_trace_in_names_does_not_confuse() -> None:
    model = Own()
    model.layers[0] = checkpoint_wrapper(torch.compile(model.layers[0], backend="eager"))  # type: ignore[arg-type]
    assert names(model) == NAMES
    assert [canonical(model, name) for name, _ in model.named_parameters()] == NAMES


def test_an_average_is_called_what_it_is_an_average_of() -> None:
    assert names(AveragedModel(nn.DataParallel(Own()))) == ["n_averaged", *NAMES]


def test_what_is_in_no_module_keeps_its_name() -> None:
    assert canonical(Own(), "layers.0.extra.weight") == "layers.0.extra.weight"


def test_two_tensors_of_one_name_are_refused() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n_averaged = nn.Parameter(torch.zeros(1))

    state = TrainState(Own(), ema=AveragedModel(Counting()))
    with pytest.raises(InvalidInput, match="are both called 'n_averaged'"):
        state.strata_state()
    models = {"a": nn.ModuleDict({"b": nn.Linear(1, 1)}), "a.b": nn.Linear(1, 1)}
    with pytest.raises(InvalidInput, match=r"two parameters of the models are called 'a\.b\.weight'"):
        TrainState(models, torch.optim.SGD(models["a"].parameters()))
