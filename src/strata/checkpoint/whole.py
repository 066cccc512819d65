"""A checkpoint's state as one rank sees it, put together from the parts of all ranks. Pure.

Arrays go by their names. One that a part has whole is that part's, the lowest rank's if several have it; of one that
lies in pieces every part has some, and together they are all of it, each element once, or the checkpoint is damaged. A
piece that several parts have is the same in all of them: if not, they are of two arrays that are called alike.
Where all pieces are whole rows they are one tensor again, chunk after chunk; else they stay boxes of it. Values are
those of the lowest rank that has them: ranks of a pipeline have different keys. What is marked as each rank's own comes
from the part of this rank, and is left out where it has none.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from strata.checkpoint.boxes import Box, cover, is_stretch, offset
from strata.checkpoint.manifest import BYTES, TREE, Chunk, File, Leaf, Part, Spread, Tensor, Tied
from strata.checkpoint.names import below
from strata.checkpoint.skeleton import array_kinds, dict_of, entries, kind_of, nodes, own_places, plain_key
from strata.checkpoint.tree import ARRAYS, Node
from strata.errors import CheckpointDamaged
from strata.texts import some_of

OwnLeaf: TypeAlias = int | Tied
_NONE: Any = object()
_DICTS = ("dict", "arrays", "items")
KINDS_SHOWN = 4


class Whole(msgspec.Struct, frozen=True):
    """All that can be loaded. As a part is: `leaves` says of each array in the skeleton which tensor it is."""

    kind: str
    skeleton: Any
    leaves: list[OwnLeaf]
    tensors: list[Tensor]
    files: list[File]
    boxes: dict[int, list[Tensor]] = {}
    """The pieces of those tensors that are not read from front to back."""
    spread: frozenset[int] = frozenset()
    """Those tensors that ranks held together: each had some of it, or could have written some."""
    others: list[str] = []
    """Where other ranks have something of their own, and this one has nothing: the names of these places."""


def own_names(part: Part) -> list[str]:
    """The places where this rank has something of its own."""
    return ["the bytes"] if part.kind == BYTES else list(own_places(part.skeleton))


def number_of_tensors(parts: Iterable[Part]) -> int:
    """By their names: one of which several ranks store pieces, or each its own, is one."""
    return len({tensor.name for part in parts for tensor in part.tensors})


def pieces_of(whole: Whole, tensor: int) -> list[Tensor]:
    """What a tensor lies in: itself, unless that is boxes."""
    return whole.boxes.get(tensor) or [whole.tensors[tensor]]


def whole_of(parts: Sequence[Part], rank: int, where: str) -> Whole:
    """All parts of a checkpoint, in the order of their ranks. CheckpointDamaged if they are not all of it."""
    if not parts:
        raise CheckpointDamaged(f"{where} has no parts")
    first = parts[0]
    if len(parts) == 1 and rank == first.rank:
        leaves = [leaf for leaf in first.leaves if not isinstance(leaf, Spread)]
        if len(leaves) == len(first.leaves):
            return Whole(first.kind, first.skeleton, leaves, first.tensors, first.files)
    if len({part.kind for part in parts}) > 1:
        kinds = {BYTES: "bytes", TREE: "a tree"}
        raise CheckpointDamaged(
            f"{where}: it is {_by_ranks((part.rank, kinds.get(part.kind, part.kind)) for part in parts)}"
        )
    if first.kind == BYTES:
        own = next((part for part in parts if part.rank == rank), first)
        return Whole(BYTES, None, [0], own.tensors, own.files)
    return _Join(parts, rank, where).whole()


class _Join:
    def __init__(self, parts: Sequence[Part], rank: int, where: str) -> None:
        self._parts, self._where = parts, where
        self._own = next((place for place, part in enumerate(parts) if part.rank == rank), None)
        self._files: list[File] = []
        self._tensors: list[Tensor] = []
        self._firsts: list[int] = []
        """Of each part, the number of its first tensor."""
        for part in parts:
            self._firsts.append(len(self._tensors))
            self._tensors += [_moved(tensor, len(self._files)) for tensor in part.tensors]
            self._files += part.files
        self._named: dict[str, list[tuple[int, Leaf]]] = {}
        self._leaves: list[OwnLeaf] = []
        self._numbers: dict[Any, int] = {}
        self._joined: dict[tuple[str, tuple[int, ...], tuple[int, ...]], int] = {}
        self._boxes: dict[int, list[Tensor]] = {}
        self._others: list[str] = []

    def whole(self) -> Whole:
        for place, part in enumerate(self._parts):
            for leaf in part.leaves:
                self._named.setdefault(_name(part, leaf), []).append((place, leaf))
        skeleton = self._join([(place, part.skeleton) for place, part in enumerate(self._parts)], "")
        if skeleton is _NONE:
            skeleton = None
        self._check_all_are_placed()
        spread = frozenset(self._joined.values())
        return Whole(TREE, skeleton, self._leaves, self._tensors, self._files, self._boxes, spread, self._others)

    def _check_all_are_placed(self) -> None:
        """Ranks may have different keys, but where one has an array, another must not have something else."""
        for part in self._parts:
            own = own_numbers(part.skeleton)
            for number, leaf in enumerate(part.leaves):
                name = _name(part, leaf)
                if number not in own and name not in self._numbers:
                    raise CheckpointDamaged(
                        f"{self._where}: {name!r} of rank {part.rank} has no place beside what ranks before it have "
                        "there: put it into a dict under a key of its own, or mark it PerRank"
                    )

    # -- the tree ----------------------------------------------------------------------------------------------------

    def _join(self, nodes: list[tuple[int, Node]], name: str) -> Node:
        """What stands in one place of several parts; _NONE for what is another rank's own."""
        place, node = nodes[0]
        kind = kind_of(node)
        if kind == "rank":
            own = next((each for each in nodes if each[0] == self._own and kind_of(each[1]) == "rank"), None)
            if own is None:
                self._others.append(name)
                return _NONE
            return {"rank": self._taken(own[0], own[1]["rank"], name, is_own=True)}
        if len(nodes) > 1 and kind in _DICTS:
            return self._join_dicts([each for each in nodes if kind_of(each[1]) in _DICTS], name)
        if len(nodes) > 1 and kind in ("tuple", "named"):
            return self._join_tuples(nodes, kind, name)
        if len(nodes) > 1 and isinstance(node, list):
            return self._join_lists([each for each in nodes if isinstance(each[1], list)], range(len(node)), name)
        return self._taken(place, node, name)

    def _join_tuples(self, nodes: list[tuple[int, Node]], kind: str, name: str) -> Node:
        first = nodes[0][1]
        held = "values" if kind == "named" else "tuple"
        keys = first["fields"] if kind == "named" else range(len(first["tuple"]))
        same = [(place, node) for place, node in nodes if kind_of(node) == kind]
        same = [(place, node) for place, node in same if node.get("fields") == first.get("fields")]
        return {**first, held: self._join_lists([(place, node[held]) for place, node in same], keys, name)}

    def _join_lists(self, lists: list[tuple[int, list[Node]]], keys: Iterable[object], name: str) -> list[Node]:
        """Those that are as long as the first. Nothing can be left out of them."""
        length = len(lists[0][1])
        alike = [(place, held) for place, held in lists if len(held) == length]
        found = [
            self._join([(place, held[number]) for place, held in alike], below(name, key))
            for number, key in enumerate(keys)
        ]
        return [None if each is _NONE else each for each in found]

    def _join_dicts(self, nodes: list[tuple[int, Node]], name: str) -> Node:
        """All keys that any of them has."""
        by_key: dict[Any, tuple[Node, list[tuple[int, Node]]]] = {}
        for place, node in nodes:
            for key, each in entries(node):
                by_key.setdefault(_hashable(key), (key, []))[1].append((place, each))
        pairs = [(key, self._join(each, below(name, plain_key(key)))) for key, each in by_key.values()]
        first = nodes[0][1]
        return _dict_of(pairs, {name: first[name] for name in ("as", "default") if name in first})

    def _taken(self, place: int, node: Node, name: str, *, is_own: bool = False) -> Node:
        """A part's node, with the numbers that its arrays have here."""
        if isinstance(node, list):
            return self._inner(place, node, range(len(node)), name, is_own)
        kind = kind_of(node)
        if not kind:
            return node
        if kind in ARRAYS:
            return {**node, kind: self._number(place, node[kind], is_own)}
        if kind in _DICTS:
            pairs = [
                (key, self._taken(place, each, below(name, plain_key(key)), is_own=is_own))
                for key, each in entries(node)
            ]
            return _dict_of(pairs, {name: node[name] for name in ("as", "default") if name in node})
        if kind == "rank":
            return self._join([(place, node)], name) if not is_own else _NONE
        if kind == "named":
            return {**node, "values": self._inner(place, node["values"], node["fields"], name, is_own)}
        if isinstance(node[kind], list) and kind in ("tuple", "set", "frozenset"):
            return {kind: self._inner(place, node[kind], range(len(node[kind])), name, is_own)}
        return node

    def _inner(self, place: int, nodes: Sequence[Node], keys: Iterable[object], name: str, is_own: bool) -> list[Node]:
        """In a list, where nothing can be left out."""
        found = [
            self._taken(place, each, below(name, key), is_own=is_own) for key, each in zip(keys, nodes, strict=True)
        ]
        return [None if each is _NONE else each for each in found]

    # -- arrays ------------------------------------------------------------------------------------------------------

    def _number(self, place: int, number: int, is_own: bool) -> int:
        """The number here of an array of a part."""
        leaf = self._parts[place].leaves[number]
        name = _name(self._parts[place], leaf)
        key = (place, number) if is_own else name
        known = self._numbers.get(key)
        if known is None:
            found = [(place, leaf)] if is_own else self._named[name]
            known = self._numbers[key] = len(self._leaves)
            self._leaves.append(self._found(name, found))
        return known

    def _found(self, name: str, there: Sequence[tuple[int, Leaf]]) -> OwnLeaf:
        for place, leaf in there:
            if isinstance(leaf, Tied):
                return msgspec.structs.replace(leaf, tensor=self._firsts[place] + leaf.tensor)
            if not isinstance(leaf, Spread):
                number = self._firsts[place] + leaf
                return number if self._tensors[number].name == name else Tied(name, number)
        spread = [(place, leaf) for place, leaf in there if isinstance(leaf, Spread)]
        pieces = tuple(sorted([self._firsts[place] + number for place, leaf in spread for number in leaf.tensors]))
        outline = spread[0][1].dtype, spread[0][1].shape, pieces
        joined = self._joined.get(outline) if pieces else None
        if joined is None:
            joined = self._joined[outline] = self._assemble(name, spread, pieces)
        return joined if self._tensors[joined].name == name else Tied(name, joined)

    def _assemble(self, name: str, spread: Sequence[tuple[int, Spread]], pieces: Sequence[int]) -> int:
        """The number of the tensor that these are together."""
        dtype, shape = spread[0][1].dtype, spread[0][1].shape
        if any((leaf.dtype, leaf.shape) != (dtype, shape) for _, leaf in spread):
            each = [(self._parts[place].rank, f"{leaf.dtype}{list(leaf.shape)}") for place, leaf in spread]
            raise CheckpointDamaged(f"{self._where}: {name!r} is {_by_ranks(each)}")
        stored: dict[Box, list[int]] = {}
        for number in pieces:
            tensor = self._tensors[number]
            box = Box(tensor.at if tensor.at is not None else (0,) * len(shape), tensor.shape)
            stored.setdefault(box, []).append(number)
        own = [self._tensors[numbers[0]] for numbers in stored.values()]  # the lowest rank's
        boxes = list(stored)
        if any(tensor.dtype != dtype for tensor in own) or not cover(shape, boxes):
            raise CheckpointDamaged(f"{self._where}: the pieces of {name!r} are not all of it, each element once")
        self._check_same(name, stored.values())
        number = len(self._tensors)
        if all(is_stretch(box, shape) for box in boxes):
            order = sorted(range(len(own)), key=lambda each: offset(boxes[each], shape))
            chunks = [chunk for each in order for chunk in own[each].chunks]
            self._tensors.append(Tensor(name, dtype, shape, chunks))
        else:
            self._tensors.append(Tensor(name, dtype, shape, []))
            self._boxes[number] = own
        return number

    def _check_same(self, name: str, stored: Iterable[Sequence[int]]) -> None:
        """All pieces from one place of an array."""
        for first, *others in stored:
            for other in others:
                if _digests(self._tensors[other]) != _digests(self._tensors[first]):
                    raise CheckpointDamaged(
                        f"{self._where}: {name!r} of rank {self._rank_of(other)} has other values than that of rank "
                        f"{self._rank_of(first)}, in the same place: if those are two arrays, as of two stages of a "
                        "pipeline, give each a name of its own"
                    )

    def _rank_of(self, tensor: int) -> int:
        return self._parts[bisect_right(self._firsts, tensor) - 1].rank


