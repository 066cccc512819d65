"""A state as a skeleton and its arrays: what is small and plain goes into the manifest, what is large into files.

The skeleton is JSON. Scalars and lists stand for themselves; everything else is an object whose first key says what it
is: `{"dict": …}`, `{"tuple": …}`, `{"torch": 7}` for the seventh array. A dict of many of them, numbered in order, is
`{"arrays": ["a", "b"], "from": 7, "of": "torch"}`. What each rank has of its own is `{"rank": …}`. Nothing in it names
code, so nothing can be run by loading it.

The law: what comes out is what went in, or it was refused before anything was written, by the name to it.
"""

import math
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from strata.checkpoint.boxes import cover
from strata.checkpoint.frameworks import Described, Framework, framework_named, framework_of, known_framework
from strata.checkpoint.frameworks.base import Piece, Shards
from strata.checkpoint.marks import PerRank, Replicated, ReplicatedOver
from strata.checkpoint.names import ROOT, Names, below
from strata.checkpoint.shares import ALONE, Crew, Share, shares_of
from strata.errors import InvalidInput, Unstorable

DEEPEST = 128
PROBLEMS_TOLD = 5
LONG_BITS = 8192
"""Python refuses to read decimal numbers that are much longer."""
EXACT = 2**53
"""Integers up to here are the same in every reader of JSON."""

Node: TypeAlias = Any
"""JSON, as `json.loads` gives it."""
NOT_INSTEAD: Any = object()


class Leaf(msgspec.Struct, frozen=True, gc=False):
    """One array of a state, and its name. Nothing that it holds refers to it, so the collector need not look."""

    name: str
    value: Any
    framework: Framework
    described: Described
    shares: list[Share] | None = None
    """What this rank writes of it; None for all of it."""


class Flat(NamedTuple):
    """A state taken apart."""

    skeleton: Node
    leaves: list[Leaf]


def flatten(
    state: Any, *, template: bool = False, told: str = "the state cannot be stored", crew: Crew | None = None
) -> Flat:
    """Raises Unstorable, naming the places of what cannot be stored. The arrays of a template need no data. `crew` is
    for what is saved: who saves it."""
    walk = _Walk(template, crew)
    skeleton = walk.node(state, "")
    if walk.problems:
        some = [f"{name or 'the state itself'}: {why}" for name, why in walk.problems[:PROBLEMS_TOLD]]
        more = len(walk.problems) - len(some)
        raise Unstorable(f"{told}. " + "; ".join(some) + (f"; and {more} more" if more else ""))
    return Flat(skeleton, walk.leaves)


def unflatten(
    skeleton: Node, array: Callable[[int, str], Any], instead: Callable[[int, str], Any] | None = None
) -> Any:
    """The state again. `array` gives the array of a number, made by the named package.

    `instead` gives what stands in the place of an array, by its number and what it was, or NOT_INSTEAD.
    """
    return _Build(array, instead).value(skeleton)


# -- taking apart ----------------------------------------------------------------------------------------------------


