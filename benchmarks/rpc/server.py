"""The server that is measured, in a process of its own: `python -m benchmarks.rpc.server strata|grpcio`."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.rpc.heartbeats import Door, Hub

NAMES = {"strata": "Strata", "grpcio": "grpcio (aio)"}
KINDS = tuple(NAMES)
ROOT = Path(__file__).parents[2]
TICKS = 100
"""Of the kernel's clock in a second, in which it counts CPU time."""


class Running:
    """One that serves, and what it uses."""

    def __init__(self, kind: str, address: str, pid: int) -> None:
        self.kind, self.address, self.pid = kind, address, pid

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def resident_bytes(self) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


@contextmanager
def running(kind: str) -> Iterator[Running]:
    command = [sys.executable, "-m", "benchmarks.rpc.server", kind]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Running(kind, process.stdout.readline().strip(), process.pid)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.communicate()


async def _serve(kind: str) -> None:
    from strata.rpc import GrpcioServer, Server

    make: type[Server | GrpcioServer] = Server if kind == "strata" else GrpcioServer
    server = make([Hub().methods()], interceptors=[Door()])
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    print(await server.listen("127.0.0.1:0"), flush=True)
    await stopped.wait()
    await server.stop(grace_seconds=0.5)


def main() -> None:
    import uvloop

    kind = sys.argv[1]
    uvloop.run(_serve(kind))


if __name__ == "__main__":
    main()
