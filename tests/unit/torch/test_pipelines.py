"""Stages of a pipeline, each with an optimizer of its own: any number of them loads what any other saved."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from strata.checkpoint import CheckpointManager
from strata.errors import CheckpointMismatch
from strata.torch import TrainState
from tests.unit.checkpoint.crews import Crew
from tests.unit.checkpoint.states import assert_same

LAYERS = "abcd"
Maker = Callable[[Iterable[Any]], torch.optim.Optimizer]


class Stage(nn.Module):
    """Some layers of a model, under the names they have in all of it."""

    def __init__(self, layers: dict[str, nn.Linear]) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.children():
            x = layer(x).tanh()
        return x


def adamw(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1)


class Pipeline:
    """A model that is cut into stages; `stages` says which layers each has."""

    def __init__(self, seed: int, stages: Sequence[str], make: Maker = adamw, scheduled: bool = False) -> None:
        torch.manual_seed(seed)
        layers = {name: nn.Linear(4, 4) for name in LAYERS}
        self.model = Stage(layers)
        self.stages = [Stage({name: layers[name] for name in names}) for names in stages]
        self.optimizers = [make(stage.parameters()) for stage in self.stages]
        self.schedulers: list[Any] = [None] * len(stages)
        if scheduled:
            self.schedulers = [torch.optim.lr_scheduler.StepLR(each, 2, 0.5) for each in self.optimizers]
        self.states = [
            TrainState(*parts, stage=len(stages) > 1)
            for parts in zip(self.stages, self.optimizers, self.schedulers, strict=True)
        ]

    def train(self, steps: int) -> list[float]:
        losses = []
        for step in range(steps):
            data = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
            loss = self.model(data).square().mean()
            loss.backward()
            losses.append(loss.item())
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad()
            for scheduler in filter(None, self.schedulers):
                scheduler.step()
        return losses

    def save(self, where: Path) -> None:
        with Crew(where, len(self.states)) as crew:
            crew.save(self.states, 1)

    def load(self, where: Path) -> None:
        with Crew(where, len(self.states), run="after") as crew:
            crew.each(lambda rank, manager: manager.load(into=self.states[rank]))

    def kept(self) -> dict[str, Any]:
        """What optimizers keep for each parameter, and its group's options, by name."""
        found = {}
        for state in self.states:
            own = state.strata_state()["optimizer"]
            for group in own["groups"].values():
                for name in group["params"]:
                    found[name] = {"state": own["state"][name], "options": group["options"]}
        return dict(sorted(found.items()))


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["ab", "cd"], ["abcd"]),
        (["abcd"], ["ab", "cd"]),
        (["ab", "cd"], ["ab", "cd"]),
        (["a", "bc", "d"], ["ab", "cd"]),
        (["cd", "ab"], ["a", "bcd"]),
    ],
)
def test_any_number_of_stages_loads_any_other(
    tmp_path: Path, before: list[str], after: list[str], scheduled: bool
) -> None:
    first, second = Pipeline(1, before, scheduled=scheduled), Pipeline(2, after, scheduled=scheduled)
    first.train(3)
    second.train(1)
    for optimizer in second.optimizers:
        optimizer.param_groups[0]["lr"] = 7.0
    first.save(tmp_path)
    second.load(tmp_path)
    assert_same(second.kept(), first.kept())
    assert_same(dict(second.model.state_dict()), dict(first.model.state_dict()))
    assert second.train(4) == first.train(4)