class _Walk:
    def __init__(self, template: bool, crew: Crew | None) -> None:
        self._template, self._crew, self._saves = template, crew or ALONE, crew is not None
        self._mark: type | None = None
        self.leaves: list[Leaf] = []
        self.problems: list[tuple[str, str]] = []
        self._names = Names()
        self._first_names: dict[Any, str] = {}
        """Of arrays that several ranks have, by where they lie."""
        self._above: set[int] = set()

    def node(self, value: Any, name: str) -> Node:
        """Arrays first, since there are most of them."""
        kind = type(value)
        framework = known_framework(kind)
        try:
            return self._other(value, kind, name) if framework is None else self._array(framework, value, name)
        except Unstorable as problem:
            self.problems.append((name, str(problem)))
            return None

    def _other(self, value: Any, kind: type, name: str) -> Node:
        if value is None or kind is bool or (kind is str and _is_text(value)):
            return value
        if kind is int:
            return value if -EXACT <= value <= EXACT else {"int": _written(value)}
        if kind is float:
            return value if math.isfinite(value) else {"float": _special(value)}
        container = _CONTAINERS.get(kind)
        if container is not None or (isinstance(value, tuple) and hasattr(kind, "_fields")):
            return self._inside(container or _Walk._named, value, name)
        return self._leaf(value, kind, name)

    def _inside(self, container: "Callable[[_Walk, Any, str], Node]", value: Any, name: str) -> Node:
        if id(value) in self._above:
            self.problems.append((name, "it contains itself"))
            return None
        if len(self._above) >= DEEPEST:
            self.problems.append((name[:40], f"it goes on for more than {DEEPEST} levels"))
            return None
        self._above.add(id(value))
        made = container(self, value, name)
        self._above.discard(id(value))
        return made

    def _leaf(self, value: Any, kind: type, name: str) -> Node:
        framework = framework_of(value)
        if framework is not None:
            return self._array(framework, value, name)
        if isinstance(value, np.generic):
            return {"scalar": self._array(framework_named("numpy"), np.asarray(value), name)["numpy"]}
        if kind is bytes or kind is bytearray:
            data = np.frombuffer(value, np.uint8)
            return {kind.__name__: self._array(framework_named("numpy"), data, name)["numpy"]}
        if kind is complex:
            return {"complex": [self.node(value.real, name), self.node(value.imag, name)]}
        told = _torch_value(value)
        if told is not None:
            return told
        if hasattr(value, "__dlpack__") or hasattr(value, "__array__"):
            made = _as_numpy(value).view()
            made.flags.writeable = False  # what is read into it would not reach the value
            return self._array(framework_named("numpy"), made, name)
        raise Unstorable(f"a {kind.__module__}.{kind.__qualname__} cannot be stored: {_advice(value)}")

    def _array(self, framework: Framework, value: Any, name: str) -> dict[str, Any]:
        node: dict[str, Any] = {framework.name: len(self.leaves)}
        described = self._describe(framework)(value)
        self._add(self._names.give(name or ROOT), value, framework, described)
        if _tells_more(type(value)):
            if framework.name == "torch":
                node["parameter"] = "trained" if value.requires_grad else "frozen"
            elif framework.name == "tensorflow":
                node["variable"] = "trained" if value.trainable else "frozen"
        return node

    def _add(self, name: str, value: Any, framework: Framework, described: Described) -> None:
        crew, shares = self._crew, None
        if described.shards is not None:
            shards = described.shards if crew.size > 1 else described.shards.alone()
            shares = self._shares(name, framework, shards)
            if crew.size == 1 and self._saves and not cover(described.shape, [share.box for share in shares]):
                raise Unstorable("other ranks hold parts of it: save on all of them, each with its rank and world_size")
        elif self._mark is Replicated:
            piece = Piece((0,) * len(described.shape), value, crew.rank, crew.size)
            shares = self._shares(name, framework, Shards([piece])) if crew.size > 1 else None
        elif self._mark is None and crew.leaves_out(name):
            shares = []
        self.leaves.append(Leaf(name, value, framework, described, shares))

    def _shares(self, name: str, framework: Framework, shards: Shards) -> list[Share]:
        """Who writes a piece that is too small to be shared goes by the name; of an array that has several, by the
        first, so that it stays one array."""
        if all(piece.copies == 1 for piece in shards.pieces):
            return shares_of(name, framework, shards)
        described = [framework.describe(piece.value) for piece in shards.pieces]
        place = tuple(
            [
                (piece.at, own.start or id(piece.value), own.strides, own.dtype, own.shape)
                for piece, own in zip(shards.pieces, described, strict=True)
            ]
        )
        return shares_of(self._first_names.setdefault(place, name), framework, shards)

    def _writes_whole_arrays(self) -> bool:
        """Whether this rank writes all of any array that lies in no pieces: what `_add` would find out for each."""
        if self._mark is None:
            return self._crew.rank == 0
        return self._mark is PerRank or self._crew.size == 1

    def _marked(self, value: Any, name: str) -> Node:
        """What is marked already stays what it is."""
        before, self._mark = self._mark, self._mark or self._meant(value)
        node = self.node(value.value, name)
        self._mark = before
        return {"rank": node} if type(value) is PerRank and before is None else node

    def _meant(self, value: Any) -> type | None:
        if type(value) is ReplicatedOver:
            return Replicated if value.ranks == self._crew.size else None
        return type(value)

    def _describe(self, framework: Framework) -> Callable[[Any], Described]:
        if self._template:
            return lambda value: Described(*framework.outline(value), 0)
        return framework.describe

    def _arrays(self, value: dict[str, Any], name: str) -> Node | None:
        """A dict of nothing but arrays of one type, which are taken all at once; None for any other."""
        kinds = set(map(type, value.values()))
        if len(kinds) != 1 or _tells_more(next(iter(kinds))):
            return None
        framework = framework_of(next(iter(value.values())))
        names = None if framework is None else self._names.give_all(name, value)
        if framework is None or names is None:
            return None
        first, describe = len(self.leaves), self._describe(framework)
        leaves, is_all_ours = self.leaves, self._writes_whole_arrays()
        for each_name, each in zip(names, value.values(), strict=True):
            try:
                described = describe(each)
                if is_all_ours and described.shards is None:
                    leaves.append(Leaf(each_name, each, framework, described))
                else:
                    self._add(each_name, each, framework, described)
            except Unstorable as problem:
                self.problems.append((each_name, str(problem)))
        return {"arrays": list(value), "from": first, "of": framework.name}

    def _list(self, value: Any, name: str) -> Node:
        return [self.node(each, below(name, place)) for place, each in enumerate(value)]

    def _tuple(self, value: Any, name: str) -> Node:
        return {"tuple": self._list(value, name)}

    def _set(self, value: Any, name: str) -> Node:
        if any(framework_of(each) is not None for each in value):
            self.problems.append((name, "arrays in a set have no order to be named and found by: make it a list"))
            return None
        try:
            ordered = _in_order(value)
        except Exception as error:  # noqa: BLE001  elements compare and write themselves as they like
            self.problems.append((name, f"its elements cannot be put in order ({error}): make it a list"))
            return None
        return {type(value).__name__: self._list(ordered, name)}

    def _named(self, value: Any, name: str) -> Node:
        fields = list(value._fields)
        return {
            "named": type(value).__name__,
            "fields": fields,
            "values": [self.node(each, below(name, field)) for field, each in zip(fields, value, strict=True)],
        }

    def _dict(self, value: Any, name: str) -> Node:
        if not _has_texts(value):
            return {"items": self._items(value, name)}
        arrays = self._arrays(value, name)
        return arrays or {"dict": {key: self.node(each, below(name, key)) for key, each in value.items()}}

    def _ordered_dict(self, value: Any, name: str) -> Node:
        arrays = self._arrays(value, name) if _has_texts(value) else None
        return self._special_dict(value, name) if arrays is None else arrays | {"as": "OrderedDict"}

    def _items(self, value: Any, name: str) -> Node:
        made = []
        for key, each in value.items():
            if not _is_key(key):
                self.problems.append((name, f"the key {_told(key)} of type {type(key).__name__} cannot be stored"))
                continue
            made.append([self.node(key, below(name, key)), self.node(each, below(name, key))])
        return made

    def _special_dict(self, value: Any, name: str) -> Node:
        node = {"items": self._items(value, name), "as": type(value).__name__}
        if type(value) is defaultdict:
            maker: Any = value.default_factory
            if maker is not None and maker not in DEFAULTS.values():
                self.problems.append((name, f"a defaultdict that calls {maker!r} cannot be stored: make it a dict"))
                return None
            node["default"] = None if maker is None else maker.__name__
        return node


