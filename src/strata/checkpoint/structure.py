"""What a state is made of, beside its numbers: what each place holds, and under which key, in words.

Read as it lies in a manifest, as `skeleton` does. Every place has a name of its own among those of its family, also
where two keys are written alike; so two states can be compared place by place.
"""

from collections.abc import Iterator
from typing import NamedTuple

from strata.checkpoint.names import Names
from strata.checkpoint.skeleton import inside, kind_of, plain_key
from strata.checkpoint.tree import ARRAYS, Node

CONTAINER, ARRAY, VALUE = "container", "array", "value"


class Place(NamedTuple):
    """Somewhere in a state: in words, what is there. `node` is a plain value's."""

    family: str
    name: str
    words: str
    node: Node


def places(skeleton: Node) -> Iterator[Place]:
    """All of them, in the order of the state."""
    names = {family: Names() for family in (CONTAINER, ARRAY, VALUE)}
    left: list[tuple[str, str, Node]] = [("", "", skeleton)]
    while left:
        name, under, node = left.pop()
        held = inside(node, name)
        family = CONTAINER if held else ARRAY if kind_of(node) in ARRAYS else VALUE
        words = VALUE if family == VALUE else _words(node)
        yield Place(family, names[family].give(name), f"{words}{under}", node)
        unders = _unders(node)
        left += [(each, unders.get(place, ""), child) for place, (each, child) in enumerate(held)][::-1]


def _unders(node: Node) -> dict[int, str]:
    """The keys that are no texts, by position: a name does not tell 0 from "0"."""
    if kind_of(node) != "items":
        return {}
    keys = (plain_key(key) for key, _ in node["items"])
    return {place: f" under {key!r}" for place, key in enumerate(keys) if not isinstance(key, str)}


def _words(node: Node) -> str:
    """Of an array, or of what holds something."""
    if isinstance(node, list):
        return "list"
    kind = kind_of(node)
    if kind == "named":
        return f"{node['named']}({', '.join(map(str, node['fields']))})"
    if kind in ("dict", "items", "arrays"):
        words = str(node.get("as", "dict"))
        return f"{words}({node['default']})" if "default" in node else words
    more = [f"{key}, {node[key]}" for key in ("parameter", "variable") if key in node]
    return ", ".join([kind, *more])
