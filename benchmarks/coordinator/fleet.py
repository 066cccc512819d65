"""Fleets at rest: 10,000 registered workers that each say every five seconds that they live.

As nodes of eight whose agent speaks for all of them in one message; as workers that speak for themselves, each on a
connection of its own; and as sessions do, with a stream open beside on which they are told things. Beside these a
server that only sends back what it gets: to be woken 2,000 times a second costs much, whatever is done then.
"""

import resource
import time
from collections.abc import Callable
from typing import Any

from benchmarks import Row, Table
from benchmarks.coordinator import calls
from benchmarks.coordinator.servers import serving
from benchmarks.coordinator.wire import EchoConnection, GrpcConnection

WORKERS, NODE, EVERY_SECONDS, SECONDS = 10_000, 8, 5.0, 20.0
CORE_MOST, MEGABYTES_MOST = 0.1, 200.0
WARM_UP = 3
"""Calls on each connection before it counts: a fleet runs for days."""
TURNS = 50
"""In each second; a turn's callers report one after the other."""


def table() -> Table:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    nodes, node_bytes = _fleet("HeartbeatBatch", WORKERS // NODE, calls.beats)
    alone, alone_bytes = _fleet("Heartbeat", WORKERS, _heartbeat)
    session, session_bytes = _fleet("Heartbeat", WORKERS, _heartbeat, with_streams=True)
    return Table(
        f"{WORKERS:,} workers, each heard of every {EVERY_SECONDS:.0f} s",
        [
            Row(f"{WORKERS // NODE:,} nodes of {NODE}, a message each: share of a core", nodes, nodes, "", CORE_MOST),
            Row("the same: memory", node_bytes / 1e6, node_bytes / 1e6, "MB", MEGABYTES_MOST),
            Row(f"{WORKERS:,} connections: share of a core", alone, alone, ""),
            Row("the same: memory", alone_bytes / 1e6, alone_bytes / 1e6, "MB", MEGABYTES_MOST),
            Row(f"{WORKERS:,} sessions, a stream open on each connection: share of a core", session, session, ""),
            Row("the same: memory", session_bytes / 1e6, session_bytes / 1e6, "MB", MEGABYTES_MOST),
            Row(f"{WORKERS:,} connections to a bare echo: share of a core", echo := _echo(), echo, ""),
        ],
    )


def _heartbeat(number: int) -> bytes:
    return calls.heartbeat("strata", number)


def _fleet(
    method: str, callers: int, message: Callable[[int], bytes], *, with_streams: bool = False
) -> tuple[float, int]:
    """The share of a core that they take, and the server's memory."""
    stream = calls.path("strata", "HeartbeatStream")
    with serving("strata") as server:
        calls.populate(server, WORKERS)
        messages = [message(number) for number in range(callers)]
        connections = [
            GrpcConnection(server.address, calls.path("strata", method), (stream, first) if with_streams else None)
            for first in messages
        ]
        return _share(server, connections, messages), server.resident_bytes()


def _echo() -> float:
    with serving("echo") as server:
        connections = [EchoConnection(server.address) for _ in range(WORKERS)]
        return _share(server, connections, [bytes(128)] * WORKERS)


def _share(server: Any, connections: list[Any], messages: list[bytes]) -> float:
    callers = len(connections)
    for _ in range(WARM_UP):
        for connection, message in zip(connections, messages, strict=True):
            connection.exchange(message)
    share = round(callers / EVERY_SECONDS / TURNS)
    before, began = server.cpu_seconds(), time.perf_counter()
    number = 0
    for turn in range(round(SECONDS * TURNS)):
        for _ in range(share):
            connections[number % callers].exchange(messages[number % callers])
            number += 1
        time.sleep(max(0.0, began + (turn + 1) / TURNS - time.perf_counter()))
    return float((server.cpu_seconds() - before) / (time.perf_counter() - began))
