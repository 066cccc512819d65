"""Rules of RFC 9113 that a client can break, each with how to break it and the error that the RFC asks for."""

from strata.rpc import frames
from strata.rpc.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    MOST_WINDOW,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    Setting,
    frame,
)
from tests.unit.rpc.peer import FIELDS, block, call, data, headers, message

E = ErrorCode


def without(*names: str) -> list[tuple[str, str]]:
    return [field for field in FIELDS if field[0] not in names]


ENDS_THE_CONNECTION = {
    "DATA on stream 0": (data(0, b"x"), E.PROTOCOL_ERROR),
    "DATA on an idle stream": (data(1, b"x"), E.PROTOCOL_ERROR),
    "DATA on an even stream": (data(2, b"x"), E.PROTOCOL_ERROR),
    "DATA with more padding than room": (headers(1) + frame(DATA, PADDED, 1, b"\x05abc"), E.PROTOCOL_ERROR),
    "DATA padded without a length": (headers(1) + frame(DATA, PADDED, 1), E.FRAME_SIZE_ERROR),
    "a frame that is too large": (frame(DATA, 0, 1, bytes(16_385)), E.FRAME_SIZE_ERROR),
    "an unknown frame that is too large": (frame(99, 0, 1, bytes(16_385)), E.FRAME_SIZE_ERROR),
    "HEADERS on stream 0": (headers(0), E.PROTOCOL_ERROR),
    "HEADERS on an even stream": (headers(2), E.PROTOCOL_ERROR),
    "HEADERS with more padding than room": (frame(HEADERS, PADDED | END_HEADERS, 1, b"\x05abc"), E.PROTOCOL_ERROR),
    "HEADERS too short for a priority": (frame(HEADERS, HAS_PRIORITY | END_HEADERS, 1, b"abc"), E.FRAME_SIZE_ERROR),
    "HEADERS on a stream that was passed over": (call(5) + headers(3), E.PROTOCOL_ERROR),
    "HEADERS on a closed stream": (call(1) + call(3) + headers(1), E.STREAM_CLOSED),
    "DATA on a closed stream": (call(1) + data(1, b"x"), E.STREAM_CLOSED),
    "PRIORITY on stream 0": (frame(PRIORITY, 0, 0, bytes(5)), E.PROTOCOL_ERROR),
    "RST_STREAM on stream 0": (frames.rst_stream(0, E.CANCEL), E.PROTOCOL_ERROR),
    "RST_STREAM on an idle stream": (frames.rst_stream(1, E.CANCEL), E.PROTOCOL_ERROR),
    "RST_STREAM of a wrong length": (headers(1) + frame(RST_STREAM, 0, 1, bytes(3)), E.FRAME_SIZE_ERROR),
    "SETTINGS on a stream": (frame(SETTINGS, 0, 1), E.PROTOCOL_ERROR),
    "SETTINGS of a wrong length": (frame(SETTINGS, 0, 0, bytes(5)), E.FRAME_SIZE_ERROR),
    "SETTINGS acknowledged with words": (frame(SETTINGS, ACK, 0, bytes(6)), E.FRAME_SIZE_ERROR),
    "ENABLE_PUSH of 2": (frames.settings({Setting.ENABLE_PUSH: 2}), E.PROTOCOL_ERROR),
    "INITIAL_WINDOW_SIZE beyond its range": (
        frames.settings({Setting.INITIAL_WINDOW_SIZE: MOST_WINDOW + 1}),
        E.FLOW_CONTROL_ERROR,
    ),
    "MAX_FRAME_SIZE below its range": (frames.settings({Setting.MAX_FRAME_SIZE: 16_383}), E.PROTOCOL_ERROR),
    "MAX_FRAME_SIZE above its range": (frames.settings({Setting.MAX_FRAME_SIZE: 1 << 24}), E.PROTOCOL_ERROR),
    "a window that SETTINGS widen too far": (
        headers(1)
        + frames.window_update(1, MOST_WINDOW - 65_535)
        + frames.settings({Setting.INITIAL_WINDOW_SIZE: 65_536}),
        E.FLOW_CONTROL_ERROR,
    ),
    "PUSH_PROMISE": (headers(1) + frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4) + block()), E.PROTOCOL_ERROR),
    "PING on a stream": (frame(PING, 0, 1, bytes(8)), E.PROTOCOL_ERROR),
    "PING of a wrong length": (frame(PING, 0, 0, bytes(7)), E.FRAME_SIZE_ERROR),
    "GOAWAY on a stream": (frame(GOAWAY, 0, 1, bytes(8)), E.PROTOCOL_ERROR),
    "GOAWAY of a wrong length": (frame(GOAWAY, 0, 0, bytes(7)), E.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE of a wrong length": (frame(WINDOW_UPDATE, 0, 0, bytes(3)), E.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE by nothing": (frames.window_update(0, 0), E.PROTOCOL_ERROR),
    "WINDOW_UPDATE beyond the range": (frames.window_update(0, MOST_WINDOW), E.FLOW_CONTROL_ERROR),
    "WINDOW_UPDATE on an idle stream": (frames.window_update(7, 1), E.PROTOCOL_ERROR),
    "CONTINUATION of nothing": (frame(CONTINUATION, END_HEADERS, 1, block()), E.PROTOCOL_ERROR),
    "CONTINUATION after the end": (headers(1) + frame(CONTINUATION, END_HEADERS, 1, block()), E.PROTOCOL_ERROR),
    "a header block interrupted by DATA": (frame(HEADERS, 0, 1, block()) + data(1, b""), E.PROTOCOL_ERROR),
    "a header block interrupted by PING": (frame(HEADERS, 0, 1, block()) + frames.ping(bytes(8)), E.PROTOCOL_ERROR),
    "a header block continued elsewhere": (
        frame(HEADERS, 0, 1, block()) + frame(CONTINUATION, END_HEADERS, 3, block()),
        E.PROTOCOL_ERROR,
    ),
    "a header block of an unknown index": (frames.headers(1, b"\xff\xff\x00", end=True), E.COMPRESSION_ERROR),
    "a header block of index 0": (frames.headers(1, b"\x80", end=True), E.COMPRESSION_ERROR),
    "a header block that ends in a string": (frames.headers(1, b"\x00\x05ab", end=True), E.COMPRESSION_ERROR),
    "a header block of broken Huffman code": (
        frames.headers(1, b"\x00\x81\x00\x81\xff", end=True),
        E.COMPRESSION_ERROR,
    ),
    "a header block of an endless number": (
        frames.headers(1, b"\xff" + b"\x80" * 50 + b"\x01", end=True),
        E.COMPRESSION_ERROR,
    ),
    "a table larger than allowed": (frames.headers(1, b"\x3f\xe2\x1f" + block(), end=True), E.COMPRESSION_ERROR),
    "a table resized three times": (frames.headers(1, b"\x20\x20\x20" + block(), end=True), E.COMPRESSION_ERROR),
    "a table resized late": (frames.headers(1, block() + b"\x20", end=True), E.COMPRESSION_ERROR),
    "broken trailers": (headers(1) + frames.headers(1, b"\x80", end=True), E.COMPRESSION_ERROR),
}

