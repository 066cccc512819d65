"""HTTP/2 on the wire (RFC 9113): numbers with their names, and frames as bytes. It decides nothing."""

import struct
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

FRAME_BYTES = 16_384
"""The largest payload that every peer takes, and the largest that is sent or taken here."""
MOST_FRAME_BYTES = (1 << 24) - 1
MOST_WINDOW = (1 << 31) - 1
FIRST_WINDOW = 65_535
"""Of connections and streams until something else is said."""

head = struct.Struct(">IBI")
"""Length and kind in one word, flags, stream."""
uint32 = struct.Struct(">I")
setting = struct.Struct(">HI")


class ErrorCode(IntEnum):
    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Setting(IntEnum):
    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return head.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings(values: dict[Setting, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(setting.pack(*pair) for pair in values.items()))


def settings_ack() -> bytes:
    return frame(SETTINGS, ACK, 0)


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, uint32.pack(increment))


def rst_stream(stream: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream, uint32.pack(code))


def ping(payload: bytes, *, ack: bool = False) -> bytes:
    return frame(PING, ACK if ack else 0, 0, payload)


def goaway(last: int, code: ErrorCode, why: str) -> bytes:
    return frame(GOAWAY, 0, 0, uint32.pack(last) + uint32.pack(code) + why.encode()[:256])


def headers(stream: int, block: bytes, *, end: bool) -> bytes:
    """A header block, cut into CONTINUATIONs where it is too long for one frame."""
    flags = END_STREAM if end else 0
    if len(block) <= FRAME_BYTES:
        return frame(HEADERS, flags | END_HEADERS, stream, block)
    cuts = range(0, len(block), FRAME_BYTES)
    kinds = [HEADERS, *[CONTINUATION] * (len(cuts) - 1)]
    made = [
        frame(kind, 0 if start else flags, stream, block[start : start + FRAME_BYTES])
        for kind, start in zip(kinds[:-1], cuts[:-1], strict=True)
    ]
    return b"".join([*made, frame(CONTINUATION, END_HEADERS, stream, block[cuts[-1] :])])
