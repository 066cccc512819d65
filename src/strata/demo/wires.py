"""Connections between places: exactly the bytes that are expected come in, and the loop that carries them.

The law: nothing is read that was not expected, so nobody else decides how much memory is taken; and whoever is lost,
silent too long, or says what nobody expected is named.
"""

import selectors
import socket
import time
from collections.abc import Collection, Iterator
from typing import Self

from strata.errors import RankFailed


class PeersLost(RankFailed, ConnectionError):
    """The places of this world cannot go on together: one of them is gone, silent, or of another world."""

    code = "peers_lost"
    place = 0
    """Whose fault that is."""

    @classmethod
    def at(cls, place: int, message: str) -> Self:
        made = cls(message)
        made.place = place
        return made


class Wire:
    """The connection to one place: what is still to be sent to it, and what is still to come."""

    def __init__(self, connection: socket.socket, place: int) -> None:
        self.connection, self.place = connection, place
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._out: list[memoryview] = []
        self._into = memoryview(b"")

    @property
    def is_sending(self) -> bool:
        return bool(self._out)

    @property
    def is_receiving(self) -> bool:
        return bool(self._into)

    def send(self, data: bytes | bytearray) -> None:
        if data:
            self._out.append(memoryview(data))

    def expect(self, buffer: bytearray) -> None:
        """Take exactly as many bytes as this holds."""
        self._into = memoryview(buffer)

    def write(self) -> None:
        try:
            sent = self.connection.send(self._out[0])
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lost(str(error)) from error
        self._out[0] = self._out[0][sent:]
        if not self._out[0]:
            del self._out[0]

    def read(self) -> bool:
        """Whether all that was expected is there now."""
        unexpected = bytearray(1)
        try:
            count = self.connection.recv_into(self._into or unexpected)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._lost(str(error)) from error
        if not count:
            raise self._lost("it closed the connection")
        if not self._into:
            raise self._lost("it says what nobody asked for")
        self._into = self._into[count:]
        return not self._into

    def _lost(self, why: str) -> PeersLost:
        return PeersLost.at(self.place, f"place {self.place} is gone: {why}")


def carry(wires: Collection[Wire], ends: float, *, watch_idle: bool) -> Iterator[Wire]:
    """Send and receive until nothing is left of either; gives each wire on which all has come that was expected.

    ends: when that must be so, on the monotonic clock. watch_idle: whether to look also at those from which nothing is
    expected, which may then neither leave nor speak.
    """
    with selectors.DefaultSelector() as selector:
        while busy := [wire for wire in wires if wire.is_sending or wire.is_receiving]:
            for wire in wires:
                _watch(selector, wire, watch_idle)
            ready = selector.select(max(0.0, ends - time.monotonic()))
            if not ready and time.monotonic() >= ends:
                late = ", ".join(str(wire.place) for wire in busy[:10])
                raise PeersLost.at(busy[0].place, f"place {late} did not send or take in time what it should")
            for key, events in ready:
                # Reading first: the last word of a place that closes says why.
                if events & selectors.EVENT_READ and key.data.read():
                    yield key.data
                if events & selectors.EVENT_WRITE and key.data.is_sending:
                    key.data.write()


def _watch(selector: selectors.BaseSelector, wire: Wire, watch_idle: bool) -> None:
    wanted = selectors.EVENT_WRITE if wire.is_sending else 0
    if wire.is_receiving or watch_idle:
        wanted |= selectors.EVENT_READ
    known = selector.get_map().get(wire.connection)
    if (known.events if known else 0) == wanted:
        return
    if not wanted:
        selector.unregister(wire.connection)
    elif known:
        selector.modify(wire.connection, wanted, wire)
    else:
        selector.register(wire.connection, wanted, wire)
