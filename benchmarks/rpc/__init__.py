"""The gRPC server beside grpcio's own: the same table of methods, the same token, the same clients, in one run."""

from collections.abc import Iterator

from benchmarks import About, Table, measured

ABOUT = About("5 minutes", ("h2load",))


def run() -> Iterator[Table]:
    # Here, since the servers started below import this package for one module of it.
    from benchmarks.rpc import calls, idle, latency, messages, traces

    return measured(calls.tables, traces.table, latency.table, messages.table, idle.table)
