"""An optimizer, by the names of its parameters: what it keeps for each, and its groups.

    state/layers.0.weight/exp_avg     nothing for a parameter that took no step yet
    groups                            the names of the parameters of each, and its options; see `regrouping`
    places                            how many groups there are
    rest                              what is kept for no parameter in particular

So it loads after parameters were put in another order, or in other groups: a group takes the options that its
parameters had. What only says how to compute (`fused` and the like) is not stored, and stays as it is.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from strata.checkpoint.frameworks.dtensor import empty_beside, empty_spread, is_spread
from strata.checkpoint.frameworks.torch import torch_dtype
from strata.checkpoint.stateful import ArraySpec
from strata.errors import InvalidInput
from strata.torch.components import ABSENT, Fit, Found, all_new, is_same
from strata.torch.names import Parameters
from strata.torch.objects import without_code
from strata.torch.regrouping import matched, stored_groups, what_of
from strata.torch.replication import Replicas

ORDERED = (torch.optim.LBFGS,)
"""They keep one state for all parameters, in their order."""


class OptimizerState:
    """The state of one optimizer. `parameters` are those of all models, as they are at the time, and `replicas` of each
    model those that are the same on several ranks."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Callable[[], Parameters],
        replicas: Callable[[], list[Replicas]],
        label: str,
    ) -> None:
        self.optimizer, self._parameters, self._replicas, self._label = optimizer, parameters, replicas, label
        self._groups(parameters())

    @property
    def kind(self) -> str:
        return type(self.optimizer).__name__

    # -- saving ------------------------------------------------------------------------------------------------------

    def state(self) -> Any:
        parameters = self._parameters()
        groups, own = self._groups(parameters), self._own()
        numbered = _numbered(own, groups)
        kept = {numbered[key]: without_code(each) for key, each in own["state"].items() if key in numbered}
        replicas = [each.kept_by(self.optimizer) for each in self._replicas()]
        return {
            "state": {name: _marked(each, parameters.by_name[name], replicas) for name, each in kept.items()},
            "groups": stored_groups(groups, own["param_groups"]),
            "places": len(groups),
            "rest": {key: without_code(each) for key, each in own["state"].items() if key not in numbered},
            "options": self._options(),
        }

    def _own(self) -> dict[str, Any]:
        own = self.optimizer.state_dict()
        if not {"state", "param_groups"} <= own.keys():
            raise InvalidInput(
                f"{self._label}: the state_dict() of a {self.kind} has no `state` and `param_groups` as torch's have: "
                "store it as extra={'optimizer': optimizer}"
            )
        return own

    def _options(self) -> list[str]:
        return sorted(what_of(getattr(self.optimizer, "defaults", {})))

    def _groups(self, parameters: Parameters) -> list[list[str]]:
        """The names of the parameters of each group."""
        groups = self.optimizer.param_groups
        return [[self._name(parameters, each, n) for each in group["params"]] for n, group in enumerate(groups)]

    def _name(self, parameters: Parameters, parameter: torch.Tensor, group: int) -> str:
        name = parameters.name_of(parameter)
        if name is None:
            raise InvalidInput(
                f"{self._label}: a parameter of shape {list(parameter.shape)} in group {group} is in no model: give "
                "the module that holds it too, as in model={'net': net, 'loss': loss}"
            )
        return name

    # -- loading -----------------------------------------------------------------------------------------------------

    def fit(self, found: Found) -> Fit:
        if found.tree is ABSENT:
            found.report.missing.append(found.name)
            return Fit()
        parameters = self._parameters()
        groups, own = self._groups(parameters), self._own()
        why = self._why_not(found)
        match = None if why else matched(found, parameters, groups)
        if match is not None and isinstance(self.optimizer, ORDERED) and match.is_reordered:
            why = f"its parameters are in another order, and a {self.kind} keeps one state for all of them"
        if match is None or why:
            found.report.mismatched.append(f"{found.name} ({why})")
            return Fit()
        numbered = _numbered(own, groups)
        ours = {numbered[key]: each for key, each in own["state"].items() if key in numbered}
        fit = Fit(all_new(found.tree["groups"]) | all_new(found.tree["rest"]), is_regrouped=match.is_regrouped)
        stored: dict[str, str] = {}
        for name, theirs in match.names.items():
            if theirs in found.tree["state"] and _fits(parameters.by_name[name], found.origin.shapes.get(theirs)):
                stored[name] = theirs
                fit.targets |= _in_place(found.tree["state"][theirs], ours.get(name), parameters.by_name[name])
        kept = {name: each for name, each in ours.items() if name not in match.names}
        fit.apply = lambda tree: self._apply(tree, groups, match.sources, stored, kept)
        return fit

    def _why_not(self, found: Found) -> str:
        tree = found.tree
        if not isinstance(tree, dict) or not {"state", "groups", "places", "rest", "options"} <= tree.keys():
            return "not saved by a TrainState, so its parameters have no names"
        if found.kind not in (None, self.kind) and tree["options"] != self._options():
            return f"a {found.kind} in the checkpoint, a {self.kind} here"
        return ""

    def _apply(
        self,
        tree: Any,
        groups: Sequence[Sequence[str]],
        sources: Sequence[str | None],
        stored: Mapping[str, str],
        kept: Mapping[str, Any],
    ) -> None:
        state = {name: tree["state"][theirs] for name, theirs in stored.items()}
        state.update(kept)
        options = [
            {key: each for key, each in own.items() if key != "params"}
            | ({} if source is None else deepcopy(what_of(tree["groups"][source]["options"])))
            for own, source in zip(self.optimizer.param_groups, sources, strict=True)
        ]
        if self._loads_plainly():
            self._set(state, options, tree["rest"])
            return
        numbers = {name: number for number, name in enumerate(name for group in groups for name in group)}
        packed = [
            {**each, "params": [numbers[name] for name in names]} for each, names in zip(options, groups, strict=True)
        ]
        numbered = {numbers[name]: each for name, each in state.items()}
        self.optimizer.load_state_dict({"state": tree["rest"] | numbered, "param_groups": packed})

    def _loads_plainly(self) -> bool:
        kinds = ("_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks")
        hooks = [getattr(self.optimizer, kind, "unknown") for kind in kinds]
        return not any(hooks) and type(self.optimizer).load_state_dict is torch.optim.Optimizer.load_state_dict

    def _set(self, state: Mapping[str, Any], options: Sequence[dict[str, Any]], rest: Mapping[Any, Any]) -> None:
        """As torch's own load_state_dict does, but without casting what is kept to the type of the parameter, which
        loses what is more exact than that; and in time that grows with the parameters, not with their square."""
        parameters = self._parameters()
        found: defaultdict[Any, Any] = defaultdict(dict)
        packed = []
        for own, each in zip(self.optimizer.param_groups, options, strict=True):
            packed.append({**each, "params": own["params"]})
            steps = bool(each.get("capturable") or each.get("fused"))
            for parameter in own["params"]:
                name = parameters.name_of(parameter)
                if name is not None and name in state:
                    found[parameter] = _moved(state[name], parameter.device, steps)
        found.update(rest)
        self.optimizer.__setstate__({"state": found, "param_groups": packed})