_CONTAINERS: dict[type, Callable[[_Walk, Any, str], Node]] = {
    dict: _Walk._dict,
    list: _Walk._list,
    tuple: _Walk._tuple,
    OrderedDict: _Walk._ordered_dict,
    Counter: _Walk._special_dict,
    defaultdict: _Walk._special_dict,
    set: _Walk._set,
    frozenset: _Walk._set,
    PerRank: _Walk._marked,
    Replicated: _Walk._marked,
    ReplicatedOver: _Walk._marked,
}
DEFAULTS: dict[str, Callable[[], Any]] = {
    "int": int,
    "float": float,
    "list": list,
    "dict": dict,
    "str": str,
    "set": set,
    "bool": bool,
}


def _in_order(elements: Iterable[Any]) -> list[Any]:
    """Those of different types have none of their own."""
    try:
        return sorted(elements)
    except TypeError:
        return sorted(elements, key=repr)


def _special(value: float) -> str:
    """Not a number has a sign, too."""
    return "-nan" if math.isnan(value) and math.copysign(1, value) < 0 else str(value)


def _tells_more(kind: type) -> bool:
    """Whether it may be a parameter of torch's or a variable of TensorFlow's, which are more than arrays."""
    return kind.__name__ == "Parameter" or hasattr(kind, "assign")


