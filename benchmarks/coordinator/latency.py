"""How long a call takes at a tenth and at a half of the peak, at a steady rate that does not wait for slow ones."""

import statistics
import tempfile
from pathlib import Path

from benchmarks import Row, Table
from benchmarks.coordinator import calls
from benchmarks.coordinator.heartbeats import CONNECTIONS, h2load
from benchmarks.coordinator.servers import serving
from benchmarks.coordinator.wire import GrpcConnection
from benchmarks.rpc.server import Running

SHARES, SECONDS, ROUNDS = (0.1, 0.5), 5, 3
PROMISED = {"Heartbeat": (0.3, 1.2), "GetShards": (0.5, 3.8), "Register": (0.8, 2.1)}
"""p50 and p99 in milliseconds: SPEC.md, section 9; held at a tenth of the peak."""


def table() -> Table:
    rows = []
    with serving("strata") as server:
        calls.populate(server, CONNECTIONS)
        GrpcConnection(server.address, calls.path("strata", "RegisterDataset")).exchange(calls.dataset())
        questions = {"Heartbeat": calls.heartbeat("strata", 5), "GetShards": calls.shards()}
        for method, message in questions.items():
            rows += _rows(server, method, message)
    return Table(f"Latency at a steady rate, {CONNECTIONS} connections", rows)


def _rows(server: Running, method: str, message: bytes) -> list[Row]:
    path = calls.path("strata", method)
    peak = h2load(server, path, message)
    rows = []
    for share in SHARES:
        found = [_latencies(server, path, message, share * peak) for _ in range(ROUNDS)]
        for name, at, place in (("p50", 0.5, 0), ("p99", 0.99, 1), ("p99.9", 0.999, None)):
            each = [times[int(at * (len(times) - 1))] for times in found]
            most = PROMISED[method][place] if share == SHARES[0] and place is not None else None
            what = f"{method}, {share:.0%} of the peak ({share * peak:,.0f}/s), {name}"
            rows.append(Row(what, statistics.median(each), min(each), "ms", most))
    return rows


def _latencies(server: Running, path: str, message: bytes, rate: float) -> list[float]:
    """Milliseconds of each call, sorted."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "calls"
        each = max(1, round(rate / CONNECTIONS))
        options = ["-n", str(each * CONNECTIONS * SECONDS), "--rps", str(each), "--log-file", str(log)]
        h2load(server, path, message, options)
        lines = [line.split("\t") for line in log.read_text().splitlines()]
    return sorted(int(line[2]) / 1000 for line in lines if int(line[2]) >= 0)
