"""`TrainState`: what a PyTorch run needs in order to go on, as one object that is saved and loaded.

What it holds is loaded, all of it or nothing: what does not fit is found before anything is changed. What a checkpoint
has beside is left where it is: so `TrainState(model)` takes the model of any run.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

import torch
from torch import nn

from strata.checkpoint.stateful import Outline, Plan
from strata.errors import InvalidInput
from strata.torch import given
from strata.torch.components import Component
from strata.torch.extra import ExtraValues
from strata.torch.names import Parameters, in_model
from strata.torch.objects import ObjectState
from strata.torch.optimizers import OptimizerState
from strata.torch.paths import Path, name_of, placed
from strata.torch.planning import ABOUT, FORMAT, plan
from strata.torch.replication import Replicas
from strata.torch.rng import Generator, RngState

WHAT = ("model", "optimizer", "scheduler", "scaler", "ema", "loader")

T = TypeVar("T")
Several: TypeAlias = T | Mapping[str, T]


class TrainState:
    """Everything that is given here, to be saved and loaded with one call.

    model, optimizer, scheduler, scaler, ema, loader: one of each, or a dict of several by name. All but the model may
        be left out. An ema is a module, such as AveragedModel; it and schedulers, scalers and loaders may be any object
        with state_dict() and load_state_dict().
    rng: True for the generators of random numbers that Python, numpy, torch and its CUDA devices have for everybody; or
        a dict of generators of your own, which are then stored beside those.
    extra: what else is to be kept. When it is loaded this very dict is updated; objects in it that have state_dict()
        and load_state_dict() are restored in place.
    stage: whether this is one stage of a pipeline. Then what a checkpoint has beside is other stages', and left there:
        any number of stages loads what any other saved.

        state = TrainState(model, optimizer, scheduler, rng=True, extra={"best": 1e9})
        manager.save_async(state, step=step)
        manager.load(into=state)
    """

    def __init__(  # noqa: PLR0917  their order is the contract's
        self,
        model: Several[nn.Module],
        optimizer: Several[torch.optim.Optimizer] | None = None,
        scheduler: Several[Any] | None = None,
        scaler: Several[Any] | None = None,
        ema: Several[Any] | None = None,
        loader: Several[Any] | None = None,
        rng: bool | Mapping[str, Generator] = False,
        *,
        extra: dict[str, Any] | None = None,
        stage: bool = False,
    ) -> None:
        self.model, self.optimizer, self.scheduler, self.scaler = model, optimizer, scheduler, scaler
        self.ema, self.loader, self.rng, self.extra = ema, loader, rng, {} if extra is None else extra
        self._holds_extra, self._is_stage = extra is not None, stage
        if not isinstance(self.extra, dict):
            raise InvalidInput(f"extra must be a dict of what else is to be saved, not a {type(extra).__name__}")
        self._models = given.components(model, "model", given.model_state)
        self._fixed: dict[Path, Component] = {
            **self._models,
            **given.components(ema, "ema", given.module_or_object),
            **given.components(optimizer, "optimizer", self._optimizer_state),
            **given.components(scheduler, "scheduler", ObjectState),
            **given.components(scaler, "scaler", ObjectState),
            **given.components(loader, "loader", given.loader_state),
        }
        self._rng = None if rng is False else RngState({} if rng is True else rng)

    def __repr__(self) -> str:
        there = {what: getattr(self, what) for what in WHAT}
        told = [f"{what}={given.told(each)}" for what, each in there.items() if each is not None]
        return f"TrainState({', '.join([*told, *(['rng'] if self._rng else []), *(['extra'] if self.extra else [])])})"

    def _optimizer_state(self, optimizer: Any, label: str) -> OptimizerState:
        if not hasattr(optimizer, "param_groups"):
            raise InvalidInput(f"{label} must be a torch.optim.Optimizer, not a {type(optimizer).__name__}")
        return OptimizerState(optimizer, self._parameters, self._replicas, label)

    def _parameters(self) -> Parameters:
        return Parameters(
            (in_model(path, name), parameter)
            for path, model in self._models.items()
            for name, parameter in model.parameters()
        )

    def _replicas(self) -> list[Replicas]:
        return [model.replicas() for model in self._models.values()]

    def _components(self) -> dict[Path, Component]:
        """In the order in which they are loaded: others may draw random numbers, so generators come last."""
        found = {**self._fixed}
        if self._holds_extra or self.extra:
            values = ExtraValues(self.extra)
            found["extra",] = values
            found |= {("extra", name): each for name, each in values.components().items()}
        if self._rng is not None:
            found["rng",] = self._rng
        return found

    # -- for the manager ---------------------------------------------------------------------------------------------

    def strata_state(self) -> dict[str, Any]:
        """What is saved: a tree under the names given here, with canonical names of parameters."""
        components = self._components()
        kinds = {name_of(path): each.kind for path, each in components.items() if each.kind is not None}
        return {ABOUT: {"format": FORMAT, "kinds": kinds}, **placed({p: c.state() for p, c in components.items()})}

    def plan_strata_load(self, outline: Outline) -> Plan:
        """What is to be read, and into what. Changes nothing; what does not fit is in the report."""
        return plan(outline, self._components(), self._models, is_stage=self._is_stage)
