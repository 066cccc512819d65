"""The same calls with a trace header that differs in each: no cache helps, and an index changes the table each time."""

import secrets
from contextlib import ExitStack
from functools import partial

from hpack import Encoder, HeaderTuple, NeverIndexedHeaderTuple

from benchmarks import Table
from benchmarks.rpc.raw import RawConnection, fields, heartbeats, in_flight
from benchmarks.rpc.server import KINDS, Running, running
from benchmarks.rpc.turns import rates

CONNECTIONS, AT_ONCE, ROUNDS = 8, 16, 3
CALLS = {"strata": 4000, "grpcio": 800}
"""On each connection; the slower server gets fewer, and takes as long."""
TRACES: dict[str, type[HeaderTuple] | None] = {
    "the same headers": None,
    "a new trace header, given a place in the table": HeaderTuple,
    "a new trace header, given none": NeverIndexedHeaderTuple,
}


def table() -> Table:
    rows = []
    with ExitStack() as stack:
        servers = [stack.enter_context(running(kind)) for kind in KINDS]
        for what, trace in TRACES.items():
            rows += rates(what, servers, ROUNDS, partial(_rate, trace=trace), "calls/s")
    return Table(f"Unary calls by a client of prepared bytes, {CONNECTIONS} connections × {AT_ONCE} calls", rows)


def _rate(server: Running, trace: type[HeaderTuple] | None) -> float:
    count = CALLS[server.kind]
    batches = [heartbeats(_blocks(count, trace), 1, AT_ONCE) for _ in range(CONNECTIONS)]
    connections = [RawConnection(server.address) for _ in batches]
    seconds = in_flight(connections, batches, AT_ONCE)
    for connection in connections:
        connection.socket.close()
    return count * CONNECTIONS / seconds


def _blocks(count: int, trace: type[HeaderTuple] | None) -> list[bytes]:
    """As a client's compression would make them, one after the other."""
    encoder, usual = Encoder(), fields("Heartbeat")
    made = []
    for _ in range(count):
        extra = [] if trace is None else [trace("traceparent", f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01")]
        made.append(encoder.encode([*usual, *extra]))
    return made