ENDS_THE_STREAM = {
    "an upper-case name": (headers(1, [*FIELDS, ("X-Name", "x")]), E.PROTOCOL_ERROR),
    "an empty name": (headers(1, [*FIELDS, ("", "x")]), E.PROTOCOL_ERROR),
    "a name with a blank": (headers(1, [*FIELDS, ("x y", "x")]), E.PROTOCOL_ERROR),
    "a value with NUL": (headers(1, [*FIELDS, ("x", "a\0b")]), E.PROTOCOL_ERROR),
    "a value with a line's end": (headers(1, [*FIELDS, ("x", "a\r\nb: c")]), E.PROTOCOL_ERROR),
    "a value with a blank before it": (headers(1, [*FIELDS, ("x", " a")]), E.PROTOCOL_ERROR),
    "a value with a blank behind it": (headers(1, [*FIELDS, ("x", "a\t")]), E.PROTOCOL_ERROR),
    "a path with NUL": (headers(1, [*without(":path"), (":path", "/\0")][::-1]), E.PROTOCOL_ERROR),
    "an unknown pseudo-header": (headers(1, [(":status", "200"), *FIELDS]), E.PROTOCOL_ERROR),
    "a pseudo-header twice": (headers(1, [(":path", "/x/y"), *FIELDS]), E.PROTOCOL_ERROR),
    "a pseudo-header late": (headers(1, [*without(":path"), (":path", "/x/y")]), E.PROTOCOL_ERROR),
    "no method": (headers(1, without(":method")), E.PROTOCOL_ERROR),
    "no scheme": (headers(1, without(":scheme")), E.PROTOCOL_ERROR),
    "no path": (headers(1, without(":path")), E.PROTOCOL_ERROR),
    "an empty path": (headers(1, [(":path", ""), *without(":path")]), E.PROTOCOL_ERROR),
    "no fields at all": (frames.headers(1, b"", end=True), E.PROTOCOL_ERROR),
    "connection": (headers(1, [*FIELDS, ("connection", "close")]), E.PROTOCOL_ERROR),
    "transfer-encoding": (headers(1, [*FIELDS, ("transfer-encoding", "chunked")]), E.PROTOCOL_ERROR),
    "upgrade": (headers(1, [*FIELDS, ("upgrade", "h2c")]), E.PROTOCOL_ERROR),
    "te other than trailers": (headers(1, [*without("te"), ("te", "gzip")]), E.PROTOCOL_ERROR),
    "content-length that is no number": (headers(1, [*FIELDS, ("content-length", "-1")]), E.PROTOCOL_ERROR),
    "less than content-length": (
        headers(1, [*FIELDS, ("content-length", "11")]) + data(1, message(b"hello"), end=True),
        E.PROTOCOL_ERROR,
    ),
    "more than content-length": (
        headers(1, [*FIELDS, ("content-length", "9")]) + data(1, message(b"hello"), end=True),
        E.PROTOCOL_ERROR,
    ),
    "content-length of nothing": (headers(1, [*FIELDS, ("content-length", "5")], end=True), E.PROTOCOL_ERROR),
    "trailers that do not end": (headers(1) + headers(1, [("x", "y")]), E.PROTOCOL_ERROR),
    "trailers with a pseudo-header": (headers(1) + headers(1, [(":path", "/")], end=True), E.PROTOCOL_ERROR),
    "trailers with an upper-case name": (headers(1) + headers(1, [("X", "y")], end=True), E.PROTOCOL_ERROR),
    "PRIORITY of a wrong length": (headers(1) + frame(PRIORITY, 0, 1, bytes(4)), E.FRAME_SIZE_ERROR),
    "WINDOW_UPDATE by nothing": (headers(1) + frames.window_update(1, 0), E.PROTOCOL_ERROR),
    "WINDOW_UPDATE beyond the range": (headers(1) + frames.window_update(1, MOST_WINDOW), E.FLOW_CONTROL_ERROR),
}
