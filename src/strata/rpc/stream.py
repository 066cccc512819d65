"""What a connection knows of one stream, and what it tells about it."""

from collections import deque
from typing import Any, TypeAlias

import msgspec

from strata.rpc.frames import ErrorCode
from strata.rpc.head import Head
from strata.rpc.status import RpcError


class Stream:
    """One call on the wire. The connection owns it; `call` is the server's to hang its own on."""

    __slots__ = (
        "buffer",
        "call",
        "chunks",
        "closing",
        "ended",
        "failure",
        "finished",
        "finished_at",
        "granted",
        "head",
        "headed",
        "id",
        "needed",
        "open",
        "receive_window",
        "received",
        "send_window",
        "start",
        "told",
        "uncredited",
        "unsent",
    )

    def __init__(self, number: int, head: Head, receive_window: int, send_window: int) -> None:
        self.id = number
        self.head = head
        self.call: Any = None
        self.open = True
        # What comes in: bytes from `start` on are not taken yet, and the message they begin has `needed` of them.
        self.buffer: bytes | bytearray = b""
        self.start = 0
        self.needed = 0
        self.ended = False
        self.received = 0
        self.receive_window = receive_window
        self.uncredited = 0
        self.granted = 0
        self.failure: RpcError | None = None
        self.told = True
        # What goes out: chunks that wait for the peer's windows, and the trailers behind them.
        self.send_window = send_window
        self.headed = False
        self.chunks: deque[memoryview] | None = None
        self.unsent = 0
        self.finished = False
        self.finished_at = 0.0
        self.closing: bytes | None = None


class Called(msgspec.Struct, frozen=True, gc=False):
    """A new call. It may be whole already."""

    stream: Stream


class Readable(msgspec.Struct, frozen=True, gc=False):
    """A message can be taken, or the last one was."""

    stream: Stream


class Writable(msgspec.Struct, frozen=True, gc=False):
    """All that was sent on it is on its way."""

    stream: Stream


class Cancelled(msgspec.Struct, frozen=True, gc=False):
    """The stream is gone, with whatever was still to be sent on it. `code` is None if the connection went."""

    stream: Stream
    code: ErrorCode | int | None


Event: TypeAlias = Called | Readable | Writable | Cancelled
