"""How long a call takes while the server is not at its limit: a tenth and a half of what it can do."""

import statistics
from contextlib import ExitStack

from benchmarks import Row, Table
from benchmarks.rpc.h2load import Load, calls_per_second, latencies
from benchmarks.rpc.server import KINDS, NAMES, running

LOAD = Load(8, 16)
SHARES = (0.1, 0.5)
SECONDS, ROUNDS = 6, 3


def table() -> Table:
    """The rates are shares of each server's own peak, and also of the other's where it can keep up."""
    rows = []
    with ExitStack() as stack:
        servers = {kind: stack.enter_context(running(kind)) for kind in KINDS}
        peaks = {kind: calls_per_second(server, LOAD, 3) for kind, server in servers.items()}
        rates = [(kind, share * peaks[kind], f"{share:.0%} of its peak") for kind in KINDS for share in SHARES]
        rates.append(("strata", 0.5 * peaks["grpcio"], "50% of grpcio's peak"))
        for kind, rate, share in rates:
            found = [latencies(servers[kind], LOAD, rate, SECONDS) for _ in range(ROUNDS)]
            for name, at in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
                each = [sorted(calls)[int(at * (len(calls) - 1))] for calls in found]
                what = f"{NAMES[kind]}, {share} ({rate:,.0f}/s), {name}"
                rows.append(Row(what, statistics.median(each), min(each), "ms"))
    return Table(f"Latency at a steady rate, {LOAD}", rows)
