"""Which tensors of a checkpoint are wanted, under which names: patterns, renaming, and what does not fit.

Names are paths such as `model/layers.0.weight`; patterns are those of a shell, in which `*` spans slashes too.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from strata.core.ids import check_bool
from strata.errors import InvalidInput
from strata.texts import some_of

Keys: TypeAlias = str | Iterable[str]
Rename: TypeAlias = Mapping[str, str] | Callable[[str], str]
TOLD = 5


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be loaded, and how."""

    step: int | None = None
    keys: Keys | None = None
    into: Any = None
    like: Any = None
    rename: Rename | None = None
    strict: bool = True

    def check(self) -> None:
        """InvalidInput for what contradicts itself."""
        check_bool(self.strict, "strict")
        if self.keys is not None and not isinstance(self.keys, str | Iterable):
            raise InvalidInput(f"keys are patterns, one or several, not a {type(self.keys).__name__}")
        if self.rename is not None and not (isinstance(self.rename, Mapping) or callable(self.rename)):
            raise InvalidInput(f"rename is a dict of names or a function, not a {type(self.rename).__name__}")
        if self.into is not None and self.like is not None:
            raise InvalidInput("give into or like, not both: arrays are either filled or made")
        fitted = self.into is not None or self.like is not None
        if self.keys is not None and fitted:
            raise InvalidInput("give keys, or into, or like: what is not in a template is not loaded anyway")
        if self.rename is not None and not fitted:
            raise InvalidInput("rename says where tensors go in what is given with `into` or `like`: give one of them")

    @property
    def is_whole(self) -> bool:
        """Whether nothing is said but which one."""
        return self.keys is None and self.into is None and self.like is None and self.rename is None


@dataclass(slots=True)
class LoadReport:
    """What did not fit: names that were wanted and are not there, that are there and nobody wants, and that differ."""

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    mismatched: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """What was not asked for, and is no fault: whole parts of the checkpoint, and what is of other stages."""

    def __bool__(self) -> bool:
        """Whether there is anything to report."""
        return bool(self.missing or self.unexpected or self.mismatched)

    def __str__(self) -> str:
        parts = [
            f"{len(names):,} {what}: {', '.join(names[:TOLD])}{', …' if len(names) > TOLD else ''}"
            for what, names in (
                ("missing", self.missing),
                ("unexpected", self.unexpected),
                ("mismatched", self.mismatched),
            )
            if names
        ]
        return "; ".join(parts) or "everything fits"


def renamer(rename: Rename | None) -> Callable[[str], str]:
    """Of names in the checkpoint. A mapping renames whole names, and what begins with a key that ends in a slash."""
    if rename is None:
        return lambda name: name
    if callable(rename):
        return _telling(rename)
    whole = dict(rename)
    prefixes = sorted((key for key in whole if key.endswith("/")), key=len, reverse=True)

    def renamed(name: str) -> str:
        if name in whole:
            return whole[name]
        for prefix in prefixes:
            if name.startswith(prefix):
                return whole[prefix] + name[len(prefix) :]
        return name

    return renamed


def _telling(rename: Callable[[str], str]) -> Callable[[str], str]:
    def renamed(name: str) -> str:
        found = rename(name)
        if not isinstance(found, str):
            raise InvalidInput(f"rename gave {found!r} for {name!r}, and not a name")
        return found

    return renamed


def chooser(names: Sequence[str], keys: Keys) -> Callable[[str], bool]:
    """Whether any pattern matches a name; InvalidInput for a pattern that matches no tensor."""
    patterns = [keys] if isinstance(keys, str) else list(keys)
    if not patterns:
        raise InvalidInput("keys is empty: leave it out to load everything")
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise InvalidInput(f"keys are patterns of names, and {pattern!r} is none")
        if not any(fnmatchcase(name, pattern) for name in names):
            raise InvalidInput(f"keys: no tensor of the checkpoint matches {pattern!r}; there are {some_of(names)}")
    return lambda name: any(fnmatchcase(name, pattern) for pattern in patterns)
