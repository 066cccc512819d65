"""What a training process says to the helper that speaks for it: lines of JSON, down a pipe that neither waits at.

    Hello ──▶ (Beat | Tick | Left) … ──▶ Goodbye

Instants are on the monotonic clock, which is one for all processes of a machine.
"""

import os

import msgspec


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first line: for which worker to speak, and to whom. `started` tells the process from a later one that was
    given its number; None where that cannot be known."""

    job: str
    worker: str
    started: int | None
    stall_seconds: float
    settings: dict[str, str]


class Beat(msgspec.Struct, frozen=True, tag=True):
    """The coordinator has just answered this worker, which said the rest of itself."""

    incarnation: int
    heartbeat_seconds: float
    at: float
    state: int = 0
    step: int | None = None
    epoch: int | None = None


class Tick(msgspec.Struct, frozen=True, tag=True):
    """The process runs, but the coordinator did not answer it."""

    at: float


class Left(msgspec.Struct, frozen=True, tag=True):
    """The incarnation is over: nobody is to speak for it any more."""


class Goodbye(msgspec.Struct, frozen=True, tag=True):
    """Nothing more comes, and nobody has died."""


Line = Hello | Beat | Tick | Left | Goodbye

_decoder = msgspec.json.Decoder(Line)


def encoded(line: Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"


class Lines:
    """Those that come down a pipe, as they come."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.ended = False
        """No process is left that could write."""
        self._rest = b""

    def read(self) -> list[Line]:
        """All that are there. It never waits."""
        while not self.ended:
            try:
                data = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                break
            self._rest += data
            self.ended = not data
        *whole, self._rest = self._rest.split(b"\n")
        return [_decoder.decode(line) for line in whole]
