"""A client made of prepared bytes: the next lightest after h2load, for what h2load cannot say."""

import selectors
import socket
import time
from collections.abc import Iterable

from hpack import HeaderTuple

from benchmarks.rpc.h2load import framed
from benchmarks.rpc.heartbeats import SERVICE, TOKEN, a_beat
from strata.rpc import frames
from strata.rpc.frames import DATA, END_STREAM, HEADERS, RST_STREAM, WINDOW_UPDATE, Setting

PSEUDO = ((":method", "POST"), (":scheme", "http"), (":authority", "127.0.0.1"))
FIELDS = (
    ("te", "trailers"),
    ("content-type", "application/grpc"),
    ("user-agent", "grpc-python/1.85.1 grpc-c/52.0.0 (linux; chttp2)"),
    ("grpc-timeout", "30S"),
    ("authorization", f"Bearer {TOKEN}"),
)
WIDE = (1 << 31) - 1
HELLO = (
    frames.PREFACE
    + frames.settings({Setting.INITIAL_WINDOW_SIZE: WIDE})
    + frames.window_update(0, WIDE - 65_535)
    + frames.settings_ack()
)
"""What a client begins with: it takes whatever comes, and whatever the server wants."""


class RawConnection:
    """One socket, blocking; counts what comes back and looks no closer."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.window, self.stream_window = frames.FIRST_WINDOW, frames.FIRST_WINDOW
        self._rest = b""
        self.socket.sendall(HELLO)

    def ended(self) -> tuple[int, int]:
        """Waits for more, and tells how many streams ended with it and how many bytes of messages it brought."""
        heard = self._rest + self.socket.recv(1 << 14)
        at, streams, size = 0, 0, 0
        while len(heard) - at >= 9:
            word, flags, number = frames.head.unpack_from(heard, at)
            end = at + 9 + (word >> 8)
            if end > len(heard):
                break
            kind = word & 0xFF
            if kind == WINDOW_UPDATE:
                self._widen(number, int.from_bytes(heard[at + 9 : end], "big"))
            elif kind == frames.SETTINGS and not flags & frames.ACK:
                self._set(heard[at + 9 : end])
            elif kind == frames.PING and not flags & frames.ACK:
                self.socket.sendall(frames.ping(heard[at + 9 : end], ack=True))
            elif kind in (DATA, HEADERS):
                size += (word >> 8) if kind == DATA else 0
                streams += flags & END_STREAM
            elif kind in (RST_STREAM, frames.GOAWAY) and heard[at + 9 : end][-4:] != bytes(4):
                raise RuntimeError(f"the server gave up: {heard[at:end]!r}")
            at = end
        self._rest = heard[at:]
        return streams, size

    def _widen(self, number: int, increment: int) -> None:
        if number:
            self.stream_window += increment
        else:
            self.window += increment

    def _set(self, payload: bytes) -> None:
        for name, value in frames.setting.iter_unpack(payload):
            if name == Setting.INITIAL_WINDOW_SIZE:
                self.stream_window += value - frames.FIRST_WINDOW


def fields(method: str) -> list[HeaderTuple]:
    path = (":path", f"/{SERVICE}/{method}")
    return [HeaderTuple(*pair) for pair in (*PSEUDO, path, *FIELDS)]


def call(number: int, block: bytes, body: bytes) -> bytes:
    return frames.headers(number, block, end=False) + frames.frame(DATA, END_STREAM, number, body)


def in_flight(connections: list[RawConnection], batches: list[list[bytes]], at_once: int) -> float:
    """Seconds for all batches, each connection sending its next when the last is answered."""
    ready = selectors.DefaultSelector()
    left = {connection: (iter(own), 0) for connection, own in zip(connections, batches, strict=True)}
    began = time.perf_counter()
    for connection, (own, _) in left.items():
        ready.register(connection.socket, selectors.EVENT_READ, connection)
        connection.socket.sendall(next(own))
        left[connection] = (own, at_once)
    while left:
        for key, _ in ready.select():
            connection = key.data
            own, missing = left[connection]
            missing -= connection.ended()[0]
            if not missing:
                following = next(own, None)
                if following is None:
                    del left[connection]
                    ready.unregister(connection.socket)
                    continue
                connection.socket.sendall(following)
                missing = at_once
            left[connection] = (own, missing)
    return time.perf_counter() - began


def heartbeats(blocks: Iterable[bytes], first: int, at_once: int) -> list[bytes]:
    """Batches of calls, ready to be sent."""
    body = framed(a_beat())
    calls = [call(first + 2 * number, block, body) for number, block in enumerate(blocks)]
    return [b"".join(calls[start : start + at_once]) for start in range(0, len(calls), at_once)]
