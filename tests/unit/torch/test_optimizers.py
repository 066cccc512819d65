"""Optimizers go on exactly, whichever they are, and however their parameters are ordered and grouped."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from strata.checkpoint import CheckpointManager
from strata.errors import CheckpointMismatch, InvalidInput
from strata.storage import MemoryStorage
from strata.torch import TrainState
from tests.unit.checkpoint.spread import rank_of
from tests.unit.checkpoint.states import assert_same

Maker = Callable[[Iterable[Any]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Maker] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True, weight_decay=0.1),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), foreach=False),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, history_size=3, max_iter=2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True, momentum=0.5),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.1),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


class Net(nn.Module):
    """Its modules in this order or the other."""

    a: nn.Linear
    b: nn.Linear
    c: nn.Linear

    def __init__(self, order: str = "abc") -> None:
        super().__init__()
        for name in order:
            self.add_module(name, nn.Linear(4, 4, bias=name != "b"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in "abc":
            x = self.get_submodule(name)(x).tanh()
        return x


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses = []
    for step in range(steps):
        data = torch.randn(8, 4, generator=torch.Generator().manual_seed(step)).to(next(model.parameters()).dtype)

        def closure(data: torch.Tensor = data) -> float:
            optimizer.zero_grad()
            loss = model(data).square().mean()
            loss.backward()
            losses.append(loss.item())
            return float(loss.item())

        optimizer.step(closure)
    return losses


@pytest.fixture
def manager() -> Iterator[CheckpointManager]:
    with CheckpointManager(MemoryStorage()) as made:
        yield made


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("used", [False, True])
def test_each_goes_on_exactly(manager: CheckpointManager, name: str, dtype: torch.dtype, used: bool) -> None:
    first, second = (Net().to(dtype) for _ in range(2))
    one, other = (OPTIMIZERS[name](model.parameters()) for model in (first, second))
    train(first, one, 3)
    if used:
        train(second, other, 2)
    manager.save(TrainState(first, one), step=1)
    manager.load(into=TrainState(second, other))
    assert_same(TrainState(second, other).strata_state(), TrainState(first, one).strata_state())
    assert train(second, other, 3) == train(first, one, 3)
    assert_same(other.state_dict(), one.state_dict())


class Precise(torch.optim.SGD):
    """Keeps more of a parameter than the parameter does, and things that are no tensors."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state.setdefault("master", parameter.detach().double())
                state.setdefault("note", "text")
                state.setdefault("nested", {"step": torch.tensor(1), "parts": [torch.ones(2).double(), None]})
        self.state["seen"] = {"steps": 1}  # type: ignore[index]


def test_what_is_kept_more_exactly_than_the_parameter_stays_so(manager: CheckpointManager) -> None:
    first, second = Net().bfloat16(), Net().bfloat16()
    one, other = Precise(first.parameters()), Precise(second.parameters())
    one.step()
    manager.save(TrainState(first, one), step=1)
    manager.load(into=TrainState(second, other))
    assert_same(other.state_dict()["state"], one.state_dict()["state"])
    assert other.state[second.a.weight]["master"].dtype == torch.float64
    assert other.state["seen"] == {"steps": 1}  # type: ignore[index]


def test_the_order_of_parameters_may_change(manager: CheckpointManager) -> None:
    first, second = Net("abc"), Net("cab")
    one, other = OPTIMIZERS["adamw"](first.parameters()), OPTIMIZERS["adamw"](reversed(list(second.parameters())))
    schedulers = [torch.optim.lr_scheduler.StepLR(each, 1) for each in (one, other)]
    train(first, one, 3)
    manager.save(TrainState(first, one, schedulers[0]), step=1)
    manager.load(into=TrainState(second, other, schedulers[1]))
    assert train(second, other, 3) == train(first, one, 3)


def test_parameters_may_be_in_other_groups(manager: CheckpointManager) -> None:
    first, second = Net(), Net()
    groups: list[dict[str, Any]] = [{"params": first.a.parameters(), "lr": 0.3}, {"params": [first.b.weight]}]
    one = torch.optim.AdamW(groups, lr=0.1)
    one.add_param_group({"params": list(first.c.parameters())})
    train(first, one, 3)
    manager.save(TrainState(first, one), step=1)
    groups = [{"params": [*second.c.parameters(), second.b.weight]}, {"params": [second.a.bias]}]
    other = torch.optim.AdamW([*groups, {"params": [second.a.weight]}], lr=0.7)
    state = TrainState(second, other)
    manager.load(into=state)
    assert [group["lr"] for group in other.param_groups] == [0.1, 0.3, 0.3]
    assert train(second, other, 3) == train(first, one, 3)


