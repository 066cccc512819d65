"""What stands at the ends of a skeleton, by name: arrays, plain values, and containers that hold nothing.

Read as it lies in a manifest. Nothing is built from it, so no package with arrays is needed to look.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from strata.checkpoint.names import Names, below
from strata.checkpoint.tree import ARRAYS, VALUES, Node

PACKAGES = ("numpy", "torch", "jax", "tensorflow")
"""Whose arrays are tensors; the others are bytes or a number that are stored like one."""


def ends(skeleton: Node, name: str = "", *, common: bool = False) -> Iterator[tuple[str, Node]]:
    """Each with its name, in the order of the state; `common`: without what each rank has of its own."""
    if common and kind_of(skeleton) == "rank":
        return
    held = inside(skeleton, name)
    if not held:
        yield name, skeleton
    for each, node in held:
        yield from ends(node, each, common=common)


def plain_values(skeleton: Node, *, common: bool = False) -> dict[str, Node]:
    """Those that are no arrays. Each has a name of its own, as each array has."""
    names = Names()
    return {names.give(name): node for name, node in ends(skeleton, common=common) if kind_of(node) not in ARRAYS}


def own_places(skeleton: Node, name: str = "") -> Iterator[str]:
    """Where each rank has something of its own."""
    if kind_of(skeleton) == "rank":
        yield name
    elif kind_of(skeleton) != "arrays":
        for each, node in inside(skeleton, name):
            yield from own_places(node, each)


def is_container(node: Node) -> bool:
    """Which, as an end, holds nothing."""
    return isinstance(node, list) or kind_of(node) in ("dict", "arrays", "items", "tuple", "set", "frozenset", "named")


def array_kinds(skeleton: Node) -> dict[int, str]:
    """What each array is, by its number: a package's, or `bytes`, `bytearray` or `scalar`."""
    return {node[kind]: kind for _, node in ends(skeleton) if (kind := kind_of(node)) in ARRAYS}


def value_numbers(skeleton: Node) -> set[int]:
    """The numbers of what is stored like an array, and is none."""
    return {node[kind] for node in nodes(skeleton) if (kind := kind_of(node)) in VALUES}


def nodes(skeleton: Node) -> Iterator[Node]:
    """All of them, in no order. A dict of many arrays is one."""
    left = [skeleton]
    while left:
        node = left.pop()
        yield node
        if kind_of(node) != "arrays":
            left += [each for _, each in inside(node, "")]


def kind_of(node: Node) -> str:
    """What the node says it is; nothing for what stands for itself."""
    return next(iter(node), "") if isinstance(node, dict) else ""


def plain_key(key: Node) -> object:
    """A key of a dict as it stood in the state."""
    if isinstance(key, dict):
        kind, value = next(iter(key.items()))
        return tuple(plain_key(each) for each in value) if kind == "tuple" else value
    return key


def entries(node: Node) -> list[tuple[Node, Node]]:
    """The keys of a dict and what is under them."""
    if "dict" in node:
        return list(node["dict"].items())
    if "arrays" in node:
        return [(key, {node["of"]: number}) for number, key in enumerate(node["arrays"], node["from"])]
    return [(key, each) for key, each in node["items"]]


def dict_of(pairs: Sequence[tuple[Node, Node]], more: dict[str, Any]) -> Node:
    """A dict of these, as a walk through a state would have written it down. `more` says of which kind it is."""
    has_texts = all(isinstance(key, str) for key, _ in pairs)
    kinds = {kind_of(each) if isinstance(each, dict) and len(each) == 1 else "" for _, each in pairs}
    package = kinds.pop() if len(kinds) == 1 else ""
    if has_texts and package in PACKAGES and more.get("as", "OrderedDict") == "OrderedDict":
        first = pairs[0][1][package]
        if [each[package] for _, each in pairs] == list(range(first, first + len(pairs))):
            return {"arrays": [key for key, _ in pairs], "from": first, "of": package, **more}
    if has_texts and not more:
        return {"dict": dict(pairs)}
    return {"items": [[key, each] for key, each in pairs], **more}


def mapped(node: Node, change: Callable[[Node], Node]) -> Node:
    """The same, with each node as this makes it once it is done with what is in it. Keys stay as they are."""
    if isinstance(node, list):
        return [mapped(each, change) for each in node]
    kind = kind_of(node)
    if kind == "dict":
        node = {"dict": {key: mapped(each, change) for key, each in node["dict"].items()}}
    elif kind == "items":
        node = {**node, "items": [[key, mapped(each, change)] for key, each in node["items"]]}
    elif kind in ("tuple", "set", "frozenset", "rank"):
        node = {kind: mapped(node[kind], change)}
    elif kind == "named":
        node = {**node, "values": mapped(node["values"], change)}
    return change(node)


def shown(node: Node) -> Any:
    """A plain value as JSON has it; as text, where it has none."""
    kind = kind_of(node)
    if not kind:
        return node
    value = node[kind]
    if kind == "int":
        return value if "x" in value else int(value)
    if kind in ("dict", "items"):
        return {}
    if kind in ("tuple", "set", "frozenset"):
        return []
    if kind == "named":
        return []
    if kind == "complex":
        return f"{shown(value[0])} + {shown(value[1])}i"
    return str(value) if kind == "float" else f"{kind}({value})"


def inside(node: Node, name: str) -> list[tuple[str, Node]]:
    """What a container of this name holds, with the names below it; nothing for what is an end."""
    if isinstance(node, list):
        return [(below(name, place), each) for place, each in enumerate(node)]
    kind = kind_of(node)
    if kind == "dict":
        return [(below(name, key), each) for key, each in node["dict"].items()]
    if kind == "arrays":
        return [(below(name, key), {node["of"]: number}) for number, key in enumerate(node["arrays"], node["from"])]
    if kind == "items":
        return [(below(name, plain_key(key)), each) for key, each in node["items"]]
    if kind in ("tuple", "set", "frozenset"):
        return [(below(name, place), each) for place, each in enumerate(node[kind])]
    if kind == "rank":
        return [(name, node["rank"])]
    if kind == "named":
        return [(below(name, field), each) for field, each in zip(node["fields"], node["values"], strict=True)]
    return []
