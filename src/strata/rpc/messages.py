"""gRPC's messages within the bytes of a stream: one byte for the compression, four for the length, and the message."""

import gzip
import zlib

from strata.rpc.head import GZIP
from strata.rpc.status import RpcError, Status

PREFIX_BYTES = 5


def measure(buffer: bytes | bytearray, start: int, most: int) -> int:
    """The length on the wire, prefix included, of the message that begins there; 0 if its prefix is not all there.

    Raises RESOURCE_EXHAUSTED for a message that is too long, before any of it is waited for.
    """
    if len(buffer) - start < PREFIX_BYTES:
        return 0
    length = int.from_bytes(buffer[start + 1 : start + PREFIX_BYTES], "big")
    if length > most:
        raise too_long(length, most)
    return PREFIX_BYTES + length


def unpack(flag: int, body: bytes, encoding: str, most: int) -> bytes:
    """The message itself."""
    if flag == 0:
        return body
    if flag != 1 or encoding != GZIP:
        raise RpcError(Status.INTERNAL, f"a message has compression flag {flag}, and grpc-encoding is {encoding!r}")
    inflate = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        message = inflate.decompress(body, most + 1)
    except zlib.error as error:
        raise RpcError(Status.INTERNAL, f"a message is not the gzip it says it is ({error})") from None
    if len(message) > most:
        raise RpcError(Status.RESOURCE_EXHAUSTED, f"a message is more than {most:,} bytes when decompressed")
    if not inflate.eof or inflate.unused_data:
        raise RpcError(Status.INTERNAL, "a message is not the gzip it says it is (cut short, or followed by more)")
    return message


def pack(message: bytes, *, compressed: bool) -> bytes:
    if compressed:
        message = gzip.compress(message, compresslevel=1, mtime=0)
    return compressed.to_bytes(1, "big") + len(message).to_bytes(4, "big") + message


def too_long(length: int, most: int) -> RpcError:
    return RpcError(Status.RESOURCE_EXHAUSTED, f"a message of {length:,} bytes; at most {most:,} are taken")
