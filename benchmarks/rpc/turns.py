"""Both servers in turn, and how fast each was."""

import statistics
from collections.abc import Callable

from benchmarks import Row
from benchmarks.rpc.server import NAMES, Running


def rates(what: str, servers: list[Running], rounds: int, measure: Callable[[Running], float], unit: str) -> list[Row]:
    found: dict[str, list[float]] = {server.kind: [] for server in servers}
    for _ in range(rounds):
        for server in servers:
            found[server.kind].append(measure(server))
    return [Row(f"{what}: {NAMES[kind]}", statistics.median(own), max(own), unit) for kind, own in found.items()]
