"""The coordinator beside what the field uses: torchft's lighthouse, etcd, torch's TCPStore, and grpcio's server.

The server has one core, the client the other. Peers are installed on the first run, into build/peers; one that cannot
be had is left out, and that is said.
"""

from collections.abc import Iterator

from benchmarks import About, Table, measured

ABOUT = About("15 minutes", ("h2load", "cc", "taskset"), "etcd, torch and torchft, installed the first time")


def run() -> Iterator[Table]:
    from benchmarks.coordinator import barriers, fleet, heartbeats, latency, registrations

    return measured(heartbeats.tables, registrations.table, barriers.tables, latency.table, fleet.table)
