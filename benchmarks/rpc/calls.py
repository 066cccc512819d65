"""Calls per second, with a deadline and a token in each, and what a call costs the server."""

import statistics
from contextlib import ExitStack

from benchmarks import Row, Table
from benchmarks.rpc.h2load import Load, calls_per_second
from benchmarks.rpc.server import KINDS, NAMES, Running, running

LOADS = ((Load(8, 16), 15.0), (Load(100, 1), 8.0))
"""And how many times as fast as grpcio's server."""
ROUNDS, SECONDS = 5, 4


def tables() -> list[Table]:
    with ExitStack() as stack:
        servers = [stack.enter_context(running(kind)) for kind in KINDS]
        return [_compared(load, least, servers) for load, least in LOADS]


def _compared(load: Load, least: float, servers: list[Running]) -> Table:
    rates: dict[str, list[float]] = {server.kind: [] for server in servers}
    costs: dict[str, list[float]] = {server.kind: [] for server in servers}
    for _ in range(ROUNDS):
        for server in servers:
            before = server.cpu_seconds()
            rates[server.kind].append(calls_per_second(server, load, SECONDS))
            calls = rates[server.kind][-1] * (SECONDS + 1)  # the warm-up second costs as much
            costs[server.kind].append((server.cpu_seconds() - before) / calls * 1e6)
    ratios = [own / other for own, other in zip(rates["strata"], rates["grpcio"], strict=True)]
    rows = [Row(NAMES[kind], statistics.median(own), max(own), "calls/s", at_least=True) for kind, own in rates.items()]
    rows.append(Row("Strata / grpcio", statistics.median(ratios), max(ratios), "", least, at_least=True))
    rows += [
        Row(f"{NAMES[kind]}, CPU for a call", statistics.median(own), min(own), "µs") for kind, own in costs.items()
    ]
    return Table(f"Unary calls with deadline and token, {load}", rows)
