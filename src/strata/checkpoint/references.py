"""What of a state is there already: chunks that an earlier checkpoint holds, to be referred to where they lie. Pure.

Chunks are compared by the name of their tensor, their place in it, and their digest.

The law: a reference points to a file, never to another reference. A file whose own checkpoint is gone, and which is
kept for references alone, is referred to only while at least half of it is needed: so what is kept for nothing stays
less than what is kept for something.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

from strata.checkpoint.manifest import CHUNK_BYTES, Chunk, File, Part, Tensor
from strata.checkpoint.plan import FilePlan, Wanted, chunks_of

Kept: TypeAlias = list[list[Chunk | None]]
"""For each chunk of each tensor, where the base has the same bytes; None where it does not."""


class Base(NamedTuple):
    """The checkpoint that a save refers to. `orphans` are those of its files whose own checkpoint is gone; `lost`
    those that are not there as they should be."""

    part: Part
    orphans: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()


def unchanged(tensors: Sequence[Tensor], base: Base) -> Kept:
    """Which chunks need not be written again."""
    known = {tensor.name: tensor.chunks for tensor in base.part.tensors}
    kept = [_same(tensor.chunks, known.get(tensor.name, [])) for tensor in tensors]
    needed: Counter[int] = Counter()
    for chunks in kept:
        for chunk in chunks:
            if chunk is not None:
                needed[chunk.file] += chunk.size
    files = base.part.files
    useless = {file for file in base.orphans if 2 * needed[file] < _tensor_bytes(files[file])} | base.lost
    return [_without(chunks, useless) for chunks in kept] if useless else kept


def _tensor_bytes(file: File) -> int:
    return file.size - file.header_size


def _same(chunks: Sequence[Chunk], known: Sequence[Chunk]) -> list[Chunk | None]:
    found: list[Chunk | None] = [
        old if (old.digest, old.size) == (new.digest, new.size) else None
        for new, old in zip(chunks, known, strict=False)
    ]
    return found + [None] * (len(chunks) - len(found))


def _without(chunks: list[Chunk | None], useless: Collection[int]) -> list[Chunk | None]:
    return [None if chunk is not None and chunk.file in useless else chunk for chunk in chunks]


def changes(tensors: Sequence[Tensor], kept: Kept) -> list[Wanted]:
    """What is to be written: tensors of which nothing is kept whole, and of the others runs of chunks."""
    found: list[Wanted] = []
    for number, (tensor, old) in enumerate(zip(tensors, kept, strict=True)):
        if all(chunk is None for chunk in old):
            size = sum(chunk.size for chunk in tensor.chunks)
            if size:
                found.append(Wanted(tensor.name, tensor.dtype, tensor.shape, size, number))
            continue
        for missing, run in groupby(enumerate(old), lambda pair: pair[1] is None):
            if missing:
                places = [place for place, _ in run]
                size = sum(tensor.chunks[place].size for place in places)
                found.append(Wanted.piece(tensor.name, places[0] * CHUNK_BYTES, size, number))
    return found


def referring(
    tensors: Sequence[Tensor], kept: Kept, plans: Sequence[FilePlan], own: Sequence[File], base: Base
) -> tuple[list[Tensor], list[File]]:
    """The tensors with each chunk where it now lies, and the files: the checkpoint's own, then those referred to."""
    used = sorted({chunk.file for chunks in kept for chunk in chunks if chunk is not None})
    moved = {file: len(own) + number for number, file in enumerate(used)}
    places: list[list[Chunk]] = [
        [new if old is None else Chunk(moved[old.file], old.at, old.size, old.digest) for new, old in pairs]
        for pairs in (zip(tensor.chunks, old, strict=True) for tensor, old in zip(tensors, kept, strict=True))
    ]
    for number, plan in enumerate(plans):
        for wanted, at in plan.placed:
            chunks, first = places[wanted.tensor], wanted.start // CHUNK_BYTES
            for place, (start, size) in enumerate(chunks_of(wanted.size), first):
                chunks[place] = Chunk(number, at + start, size, chunks[place].digest)
    found = [
        Tensor(tensor.name, tensor.dtype, tensor.shape, chunks, tensor.shift, tensor.at)
        for tensor, chunks in zip(tensors, places, strict=True)
    ]
    return found, [*own, *(base.part.files[file] for file in used)]
