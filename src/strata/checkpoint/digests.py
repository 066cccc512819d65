"""Digests of a file's chunks, taken as its bytes pass by in stretches of any length."""

from itertools import islice
from typing import Any

import xxhash

from strata.checkpoint.frameworks import Block
from strata.checkpoint.manifest import DIGEST
from strata.checkpoint.plan import FilePlan


class FileDigests:
    """Of all chunks of one file, in its order. Bytes are fed from the front, without a gap."""

    def __init__(self, file: FilePlan) -> None:
        self.found: list[str] = []
        self._spans = file.chunks
        self._open: Any = None

    def feed(self, start: int, data: Block) -> None:
        """The file's bytes from `start` on."""
        end, view = start + len(data), data.data
        one_shot, found, spans = xxhash.xxh3_128_hexdigest, self.found, self._spans
        for begins, ends in islice(spans, len(found), None):
            if begins >= end:
                return
            if begins >= start and ends <= end:
                found.append(DIGEST + one_shot(view[begins - start : ends - start]))
                continue
            if self._open is None:
                self._open = xxhash.xxh3_128()
            self._open.update(view[max(begins, start) - start : min(ends, end) - start])
            if ends > end:
                return
            found.append(DIGEST + self._open.hexdigest())
            self._open = None
