"""What many connections do in one turn of the loop, each step for all of them before the next: reads, then calls, then
answers.

Between two system calls Python takes 1.4 times as long for a call as when it sees to one after the other. And the first
answer wakes the clients' side, which is then awake for the rest: half the cost of a small answer is the waking.

The law: who judges a connection, by the clock or because it ended, sees first to what was read.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strata.rpc.protocol import ServerProtocol

from strata.logs import get_logger

logger = get_logger("strata.rpc")

ALONE_SECONDS = 1e-4
"""Of silence on all connections: what comes then is answered in the same turn of the loop."""
GATHERED_BYTES = 1 << 20
"""Of reads, of all connections together, that wait to be seen to."""
FAILED = "the connection of %s failed, and is cut off"


class Crowd:
    """The connections of one server."""

    __slots__ = ("_due", "_gathered_bytes", "_is_scheduled", "_loop", "_reads", "read_at")

    def __init__(self) -> None:
        self._reads: list[tuple[ServerProtocol, bytes]] = []
        self._gathered_bytes = 0
        self._due: list[ServerProtocol] = []
        self._is_scheduled = False
        self._loop = asyncio.get_running_loop()
        self.read_at = 0.0

    def is_quiet(self, now: float) -> bool:
        """Whether nobody was heard of for a while."""
        return not self._reads and now - self.read_at > ALONE_SECONDS

    def was_busy(self) -> None:
        """With something that was read just now. What came meanwhile does not come alone."""
        self.read_at = time.monotonic()

    def gather(self, protocol: "ServerProtocol", data: bytes) -> None:
        """See to it once everything else that came in was read."""
        self._reads.append((protocol, data))
        self._soon()
        self._gathered_bytes += len(data)
        if self._gathered_bytes > GATHERED_BYTES:
            self.see_to_reads()

    def flush_later(self, protocol: "ServerProtocol") -> None:
        """Once everything was seen to."""
        self._due.append(protocol)
        self._soon()

    def _soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        self.see_to_reads()
        due, self._due = self._due, []
        for protocol in due:
            protocol.flushing = False
            alone(protocol, protocol.flush)

    def see_to_reads(self) -> None:
        """Now, all that were gathered."""
        if not self._reads:
            return
        reads, self._reads, self._gathered_bytes = self._reads, [], 0
        now = time.monotonic()
        for protocol, data in reads:
            try:
                if protocol.see_to(data, now):
                    protocol.flush_soon()
            except Exception:
                logger.exception(FAILED, protocol.peer)
                _cut_off(protocol)
        self.was_busy()


def alone(protocol: "ServerProtocol", act: Callable[..., object], *about: object) -> None:
    """One connection's failure is its own: the others have theirs seen to."""
    try:
        act(*about)
    except Exception:
        logger.exception(FAILED, protocol.peer)
        _cut_off(protocol)


def _cut_off(protocol: "ServerProtocol") -> None:
    protocol.connection.lost()
    protocol.abort()
