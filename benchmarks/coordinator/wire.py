"""Light clients: connections that send prepared bytes, for gRPC and for TCPStore's own protocol."""

import selectors
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from typing import Any

import grpc
from hpack import Encoder, HeaderTuple

from benchmarks.coordinator.servers import TOKEN
from benchmarks.rpc.h2load import framed
from benchmarks.rpc.raw import PSEUDO, RawConnection, call
from strata.rpc import frames

FIELDS = (
    ("te", "trailers"),
    ("content-type", "application/grpc"),
    ("user-agent", "grpc-python/1.85.1 grpc-c/52.0.0 (linux; chttp2)"),
)
KEY = ("authorization", f"Bearer {TOKEN}")
ETCD = "/etcdserverpb."
"""Which refuses a token that it did not give."""


def check_answered(address: str, path: str, message: bytes) -> None:
    """One call is made, and must be answered well: clients that count answers would count refusals, which are quick."""
    metadata = () if path.startswith(ETCD) else (KEY,)
    with grpc.insecure_channel(address) as channel:
        channel.unary_unary(path, None, None)(message, metadata=metadata, timeout=10)


class Calls:
    """Those of one method on one connection, as bytes. `opening`, where there is one, comes before them: a call of
    another method, which stays open."""

    def __init__(self, path: str, watch: tuple[str, bytes] | None = None) -> None:
        encoder = Encoder()
        self._stream, self.opening = 1, b""
        if watch is not None:
            opened = frames.headers(1, encoder.encode(_fields(watch[0])), end=False)
            self._stream, self.opening = 3, opened + frames.frame(frames.DATA, 0, 1, framed(watch[1]))
        fields = _fields(path)
        self._block, self._next_block = encoder.encode(fields), encoder.encode(fields)

    def request(self, message: bytes) -> bytes:
        """The next call, ready to be sent. What is prepared must be sent in this order."""
        number, block = self._stream, self._block
        self._stream, self._block = number + 2, self._next_block
        return call(number, block, framed(message))


def _fields(path: str) -> list[HeaderTuple]:
    told = FIELDS if path.startswith(ETCD) else (*FIELDS, KEY)
    return [HeaderTuple(*pair) for pair in (*PSEUDO, (":path", path), *told)]


class GrpcConnection(RawConnection):
    """One connection on which one method is called again and again; with `watch` while another call is open on it."""

    def __init__(self, address: str, path: str, watch: tuple[str, bytes] | None = None) -> None:
        super().__init__(address)
        calls = Calls(path, watch)
        self.request = calls.request
        if calls.opening:
            self.socket.sendall(calls.opening)

    def answered(self) -> int:
        """How many calls were answered with what came in."""
        return self.ended()[0]

    def exchange(self, message: bytes) -> None:
        """One call, waited for."""
        self.socket.sendall(self.request(message))
        while not self.answered():
            pass


class StoreConnection:
    """One connection to a TCPStore. Numbers are in the machine's order; a text has its length before it."""

    HELLO = struct.pack("<BI", 0, 0x3C85F7CE)
    ADD, WAIT = 4, 6

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(self.HELLO)

    @classmethod
    def add(cls, key: bytes) -> bytes:
        """Answered with eight bytes."""
        return struct.pack("<BQ", cls.ADD, len(key)) + key + struct.pack("<q", 1)

    @classmethod
    def wait(cls, key: bytes) -> bytes:
        """Answered with one byte when the key is there."""
        return struct.pack("<BQQ", cls.WAIT, 1, len(key)) + key

    def read(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            found += self.socket.recv(count - len(found))
        return found


class EchoConnection:
    """One connection to a server that sends back what it gets."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._size = 1

    def request(self, message: bytes) -> bytes:
        """All of them are of one size."""
        self._size = len(message)
        return message

    def answered(self) -> int:
        return len(self.socket.recv(1 << 14)) // self._size

    def exchange(self, message: bytes) -> None:
        self.socket.sendall(self.request(message))
        while not self.answered():
            pass


def at_full_speed(connections: Sequence[Any], batches: Iterable[list[bytes]], answer_bytes: int = 0) -> float:
    """Seconds for all of them, each connection sending its next when the last is answered."""
    left = {connection: iter(own) for connection, own in zip(connections, batches, strict=True)}
    with selectors.DefaultSelector() as ready:
        for connection in connections:
            ready.register(connection.socket, selectors.EVENT_READ, connection)
        began = time.perf_counter()
        for connection, own in left.items():
            connection.socket.sendall(next(own))
        while left:
            for key, _ in ready.select():
                connection = key.data
                if answer_bytes:
                    connection.read(answer_bytes)
                elif not connection.answered():
                    continue
                following = next(left[connection], None)
                if following is None:
                    del left[connection]
                    ready.unregister(connection.socket)
                else:
                    connection.socket.sendall(following)
        return time.perf_counter() - began


def at_steady_rate(connections: Sequence[Any], requests: Sequence[bytes], rate: float) -> list[float]:
    """Seconds each call took, counted from when it was due: one that waits for a slow one before it took longer.

    Calls are due at even intervals, each on the next connection, whatever became of those before.
    """
    due: dict[Any, list[float]] = {connection: [] for connection in connections}
    taken: list[float] = []
    with selectors.DefaultSelector() as ready:
        for connection in connections:
            ready.register(connection.socket, selectors.EVENT_READ, connection)
        began = time.perf_counter() + 0.01
        sent = 0
        while len(taken) < len(requests):
            now = time.perf_counter()
            while sent < len(requests) and (at := began + sent / rate) <= now:
                connection = connections[sent % len(connections)]
                connection.socket.sendall(requests[sent])
                due[connection].append(at)
                sent += 1
            left = began + sent / rate - time.perf_counter() if sent < len(requests) else 0.1
            # The last stretch is waited for awake: to be woken takes longer than many a call.
            for key, _ in ready.select(left - 0.0002 if left > 0.0005 else 0.0):
                answers = key.data.answered()
                heard = time.perf_counter()
                waiting = due[key.data]
                taken += [heard - at for at in waiting[:answers]]
                del waiting[:answers]
    return taken
