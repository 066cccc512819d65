"""Connections that gather at a barrier, played by a small program in C: a client in Python is measured along."""

import os
import struct
import subprocess
import tempfile
from pathlib import Path

from benchmarks import program
from benchmarks.coordinator.servers import CLIENT_CORE, ROOT

SOURCE = Path(__file__).with_name("gather.c")
PROGRAM = ROOT / "build" / "gather"
PLAY_SECONDS = 300
"""A server that does not answer is told of, and not waited for."""


class Script:
    """What the connections do, step by step; see gather.c. `play` does it, and gives the moments that were noted."""

    def __init__(self, address: str, connections: int, hello: bytes) -> None:
        self._connections = connections
        port = int(address.rpartition(":")[2])
        self._steps = [struct.pack("=cI", b"C", port)] * connections
        for which in range(connections):
            self.send(which, hello)

    def send(self, which: int, data: bytes) -> None:
        self._steps.append(struct.pack("=cII", b"S", which, len(data)) + data)

    def read(self, which: int, count: int) -> None:
        self._steps.append(struct.pack("=cII", b"R", which, count))

    def all_bytes(self, count: int) -> None:
        self._steps.append(struct.pack("=cI", b"B", count))

    def all_answered(self, calls: int = 1) -> None:
        self._steps.append(struct.pack("=cI", b"E", calls))

    def answered(self, which: int) -> None:
        self._steps.append(struct.pack("=cII", b"A", which, 1))

    def all_told(self) -> None:
        """On the first stream of each connection, which stays open."""
        self._steps.append(struct.pack("=cI", b"W", 1))

    def sleep(self, seconds: float) -> None:
        self._steps.append(struct.pack("=cI", b"P", int(seconds * 1e6)))

    def note(self) -> None:
        self._steps.append(b"T")

    def play(self) -> list[float]:
        _build()
        with tempfile.TemporaryFile() as script:
            script.write(b"".join(self._steps))
            script.seek(0)
            played = subprocess.run(
                [program("taskset"), "-c", str(CLIENT_CORE), str(PROGRAM)],
                stdin=script,
                capture_output=True,
                check=False,
                timeout=PLAY_SECONDS,
            )
        if played.returncode:
            raise RuntimeError(played.stderr.decode())
        return [moment for (moment,) in struct.iter_unpack("=d", played.stdout)]


def _build() -> None:
    if not PROGRAM.exists() or PROGRAM.stat().st_mtime < SOURCE.stat().st_mtime:
        PROGRAM.parent.mkdir(exist_ok=True)
        subprocess.run([os.environ.get("CC") or program("cc"), "-O2", "-o", str(PROGRAM), str(SOURCE)], check=True)
