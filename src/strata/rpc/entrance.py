"""Where TLS connections come in: bounded in number and in time before anything is known of them.

The law: whoever has not sent a byte is a socket and nothing else. What TLS keeps of a connection is 50 kB, and asyncio
makes it as soon as somebody connects: ten thousand who say nothing would be half a gigabyte.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Iterable
from math import inf
from typing import Any

from strata.logs import get_logger
from strata.rpc.addresses import join_address

logger = get_logger("strata.rpc")

AT_ONCE = 256
"""Connections taken before others have their turn."""
FULL_SECONDS = 1.0
TOLD_SECONDS = 10
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Entrance:
    """Listens on these sockets, and gives whoever comes through the handshake to a protocol of `make`.

    At most `most` are on their way in, silent and in their handshake for `patience_seconds` each. When there are more,
    who has said nothing for longest goes first; those in the middle of a handshake stay.
    """

    def __init__(
        self,
        listeners: Iterable[socket.socket],
        context: ssl.SSLContext,
        make: Callable[[], asyncio.BaseProtocol],
        *,
        most: int,
        patience_seconds: float,
    ) -> None:
        self._context, self._make = context, make
        self._most, self._patience_seconds = most, patience_seconds
        self._loop = asyncio.get_running_loop()
        self._silent: dict[socket.socket, float] = {}
        self._handshakes: set[asyncio.Task[None]] = set()
        self._looking: asyncio.TimerHandle | None = None
        self._told_at = -inf
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._listeners = list(listeners)
        for listener in self._listeners:
            self._open(listener)

    @property
    def coming(self) -> int:
        """How many are on their way in."""
        return len(self._silent) + len(self._handshakes)

    def close(self) -> None:
        """Nobody comes in any more, nor those who are on their way."""
        for pause in self._pauses.values():
            pause.cancel()
        if self._looking is not None:
            self._looking.cancel()
        for listener in self._listeners:
            self._loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()
        for silent in list(self._silent):
            self._send_away(silent)
        for handshake in self._handshakes:
            handshake.cancel()

    def _open(self, listener: socket.socket) -> None:
        self._pauses.pop(listener, None)
        self._loop.add_reader(listener.fileno(), self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        for taken in range(AT_ONCE):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Where no more files can be opened, the system says so even if nobody is there any more.
                if not taken and (error.errno not in _FULL or not self._make_room()):
                    self._pause(listener, error)
                return
            self._take_in(connection)

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        """Nothing more can be opened, or something is wrong with the socket: try again soon, and not at once."""
        logger.warning("cannot take connections for the moment: %s", error.strerror or error)
        self._loop.remove_reader(listener.fileno())
        self._pauses[listener] = self._loop.call_later(FULL_SECONDS, self._open, listener)

    def _take_in(self, connection: socket.socket) -> None:
        if self.coming >= self._most and not self._make_room():
            connection.close()
            return
        connection.setblocking(False)
        self._silent[connection] = self._loop.time() + self._patience_seconds
        self._loop.add_reader(connection.fileno(), self._knocked, connection)
        if self._looking is None:
            self._looking = self._loop.call_later(self._patience_seconds, self._look)

    def _make_room(self) -> bool:
        longest = next(iter(self._silent), None)
        if longest is not None:
            self._send_away(longest)
        return longest is not None

    def _look(self) -> None:
        """Whose time is over: they stand in the order in which they came."""
        now = self._loop.time()
        for connection, until in list(self._silent.items()):
            if until > now:
                self._looking = self._loop.call_at(until, self._look)
                return
            self._knocked(connection)  # it may have spoken while this process was stopped
        self._looking = None

    def _send_away(self, connection: socket.socket) -> None:
        del self._silent[connection]
        self._loop.remove_reader(connection.fileno())
        connection.close()

    def _knocked(self, connection: socket.socket) -> None:
        if not _has_spoken(connection):  # a probe, say, that only looked whether somebody listens
            self._send_away(connection)
            return
        del self._silent[connection]
        self._loop.remove_reader(connection.fileno())
        task = self._loop.create_task(self._let_in(connection))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _let_in(self, connection: socket.socket) -> None:
        waits: dict[str, Any] = {"ssl": self._context, "ssl_handshake_timeout": self._patience_seconds}
        peer = _peer(connection)
        try:
            await self._loop.connect_accepted_socket(self._make, connection, **waits)
        except OSError as error:  # what TLS finds wrong is one, too
            self._tell(peer, error)

    def _tell(self, peer: str, error: OSError) -> None:
        """Now and then: somebody may do nothing else."""
        now = self._loop.time()
        if now - self._told_at >= TOLD_SECONDS:
            self._told_at = now
            logger.warning("no TLS with %s: %s (at most one line in %d s)", peer, error, TOLD_SECONDS)


def _peer(connection: socket.socket) -> str:
    try:
        name = connection.getpeername()
    except OSError:
        return "one that is gone"
    return join_address(name[0], name[1]) if isinstance(name, tuple) else "unix"


def _has_spoken(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except OSError:
        return False
