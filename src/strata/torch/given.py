"""What a TrainState is given, one of each or several by name, made into components or refused with a sentence."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import nn

from strata.checkpoint.marks import PerRank
from strata.errors import InvalidInput
from strata.torch.components import Component
from strata.torch.modules import ModuleState
from strata.torch.objects import ObjectState
from strata.torch.paths import Path, path_to

T = TypeVar("T")

_LOADER = (
    "give one that knows which samples come next, such as torchdata's StatefulDataLoader, or an object of your own "
    "with these two"
)


def by_name(given: Any, what: str) -> Mapping[str, Any]:
    """One alone has no name."""
    if given is None:
        return {}
    if isinstance(given, list | tuple):
        raise InvalidInput(f"{what}: give several by name, as in {{'a': …, 'b': …}}: their order may change")
    if not isinstance(given, Mapping):
        return {"": given}
    for name in given:
        if not isinstance(name, str) or not name:
            raise InvalidInput(f"{what}: {name!r} is no name; give several by name, as in {{'a': …, 'b': …}}")
    return given


def components(given: Any, what: str, make: Callable[[Any, str], T]) -> dict[Path, T]:
    """Of each that is given, by where it is in a state."""
    return {
        path_to(what, name): make(each, f"{what} {name}" if name else what)
        for name, each in by_name(given, what).items()
    }


def model_state(model: Any, label: str) -> ModuleState:
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"{label} must be a torch.nn.Module, not a {type(model).__name__}: give the model itself")
    return ModuleState(model)


class LoaderState(ObjectState):
    """Each rank has a position of its own."""

    def state(self) -> Any:
        return PerRank(self._tree())


def loader_state(loader: Any, label: str) -> Component:
    return LoaderState(loader, label, _LOADER)


def module_or_object(value: Any, label: str) -> Component:
    """A module is filled in place; anything else says itself what its state is."""
    return ModuleState(value) if isinstance(value, nn.Module) else ObjectState(value, label)


def told(given: Any) -> str:
    """The class, or classes."""
    if isinstance(given, Mapping):
        return "{" + ", ".join(f"{name}: {type(each).__name__}" for name, each in given.items()) + "}"
    return type(given).__name__
