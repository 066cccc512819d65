"""Header fields as they are written: literals that touch no table, so the same bytes everywhere and at any time."""

import base64
import re
from collections.abc import Iterable

from strata.errors import InvalidInput

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
