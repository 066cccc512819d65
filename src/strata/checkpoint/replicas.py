"""Whether what ranks have in common is the same on all of them, asked once, at the first save of a run.

Arrays that only rank 0 stores: what differs is not lost without a word. Buffers of data parallel training may differ,
and rank 0's count; but the shards of something that does not say that it is sharded would be gone. Arrays that are
marked Replicated, of which each rank stores some rows: what differs is a mixture, and not saved. Plain values: the
lowest rank's are stored, and rank 0, which reads what all ranks have, sees whose are not.
"""

import ctypes
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from strata.checkpoint.frameworks import Block
from strata.checkpoint.manifest import TREE, Part, digest_of
from strata.checkpoint.plan import chunks_of
from strata.checkpoint.skeleton import is_container, plain_values
from strata.checkpoint.tree import Leaf, Node
from strata.checkpoint.whole import Whole

_NOTHING: Node = object()


def copies_of(leaves: Sequence[Leaf]) -> dict[str, list[str]]:
    """The digests of those that another rank stores, or all ranks together, chunk by chunk; of what torch has on a GPU,
    a number that is found there."""
    shared = [
        leaf for leaf in leaves if leaf.shares is not None and leaf.described.shards is None and leaf.described.size
    ]
    found = {}
    for leaf in shared:
        if not _is_looked_at_there(leaf) and not _is_written_out(leaf):
            data = _elements(leaf)
            found[leaf.name] = [digest_of(data[start : start + size]) for start, size in chunks_of(len(data))]
    return found | _on_devices(shared)


def stored_on_devices(leaves: Sequence[Leaf]) -> dict[str, list[str]]:
    """The same of what this rank stores, for what others say of theirs on GPUs."""
    return _on_devices(leaf for leaf in leaves if leaf.shares is None and leaf.described.shards is None)


def _is_looked_at_there(leaf: Leaf) -> bool:
    return leaf.described.on_device and leaf.framework.name == "torch"


def _is_written_out(leaf: Leaf) -> bool:
    """Of one that is larger than the memory it lies in, as expand() makes them: it may be too large to be copied, and
    who stores it whole may store a view."""
    described = leaf.described
    return not leaf.shares and described.strides is not None and described.reach < described.size


def _elements(leaf: Leaf) -> Block:
    """As they are stored: in order, and without gaps."""
    described = leaf.described
    if described.is_dense:
        return np.ctypeslib.as_array((ctypes.c_uint8 * described.size).from_address(described.start))
    data = np.empty(described.size, np.uint8)
    leaf.framework.copy_out([(leaf.value, data)]).wait()
    return data


def _on_devices(leaves: Iterable[Leaf]) -> dict[str, list[str]]:
    there = [leaf for leaf in leaves if _is_looked_at_there(leaf) and not _is_written_out(leaf)]
    if not there:
        return {}
    from strata.checkpoint.frameworks.fingerprints import bytes_in_order, fingerprints

    found = fingerprints(bytes_in_order(leaf.value) for leaf in there)
    return {leaf.name: [each] for leaf, each in zip(there, found, strict=True)}


def differing(copies: Mapping[str, list[str]], stored: Part, on_devices: Mapping[str, list[str]]) -> list[str]:
    """The names of those that are not what rank 0 stored under that name. Of some it stores only a part, or a view."""
    there = {tensor.name: [chunk.digest for chunk in tensor.chunks] for tensor in stored.tensors}
    whole = {stored.tensors[leaf].name for leaf in stored.leaves if isinstance(leaf, int)}
    known = {**{name: there[name] for name in whole}, **on_devices}
    return [
        name
        for name, digests in copies.items()
        if name in known and _kind(known[name]) == _kind(digests) and known[name] != digests
    ]


def lost_values(parts: Sequence[Part], whole: Whole) -> dict[tuple[int, int], list[str]]:
    """The names of plain values that are not stored as a rank has them, by that rank and the one whose are stored."""
    lost: dict[tuple[int, int], list[str]] = {}
    first = parts[0]
    if whole.kind != TREE or all(part.skeleton == first.skeleton for part in parts):
        return lost
    stored, whose = plain_values(whole.skeleton, common=True), dict[str, int]()
    for part in parts:
        if part is not first and part.skeleton == first.skeleton:
            continue
        for name, node in plain_values(part.skeleton, common=True).items():
            holder = whose.setdefault(name, part.rank)
            if stored.get(name, _NOTHING) != node and not is_container(node):
                lost.setdefault((part.rank, holder if holder < part.rank else first.rank), []).append(name)
    return lost


def _kind(digests: Sequence[str]) -> str:
    """What is on a GPU here and in host memory there cannot be compared."""
    return digests[0].partition(":")[0] if digests else ""