def _written(value: int) -> str:
    """In digits that people read; a very long one in those that Python converts without a limit."""
    return str(value) if value.bit_length() < LONG_BITS else hex(value)


def _is_key(key: Any) -> bool:
    kind = type(key)
    if kind is tuple:
        return all(map(_is_key, key))
    if kind is int:
        return int(key).bit_length() < LONG_BITS  # nothing below a longer one could be named
    return key is None or kind in (float, bool) or (kind is str and _is_text(key))


def _told(key: object) -> str:
    try:
        return repr(key)
    except Exception:  # noqa: BLE001  a number of too many digits, or whatever a class of the user's does
        return "(which cannot be written down)"


def _has_texts(keys: Iterable[Any]) -> bool:
    """Whether all of them are."""
    return set(map(type, keys)) <= {str} and _is_text("".join(keys))


def _is_text(value: str) -> bool:
    """Half of a pair of surrogates is none, and cannot be written down."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _torch_value(value: Any) -> Node | None:
    """The few values of torch's that are no tensors and stand in states."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if kind == "torch.dtype":
        return {"torch.dtype": str(value).removeprefix("torch.")}
    if kind == "torch.device":
        return {"torch.device": str(value)}
    if kind == "torch.Size":
        return {"torch.Size": [int(each) for each in value]}
    return None


def _as_numpy(value: Any) -> "np.ndarray[Any, Any]":
    try:
        found = np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)
    except Exception as error:
        raise Unstorable(f"a {type(value).__name__} did not become an array: {error}") from error
    return np.asarray(found)


def _advice(value: object) -> str:
    if isinstance(value, str):
        own = "it is text of a class of its own, so store str(it)"
        return "it is no text that could be written down" if type(value) is str else own
    if callable(value):
        return "a checkpoint holds no code"
    if isinstance(value, dict):
        return "make it a plain dict"
    if hasattr(value, "strata_state"):
        return "save it as the whole state, or store its strata_state()"
    if hasattr(value, "state_dict"):
        return "store its state_dict()"
    return "a checkpoint holds arrays, numbers, text, dicts, lists and tuples"


# -- putting together ------------------------------------------------------------------------------------------------


