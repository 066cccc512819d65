"""Which parameter of an optimizer is which of the checkpoint's, and what its groups become: they may be others now.

A group takes the options that its parameters had. If those come from several groups, they must say the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strata.checkpoint.names import below
from strata.checkpoint.stateful import ArraySpec
from strata.torch.components import Found
from strata.torch.names import Parameters

HOW = ("foreach", "fused", "capturable", "differentiable", "param_names", "params")
"""Options of a group that change no result, or are stored otherwise."""


@dataclass(slots=True)
class Match:
    """Names here to names in the checkpoint; and the group there whose options each group here takes."""

    names: dict[str, str]
    sources: list[int | None]
    is_regrouped: bool
    is_reordered: bool


def what_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a group that matter."""
    return {key: each for key, each in group.items() if key not in HOW}


def matched(found: Found, parameters: Parameters, groups: Sequence[Sequence[str]]) -> Match:
    """`groups` has the names of the parameters in each group here. What is only here, or only there, is reported."""

    def here(stored: str) -> str | None:
        return parameters.name_of(parameters.by_name.get(found.origin.names.get(stored, stored)))

    owned = dict.fromkeys(name for group in groups for name in group)
    theirs = [[(stored, here(stored)) for stored in group["params"]] for group in found.tree["groups"]]
    pairs = [pair for group in theirs for pair in group]
    names = {name: stored for stored, name in pairs if name is not None and name in owned}
    state = found.under("state")
    found.report.missing += [below(state, name) for name in owned if name not in names]
    found.report.unexpected += [below(state, stored) for stored, name in pairs if name not in names]
    common = [[name for _, name in group if name in names] for group in theirs]
    ours = [[name for name in group if name in names] for group in groups]
    is_regrouped = list(map(set, common)) != list(map(set, ours))
    sources = [_source(found, number, common, group) for number, group in enumerate(ours)]
    return Match(names, sources, is_regrouped, is_reordered=[name for _, name in pairs] != list(owned))


def _source(found: Found, number: int, theirs: Sequence[Sequence[str | None]], names: Sequence[str]) -> int | None:
    """Which group's options a group takes; None if it has no parameter that was in any."""
    candidates = [candidate for candidate, group in enumerate(theirs) if not set(group).isdisjoint(names)]
    if not candidates:
        return None
    first, *others = (what_of(found.tree["groups"][candidate]) for candidate in candidates)
    differing = {key for other in others for key in first.keys() | other.keys() if _differ(first, other, key)}
    if differing:
        why = f"its parameters come from groups that differ in {', '.join(sorted(differing))}"
        found.report.mismatched.append(f"{below(found.under('groups'), number)} ({why})")
    return candidates[0]


def _differ(one: Mapping[str, Any], other: Mapping[str, Any], key: str) -> bool:
    """Arrays are not read yet: they are the same if they are stored as one."""
    if key not in one or key not in other:
        return True
    mine, theirs = one[key], other[key]
    if isinstance(mine, ArraySpec) and isinstance(theirs, ArraySpec):
        return mine.tensor != theirs.tensor
    return bool(mine != theirs)
