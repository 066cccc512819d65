"""What a checkpoint holds, under the names by which torch.distributed.checkpoint asks for it.

Those are the keys on the way to it, joined by dots. The law is torch's own: dicts are taken apart, and lists that hold
tensors or dicts; whatever else there is, tuples with all that is in them too, is one value.
"""

import io
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from strata.checkpoint.foreign.items import Path
from strata.checkpoint.frameworks.torch import torch_dtype
from strata.checkpoint.leaves import Leaf, leaves_of
from strata.checkpoint.skeleton import entries, kind_of, mapped, plain_key
from strata.checkpoint.tree import Node, unflatten
from strata.checkpoint.whole import Whole
from strata.errors import InvalidInput, Unstorable

TENSORS = ("torch", "jax", "tensorflow")
"""Whose arrays are tensors of torch's here. Those of numpy are values, as torch has them."""
_DICTS = ("dict", "arrays", "items")


class Entry(NamedTuple):
    """What has a name: a tensor, if it is one, or a value."""

    path: Path
    node: Node
    tensor: Leaf | None


class Catalogue:
    """The contents of one checkpoint."""

    def __init__(self, whole: Whole, where: str) -> None:
        self.leaves = leaves_of(whole)
        if kind_of(whole.skeleton) not in _DICTS:
            raise InvalidInput(f"{where} is a state that is no dict: torch.distributed.checkpoint loads into dicts")
        self.entries: dict[str, Entry] = {}
        for entry in self._found(whole.skeleton, ()):
            name = ".".join(map(str, entry.path))
            if name in self.entries:
                raise InvalidInput(
                    f"{where} has two entries that are both called {name!r} when keys are joined by dots: load it with "
                    "CheckpointManager"
                )
            self.entries[name] = entry

    def metadata(self) -> Metadata:
        """All of it, each tensor in one piece: which bytes a slice of it takes is not torch's to know."""
        return Metadata(
            {name: self._stored(entry) for name, entry in self.entries.items()},
            planner_data={name: entry.path for name, entry in self.entries.items()},
        )

    def _stored(self, entry: Entry) -> TensorStorageMetadata | BytesStorageMetadata:
        leaf = entry.tensor
        if leaf is None:
            return BytesStorageMetadata()
        size = torch.Size(leaf.shape)
        whole = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
        return TensorStorageMetadata(TensorProperties(dtype=torch_dtype(leaf.dtype)), size, [whole])

    def _found(self, node: Node, path: Path) -> Iterator[Entry]:
        kind = kind_of(node)
        if kind == "rank":
            yield from self._found(node["rank"], path)
        elif kind in _DICTS:
            for key, each in entries(node):
                yield from self._found(each, (*path, str(plain_key(key))))
        elif isinstance(node, list) and _is_taken_apart(node):
            for place, each in enumerate(node):
                yield from self._found(each, (*path, place))
        else:
            leaf = self.leaves[node[kind]] if kind in TENSORS else None
            yield Entry(path, node, leaf if leaf is not None and _has_dtype(leaf.dtype) else None)


def _is_taken_apart(node: Node) -> bool:
    """See `stating`, which must agree."""
    if isinstance(node, list):
        return any(kind_of(each) in TENSORS or _is_taken_apart(each) for each in node)
    kind = kind_of(node)
    return kind in _DICTS or (kind == "rank" and _is_taken_apart(node["rank"]))


def _has_dtype(name: str) -> bool:
    try:
        torch_dtype(name)
    except Unstorable:
        return False
    return True


def pickled(node: Node, arrays: dict[int, Any]) -> io.BytesIO:
    """A value as load planners take it: made here of plain parts, so that nothing that was stored is ever unpickled."""
    stream = io.BytesIO()
    torch.save(unflatten(mapped(node, _bare), lambda number, package: arrays[number]), stream)
    stream.seek(0)
    return stream


def _bare(node: Node) -> Node:
    """Named tuples are plain ones here: torch would pickle them by a class that nobody else has. Parameters and
    variables are the tensors that they hold."""
    kind = kind_of(node)
    if kind in TENSORS:
        return {kind: node[kind]}
    if kind == "named":
        return {"tuple": node["values"]}
    return node["rank"] if kind == "rank" else node
