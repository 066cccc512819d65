"""A skeleton without what is not wanted: arrays and plain values by name, and containers that held nothing else."""

from collections.abc import Callable
from typing import Any

from strata.checkpoint.names import below
from strata.checkpoint.skeleton import plain_key
from strata.checkpoint.tree import ARRAYS, Node

_NOTHING = object()


def pruned(skeleton: Node, wants_array: Callable[[int], bool], wants_value: Callable[[str], bool]) -> Node:
    """An empty dict if nothing is left. In lists and tuples positions matter: None takes the place of what is not."""
    found = _Pruning(wants_array, wants_value).node(skeleton, "")
    return {"dict": {}} if found is _NOTHING else found


class _Pruning:
    def __init__(self, wants_array: Callable[[int], bool], wants_value: Callable[[str], bool]) -> None:
        self._wants_array, self._wants_value = wants_array, wants_value

    def node(self, node: Node, name: str) -> Any:
        if isinstance(node, list):
            return self._list(node, name)
        kind = next(iter(node)) if isinstance(node, dict) else ""
        if kind in ARRAYS:
            return node if self._wants_array(node[kind]) else _NOTHING
        if kind == "arrays":
            return self._arrays(node)
        if kind == "dict":
            return self._dict(node, name)
        if kind == "items":
            return self._items(node, name)
        if kind == "rank":
            found = self.node(node["rank"], name)
            return _NOTHING if found is _NOTHING else {"rank": found}
        if kind in ("tuple", "set", "frozenset"):
            found = self._list(node[kind], name)
            return _NOTHING if found is _NOTHING else {kind: found}
        if kind == "named":
            found = self._list(node["values"], name, node["fields"])
            return _NOTHING if found is _NOTHING else {**node, "values": found}
        return node if self._wants_value(name) else _NOTHING

    def _arrays(self, node: Node) -> Any:
        """One by one, if not all of them are wanted: they are numbered in order only while they are together."""
        numbered = dict(enumerate(node["arrays"], node["from"]))
        kept = [number for number in numbered if self._wants_array(number)]
        if len(kept) == len(numbered):
            return node
        if not kept:
            return _NOTHING
        if "as" in node:
            return {"items": [[numbered[number], {node["of"]: number}] for number in kept], "as": node["as"]}
        return {"dict": {numbered[number]: {node["of"]: number} for number in kept}}

    def _dict(self, node: Node, name: str) -> Any:
        kept = {key: self.node(value, below(name, key)) for key, value in node["dict"].items()}
        found = {key: value for key, value in kept.items() if value is not _NOTHING}
        return {"dict": found} if found else _NOTHING

    def _items(self, node: Node, name: str) -> Any:
        kept = [[key, self.node(value, below(name, plain_key(key)))] for key, value in node["items"]]
        found = [pair for pair in kept if pair[1] is not _NOTHING]
        return {**node, "items": found} if found else _NOTHING

    def _list(self, nodes: list[Node], name: str, fields: list[str] | None = None) -> Any:
        places = fields or range(len(nodes))
        found = [self.node(each, below(name, place)) for place, each in zip(places, nodes, strict=True)]
        if all(each is _NOTHING for each in found):
            return _NOTHING
        return [None if each is _NOTHING else each for each in found]
