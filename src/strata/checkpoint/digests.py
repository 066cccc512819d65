"""A file's chunks and their digests, taken as its bytes pass by in stretches of any length."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import xxhash

from strata.checkpoint.frameworks import Block
from strata.checkpoint.manifest import DIGEST, Chunk
from strata.checkpoint.plan import FilePlan


class FileDigests:
    """Of all chunks of one file, in its order. Bytes are fed from the front, without a gap."""

    def __init__(self, number: int, file: FilePlan) -> None:
        self.found: list[Chunk] = []
        self._number = number
        self._spans = file.chunks
        self._open: Any = None

    def feed(self, start: int, data: Block) -> None:
        """The file's bytes from `start` on."""
        end, view = start + len(data), data.data
        one_shot, found, spans, number = xxhash.xxh3_128_hexdigest, self.found, self._spans, self._number
        for begins, ends in islice(spans, len(found), None):
            if begins >= end:
                return
            if begins >= start and ends <= end:
                digest = one_shot(view[begins - start : ends - start])
                found.append(Chunk(number, begins, ends - begins, DIGEST + digest))
                continue
            if self._open is None:
                self._open = xxhash.xxh3_128()
            self._open.update(view[max(begins, start) - start : min(ends, end) - start])
            if ends > end:
                return
            found.append(Chunk(number, begins, ends - begins, DIGEST + self._open.hexdigest()))
            self._open = None


def by_tensor(tensors: int, files: Sequence[FilePlan], chunks: Iterable[list[Chunk]]) -> list[list[Chunk]]:
    """Those of each of so many, in order: pieces of a tensor lie in one file after the other."""
    owned: list[list[Chunk]] = [[] for _ in range(tensors)]
    for file, found in zip(files, chunks, strict=True):
        left = iter(found)
        for tensor, count in file.counts:
            if count == 1:
                owned[tensor].append(next(left))
            else:
                owned[tensor] += islice(left, count)
    return owned
