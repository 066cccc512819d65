"""Which parameter of an optimizer is which of the checkpoint's, and what its groups become: they may be others now.

A group is stored with the names of its parameters, under a name of its own that is made of theirs: so the groups of all
stages of a pipeline stand side by side in one checkpoint, and those of ranks that train the same are one. A group takes
the options that its parameters had. If those come from several groups, they must say the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from strata.checkpoint.names import below
from strata.checkpoint.stateful import ArraySpec
from strata.torch.components import Found
from strata.torch.names import Parameters
from strata.torch.objects import without_code

HOW = ("foreach", "fused", "capturable", "differentiable", "param_names", "params")
"""Options of a group that change no result, or are stored otherwise."""


@dataclass(slots=True)
class Match:
    """Names here to names in the checkpoint; and the group there whose options each group here takes."""

    names: dict[str, str]
    sources: list[str | None]
    is_regrouped: bool
    is_reordered: bool


def stored_groups(groups: Sequence[Sequence[str]], options: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is stored of groups with these parameters."""
    return {
        f"{place}.{xxhash.xxh3_64_hexdigest(chr(0).join(names).encode())}": {
            "place": place,
            "params": list(names),
            "options": without_code(what_of(own)),
        }
        for place, (names, own) in enumerate(zip(groups, options, strict=True))
    }


def what_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a group that matter."""
    return {key: each for key, each in group.items() if key not in HOW}


def matched(found: Found, parameters: Parameters, groups: Sequence[Sequence[str]]) -> Match:
    """`groups` has the names of the parameters in each group here. What is only here, or only there, is reported."""

    def here(stored: str) -> str | None:
        return parameters.name_of(parameters.by_name.get(found.origin.names.get(stored, stored)))

    owned = {name: place for place, group in enumerate(groups) for name in group}
    theirs = {key: [(stored, here(stored)) for stored in each["params"]] for key, each in found.tree["groups"].items()}
    pairs = [pair for group in theirs.values() for pair in group]
    names = {name: stored for stored, name in pairs if name is not None and name in owned}
    state = found.under("state")
    found.report.missing += [below(state, name) for name in owned if name not in names]
    found.report.unexpected += [below(state, stored) for stored, name in pairs if name not in names]
    common = {key: [name for _, name in group if name in names] for key, group in theirs.items()}
    sources = [_source(found, number, common, group) for number, group in enumerate(groups)]
    ours = [name for key, group in theirs.items() if common[key] for _, name in group]
    is_reordered = ours != list(owned) or sum(map(bool, common.values())) > len(groups)
    return Match(names, sources, _is_regrouped(found, common, owned, sources), is_reordered)


def _is_regrouped(
    found: Found, common: Mapping[str, Sequence[str | None]], owned: Mapping[str, int], sources: Sequence[str | None]
) -> bool:
    """Whether what is kept by the position of a group is another's now. It is the first rank's: so groups in the same
    position on other ranks must have its options."""
    groups = found.tree["groups"]
    first: dict[int, Any] = {}
    for each in groups.values():
        first.setdefault(each["place"], each["options"])
    return (
        found.tree["places"] != len(sources)
        or any(groups[key]["place"] != owned[name] for key, names in common.items() for name in names if name)
        or any(
            source is not None and _differing(first[groups[source]["place"]], groups[source]["options"])
            for source in sources
        )
    )


def _source(found: Found, number: int, theirs: Mapping[str, Sequence[str | None]], names: Sequence[str]) -> str | None:
    """Which group's options a group takes; None if it has no parameter that was in any."""
    candidates = [candidate for candidate, group in theirs.items() if not set(group).isdisjoint(names)]
    if not candidates:
        return None
    first, *others = (found.tree["groups"][candidate]["options"] for candidate in candidates)
    differing = {key for other in others for key in _differing(first, other)}
    if differing:
        why = f"its parameters come from groups that differ in {', '.join(sorted(differing))}"
        found.report.mismatched.append(f"{below(found.under('groups'), number)} ({why})")
    return candidates[0]


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    return {key for key in one.keys() | other.keys() if key not in HOW and _differ(one, other, key)}


def _differ(one: Mapping[str, Any], other: Mapping[str, Any], key: str) -> bool:
    """Arrays are not read yet: they are the same if they are stored as one, or with the same digest."""
    if key not in one or key not in other:
        return True
    mine, theirs = one[key], other[key]
    if isinstance(mine, ArraySpec) and isinstance(theirs, ArraySpec):
        return mine.tensor != theirs.tensor and not (mine.digest and mine.content == theirs.content)
    return bool(mine != theirs)
