"""Heartbeats and questions for shards, at full speed."""

import statistics

from benchmarks import Row, Table, program
from benchmarks.coordinator import calls
from benchmarks.coordinator.servers import NAMES, available, serving
from benchmarks.coordinator.wire import GrpcConnection, StoreConnection, at_full_speed, check_answered
from benchmarks.rpc.h2load import Load, calls_per_second
from benchmarks.rpc.server import Running

CONNECTIONS, SECONDS, ROUNDS = 100, 4, 3
HEARTBEATS_LEAST, SHARDS_LEAST = 30_000, 15_000


def tables() -> list[Table]:
    program("h2load")  # before peers are installed
    rates: dict[str, list[float]] = {}
    costs: dict[str, list[float]] = {}
    shares: list[float] = []
    kinds = available(("strata", "torchft", "etcd", "grpcio", "tcpstore"))
    for _ in range(ROUNDS):
        for kind in kinds:
            with serving(kind) as server:
                calls.populate(server, CONNECTIONS)
                before = server.cpu_seconds()
                rate, made = _heartbeats(server)
                rates.setdefault(kind, []).append(rate)
                costs.setdefault(kind, []).append((server.cpu_seconds() - before) / made * 1e6)
                if kind == "strata":
                    shares.append(_shards(server))
    rows = [_row(kind, found) for kind, found in rates.items()]
    best = [max(rates[kind][turn] for kind in kinds if kind in ("torchft", "etcd", "grpcio")) for turn in range(ROUNDS)]
    ratios = [own / other for own, other in zip(rates["strata"], best, strict=True)]
    rows.append(Row("Strata / the best gRPC peer", statistics.median(ratios), max(ratios), "", 1.0, at_least=True))
    rows += [
        Row(f"{NAMES[kind]}, CPU for a call", statistics.median(own), min(own), "µs") for kind, own in costs.items()
    ]
    shards = Row("Strata", statistics.median(shares), max(shares), "calls/s", SHARDS_LEAST, at_least=True)
    return [
        Table(f"Heartbeats, {CONNECTIONS} connections with one call each, the server on one core", rows),
        Table("Get shard (100 of 10,000 shards in the order of an epoch), the same", [shards]),
    ]


def _row(kind: str, found: list[float]) -> Row:
    least = HEARTBEATS_LEAST if kind == "strata" else None
    return Row(NAMES[kind], statistics.median(found), max(found), "calls/s", least, at_least=True)


def _heartbeats(server: Running) -> tuple[float, float]:
    """Calls a second, and how many were made in all."""
    if server.kind == "tcpstore":
        each = 2000
        connections = [StoreConnection(server.address) for _ in range(CONNECTIONS)]
        batches = [[StoreConnection.add(calls.worker(number).encode())] * each for number in range(CONNECTIONS)]
        seconds = at_full_speed(connections, batches, answer_bytes=8)
        return each * CONNECTIONS / seconds, each * CONNECTIONS
    check_answered(server.address, calls.path(server.kind, "Heartbeat"), calls.heartbeat(server.kind, 5))
    load = Load(CONNECTIONS, 1, calls.path(server.kind, "Heartbeat"), calls.heartbeat(server.kind, 5))
    rate = calls_per_second(server, load, SECONDS)
    return rate, rate * (SECONDS + 1)  # the warm-up second costs as much


def _shards(server: Running) -> float:
    GrpcConnection(server.address, calls.path("strata", "RegisterDataset")).exchange(calls.dataset())
    return calls_per_second(server, Load(CONNECTIONS, 1, calls.path("strata", "GetShards"), calls.shards()), SECONDS)