def split(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """Weights in one group, and biases in another."""
    own = list(parameters)
    weights, biases = [each for each in own if each.ndim > 1], [each for each in own if each.ndim == 1]
    groups: list[dict[str, Any]] = [{"params": weights, "weight_decay": 0.3}, {"params": biases}]
    return torch.optim.AdamW(groups, lr=0.1, weight_decay=0.0)


def test_groups_of_stages_are_one_again(tmp_path: Path) -> None:
    first, second = Pipeline(1, ["ab", "cd"], split, scheduled=True), Pipeline(2, ["abcd"], split, scheduled=True)
    first.train(3)
    first.save(tmp_path)
    second.load(tmp_path)
    assert [group["weight_decay"] for group in second.optimizers[0].param_groups] == [0.3, 0.0]
    assert second.train(3) == first.train(3)


def test_options_may_differ_between_stages(tmp_path: Path) -> None:
    first = Pipeline(1, ["ab", "cd"])
    first.optimizers[1].param_groups[0]["lr"] = 0.02
    first.train(2)
    first.save(tmp_path)
    same = Pipeline(2, ["ab", "cd"])
    same.load(tmp_path)
    assert_same(same.kept(), first.kept())

    def two(parameters: Iterable[Any]) -> torch.optim.Optimizer:
        own = list(parameters)
        return torch.optim.AdamW([{"params": own[:4]}, {"params": own[4:]}])

    one = Pipeline(3, ["abcd"], two)
    one.load(tmp_path)
    assert [group["lr"] for group in one.optimizers[0].param_groups] == [0.1, 0.02]
    assert one.train(2) == first.train(2)


def test_options_that_differ_are_not_made_one(tmp_path: Path) -> None:
    first, second = Pipeline(1, ["ab", "cd"]), Pipeline(2, ["abcd"])
    first.optimizers[1].param_groups[0]["lr"] = 0.02
    first.save(tmp_path)
    with pytest.raises(CheckpointMismatch, match=r"optimizer/groups/0 \(its parameters come from groups .* in lr\)"):
        second.load(tmp_path)


def test_a_scheduler_is_not_loaded_for_rates_of_another_stage(tmp_path: Path) -> None:
    def rates(rate: float) -> Maker:
        return lambda parameters: torch.optim.AdamW(parameters, lr=rate)

    first = Pipeline(1, ["ab", "cd"], scheduled=True)
    first.optimizers[1] = rates(0.02)(first.stages[1].parameters())
    first.schedulers[1] = torch.optim.lr_scheduler.StepLR(first.optimizers[1], 2, 0.5)
    first.states[1] = TrainState(first.stages[1], first.optimizers[1], first.schedulers[1], stage=True)
    first.save(tmp_path)
    second = Pipeline(2, ["ab", "cd"], scheduled=True)
    with CheckpointManager(tmp_path, rank=1, world_size=2, run_id="after") as manager:
        with pytest.raises(CheckpointMismatch, match=r"scheduler \(it keeps a rate for each group .* leave it out\)"):
            manager.load(into=second.states[1])
        manager.load(into=TrainState(second.stages[1], second.optimizers[1], stage=True))
    assert second.optimizers[1].param_groups[0]["lr"] == 0.02


@pytest.mark.parametrize("rates", [(0.1, 0.1), (0.1, 0.2)])
def test_rates_that_are_arrays(tmp_path: Path, rates: tuple[float, float]) -> None:
    def made(parameters: Iterable[Any]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=torch.tensor(0.1), foreach=False)

    first, second = Pipeline(1, ["ab", "cd"], made), Pipeline(2, ["abcd"], made)
    for optimizer, rate in zip(first.optimizers, rates, strict=True):
        optimizer.param_groups[0]["lr"].fill_(rate)
    first.train(2)
    first.save(tmp_path)
    if rates[0] != rates[1]:
        with pytest.raises(CheckpointMismatch, match="differ in lr"):
            second.load(tmp_path)
        return
    second.load(tmp_path)
    assert second.train(2) == first.train(2)


def test_a_parameter_that_no_stage_had_is_missing(tmp_path: Path) -> None:
    first, second = Pipeline(1, ["ab", "c"]), Pipeline(2, ["ab", "cd"])
    first.train(1)
    first.save(tmp_path)
    with pytest.raises(CheckpointMismatch, match=r"4 missing: model/d.weight, model/d.bias, optimizer/state/d.weight"):
        second.load(tmp_path)


def test_who_says_nothing_of_stages_is_told_what_is_beside(tmp_path: Path) -> None:
    first, second = Pipeline(1, ["abcd"]), Pipeline(2, ["ab", "cd"])
    first.train(1)
    first.save(tmp_path)
    with CheckpointManager(tmp_path, rank=1, world_size=2, run_id="after") as manager:
        with pytest.raises(CheckpointMismatch, match=r"8 unexpected: model/a\.bias, model/a\.weight"):
            manager.load(into=TrainState(second.stages[1], second.optimizers[1]))
        manager.load(into=second.states[1])
        assert not manager.last_load
        assert "model/a.weight" in manager.last_load.left
        assert "optimizer/state/b.bias" in manager.last_load.left


def test_one_state_for_all_parameters_of_a_stage(tmp_path: Path) -> None:
    def lbfgs(parameters: Iterable[Any]) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(parameters, lr=0.1, history_size=3, max_iter=2)

    def steps(pipeline: Pipeline) -> None:
        for stage, optimizer in zip(pipeline.stages, pipeline.optimizers, strict=True):

            def closure(stage: nn.Module = stage, optimizer: torch.optim.Optimizer = optimizer) -> float:
                optimizer.zero_grad()
                loss = stage(torch.ones(1, 4)).square().mean()
                loss.backward()
                return float(loss.item())

            optimizer.step(closure)

    first, second, third = (
        Pipeline(n, stages, lbfgs) for n, stages in enumerate((["ab", "cd"], ["ab", "cd"], ["abcd"]))
    )
    steps(first)
    first.save(tmp_path)
    second.load(tmp_path)
    for one, other in zip(second.optimizers, first.optimizers, strict=True):
        assert_same(one.state_dict(), other.state_dict())
    with pytest.raises(CheckpointMismatch, match="a LBFGS keeps one state for all"):
        third.load(tmp_path)
