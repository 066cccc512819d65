"""A fleet at rest: 10,000 registered workers, each with a heartbeat every five seconds."""

import time

from benchmarks import Row, Table
from benchmarks.coordinator import calls
from benchmarks.coordinator.servers import serving
from benchmarks.coordinator.wire import GrpcConnection

WORKERS, EVERY_SECONDS, SECONDS = 10_000, 5.0, 20.0
CORE_MOST, MEGABYTES_MOST = 0.1, 200.0
TURNS = 50
"""In each second; a turn's workers report one after the other."""


def table() -> Table:
    with serving("strata") as server:
        calls.populate(server, WORKERS)
        connections = [GrpcConnection(server.address, calls.path("strata", "Heartbeat")) for _ in range(WORKERS // 100)]
        turns = round(SECONDS * TURNS)
        share = round(WORKERS / EVERY_SECONDS / TURNS)
        before, began = server.cpu_seconds(), time.perf_counter()
        number = 0
        for turn in range(turns):
            for _ in range(share):
                connections[number % len(connections)].exchange(calls.heartbeat("strata", number % WORKERS))
                number += 1
            time.sleep(max(0.0, began + (turn + 1) / TURNS - time.perf_counter()))
        seconds = time.perf_counter() - began
        used = (server.cpu_seconds() - before) / seconds
        megabytes = server.resident_bytes() / 1e6
    return Table(
        f"{WORKERS:,} workers, each with a heartbeat every {EVERY_SECONDS:.0f} s, on {len(connections)} connections",
        [
            Row("share of a core", used, used, "", CORE_MOST),
            Row("memory", megabytes, megabytes, "MB", MEGABYTES_MOST),
        ],
    )
