"""From the items of a save plan to a part of a checkpoint, and from what all ranks say to the whole tree.

The planner decides which rank writes what. A rank's part has its own items alone; where positions of a list are missing
it has them by number. The coordinating rank hears of every item, and its part says where each of them stands: so what
is loaded has the dicts and lists of the state that was given to `dcp.save`.
"""

import io
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec
import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType

from strata.checkpoint.foreign.items import InTheWay, Item, Path, name_of, planted, with_lists
from strata.checkpoint.foreign.unpickling import unpickled
from strata.checkpoint.frameworks import Described, know
from strata.checkpoint.frameworks.base import Piece, Shards
from strata.checkpoint.frameworks.torch import TorchArrays
from strata.checkpoint.manifest import Leaf, Part, Spread
from strata.checkpoint.preparing import Prepared
from strata.checkpoint.skeleton import array_kinds, dict_of, entries, kind_of, mapped, nodes
from strata.checkpoint.soundness import size_of
from strata.checkpoint.tree import ARRAYS, Node
from strata.errors import InvalidInput, Unstorable

PICKLES = ("resolve_data", "lookup_object", "transform_object")
"""By these a planner gives a value: pickled, unless it has another way."""


class Pieces:
    """A tensor that ranks hold together: those of its pieces that this one writes."""

    def __init__(self, dtype: str, shape: tuple[int, ...], pieces: list[Piece]) -> None:
        self.dtype, self.shape, self.pieces = dtype, shape, pieces


class PiecesOfTensors(TorchArrays):
    """As what checkpoints know them."""

    def describe(self, value: Any) -> Described:
        if not isinstance(value, Pieces):
            return super().describe(value)
        size = size_of(Spread("", value.dtype, value.shape))
        return Described(value.dtype, value.shape, size, shards=Shards(value.pieces))


_torch = PiecesOfTensors()
know(Pieces, _torch)


