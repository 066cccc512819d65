"""The gRPC server beside grpcio's own: the same table of methods, the same token, the same clients, in one run."""

from benchmarks import Table


def run() -> list[Table]:
    # Here, since the servers started below import this package for one module of it.
    from benchmarks.rpc import calls, idle, latency, messages, traces

    return [*calls.tables(), traces.table(), latency.table(), messages.table(), idle.table()]