def _by_ranks(told: Iterable[tuple[int, str]]) -> str:
    """What is something else on some ranks than on others, for people."""
    found: dict[str, list[int]] = {}
    for rank, what in told:
        found.setdefault(what, []).append(rank)
    some = []
    for what, ranks in list(found.items())[:KINDS_SHOWN]:
        some.append(f"{what} on rank{'s' * (len(ranks) > 1)} {some_of(ranks)}")
    return " and ".join(some) + (" and others elsewhere" if len(found) > KINDS_SHOWN else "")


def own_numbers(skeleton: Node) -> set[int]:
    """Arrays that are marked as the rank's own."""
    marked = [node["rank"] for node in nodes(skeleton) if kind_of(node) == "rank"]
    return {number for each in marked for number in array_kinds(each)}


def _moved(tensor: Tensor, by: int) -> Tensor:
    """Its files are not the first any more."""
    if not by:
        return tensor
    chunks = [Chunk(chunk.file + by, chunk.at, chunk.size, chunk.digest) for chunk in tensor.chunks]
    return msgspec.structs.replace(tensor, chunks=chunks)


def _digests(tensor: Tensor) -> list[str]:
    """The same for the same values, in whichever files they lie: chunks are cut alike everywhere."""
    return [chunk.digest for chunk in tensor.chunks]


def _name(part: Part, leaf: Leaf) -> str:
    return part.tensors[leaf].name if isinstance(leaf, int) else leaf.name


def _dict_of(pairs: Sequence[tuple[Node, Node]], more: dict[str, Any]) -> Node:
    return dict_of([(key, each) for key, each in pairs if each is not _NONE], more)


def _hashable(key: Node) -> object:
    """Which tells 0 from False and from "0", and what JSON has no number for from the text that is written for it."""
    kind = kind_of(key)
    if kind == "tuple":
        return kind, tuple(map(_hashable, key["tuple"]))
    return kind or type(key), plain_key(key)
