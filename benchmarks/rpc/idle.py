"""What connections cost that have called once and now wait."""

import resource
from contextlib import ExitStack

from hpack import Encoder

from benchmarks import Row, Table
from benchmarks.rpc.raw import RawConnection, fields, heartbeats
from benchmarks.rpc.server import NAMES, running

CONNECTIONS = 10_000
MOST_MEGABYTES = 300.0


def table() -> Table:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(CONNECTIONS, hard - 500)
    first = heartbeats([Encoder().encode(fields("Heartbeat"))], 1, 1)[0]
    rows = []
    for kind, most in (("strata", MOST_MEGABYTES), ("grpcio", None)):
        with running(kind) as server, ExitStack() as stack:
            before = server.resident_bytes()
            for _ in range(count):
                connection = RawConnection(server.address)
                stack.callback(connection.socket.close)
                connection.socket.sendall(first)
                while not connection.ended()[0]:
                    pass
            grown, whole = (server.resident_bytes() - before) / 1e6, server.resident_bytes() / 1e6
        rows.append(Row(f"{NAMES[kind]}, the process", whole, whole, "MB", most))
        rows.append(Row(f"{NAMES[kind]}, each connection", grown / count * 1000, grown / count * 1000, "kB"))
    return Table(f"{count:,} idle connections", rows)
