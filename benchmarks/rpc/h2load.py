"""h2load, the lightest of clients, told to make gRPC calls."""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks import program
from benchmarks.rpc.heartbeats import SERVICE, TOKEN, a_beat
from benchmarks.rpc.server import Running

HEADERS = (
    "content-type: application/grpc",
    "te: trailers",
    "user-agent: grpc-python/1.85.1 grpc-c/52.0.0 (linux; chttp2)",
    "grpc-timeout: 5S",
)


class Load(NamedTuple):
    """So many connections with so many calls at once on each, of one method with one message."""

    connections: int
    at_once: int
    path: str = f"/{SERVICE}/Heartbeat"
    message: bytes = a_beat()

    def __str__(self) -> str:
        calls = "call" if self.at_once == 1 else "calls"
        return f"{self.connections} connections × {self.at_once} {calls}"


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def calls_per_second(server: Running, load: Load, seconds: int) -> float:
    """At full speed, after a warm-up of a second. Every call must have been answered."""
    said = _run(server, load, ["-D", str(seconds), "--warm-up-time", "1"])
    return float(_found(r"([\d.]+) req/s", said))


def latencies(server: Running, load: Load, rate: float, seconds: int) -> list[float]:
    """Milliseconds of each call, at a steady rate that does not wait for slow ones."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "calls"
        each = max(1, round(rate / load.connections))
        total = each * load.connections * seconds
        _run(server, load, ["-n", str(total), "--rps", str(each), "--log-file", str(log)])
        calls = [line.split("\t") for line in log.read_text().splitlines()]
    return [int(call[2]) / 1000 for call in calls if int(call[2]) >= 0]


def _run(server: Running, load: Load, options: list[str]) -> str:
    with tempfile.NamedTemporaryFile() as body:
        body.write(framed(load.message))
        body.flush()
        told = HEADERS if load.path.startswith("/etcdserverpb.") else (*HEADERS, f"authorization: Bearer {TOKEN}")
        headers = [part for header in told for part in ("-H", header)]
        at_once = ["-c", str(load.connections), "-m", str(load.at_once), "-t", "1"]
        url = f"http://{server.address}{load.path}"
        command = [program("h2load"), *options, *at_once, *headers, "-d", body.name, url]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    failed, errored = _found(r"(\d+) failed", done.stdout), _found(r"(\d+) errored", done.stdout)
    if int(failed) or int(errored):
        raise RuntimeError(f"calls to {server.kind} failed: {done.stdout}")
    return done.stdout


def _found(pattern: str, said: str) -> str:
    hit = re.search(pattern, said)
    if hit is None:
        raise RuntimeError(f"h2load said something else: {said}")
    return hit[1]
