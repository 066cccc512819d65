"""How long a call takes at a tenth and at a half of the peak, at a steady rate that does not wait for slow ones.

Beside it, at each tenth, a server that only sends back what it gets: what the machine itself adds, which on a shared
one is most of the p99.
"""

import statistics
from collections.abc import Callable

from benchmarks import Row, Table
from benchmarks.coordinator import calls
from benchmarks.coordinator.servers import serving
from benchmarks.coordinator.wire import EchoConnection, GrpcConnection, at_full_speed, at_steady_rate
from benchmarks.rpc.server import Running

CONNECTIONS, SHARES, SECONDS, ROUNDS = 100, (0.1, 0.5), 2.0, 5
PROMISED = {"Heartbeat": (0.3, 1.2), "GetShards": (0.5, 3.8), "Register": (0.8, 2.1)}
"""p50 and p99 in milliseconds: what the system that Strata follows published, to be kept at a tenth of the peak."""
WORLD = 100_000


def table() -> Table:
    rows = []
    for method in PROMISED:
        found: dict[float, list[list[float]]] = {share: [] for share in SHARES}
        rates: dict[float, float] = {}
        for _ in range(ROUNDS):
            with serving("strata") as server:
                ask = _asking(server, method)
                peak = ask(0.0)[0]
                for share in SHARES:
                    rates[share] = share * peak
                    found[share].append(sorted(ask(share * peak)))
        rows += _echoes(rates[SHARES[0]])
        for share in SHARES:
            rows += _rows(f"{method}, {share:.0%} of the peak ({rates[share]:,.0f}/s)", method, share, found[share])
    return Table(f"Latency at a steady rate, {CONNECTIONS} connections, from when each call was due", rows)


def _echoes(rate: float) -> list[Row]:
    found = []
    for _ in range(ROUNDS):
        with serving("echo") as server:
            connections = [EchoConnection(server.address) for _ in range(CONNECTIONS)]
            requests = [connections[number % CONNECTIONS].request(bytes(64)) for number in range(round(rate * SECONDS))]
            found.append(sorted(at_steady_rate(connections, requests, rate)))
    return _rows(f"a bare echo at {rate:,.0f}/s", "", 0.0, found)


def _rows(what: str, method: str, share: float, found: list[list[float]]) -> list[Row]:
    rows = []
    for name, at, place in (("p50", 0.5, 0), ("p99", 0.99, 1), ("p99.9", 0.999, None)):
        each = [times[int(at * (len(times) - 1))] * 1000 for times in found]
        most = PROMISED[method][place] if share == SHARES[0] and place is not None else None
        rows.append(Row(f"{what}, {name}", statistics.median(each), min(each), "ms", most))
    return rows


def _asking(server: Running, method: str) -> Callable[[float], list[float]]:
    """Asks at this rate and gives the seconds each took; at a rate of 0 as fast as it goes, and gives that rate."""
    if method != "Register":
        calls.populate(server, CONNECTIONS)
        GrpcConnection(server.address, calls.path("strata", "RegisterDataset")).exchange(calls.dataset())
    connections = [GrpcConnection(server.address, calls.path("strata", method)) for _ in range(CONNECTIONS)]
    fresh = iter(range(WORLD))

    def message() -> bytes:
        if method == "Register":
            return calls.register(next(fresh), WORLD)
        return calls.heartbeat("strata", 5) if method == "Heartbeat" else calls.shards()

    def ask(rate: float) -> list[float]:
        if not rate:
            each = 100 if method == "Register" else 500
            batches = [[connection.request(message()) for _ in range(each)] for connection in connections]
            return [each * CONNECTIONS / at_full_speed(connections, batches)]
        count = round(rate * SECONDS)
        requests = [connections[number % CONNECTIONS].request(message()) for number in range(count)]
        return at_steady_rate(connections, requests, rate)

    return ask