def _numbered(own: Mapping[str, Any], groups: Sequence[Sequence[str]]) -> dict[Any, str]:
    """The names of parameters by the numbers that a state_dict has for them."""
    pairs = zip(own["param_groups"], groups, strict=True)
    return {key: name for group, names in pairs for key, name in zip(group["params"], names, strict=True)}


def _marked(kept: Any, parameter: nn.Parameter, replicas: Sequence[Replicas]) -> Any:
    """What is the same on several ranks, as that."""
    for each in replicas if isinstance(kept, dict) else ():
        kept = {key: each.marked(value, parameter) for key, value in kept.items()}
    return kept


def _fits(parameter: torch.Tensor, shape: tuple[int, ...] | None) -> bool:
    """What is kept for a parameter of another shape is of no use; that the shape is another is told of the model."""
    return shape is None or tuple(parameter.shape) == shape


def _in_place(stored: Any, own: Any, parameter: torch.Tensor) -> dict[str, Any]:
    """What is there already is filled, and the rest is new: where the parameter lies on many ranks, as it does."""
    if isinstance(stored, ArraySpec):
        if is_same(own, stored):
            return {stored.name: own}
        return {stored.name: _empty_beside(parameter, stored) if is_spread(parameter) else None}
    if isinstance(stored, dict):
        at: Callable[[Any], Any] = own.get if isinstance(own, dict) else lambda key: None
        inner = (_in_place(value, at(key), parameter) for key, value in stored.items())
        return {name: each for some in inner for name, each in some.items()}
    return all_new(stored)


def _empty_beside(parameter: torch.Tensor, stored: ArraySpec) -> Any:
    """What is kept for a parameter that lies on many ranks: as it does. None for what is each rank's whole, such as the
    number of steps: it was so where it was saved, and does not go by the parameter's rows or columns."""
    dtype, shape = torch_dtype(stored.dtype), tuple(parameter.shape)
    if stored.shape == shape:
        return empty_spread(parameter, dtype)
    is_of_rows = len(stored.shape) == len(shape) and max(stored.shape, default=1) > 1
    is_of_rows = is_of_rows and all(own in (1, length) for own, length in zip(stored.shape, shape, strict=True))
    return empty_beside(parameter, stored.shape, dtype) if stored.is_spread or is_of_rows else None


def _moved(stored: Any, device: torch.device, steps: bool, key: object = None) -> Any:
    """To the device of the parameter; `steps` says whether that is where steps are counted, too."""
    if isinstance(stored, torch.Tensor):
        return stored if key == "step" and not steps else stored.to(device)
    if isinstance(stored, dict):
        return {name: _moved(each, device, steps, name) for name, each in stored.items()}
    if type(stored) in (list, tuple):
        return type(stored)(_moved(each, device, steps) for each in stored)
    return stored
