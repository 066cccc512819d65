"""Whether a skeleton is one, asked once of every manifest that is read: nobody behind has to.

The law: every node is of a kind that is known, with what that kind needs; and every array of the part stands in it in
exactly one place. A dict of many arrays is looked at as one node.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from strata.checkpoint.skeleton import PACKAGES, kind_of
from strata.checkpoint.tree import DEEPEST, DEFAULTS, VALUES, Node
from strata.errors import InvalidInput

_PLAIN = {type(None), bool, int, float, str}
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,2499}|0x[0-9a-f]+)")
"""Fewer digits than Python refuses to read."""
_NO_NUMBERS = {"nan", "-nan", "inf", "-inf"}
_DICTS = {"OrderedDict", "Counter", "defaultdict"}


class Nonsense(Exception):
    """What no writer of checkpoints would say."""


def check_skeleton(skeleton: Node, arrays: int) -> list[int]:
    """Of a part with so many arrays. Gives the numbers of what is stored like an array, and is none.

    InvalidInput for a kind that a newer version may know.
    """
    check = _Check(arrays)
    check.node(skeleton, 0)
    if 0 in check.named:
        raise Nonsense(f"array {check.named.index(0)} is nowhere in its skeleton")
    return check.values


class _Check:
    def __init__(self, arrays: int) -> None:
        self.named = bytearray(arrays)
        self.values: list[int] = []

    def node(self, node: Node, level: int) -> None:
        if type(node) in _PLAIN:
            return
        kind = kind_of(node)
        look = _Check._nodes if type(node) is list else _KINDS.get(kind)
        if look is None:
            _expect(bool(kind), node)
            raise InvalidInput(f"the checkpoint holds a {kind!r}, which this version of Strata does not know: upgrade")
        look(self, node, level)

    def _nodes(self, nodes: Any, level: int) -> None:
        """Those that stand for themselves are most of a long list, and passed over."""
        _expect(type(nodes) is list, nodes)
        self._inside(nodes, level)

    def _inside(self, nodes: Sequence[Node], level: int) -> None:
        if level > DEEPEST:
            raise Nonsense(f"its skeleton goes on for more than {DEEPEST} levels")
        for each in nodes:
            if type(each) not in _PLAIN:
                self.node(each, level + 1)

    def _array(self, node: Node, level: int) -> None:
        self._name(next(iter(node.values())), 1)

    def _value(self, node: Node, level: int) -> None:
        number = next(iter(node.values()))
        self._name(number, 1)
        self.values.append(number)

    def _arrays(self, node: Node, level: int) -> None:
        keys = node["arrays"]
        _expect(type(keys) is list and set(map(type, keys)) <= {str} and len(set(keys)) == len(keys), node)
        _expect(node.get("of") in PACKAGES and node.get("as", "OrderedDict") == "OrderedDict", node)
        self._name(node.get("from"), len(keys))

    def _name(self, first: Any, count: int) -> None:
        if type(first) is not int or not 0 <= first <= len(self.named) - count:
            raise Nonsense(
                f"its skeleton has {count} from array {_shortened(first)} on, and there are {len(self.named)}"
            )
        if 1 in self.named[first : first + count]:
            raise Nonsense(f"array {self.named.index(1, first)} is in two places of its skeleton")
        self.named[first : first + count] = b"\1" * count

    def _rank(self, node: Node, level: int) -> None:
        self._inside([node["rank"]], level)

    def _dict(self, node: Node, level: int) -> None:
        _expect(type(node["dict"]) is dict, node)
        self._inside([*node["dict"].values()], level)

    def _items(self, node: Node, level: int) -> None:
        pairs, kind = node["items"], node.get("as")
        _expect(type(pairs) is list and all(type(pair) is list and len(pair) == 2 for pair in pairs), node)
        _expect(kind is None or (type(kind) is str and kind in _DICTS), node)
        if kind == "defaultdict":
            maker = node.get("default", "")
            _expect(maker is None or (type(maker) is str and maker in DEFAULTS), node)
        for key, _ in pairs:
            self._key(key, level)
        self._inside([each for _, each in pairs], level)

    def _key(self, key: Node, level: int) -> None:
        kind = kind_of(key)
        if kind == "tuple":
            _expect(type(key["tuple"]) is list and level <= DEEPEST, key)
            for each in key["tuple"]:
                self._key(each, level + 1)
            return
        _expect(type(key) in _PLAIN or kind in ("int", "float"), key)
        self.node(key, level)

    def _container(self, node: Node, level: int) -> None:
        self._nodes(next(iter(node.values())), level)

    def _tuple_with_names(self, node: Node, level: int) -> None:
        fields, values = node.get("fields"), node.get("values")
        _expect(type(node["named"]) is str and type(fields) is list and type(values) is list, node)
        _expect(set(map(type, fields)) <= {str} and len(fields) == len(values), node)
        self._inside(values, level)

    def _int(self, node: Node, level: int) -> None:
        _expect(type(node["int"]) is str and _WHOLE.fullmatch(node["int"]) is not None, node)

    def _float(self, node: Node, level: int) -> None:
        _expect(type(node["float"]) is str and node["float"] in _NO_NUMBERS, node)

    def _complex(self, node: Node, level: int) -> None:
        parts = node["complex"]
        _expect(type(parts) is list and len(parts) == 2, node)
        for each in parts:
            if type(each) not in (int, float):
                _expect(kind_of(each) == "float", node)
                self._float(each, level)

    def _text(self, node: Node, level: int) -> None:
        _expect(type(next(iter(node.values()))) is str, node)

    def _size(self, node: Node, level: int) -> None:
        told = node["torch.Size"]
        _expect(type(told) is list and set(map(type, told)) <= {int}, node)


_KINDS: dict[str, Callable[[_Check, Node, int], None]] = {
    **dict.fromkeys(PACKAGES, _Check._array),
    **dict.fromkeys(VALUES, _Check._value),
    **dict.fromkeys(("tuple", "set", "frozenset"), _Check._container),
    "arrays": _Check._arrays,
    "rank": _Check._rank,
    "dict": _Check._dict,
    "items": _Check._items,
    "named": _Check._tuple_with_names,
    "int": _Check._int,
    "float": _Check._float,
    "complex": _Check._complex,
    "torch.dtype": _Check._text,
    "torch.device": _Check._text,
    "torch.Size": _Check._size,
}


def _expect(fits: bool, node: Node) -> None:
    if not fits:
        raise Nonsense(f"its skeleton holds {_shortened(node)}")


def _shortened(node: Node) -> str:
    """As far as it says which: it may be deeper than can be written down, or longer than a screen."""
    if isinstance(node, dict):
        return "{" + ", ".join(f"{key[:40]!r}: …" for key in list(node)[:3]) + "}"
    return f"a {type(node).__name__}" if isinstance(node, list) else repr(node)[:60]
