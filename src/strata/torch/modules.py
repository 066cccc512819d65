"""A model, or an average of one: its parameters and persistent buffers, filled in place, and its extra state.

What a module's state_dict gives need not be its own memory, and its load_state_dict may do more than copy. So where
there is any doubt that is called, too, with the tensors that are filled already: for its own that copies nothing.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from strata.errors import InvalidInput
from strata.torch.components import ABSENT, Fit, Found, all_new, specs_in
from strata.torch.names import CanonicalNames
from strata.torch.replication import Replicas, replicas_in

EXTRA_STATE = "_extra_state"


class ModuleState:
    """The state of a module, under canonical names."""

    kind = None  # what fits is decided tensor by tensor

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._names = CanonicalNames(module)

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """By canonical name; a tied one under each of its names."""
        for name, parameter in self._module.named_parameters(remove_duplicate=False):
            yield self._names(name), parameter

    def state(self) -> Any:
        own, replicas = self._module.state_dict(), self.replicas()
        names, parameters = self._names.renamed(own), dict(self._module.named_parameters(remove_duplicate=False))
        return {name: replicas.marked(own[key], parameters.get(key)) for name, key in names.items()}

    def replicas(self) -> Replicas:
        """Its parameters that are the same on several ranks."""
        return replicas_in(self._module)

    def fit(self, found: Found) -> Fit:
        own = self._module.state_dict(keep_vars=True)
        keys = self._names.renamed(own)
        stored = found.tree if isinstance(found.tree, dict) else {}
        arrays = {name for name in found.arrays if name.startswith(f"{found.name}/")}
        if found.tree is ABSENT and not arrays and keys:
            found.report.missing.append(found.name)
            return Fit()
        fit = Fit()
        values = {}
        for name, key in keys.items():
            if _is_filled(key, own[key]):
                self._fill(found, name, own[key], fit)
            elif name in stored:
                values[name] = key
                fit.targets |= all_new(stored[name])
            else:
                found.report.missing.append(found.under(name))
        _tell_unexpected(found, arrays, stored, set(keys), values)

        def apply(tree: Any) -> None:
            for name, key in values.items():
                own[key] = tree[name]
            if values or not _is_plain(self._module, own):
                told = self._module.load_state_dict(own, strict=False)
                if told is not None and told.unexpected_keys:
                    raise InvalidInput(f"its load_state_dict does not take {', '.join(told.unexpected_keys)}")

        fit.apply = apply
        return fit

    def _fill(self, found: Found, name: str, tensor: torch.Tensor, fit: Fit) -> None:
        spec = found.arrays.get(found.under(name))
        if spec is None:
            found.report.missing.append(found.under(name))
        else:
            fit.targets[spec.name] = tensor


def _is_plain(module: nn.Module, state: Mapping[str, object]) -> bool:
    """Whether all of this is the module's own memory, and nothing but torch's own code takes part in loading it.

    Then there is nothing left to do, and torch's own way, which takes time with the square of the modules, is spared.
    """
    own = {id(each) for each in (*module.parameters(), *module.buffers())}
    return all(id(each) in own for each in state.values()) and all(map(_loads_plainly, module.modules()))


def _loads_plainly(module: nn.Module) -> bool:
    hooks = [getattr(module, f"_load_state_dict_{when}_hooks", "unknown") for when in ("pre", "post")]
    return (
        not any(hooks)
        and type(module).load_state_dict is nn.Module.load_state_dict
        and type(module)._load_from_state_dict.__module__.startswith("torch.nn.modules.")
    )


def _is_filled(key: str, value: object) -> bool:
    """Extra state is any value, and of any shape, even if it is a tensor now."""
    return isinstance(value, torch.Tensor) and key.rpartition(".")[2] != EXTRA_STATE


def _tell_unexpected(found: Found, arrays: set[str], stored: dict[str, Any], own: set[str], values: Any) -> None:
    in_values = {spec.name for name in values for spec in specs_in(stored[name])}
    wanted = {found.under(name) for name in own}
    found.report.unexpected += sorted(
        name for name in arrays if name not in wanted and found.arrays[name].name not in in_values
    )
    plain = [name for name, each in stored.items() if name not in own and not any(True for _ in specs_in(each))]
    found.report.unexpected += [found.under(name) for name in plain]
