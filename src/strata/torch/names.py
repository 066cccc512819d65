"""What a tensor of a model is called, whatever the model is wrapped in.

torch.compile, DDP and the like are modules around a module, and add a part to every name. It is taken out by walking
from module to module, never by looking at the text: a module of your own may be called `module`, too.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from strata.errors import InvalidInput

_AROUND_MODULE = (DistributedDataParallel, DataParallel, AveragedModel)
_INNER = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""What torch.compile, FSDP and activation checkpointing call the module inside."""


def inner(module: Any) -> tuple[str, nn.Module] | None:
    """What a wrapper calls the module inside, and that module; None for a module that is no wrapper."""
    if not isinstance(module, nn.Module):
        return None
    if isinstance(module, _AROUND_MODULE):
        return "module", module.module
    return next(((name, found) for name in _INNER if (found := module._modules.get(name)) is not None), None)


def canonical(model: nn.Module, name: str) -> str:
    """The name of a tensor without the parts that wrappers add."""
    kept: list[str] = []
    here: Any = model
    for part in name.split("."):
        wrapped = inner(here)
        while wrapped is not None and wrapped[0] != part:  # some wrappers leave no trace in the names
            here = wrapped[1]
            wrapped = inner(here)
        if wrapped is not None:
            here = wrapped[1]
            continue
        kept.append(part)
        here = here._modules.get(part) if isinstance(here, nn.Module) else None
    return ".".join(kept)


class CanonicalNames:
    """Of one model, found once for each name."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._known: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = canonical(self._model, name)
        return known

    def renamed(self, values: Mapping[str, Any]) -> dict[str, str]:
        """The canonical name of each, and its own."""
        found: dict[str, str] = {}
        for name in values:
            other = found.setdefault(self(name), name)
            if other != name:
                raise InvalidInput(f"{other!r} and {name!r} of the model are both called {self(name)!r}: rename one")
        return found


class Parameters:
    """The parameters of models, by name; one that has several is called by the first."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]]) -> None:
        self.by_name: dict[str, nn.Parameter] = {}
        self._names: dict[int, str] = {}
        for name, parameter in named:
            if self.by_name.setdefault(name, parameter) is not parameter:
                raise InvalidInput(f"two parameters of the models are called {name!r}: call one of the models else")
            self._names.setdefault(id(parameter), name)

    def name_of(self, parameter: object) -> str | None:
        return self._names.get(id(parameter))


def in_model(path: tuple[str, ...], name: str) -> str:
    """The name of a parameter among those of all models: `generator.layers.0.weight`. A single model has no name."""
    return ".".join((*path[1:], name))
