"""Registrations that are on the disk before they are answered, beside etcd's puts."""

import statistics
import time

from benchmarks import Row, Table
from benchmarks.coordinator import calls
from benchmarks.coordinator.servers import NAMES, available, serving
from benchmarks.coordinator.wire import GrpcConnection, at_full_speed, check_answered
from benchmarks.rpc.server import Running

CONNECTIONS, EACH, ROUNDS = 100, 200, 3
LEAST = 10_000


def table() -> Table:
    kinds = available(("strata", "etcd", "grpcio"))
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    costs: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(ROUNDS):
        for kind in kinds:
            with serving(kind) as server:
                before = server.cpu_seconds()
                rates[kind].append(_rate(server))
                time.sleep(0.1)
                costs[kind].append((server.cpu_seconds() - before) / (CONNECTIONS * EACH) * 1e6)
    rows = [
        Row(
            NAMES[kind], statistics.median(own), max(own), "calls/s", LEAST if kind == "strata" else None, at_least=True
        )
        for kind, own in rates.items()
    ]
    rows += [
        Row(f"{NAMES[kind]}, CPU for a call", statistics.median(own), min(own), "µs") for kind, own in costs.items()
    ]
    return Table(f"Durable registrations of different workers, {CONNECTIONS} connections with one call each", rows)


def _rate(server: Running) -> float:
    """Different workers, all in one world; the batches are made before the clock starts."""
    total = CONNECTIONS * EACH
    make = calls.put if server.kind == "etcd" else lambda number: calls.register(number, total)
    connections = [GrpcConnection(server.address, calls.path(server.kind, "Register")) for _ in range(CONNECTIONS)]
    batches = []
    for place, connection in enumerate(connections):
        numbers = range(place, total, CONNECTIONS)
        batches.append([connection.request(make(number)) for number in numbers])
    check_answered(server.address, calls.path(server.kind, "Register"), make(total - 1))
    return total / at_full_speed(connections, batches)
