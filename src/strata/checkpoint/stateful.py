"""Objects that say themselves what their state is, and take it back: `strata.torch.TrainState`, or a class of yours.

    strata_state()              the tree to save
    load_strata_state(tree)     take it back: every array of it has been read and verified

A class with these two is saved and loaded like a tree. When it is loaded into, the arrays that its `strata_state()`
gives are filled where they lie, and stand in the tree that it then gets. A class that would rather look first has one
more, which is asked before anything is changed:

    plan_strata_load(outline)   which arrays to read, and into what: a `Plan`

All three are called in the caller's own thread.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from strata.checkpoint.matching import LoadReport
from strata.checkpoint.tree import VALUES, flatten
from strata.errors import InvalidInput


class ArraySpec(msgspec.Struct, frozen=True):
    """An array of a checkpoint that has not been read. Those of the same `tensor` are one, under several names.

    `kind` is the package it is of; or bytes, bytearray or scalar for a value that cannot be filled.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    tensor: int
    kind: str
    digest: str = ""
    """Of its bytes; nothing where the manifest has no single one for all of them."""
    is_spread: bool = False
    """Whether ranks held it together."""

    @property
    def content(self) -> tuple[str, tuple[int, ...], str]:
        """The same for two that hold the same, if there is a digest."""
        return self.dtype, self.shape, self.digest


class Outline(NamedTuple):
    """What a checkpoint holds, before any array of it is read."""

    tree: Any
    """The state, with an `ArraySpec` for each array."""
    arrays: list[ArraySpec]
    rename: Callable[[str], str]
    """From the names of arrays in the checkpoint to those here."""
    report: LoadReport
    """To be filled with what does not fit. If anything is in it nothing is loaded, unless with strict=False."""
    others: frozenset[str] = frozenset()
    """The names of places where other ranks have something of their own, and this one has nothing."""


class Plan(NamedTuple):
    """What to read: by name in the checkpoint the array that is filled, or None for a new one.

    `apply` gets the tree once all is read, with None for each array that was not.
    """

    targets: Mapping[str, Any]
    apply: Callable[[Any], None]


def lies_under(name: str, places: Collection[str]) -> bool:
    """Whether it is the name of one of these, or of something in one."""
    return any(name == place or not place or name.startswith(f"{place}/") for place in places)


def tree_of(state: Any) -> Any:
    """What is saved of a state."""
    return state.strata_state() if is_stateful(state) else state


def is_stateful(state: object) -> bool:
    return hasattr(state, "strata_state") and not isinstance(state, type)


def plan_load(into: Any, outline: Outline) -> Plan:
    """The object's own plan; or to fill every array that it has."""
    own = getattr(into, "plan_strata_load", None)
    if own is not None:
        plan: Plan = own(outline)
        return plan
    if not hasattr(into, "load_strata_state"):
        raise InvalidInput(
            f"a {type(into).__name__} has strata_state(), but no load_strata_state(tree) to be loaded with"
        )
    arrays = {leaf.name: leaf.value for leaf in flatten(into.strata_state()).leaves}
    names = [outline.rename(spec.name) for spec in outline.arrays]
    there = set(names)
    outline.report.unexpected += [name for name in names if name not in arrays]
    outline.report.missing += [name for name in arrays if name not in there and not lies_under(name, outline.others)]
    pairs = zip(outline.arrays, names, strict=True)
    targets = {spec.name: None if spec.kind in VALUES else arrays[name] for spec, name in pairs if name in arrays}
    return Plan(targets, into.load_strata_state)
