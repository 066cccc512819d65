"""Small messages in one stream, from the client and to it."""

import time
from contextlib import ExitStack

from hpack import Encoder

from benchmarks import Table
from benchmarks.rpc.h2load import framed
from benchmarks.rpc.heartbeats import MESSAGES, a_beat
from benchmarks.rpc.raw import RawConnection, call, fields
from benchmarks.rpc.server import KINDS, Running, running
from benchmarks.rpc.turns import rates
from strata.rpc import frames
from strata.rpc.frames import DATA, END_STREAM

ROUNDS = 3
SENT = {"strata": 100_000, "grpcio": 20_000}
"""To the server; the slower one gets fewer."""


def table() -> Table:
    rows = []
    with ExitStack() as stack:
        servers = [stack.enter_context(running(kind)) for kind in KINDS]
        for what, measure in (("from the client", _sent), ("to the client", _received)):
            rows += rates(what, servers, ROUNDS, measure, "messages/s")
    return Table("Messages in one stream", rows)


def _sent(server: Running) -> float:
    """As fast as the server gives room."""
    connection, message, count = RawConnection(server.address), framed(a_beat()), SENT[server.kind]
    each = frames.FRAME_BYTES // len(message)
    batches = [message * min(each, count - start) for start in range(0, count, each)]
    began = time.perf_counter()
    connection.socket.sendall(frames.headers(1, Encoder().encode(fields("Report")), end=False))
    for batch in batches:
        while min(connection.window, connection.stream_window) < len(batch):
            connection.ended()
        connection.window -= len(batch)
        connection.stream_window -= len(batch)
        connection.socket.sendall(frames.frame(DATA, 0, 1, batch))
    connection.socket.sendall(frames.frame(DATA, END_STREAM, 1))
    while not connection.ended()[0]:
        pass
    seconds = time.perf_counter() - began
    connection.socket.close()
    return count / seconds


def _received(server: Running) -> float:
    connection = RawConnection(server.address)
    began = time.perf_counter()
    connection.socket.sendall(call(1, Encoder().encode(fields("Watch")), framed(a_beat())))
    size = 0
    while True:
        ended, more = connection.ended()
        size += more
        if ended:
            break
    seconds = time.perf_counter() - began
    connection.socket.close()
    assert size > MESSAGES * 5
    return MESSAGES / seconds
