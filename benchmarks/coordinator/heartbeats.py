"""Heartbeats and questions for shards, at full speed."""

import re
import shutil
import statistics
import subprocess
import tempfile

from benchmarks import Row, Table
from benchmarks.coordinator import calls
from benchmarks.coordinator.servers import CLIENT_CORE, NAMES, TOKEN, available, serving
from benchmarks.coordinator.wire import GrpcConnection, StoreConnection, at_full_speed
from benchmarks.rpc.h2load import framed
from benchmarks.rpc.server import Running

CONNECTIONS, SECONDS, ROUNDS = 100, 4, 3
HEARTBEATS_LEAST, SHARDS_LEAST = 30_000, 15_000
HEADERS = (
    "content-type: application/grpc",
    "te: trailers",
    "user-agent: grpc-python/1.85.1 grpc-c/52.0.0 (linux; chttp2)",
    "grpc-timeout: 5S",
    f"authorization: Bearer {TOKEN}",
)


def tables() -> list[Table]:
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
    rate = h2load(server, calls.path(server.kind, "Heartbeat"), calls.heartbeat(server.kind, 5))
    return rate, rate * (SECONDS + 1)  # the warm-up second costs as much


def _shards(server: Running) -> float:
    GrpcConnection(server.address, calls.path("strata", "RegisterDataset")).exchange(calls.dataset())
    return h2load(server, calls.path("strata", "GetShards"), calls.shards())


def h2load(server: Running, path: str, message: bytes, options: list[str] | None = None) -> float:
    """Calls a second at full speed, after a warm-up of a second."""
    program = shutil.which("h2load")
    if program is None:
        raise RuntimeError("this benchmark needs h2load (Debian: nghttp2-client)")
    with tempfile.NamedTemporaryFile() as body:
        body.write(framed(message))
        body.flush()
        headers = [part for header in HEADERS for part in ("-H", header)]
        load = options or ["-D", str(SECONDS), "--warm-up-time", "1"]
        command = ["taskset", "-c", str(CLIENT_CORE), program, *load, "-c", str(CONNECTIONS), "-m", "1", "-t", "1"]
        command += [*headers, "-d", body.name, f"http://{server.address}{path}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    failed = re.search(r"(\d+) failed, (\d+) errored", done.stdout)
    rate = re.search(r"([\d.]+) req/s", done.stdout)
    if rate is None or failed is None or int(failed[1]) or int(failed[2]):
        raise RuntimeError(f"calls to {server.kind} failed: {done.stdout}")
    return float(rate[1])
