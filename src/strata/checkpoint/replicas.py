"""Whether what ranks have in common is the same on all of them, asked once, at the first save of a run.

Arrays that only rank 0 stores: what differs is not lost without a word. Buffers of data parallel training may differ,
and rank 0's count; but the shards of something that does not say that it is sharded would be gone. Arrays that are
marked Replicated, of which each rank stores some rows: what differs is a mixture, and not saved.
"""

import ctypes
from collections.abc import Iterable, Mapping

import numpy as np

from strata.checkpoint.manifest import Part, digest_of
from strata.checkpoint.plan import chunks_of
from strata.checkpoint.tree import Leaf


def copies_of(leaves: Iterable[Leaf]) -> dict[str, list[str]]:
    """The digests of those that another rank stores, or all ranks together, chunk by chunk. Only of what lies in host
    memory: to fetch the rest from a device would cost as much as to save it."""
    found = {}
    for leaf in leaves:
        described = leaf.described
        if leaf.shares is not None and described.shards is None and described.is_dense:
            memory = (ctypes.c_uint8 * described.size).from_address(described.start)
            data = np.ctypeslib.as_array(memory)
            found[leaf.name] = [digest_of(data[start : start + size]) for start, size in chunks_of(described.size)]
    return found


def differing(copies: Mapping[str, list[str]], stored: Part) -> list[str]:
    """The names of those that are not what rank 0 stored under that name. Of some it stores only a part, or a view."""
    there = {tensor.name: [chunk.digest for chunk in tensor.chunks] for tensor in stored.tensors}
    whole = {stored.tensors[leaf].name for leaf in stored.leaves if isinstance(leaf, int)}
    return [name for name, digests in copies.items() if name in whole and there[name] != digests]
