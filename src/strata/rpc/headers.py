"""Header blocks, read through a cache.

A client says the same things in every call, so its blocks are mostly equal byte for byte. What a block means depends on
the dynamic table alone; as long as that stands, equal bytes mean equal fields, and one look into a dict replaces the
decoding. Any change of the table clears the cache.
"""

from collections.abc import Callable
from typing import TypeAlias

from strata.rpc.decompression import Decompressor, Field
from strata.rpc.head import Head, check_trailers, read_head
from strata.rpc.status import RpcError, Status

ENTRIES = 64
HARD_LIMIT = 4
"""Times the header list that is taken: as much is still read, so that only the call is refused and not its peers."""
BLOCK_BYTES = 512

Admit: TypeAlias = Callable[[Head], None]
"""Finds the method and the caller, and sets the refusal where there is none. The same head must get the same answer."""


class HeaderReader:
    """The receiving half of a connection's header compression."""

    __slots__ = ("_admit", "_cache", "_decompressor", "_list_bytes", "_seen", "known")

    def __init__(self, list_bytes: int, admit: Admit) -> None:
        self._admit = admit
        self._list_bytes = list_bytes
        self._decompressor = Decompressor(list_bytes * HARD_LIMIT)
        self._cache: dict[bytes, Head] = {}
        self.known: Callable[[bytes], Head | None] = self._cache.get
        """The head of a block that has been seen often enough."""
        self._seen: set[bytes] = set()

    def head(self, block: bytes) -> Head:
        """Of a new call. Raises `BadBlock`, `TooLong`, and `Malformed` for this call alone."""
        cached = self._cache.get(block)
        return cached if cached is not None else self._read(block)

    def trailers(self, block: bytes) -> None:
        check_trailers(self._decoded(block))

    def skip(self, block: bytes) -> None:
        """Of a call that nobody asks for any more. The table must follow all the same."""
        self._decoded(block)

    def forget(self) -> None:
        """Ask again who is let in."""
        self._cache.clear()
        self._seen.clear()

    def _read(self, block: bytes) -> Head:
        head = read_head(self._decoded(block))
        if self._decompressor.size > self._list_bytes and head.refusal is None:
            head.refusal = RpcError(
                Status.RESOURCE_EXHAUSTED,
                f"headers of {self._decompressor.size:,} bytes; at most {self._list_bytes:,} are taken",
            )
        if head.refusal is None:
            self._admit(head)
        if head.refusal is None and len(block) <= BLOCK_BYTES and not self._decompressor.changed:
            self._keep(block, head)
        return head

    def _keep(self, block: bytes, head: Head) -> None:
        """On second sight: a block that comes once would push out those that come in every call."""
        if block not in self._seen:
            if len(self._seen) >= ENTRIES:
                self._seen.clear()
            self._seen.add(block)
            return
        if len(self._cache) >= ENTRIES:
            del self._cache[next(iter(self._cache))]
        self._cache[block] = head

    def _decoded(self, block: bytes) -> list[Field]:
        try:
            return self._decompressor.fields(block)
        finally:
            if self._decompressor.changed:
                self.forget()