def test_groups_that_differ_are_not_made_one(manager: CheckpointManager) -> None:
    first, second = Net(), Net()
    groups: list[dict[str, Any]] = [{"params": first.a.parameters(), "lr": 0.3}, {"params": first.b.parameters()}]
    one = torch.optim.AdamW(groups, lr=0.1)
    other = torch.optim.AdamW([*second.a.parameters(), *second.b.parameters()])
    manager.save(TrainState(first, one), step=1)
    with pytest.raises(CheckpointMismatch, match=r"optimizer/groups/0 \(its parameters come from groups .* lr\)"):
        manager.load(into=TrainState(second, other))


def test_a_scheduler_is_not_loaded_for_other_groups(manager: CheckpointManager) -> None:
    model = Net()
    one = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.SGD([{"params": [each]} for each in model.parameters()], lr=0.1)
    first, second = (torch.optim.lr_scheduler.StepLR(each, 1) for each in (one, other))
    manager.save(TrainState(model, one, first), step=1)
    with pytest.raises(CheckpointMismatch, match=r"scheduler \(it keeps a rate for each group .* leave it out\)"):
        manager.load(into=TrainState(model, other, second))
    manager.load(into=TrainState(model, other))


def test_lbfgs_wants_its_parameters_in_order(manager: CheckpointManager) -> None:
    first, second = Net("abc"), Net("cba")
    one, other = OPTIMIZERS["lbfgs"](first.parameters()), OPTIMIZERS["lbfgs"](second.parameters())
    train(first, one, 2)
    manager.save(TrainState(first, one), step=1)
    with pytest.raises(CheckpointMismatch, match="a LBFGS keeps one state for all"):
        manager.load(into=TrainState(second, other))


def test_another_kind_of_optimizer_is_refused(manager: CheckpointManager) -> None:
    model = Net()
    one = OPTIMIZERS["adamw"](model.parameters())
    train(model, one, 1)
    manager.save(TrainState(model, one), step=1)
    with pytest.raises(CheckpointMismatch, match=r"optimizer \(a AdamW in the checkpoint, a SGD here\)"):
        manager.load(into=TrainState(model, OPTIMIZERS["momentum"](model.parameters())))
    adam = torch.optim.Adam(model.parameters(), decoupled_weight_decay=True)
    manager.load(into=TrainState(model, adam))  # the same by another name
    assert_same(adam.state_dict()["state"], one.state_dict()["state"])


def test_how_to_compute_stays_as_it_is_here(manager: CheckpointManager) -> None:
    model = Net()
    one = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    other = torch.optim.AdamW(model.parameters(), foreach=True)
    train(model, one, 1)
    manager.save(TrainState(model, one), step=1)
    manager.load(into=TrainState(model, other))
    (group,) = other.param_groups
    assert (group["lr"], group["fused"], group["foreach"]) == (0.1, None, True)
    train(model, other, 1)


def test_hooks_and_methods_of_ones_own_are_called(manager: CheckpointManager) -> None:
    class Own(torch.optim.SGD):
        loaded = 0

        def load_state_dict(self, state_dict: Any) -> None:
            self.loaded += 1
            super().load_state_dict(state_dict)

    model = Net()
    own, hooked = Own(model.parameters(), momentum=0.9), torch.optim.SGD(model.parameters(), momentum=0.9)
    called: list[Any] = []
    hooked.register_load_state_dict_post_hook(called.append)
    train(model, own, 2)
    manager.save(TrainState(model, own), step=1)
    expected = own.state_dict()
    for optimizer in (own, hooked):
        manager.load(into=TrainState(model, optimizer))
        assert_same(optimizer.state_dict(), expected)
    assert (own.loaded, called) == (1, [hooked])


