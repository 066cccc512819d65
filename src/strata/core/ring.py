"""ring-v1: a consistent-hash ring with virtual nodes, for ownership as a function of names alone.

Each node has `virtual_nodes` points on a ring of 2**64, derived from its name; a shard belongs to the node whose
point comes next at or after the shard's key. A leave moves the leaver's shards only, and a join moves only into the
newcomer; nothing depends on history. The price is balance: with 150 points a node the fullest is far over the mean
(see the benchmark), which is why `slots-v1` is the default. Golden vectors in the tests pin the result.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from strata.core import mix
from strata.core.ids import check_int
from strata.core.mix import Keys
from strata.errors import InvalidInput

ALGORITHM = "ring-v1"

VIRTUAL_NODES = 150
"""Of a dataset with ring-v1, for ever: another number would move its shards."""
MAX_VIRTUAL_NODES = 65_536

Nodes = NDArray[np.int64]


class Ring:
    """The points of some nodes on the ring. Immutable; nodes are numbered in the order of their sorted names."""

    __slots__ = ("_nodes", "_points", "names", "virtual_nodes")

    def __init__(self, names: Iterable[str], virtual_nodes: int = VIRTUAL_NODES) -> None:
        self.virtual_nodes = check_virtual_nodes(virtual_nodes)
        self.names = _sorted_names(names)
        points = _points(self.names, self.virtual_nodes)
        # Stable, so that of two nodes with the same point the one whose name sorts first comes first.
        order = np.argsort(points, kind="stable")
        self._points: Keys = points[order]
        self._nodes: Nodes = order // self.virtual_nodes

    def owners(self, shard_count: int, seed: int) -> Nodes:
        """The owning node of every shard, as an index into `names`; -1 where there is no node."""
        check_int(shard_count, "shard_count")
        mix.check_seed(seed)
        if not self.names:
            return np.full(shard_count, -1, dtype=np.int64)
        keys = mix.keys(seed, shard_count)
        # Looked up in ascending order, neighbours share what they read. The keys are distinct, so any sort will do.
        order = np.argsort(keys)
        found = np.searchsorted(self._points, keys[order])
        found[found == len(self._points)] = 0
        owners = np.empty(shard_count, dtype=np.int64)
        owners[order] = self._nodes[found]
        return owners

    def join(self, name: str) -> "Ring":
        """The ring with one node more."""
        if name in self.names:
            raise InvalidInput(f"node {name!r} cannot join: it is on the ring already")
        names = _sorted_names([*self.names, name])
        points = np.sort(_points((name,), self.virtual_nodes))
        places = np.searchsorted(self._points, points)
        if _collide(self._points, places, points):
            return Ring(names, self.virtual_nodes)
        index = names.index(name)
        nodes = self._nodes + (self._nodes >= index)
        return self._with(names, np.insert(self._points, places, points), np.insert(nodes, places, index))

    def leave(self, name: str) -> "Ring":
        """The ring with one node less."""
        if name not in self.names:
            raise InvalidInput(f"node {name!r} cannot leave: it is not on the ring")
        index = self.names.index(name)
        kept = self._nodes != index
        nodes = self._nodes[kept]
        return self._with(self.names[:index] + self.names[index + 1 :], self._points[kept], nodes - (nodes > index))

    def _with(self, names: tuple[str, ...], points: Keys, nodes: Nodes) -> "Ring":
        ring = Ring.__new__(Ring)
        ring.virtual_nodes, ring.names, ring._points, ring._nodes = self.virtual_nodes, names, points, nodes
        return ring


def check_virtual_nodes(value: object) -> int:
    """The number itself, or InvalidInput."""
    return check_int(value, "virtual_nodes", least=1, most=MAX_VIRTUAL_NODES)


def _points(names: Sequence[str], virtual_nodes: int) -> Keys:
    """The points of each node, one node after the other."""
    keys = np.array([mix.name_key(name) for name in names], dtype=np.uint64)
    return mix.subkeys(keys[:, None], np.arange(virtual_nodes, dtype=np.int64)).ravel()


def _sorted_names(names: Iterable[str]) -> tuple[str, ...]:
    found = sorted(_check_name(name) for name in names)
    for left, right in pairwise(found):
        if left == right:
            raise InvalidInput(f"node {left!r} is named twice")
    return tuple(found)


def _check_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"a node on the ring is named by a non-empty string, not {name!r}")
    return name


def _collide(points: Keys, places: Nodes, newcomers: Keys) -> bool:
    """Whether a newcomer's point is taken: then names decide the order, and the ring is better sorted afresh."""
    inside = places < len(points)
    return bool((points[places[inside]] == newcomers[inside]).any())
