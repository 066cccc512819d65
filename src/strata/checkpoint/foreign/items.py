"""What another format holds: tensors whose bytes are read when it is their turn, and plain values, each at its path.

They are put into a tree as a state has it: dicts by name, lists by position.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from strata.checkpoint.assembling import Outline
from strata.checkpoint.drafting import Content
from strata.checkpoint.matching import Keys, chooser
from strata.checkpoint.names import ROOT, Names, below, key_of
from strata.checkpoint.saving import TREE
from strata.checkpoint.tree import Node, flatten
from strata.checkpoint.wellformed import Nonsense, check_skeleton
from strata.errors import InvalidInput, Unstorable

Path: TypeAlias = tuple[str | int, ...]


class Streamed(NamedTuple):
    """A tensor, by its number in the source."""

    number: int
    dtype: str
    shape: tuple[int, ...]
    size: int


class Item(NamedTuple):
    """What stands at a path: Streamed, or a plain value."""

    path: Path
    what: Any


def path_of(name: str) -> Path:
    """Of a name with slashes, as those of checkpoints are; one that cannot be taken apart is a path of one step."""
    parts = name.split("/")
    return tuple(map(key_of, parts)) if all(parts) else (name,)


def chosen(
    items: Sequence[Item], beside: Sequence[Item], keys: Keys | None, under: Path = ()
) -> tuple[list[Item], list[Item]]:
    """Those whose names match: of items that will stand under these keys, and of others beside them."""
    if keys is None:
        return list(items), list(beside)
    mine = [name_of((*under, *item.path)) for item in items]
    wants = chooser([*mine, *(name_of(item.path) for item in beside)], keys)
    return (
        [item for item, name in zip(items, mine, strict=True) if wants(name)],
        [item for item in beside if wants(name_of(item.path))],
    )


def name_of(path: Path) -> str:
    name = ""
    for step in path:
        name = below(name, step)
    return name


def grown(
    items: Iterable[Item], package: str, under: Path = (), beside: Iterable[Item] = ()
) -> tuple[Content, list[int]]:
    """The state they make under these keys, and of each of its tensors which of the source's it is."""
    given = list(items)
    try:
        tree = planted(given)
    except InTheWay:  # a tensor `a` beside a tensor `a/b`: then names are just names
        tree = planted([Item(("/".join(map(str, item.path)),), item.what) for item in given])
    for key in reversed(under):
        tree = {key: tree}
    for item in beside:
        if item.path[0] in tree:
            raise InvalidInput(f"there is a tensor {item.path[0]!r} already: put the tensors under another key")
        tree[item.path[0]] = _Value(item.what)
    growth = _Growth(package)
    skeleton = growth.node(with_lists(tree), "")
    try:
        check_skeleton(skeleton, len(growth.outlines))
    except Nonsense as error:
        raise InvalidInput(f"it cannot be a state: {error}. Leave that out by choosing keys") from error
    leaves: list[Any] = list(range(len(growth.outlines)))
    return Content(0, TREE, skeleton, leaves, growth.outlines), growth.numbers


class InTheWay(Exception):
    """A path leads through what is no dict."""


def planted(items: Iterable[Item], leaf: Callable[[Any], Any] | None = None) -> dict[Any, Any]:
    """Dicts by key and by position, in which each stands at its path; as `leaf` makes it, which is never a dict."""
    root: dict[Any, Any] = {}
    for path, what in items:
        place = root
        for step in path[:-1]:
            place = place.setdefault(step, {})
            if type(place) is not dict:
                raise InTheWay
        if path[-1] in place:
            if type(place[path[-1]]) is dict:
                raise InTheWay
            raise InvalidInput(f"{name_of(path)!r} is there twice")
        place[path[-1]] = (leaf or _Value)(what)
    return root


class _Value(NamedTuple):
    """Set apart from the dicts of the tree: a plain value may be one, too."""

    what: Any


def with_lists(tree: Any) -> Any:
    """What has the positions of a list is one."""
    if type(tree) is not dict:
        return tree
    made = {key: with_lists(each) for key, each in tree.items()}
    if made and all(type(key) is int for key in made) and sorted(made) == list(range(len(made))):
        return [made[place] for place in range(len(made))]
    named = {str(key): each for key, each in made.items()}
    if len(named) != len(made):
        raise InvalidInput("a key and a position have the same name: leave one of them out")
    return named


class _Growth:
    """Makes the skeleton, and numbers the tensors in its order."""

    def __init__(self, package: str) -> None:
        self._package, self._names = package, Names()
        self.outlines: list[Outline] = []
        self.numbers: list[int] = []

    def node(self, tree: Any, name: str) -> Node:
        if type(tree) is dict:
            return {"dict": {key: self.node(each, below(name, key)) for key, each in tree.items()}}
        if type(tree) is list:
            return [self.node(each, below(name, place)) for place, each in enumerate(tree)]
        what = tree.what
        if isinstance(what, Streamed):
            self.outlines.append(Outline(self._names.give(name or ROOT), what.dtype, what.shape, what.size))
            self.numbers.append(what.number)
            return {self._package: len(self.outlines) - 1}
        try:
            flat = flatten(what)
        except Unstorable as error:
            raise Unstorable(f"{name}: {error}") from error
        if flat.leaves:
            raise Unstorable(f"{name}: it holds arrays where only plain values are expected. Leave it out")
        return flat.skeleton
