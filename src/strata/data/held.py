"""Decoded blocks in memory, within a budget: read by threads, each once while it is wanted, the least recently used
given up first.

What is being read now, or is part of what is being put together, is never given up: a budget that is too small for one
run of batches is exceeded by it, and no further.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

from strata.data.columns import Column

Decoded: TypeAlias = dict[str, Column]
Decode: TypeAlias = Callable[[int], Decoded]


class Held:
    """`decode` gives the columns of a block; it is called by `threads` threads."""

    def __init__(self, decode: Decode, budget_bytes: int, threads: int) -> None:
        self._decode = decode
        self.budget_bytes, self.threads = budget_bytes, threads
        self._pool = ThreadPoolExecutor(threads, "strata-data")
        self._blocks: OrderedDict[int, Future[Decoded]] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self.held_bytes = 0
        self._in_use: dict[int, int] = {}
        self._lock = threading.Lock()
        self.read_count = 0
        """How many blocks were read: more than there are if the budget is too small for the order."""

    def want(self, blocks: Iterable[int]) -> "dict[int, Future[Decoded]]":
        """They are read, if they are not there yet, and kept until `done`."""
        wanted = {}
        with self._lock:
            for block in blocks:
                if block not in self._blocks or self._has_failed(block):
                    self.read_count += 1
                    self._blocks[block] = self._pool.submit(self._read, block)
                self._blocks.move_to_end(block)
                self._in_use[block] = self._in_use.get(block, 0) + 1
                wanted[block] = self._blocks[block]
        return wanted

    def done(self, blocks: Iterable[int]) -> None:
        with self._lock:
            for block in blocks:
                self._in_use[block] -= 1
                if not self._in_use[block]:
                    del self._in_use[block]
                if self._has_failed(block):
                    del self._blocks[block]  # whoever wants it again tries again
            self._trim()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._blocks.clear()
        self._sizes.clear()
        self.held_bytes = 0

    def _has_failed(self, block: int) -> bool:
        """And nobody wants it any more. What went wrong then says nothing of now: it is read again."""
        read = self._blocks.get(block)
        if read is None or block in self._in_use:
            return False
        return read.done() and not read.cancelled() and read.exception() is not None

    def _read(self, block: int) -> Decoded:
        decoded = self._decode(block)
        size = sum(column.nbytes for column in decoded.values())
        with self._lock:
            self._sizes[block] = size
            self.held_bytes += size
            self._trim()
        return decoded

    def _trim(self) -> None:
        if self.held_bytes <= self.budget_bytes:
            return
        for block in list(self._blocks):
            if block not in self._in_use and block in self._sizes:
                self.held_bytes -= self._sizes.pop(block)
                del self._blocks[block]
            if self.held_bytes <= self.budget_bytes:
                return