class _Build:
    def __init__(self, array: Callable[[int, str], Any], instead: Callable[[int, str], Any] | None) -> None:
        self._array, self._instead = array, instead

    def value(self, node: Node) -> Any:
        if isinstance(node, list):
            return [self.value(each) for each in node]
        if not isinstance(node, dict):
            return node
        kind = next(iter(node))
        if self._instead is not None and kind in ARRAYS:
            found = self._instead(node[kind], kind)
            if found is not NOT_INSTEAD:
                return found
        make = MAKERS.get(kind)
        if make is None:
            raise InvalidInput(f"the checkpoint holds a {kind!r}, which this version of Strata does not know: upgrade")
        return make(self, node)

    def _values(self, nodes: Iterable[Node]) -> list[Any]:
        return [self.value(each) for each in nodes]

    def _dict(self, node: Node) -> Any:
        return {key: self.value(each) for key, each in node["dict"].items()}

    def _arrays(self, node: Node) -> Any:
        keys, first = node["arrays"], node["from"]
        one = self._array if self._instead is None else self._either
        found = dict(zip(keys, map(one, range(first, first + len(keys)), repeat(node["of"])), strict=True))
        return OrderedDict(found) if "as" in node else found

    def _either(self, number: int, package: str) -> Any:
        assert self._instead is not None
        other = self._instead(number, package)
        return self._array(number, package) if other is NOT_INSTEAD else other

    def _items(self, node: Node) -> Any:
        pairs = [(self.value(key), self.value(each)) for key, each in node["items"]]
        kind = node.get("as", "dict")
        if kind == "defaultdict":
            maker = node["default"]
            return defaultdict(None if maker is None else DEFAULTS[maker], pairs)
        if kind == "Counter":
            return Counter(dict(pairs))
        return OrderedDict(pairs) if kind == "OrderedDict" else dict(pairs)

    def _named(self, node: Node) -> Any:
        """A tuple with the same name and fields: its own class would have to be imported, which would run code."""
        name = node["named"] if str(node["named"]).isidentifier() else "Tuple"
        return namedtuple(name, node["fields"], rename=True)(*self._values(node["values"]))

    def _framework(self, node: Node) -> Any:
        name, number = next(iter(node.items()))
        made = self._array(number, name)
        if "parameter" in node:
            import torch

            return torch.nn.Parameter(made, requires_grad=node["parameter"] == "trained")
        if "variable" in node:
            import tensorflow as tf

            return tf.Variable(made, trainable=node["variable"] == "trained")
        return made

    def _scalar(self, node: Node) -> Any:
        return self._array(node["scalar"], "numpy").reshape(())[()]

    def _bytes(self, node: Node) -> Any:
        return self._array(node["bytes"], "numpy").tobytes()

    def _bytearray(self, node: Node) -> Any:
        return bytearray(self._array(node["bytearray"], "numpy").tobytes())

    def _complex(self, node: Node) -> Any:
        return complex(*self._values(node["complex"]))

    def _torch(self, node: Node) -> Any:
        import torch

        kind, told = next(iter(node.items()))
        if kind == "torch.dtype":
            found = getattr(torch, told, None)
            if not isinstance(found, torch.dtype):
                raise InvalidInput(f"this torch has no dtype {told!r}")
            return found
        return torch.device(told) if kind == "torch.device" else torch.Size(told)


VALUES = ("bytes", "bytearray", "scalar")
"""What is stored as an array, and is none: it cannot be filled."""
ARRAYS = ("numpy", "torch", "jax", "tensorflow", *VALUES)
"""What stands for an array, by its number."""


MAKERS: dict[str, Callable[[_Build, Node], Any]] = {
    "rank": lambda build, node: build.value(node["rank"]),
    "dict": _Build._dict,
    "arrays": _Build._arrays,
    "items": _Build._items,
    "tuple": lambda build, node: tuple(build._values(node["tuple"])),
    "named": _Build._named,
    "set": lambda build, node: set(build._values(node["set"])),
    "frozenset": lambda build, node: frozenset(build._values(node["frozenset"])),
    "int": lambda build, node: int(node["int"], 0),
    "float": lambda build, node: float(node["float"]),
    "complex": _Build._complex,
    "bytes": _Build._bytes,
    "bytearray": _Build._bytearray,
    "scalar": _Build._scalar,
    "torch.dtype": _Build._torch,
    "torch.device": _Build._torch,
    "torch.Size": _Build._torch,
    "numpy": _Build._framework,
    "torch": _Build._framework,
    "jax": _Build._framework,
    "tensorflow": _Build._framework,
}