def test_a_parameter_of_no_model_is_refused(manager: CheckpointManager) -> None:
    model, temperature = Net(), nn.Parameter(torch.ones(1))
    groups: list[dict[str, Any]] = [{"params": model.parameters()}, {"params": [temperature]}]
    optimizer = torch.optim.SGD(groups)
    with pytest.raises(InvalidInput, match=r"optimizer: a parameter of shape \[1\] in group 1 is in no model"):
        TrainState(model, optimizer)
    loss = nn.Module()
    loss.temperature = temperature
    manager.save(TrainState({"net": model, "loss": loss}, optimizer), step=1)
    groups = manager.load()["optimizer"]["groups"].values()
    assert [(each["place"], each["params"][-1]) for each in groups] == [(0, "net.c.bias"), (1, "loss.temperature")]


def test_a_parameter_that_came_later_is_noticed() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters())
    state = TrainState(model, optimizer)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(InvalidInput, match="in no model"):
        state.strata_state()


def test_groups_without_parameters_are_kept(manager: CheckpointManager) -> None:
    model = Net()
    groups: list[dict[str, Any]] = [{"params": [], "lr": 5.0}, {"params": model.parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    manager.save(TrainState(model, optimizer), step=1)
    optimizer.param_groups[1]["lr"] = 9.0
    manager.load(into=TrainState(model, optimizer))
    assert [group["lr"] for group in optimizer.param_groups] == [5.0, 0.1]


def test_tied_parameters_may_be_found_under_another_name(manager: CheckpointManager) -> None:
    def tied(order: str) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = Net(order)
        model.c.weight = model.a.weight
        return model, OPTIMIZERS["momentum"](model.parameters())

    (first, one), (second, other) = tied("abc"), tied("cba")
    train(first, one, 2)
    manager.save(TrainState(first, one), step=1)
    manager.load(into=TrainState(second, other))
    assert train(second, other, 2) == train(first, one, 2)


def test_what_was_two_is_not_loaded_into_one(manager: CheckpointManager) -> None:
    first, second = Net(), Net()
    manager.save(TrainState(first), step=1)
    second.c.weight = second.a.weight
    before = second.a.weight.clone()
    with pytest.raises(CheckpointMismatch, match=r"model/c.weight \(one array with model/a.weight here, two in"):
        manager.load(into=TrainState(second))
    assert torch.equal(second.a.weight, before)
    manager.save(TrainState(second), step=2)
    manager.load(into=TrainState(first))
    assert torch.equal(first.c.weight, before)


class OfRows(torch.optim.Optimizer):
    """Keeps numbers for each row of a parameter, as those do that spare memory; and one that is of no row."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            own, rows = self.state[parameter], parameter.square().sum(-1, keepdim=True)
            own["rows"] = own["rows"] + rows if own else rows
            own["means"] = own.get("means", 0) + parameter.mean(-1)
            own["count"] = own.get("count", torch.zeros(1)) + 1
            parameter.sub_(0.1 * own["rows"] + own["means"].unsqueeze(-1))


def of_rows() -> tuple[Any, OfRows]:
    model: Any = fully_shard(nn.Linear(7, 5))
    return model, OfRows([model.weight])


def test_what_is_kept_for_rows_lies_as_the_parameter_does(manager: CheckpointManager) -> None:
    with rank_of(0, (1,)):
        (first, one), (second, other) = of_rows(), of_rows()
        one.step()
        manager.save(TrainState(first, one), step=1)
        manager.load(into=TrainState(second, other))
        kept = other.state[second.weight]
        assert [type(kept[name]) for name in ("rows", "means", "count")] == [DTensor, DTensor, torch.Tensor]
        one.step()
        other.step()
        assert torch.equal(first.weight.full_tensor(), second.weight.full_tensor())


def test_what_one_process_kept_for_rows_lies_as_the_parameter_does(manager: CheckpointManager) -> None:
    plain = nn.Linear(7, 5)
    before = OfRows([plain.weight])
    before.step()
    manager.save(TrainState(plain, before), step=1)
    with rank_of(0, (1,)):
        model, optimizer = of_rows()
        manager.load(into=TrainState(model, optimizer))
        kept = optimizer.state[model.weight]
        assert torch.equal(kept["rows"].full_tensor(), before.state[plain.weight]["rows"])
        assert type(kept["count"]) is torch.Tensor
