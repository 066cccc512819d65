"""The coordinator beside what the field uses: torchft's lighthouse, etcd, torch's TCPStore, and grpcio's server.

The server has one core, the client the other. Peers are installed on the first run, into build/peers; one that cannot
be had is left out, and that is said.
"""

from benchmarks import Table


def run() -> list[Table]:
    from benchmarks.coordinator import barriers, fleet, heartbeats, latency, registrations

    return [*heartbeats.tables(), registrations.table(), *barriers.tables(), latency.table(), fleet.table()]
