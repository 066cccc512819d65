"""What each part of a training run can be asked, and what is common to them.

The law: `fit` changes nothing. It says what is to be read, and what does not fit; only `apply` changes anything.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from strata.checkpoint.matching import LoadReport
from strata.checkpoint.names import below
from strata.checkpoint.stateful import ArraySpec

ABSENT: Any = object()
"""Where a checkpoint has nothing."""


class Origin(NamedTuple):
    """The parameters of a checkpoint: what they are called here, and the shapes they had, by the names they had."""

    names: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]


class Found(NamedTuple):
    """What a checkpoint has for one component."""

    name: str
    """The path to it, as arrays below it are named."""
    tree: Any
    """Its own state, with an `ArraySpec` for each array; or ABSENT."""
    kind: str | None
    """The class it was of."""
    arrays: Mapping[str, ArraySpec]
    """All arrays of the checkpoint, by the names they have here."""
    report: LoadReport
    origin: Origin

    def under(self, key: object) -> str:
        return below(self.name, key)


def ignore(tree: Any) -> None:
    """Of what does not fit nothing is applied."""


@dataclass(slots=True)
class Fit:
    """What to read for a component, by name in the checkpoint; and what to do with its tree once that is read."""

    targets: dict[str, Any] = field(default_factory=dict)
    apply: Callable[[Any], None] = ignore
    is_regrouped: bool = False
    """Of an optimizer: whether its groups were others."""


class Component(Protocol):
    """A part of a training run."""

    @property
    def kind(self) -> str | None:
        """What it is, if that matters when it is loaded."""
        ...

    def state(self) -> Any:
        """What is saved of it: a tree."""
        ...

    def fit(self, found: Found) -> Fit: ...


def specs_in(tree: Any) -> Iterator[ArraySpec]:
    """Every array that has not been read."""
    if isinstance(tree, ArraySpec):
        yield tree
    elif isinstance(tree, dict):
        for each in tree.values():
            yield from specs_in(each)
    elif isinstance(tree, list | tuple):
        for each in tree:
            yield from specs_in(each)


def is_same(own: object, stored: ArraySpec) -> bool:
    """Whether this tensor can be filled with that array."""
    return (
        isinstance(own, torch.Tensor) and tuple(own.shape) == stored.shape and str(own.dtype) == f"torch.{stored.dtype}"
    )


def all_new(tree: Any) -> dict[str, Any]:
    """Every array of it as a new one."""
    return {spec.name: None for spec in specs_in(tree)}