class Array(NamedTuple):
    """One that a part has some of: its name, and what the whole of it is."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Stated(NamedTuple):
    """An item of the state: where it stands, and as what. Its arrays are numbered from 0 on."""

    path: Path
    node: Node
    arrays: tuple[Array, ...]


# -- of one rank -----------------------------------------------------------------------------------------------------


def state_of(plan: SavePlan, planner: SavePlanner) -> dict[Any, Any]:
    """The items of a plan, as a state: dicts by key and by position."""
    paths = plan.planner_data if isinstance(plan.planner_data, Mapping) else {}
    found: dict[Path, Any] = {}
    for item in plan.items:
        path = _path(item.index.fqn, paths)
        if item.type == WriteItemType.BYTE_IO:
            found[path] = _value(item, planner, name_of(path))
        else:
            _add(found, path, item, planner.resolve_data(item))
    return _planted(found.items())


def stated(state: dict[Any, Any], prepared: Prepared) -> dict[Path, Stated]:
    """Each item of such a state as it will be stored."""
    found = {}
    for path, node in _ends(state, prepared.skeleton, ()):
        if any(kind_of(each) == "rank" for each in nodes(node)):
            raise Unstorable(f"{name_of(path)}: PerRank is for CheckpointManager. Here one rank writes each value")
        numbers = sorted(array_kinds(node))
        taken = [prepared.taken[number] for number in numbers]
        arrays = tuple(Array(leaf.name, leaf.described.dtype, leaf.described.shape) for leaf in taken)
        found[path] = Stated(path, _shifted(node, -numbers[0]) if numbers else node, arrays)
    return found


def path_of(item: WriteItem, plan: SavePlan) -> Path:
    return _path(item.index.fqn, plan.planner_data if isinstance(plan.planner_data, Mapping) else {})


def _path(fqn: str, paths: Mapping[Any, Any]) -> Path:
    """As the planner took it apart. Planners that do not, or that keep something else there, have names alone."""
    path = paths.get(fqn)
    is_one = isinstance(path, tuple) and bool(path) and all(type(step) in (str, int) for step in path)
    return path if is_one and path is not None else (fqn,)


def _add(found: dict[Path, Any], path: Path, item: WriteItem, tensor: Any) -> None:
    assert item.tensor_data is not None
    if not isinstance(tensor, torch.Tensor):
        raise InvalidInput(f"{name_of(path)}: the planner gave a {type(tensor).__name__} where it planned a tensor")
    tensor, shape = tensor.detach(), tuple(item.tensor_data.size)
    chunk = item.tensor_data.chunk
    if tuple(tensor.shape) != tuple(chunk.sizes):
        raise InvalidInput(f"{name_of(path)}: the planner gave {list(tensor.shape)}, and planned {list(chunk.sizes)}")
    if tuple(tensor.shape) == shape and path not in found:
        found[path] = tensor
        return
    known = found.get(path)
    if known is None:
        known = found[path] = Pieces(_torch.outline(tensor)[0], shape, [])
    if not isinstance(known, Pieces):
        raise InvalidInput(f"{name_of(path)!r} is there twice")
    known.pieces.append(Piece(tuple(chunk.offsets), tensor))


def _value(item: WriteItem, planner: SavePlanner, name: str) -> Any:
    """What is no tensor. Nothing that was pickled is stored as that, since loading it would run code."""
    if isinstance(planner, DefaultSavePlanner) and all(_is_usual(planner, each) for each in PICKLES):
        value = planner.lookup_object(item.index)
    else:
        data = planner.resolve_data(item)
        if not isinstance(data, io.BytesIO):
            raise InvalidInput(f"{name}: the planner gave a {type(data).__name__} where it planned bytes")
        data.seek(0)
        value = unpickled(partial(torch.load, data), repr(name), "Give the planner plain values")
    if _is_taken_apart(value):
        raise Unstorable(
            f"{name}: a {type(value).__name__} with tensors or dicts in it is stored item by item: let the planner "
            "flatten the state, as DefaultSavePlanner does"
        )
    return value


def _is_usual(planner: DefaultSavePlanner, method: str) -> bool:
    return getattr(type(planner), method) is getattr(DefaultSavePlanner, method)


def _is_taken_apart(value: object) -> bool:
    """Whether a planner that flattens makes several items of it; see `catalogue`, which must agree."""
    if isinstance(value, Mapping):
        return True
    return isinstance(value, list) and any(isinstance(each, torch.Tensor) or _is_taken_apart(each) for each in value)


def _planted(items: Iterable[tuple[Path, Any]]) -> dict[Any, Any]:
    try:
        return planted((Item(*each) for each in items), lambda what: what)
    except InTheWay:
        raise InvalidInput(
            "one item of the state has the name of a dict with others in it: rename one of them"
        ) from None


def _ends(state: Any, node: Node, path: Path) -> Iterator[tuple[Path, Node]]:
    """What stands at the ends of the state, which has no dicts but its own."""
    if type(state) is not dict:
        yield path, node
        return
    for (key, inner), (_, each) in zip(state.items(), entries(node), strict=True):
        yield from _ends(inner, each, (*path, key))


# -- of all ranks ----------------------------------------------------------------------------------------------------


def completed(own: Part, said: Iterable[Stated], order: Mapping[Path, int]) -> Part:
    """The part that says where everything stands: items in this order, where it is known, then as they are said."""
    items: dict[Path, Stated] = {}
    for each in said:
        known = items.setdefault(each.path, each)
        if known.arrays != each.arrays:
            raise InvalidInput(f"{name_of(each.path)!r} is of another type or shape on some ranks than on others")
    ordered = sorted(items.items(), key=lambda each: order.get(each[0], len(order)))
    growth = _Growth({_name(own, leaf): leaf for leaf in own.leaves})
    skeleton = growth.node(with_lists(_planted(ordered)))
    return msgspec.structs.replace(own, skeleton=skeleton, leaves=growth.leaves)


def _name(part: Part, leaf: Leaf) -> str:
    return part.tensors[leaf].name if isinstance(leaf, int) else leaf.name


class _Growth:
    """Makes the skeleton, and numbers the arrays in its order: those of this rank's part, and those of others."""

    def __init__(self, own: Mapping[str, Leaf]) -> None:
        self._own = own
        self.leaves: list[Leaf] = []

    def node(self, tree: Any) -> Node:
        if type(tree) is dict:
            return dict_of([(key, self.node(each)) for key, each in tree.items()], {})
        if type(tree) is list:
            return [self.node(each) for each in tree]
        first = len(self.leaves)
        self.leaves += [self._own.get(each.name, Spread(*each)) for each in tree.arrays]
        return _shifted(tree.node, first)


def _shifted(node: Node, by: int) -> Node:
    """The same with other numbers for its arrays."""

    def shift(each: Node) -> Node:
        kind = kind_of(each)
        if kind == "arrays":
            return {**each, "from": each["from"] + by}
        return {**each, kind: each[kind] + by} if kind in ARRAYS else each

    return mapped(node, shift)
