"""Where in a state each component is: `("optimizer",)`, or `("optimizer", "critic")` of several."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from strata.checkpoint.names import below
from strata.torch.components import ABSENT

Path: TypeAlias = tuple[str, ...]


def path_to(what: str, name: str) -> Path:
    """One alone has no name."""
    return (what, name) if name else (what,)


def name_of(path: Path) -> str:
    """As arrays below it are called."""
    name = ""
    for key in path:
        name = below(name, key)
    return name


def at(tree: Any, path: Path) -> Any:
    """What is there, or ABSENT."""
    for key in path:
        if not isinstance(tree, dict) or key not in tree:
            return ABSENT
        tree = tree[key]
    return tree


def placed(values: Mapping[Path, Any]) -> dict[str, Any]:
    """A tree of these. What is above others comes before them."""
    tree: dict[str, Any] = {}
    for (*above, last), value in values.items():
        place = tree
        for key in above:
            place = place.setdefault(key, {})
        place[last] = value
    return tree
