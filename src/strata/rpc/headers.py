"""Header blocks: read through a cache, written without state.

A client says the same things in every call, so its blocks are mostly equal byte for byte. What a block means depends on
the dynamic table alone; as long as that stands, equal bytes mean equal fields, and one look into a dict replaces the
decoding. Any change of the table clears the cache.
"""

import base64
import re
from collections.abc import Callable, Iterable
from typing import TypeAlias

from strata.errors import InvalidInput
from strata.rpc.decompression import Decompressor, Field
from strata.rpc.head import Head, check_trailers, read_head

ENTRIES = 64
ENTRY_BYTES = 512

Admit: TypeAlias = Callable[[Head], None]
"""Finds the method and the caller, and sets the refusal where there is none. The same head must get the same answer."""


class HeaderReader:
    """The receiving half of a connection's header compression."""

    __slots__ = ("_admit", "_cache", "_decompressor", "_seen")

    def __init__(self, list_bytes: int, admit: Admit) -> None:
        self._admit = admit
        self._decompressor = Decompressor(list_bytes)
        self._cache: dict[bytes, Head] = {}
        self._seen: set[bytes] = set()

    def head(self, block: bytes) -> Head:
        """Of a new call. Raises `BadBlock`, `TooLong`, and `Malformed` for this call alone."""
        cached = self._cache.get(block)
        return cached if cached is not None else self._read(block)

    def known(self, block: bytes) -> Head | None:
        """If it has been seen often enough."""
        return self._cache.get(block)

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
        if head.refusal is None:
            self._admit(head)
        known = self._decompressor
        if len(block) <= ENTRY_BYTES and not known.changed and not (known.secret and head.refusal):
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


_KEY = re.compile(r"[0-9a-z_.-]+\Z")
_TEXT = re.compile(r"[\x20-\x7e]*\Z")


def write_fields(fields: Iterable[tuple[str, str | bytes]]) -> bytes:
    """Literals that touch no table: the same bytes on every connection, at any time."""
    return b"".join(_literal(name.encode(), _wire(name, value)) for name, value in fields)


def check_metadata(metadata: Iterable[tuple[str, str | bytes]]) -> None:
    """What a handler wants to send along."""
    for name, value in metadata:
        if not _KEY.match(name) or name.startswith("grpc-"):
            raise InvalidInput(f"{name!r} is no name of metadata: a-z, 0-9, _ . - and nothing that starts with 'grpc-'")
        if name.endswith("-bin") != isinstance(value, bytes):
            raise InvalidInput(f"metadata {name!r} must be {'bytes' if name.endswith('-bin') else 'text'}")
        if isinstance(value, str) and (not _TEXT.match(value) or value != value.strip(" ")):
            raise InvalidInput(f"metadata {name!r} must be printable ASCII without blanks around it, or end in -bin")


def _wire(name: str, value: str | bytes) -> bytes:
    if isinstance(value, bytes):
        return base64.b64encode(value).rstrip(b"=") if name.endswith("-bin") else value
    return value.encode("latin-1")


def _literal(name: bytes, value: bytes) -> bytes:
    return b"\0" + _length(len(name)) + name + _length(len(value)) + value


def _length(size: int) -> bytes:
    """Of a string that is not Huffman-coded (RFC 7541, 5.1: a prefix of 7 bits)."""
    if size < 127:
        return bytes([size])
    made, size = bytearray([127]), size - 127
    while size >= 128:
        made.append(size & 127 | 128)
        size >>= 7
    made.append(size)
    return bytes(made)
