"""The usual answer as bytes: a head, one message, and trailers that say OK. It is the same for every stream but for the
stream's number, so a message that answers many calls is framed once."""

from strata.rpc import frames
from strata.rpc.frames import DATA, END_HEADERS, END_STREAM, HEADERS
from strata.rpc.messages import PREFIX_BYTES

OK_HEAD = b"\x88\x0f\x10\x10application/grpc"
"""`:status: 200` and `content-type`, which take no place in any table."""
OK_TRAILERS = b"\x00\x0bgrpc-status\x010"


def _start(kind: int, flags: int, size: int) -> bytes:
    """Of a frame, up to the stream's number."""
    return frames.head.pack(size << 8 | kind, flags, 0)[:5]


_HEAD = _start(HEADERS, END_HEADERS, len(OK_HEAD))
_TRAILERS = _start(HEADERS, END_HEADERS | END_STREAM, len(OK_TRAILERS))


class Usual:
    """The last message that was framed. The stream's number belongs between the parts."""

    __slots__ = ("message", "parts")

    def __init__(self) -> None:
        self.frame(b"")

    def frame(self, message: bytes) -> None:
        size = len(message)
        prefixed = b"\0" + size.to_bytes(4, "big") + message
        self.message = message
        self.parts = (_HEAD, OK_HEAD + _start(DATA, 0, size + PREFIX_BYTES), prefixed + _TRAILERS, OK_TRAILERS)


usual = Usual()
