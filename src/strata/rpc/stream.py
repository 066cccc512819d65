"""What a connection knows of one stream, and what it tells about it."""

from collections import deque
from typing import Any, TypeAlias

import msgspec

from strata.rpc.frames import ErrorCode
from strata.rpc.head import Head
from strata.rpc.status import RpcError


class Stream:
    """One call on the wire. The connection owns it; `call` is the server's to hang its own on.

    Most streams live for one read and never leave these defaults, which therefore cost nothing to set.
    """

    call: Any = None
    open = True
    began = 0.0
    # What comes in: bytes from `start` on are not taken yet, and the message they begin has `needed` of them.
    buffer: bytes | bytearray = b""
    whole: bytes | None = None  # in place of the buffer: the only message, if it came with the end of the request
    start = 0
    needed = 0
    ended = False
    received = 0
    uncredited = 0
    granted = 0
    failure: RpcError | None = None
    told = True
    # What goes out: chunks that wait for the peer's windows, and the trailers behind them.
    headed = False
    chunks: deque[memoryview] | None = None
    unsent = 0
    finished = False
    moved_at = 0.0
    closing: bytes | None = None

    def __init__(self, number: int, head: Head, receive_window: int, send_window: int) -> None:
        self.id = number
        self.head = head
        self.receive_window = receive_window
        self.send_window = send_window


class Called(msgspec.Struct, frozen=True):
    """A new call. It may be whole already."""

    stream: Stream


class Readable(msgspec.Struct, frozen=True):
    """A message can be taken, or the last one was."""

    stream: Stream


class Writable(msgspec.Struct, frozen=True):
    """All that was sent on it is on its way."""

    stream: Stream


class Cancelled(msgspec.Struct, frozen=True):
    """The stream is gone, with whatever was still to be sent on it. `code` is None if the connection went."""

    stream: Stream
    code: ErrorCode | int | None


Event: TypeAlias = Called | Readable | Writable | Cancelled
