"""How two checkpoints differ, by the digests in their manifests: no tensor is read.

Tensors are compared chunk by chunk under their names, plain values and what holds them under theirs; so two checkpoints
of any jobs, in any storages, can be compared. What ranks have of their own is left out, but for the first rank's.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import msgspec

from strata.checkpoint.leaves import Leaf, leaves_of
from strata.checkpoint.manifest import Chunk, Metadata, Part
from strata.checkpoint.saving import TREE
from strata.checkpoint.store import Folder, Store
from strata.checkpoint.structure import VALUE, places
from strata.checkpoint.whole import Whole, pieces_of, whole_of

ADDED, REMOVED, CHANGED, SAME = "added", "removed", "changed", "same"

T = TypeVar("T")


class Contents(NamedTuple):
    """What the manifests of a checkpoint say."""

    folder: Folder
    metadata: Metadata
    parts: list[Part]

    @property
    def whole(self) -> Whole:
        """The state, as the first rank sees it."""
        return whole_of(self.parts, self.parts[0].rank, self.folder.name)


@dataclass(frozen=True, slots=True)
class TensorChange:
    """One array. `before` and `after` are its type and shape, as `float32[2, 3]`; None where it is not."""

    name: str
    what: str
    before: str | None
    after: str | None
    bytes: int
    changed_bytes: int
    is_tied: bool = False
    """Under this name it is stored a second time only in words: its bytes are counted elsewhere."""


@dataclass(frozen=True, slots=True)
class ValueChange:
    """One plain value that differs, as the skeletons have it; None where it is not. Or an array, or what holds others,
    in words, if it is something else now: a `tuple` that was a `list`."""

    name: str
    what: str
    before: Any
    after: Any


@dataclass(slots=True)
class Differences:
    """From one checkpoint to another."""

    tensors: list[TensorChange] = field(default_factory=list)
    values: list[ValueChange] = field(default_factory=list)
    lies_in: dict[str, int] = field(default_factory=dict)
    """In whose folders how many of the later one's bytes lie: its own, and those it refers to."""

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.values) or any(each.what != SAME for each in self.tensors)

    def count(self, what: str) -> int:
        return sum(each.what == what for each in self.tensors)

    def bytes(self, what: str) -> int:
        """Of those; of changed ones, what changed in them."""
        sizes = (each.changed_bytes if what == CHANGED else each.bytes for each in self._stored(what))
        return sum(sizes)

    def _stored(self, what: str) -> list[TensorChange]:
        return [each for each in self.tensors if each.what == what and not each.is_tied]


async def read_contents(store: Store, folder: Folder) -> Contents:
    return Contents(folder, await store.metadata(folder), await store.parts(folder))


def compare(before: Contents, after: Contents) -> Differences:
    """Pure."""
    found = Differences(lies_in=_lies_in(after))
    tensors = _arrays(before), _arrays(after)
    for name in _names(*tensors):
        found.tensors.append(_tensor_change(name, tensors[0].get(name), tensors[1].get(name)))
    found.values = _value_changes(_places(before), _places(after))
    return found


def _names(before: Mapping[str, T], after: Mapping[str, T]) -> list[str]:
    """In the order of the later one, then those that are gone."""
    return [*after, *(name for name in before if name not in after)]


# -- tensors ---------------------------------------------------------------------------------------------------------


class _Array(NamedTuple):
    """An array, and the chunks of the tensor it lies in."""

    leaf: Leaf
    chunks: list[Chunk]

    @property
    def told(self) -> str:
        return f"{self.leaf.dtype}{list(self.leaf.shape)}"


def _arrays(contents: Contents) -> dict[str, _Array]:
    whole = contents.whole
    return {
        leaf.name: _Array(leaf, [chunk for each in pieces_of(whole, leaf.tensor) for chunk in each.chunks])
        for leaf in leaves_of(whole)
    }


def _tensor_change(name: str, old: _Array | None, new: _Array | None) -> TensorChange:
    if new is None:
        assert old is not None
        return TensorChange(name, REMOVED, old.told, None, old.leaf.size, old.leaf.size, old.leaf.is_tied)
    size, is_tied = new.leaf.size, new.leaf.is_tied
    if old is None:
        return TensorChange(name, ADDED, None, new.told, size, size, is_tied)
    changed = _changed_bytes(old, new)
    what = SAME if old.told == new.told and not changed else CHANGED
    return TensorChange(name, what, old.told, new.told, size, changed, is_tied)


def _changed_bytes(old: _Array, new: _Array) -> int:
    """All of it where the chunks are not cut alike, or it lies in them in another way: nobody knows without reading."""
    cuts, leaf = [chunk.size for chunk in new.chunks], new.leaf
    same_place = (old.leaf.offset, old.leaf.strides, old.leaf.size) == (leaf.offset, leaf.strides, leaf.size)
    if not same_place or [chunk.size for chunk in old.chunks] != cuts:
        return leaf.size
    first, last = leaf.span
    changed = 0
    for end, before, after in zip(accumulate(cuts), old.chunks, new.chunks, strict=True):
        if before.digest != after.digest and end > first and end - after.size < last:
            changed += after.size
    return min(changed, leaf.size)


def _lies_in(contents: Contents) -> dict[str, int]:
    found: Counter[str] = Counter()
    for part in contents.parts:
        folders = [file.path.partition("/")[0] for file in part.files]
        for tensor in part.tensors:
            for chunk in tensor.chunks:
                found[folders[chunk.file]] += chunk.size
    return dict(found.most_common())


# -- values ----------------------------------------------------------------------------------------------------------


class _Places(NamedTuple):
    """What stands where in the state, beside the bytes of arrays."""

    values: dict[str, Any]
    words: dict[tuple[str, str], str]
    """By family and name: what each place holds, and under which key."""


def _places(contents: Contents) -> _Places:
    found = _Places({}, {})
    whole = contents.whole
    if whole.kind == TREE:
        for place in places(whole.skeleton):
            found.words[place.family, place.name] = place.words
            if place.family == VALUE:
                found.values[place.name] = place.node
    return found


def _value_changes(before: _Places, after: _Places) -> list[ValueChange]:
    changes = (_value_change(name, before.values, after.values) for name in _names(before.values, after.values))
    return [change for change in changes if change is not None] + _other_changes(before, after)


def _other_changes(before: _Places, after: _Places) -> list[ValueChange]:
    """Of what holds the same, and is something else: a tuple that was a list, a key 0 that was "0". What is not on both
    sides is told by what lies in it."""
    return [
        ValueChange(name, CHANGED, old, new)
        for (family, name), new in after.words.items()
        if (old := before.words.get((family, name), new)) != new
    ]


def _value_change(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> ValueChange | None:
    if name not in before or name not in after:
        what = ADDED if name in after else REMOVED
        return ValueChange(name, what, before.get(name), after.get(name))
    old, new = before[name], after[name]
    if msgspec.json.encode(old) == msgspec.json.encode(new):  # which tells 1 from True, and 0.0 from -0.0
        return None
    return ValueChange(name, CHANGED, old, new)
