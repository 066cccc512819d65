"""The mean of arrays over the processes of a job, on plain TCP: an all-reduce for examples, where there is no torch.

    place n ──its arrays, and their weight──▶ place 0 ──the mean──▶ place n

The law: the mean is the same to the last bit on every place, whoever came when, since place 0 alone adds, in float64
and in the order of places. Whoever is lost ends it for all: place 0 tells the others, and they see when it goes itself.

A world has one Summing. When it changes, close this one and make another, with another token: a process that is left
over from the older world is refused. It is for few processes that trust each other, on one machine or in one network:
what is sent is neither hidden nor signed.
"""

import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from strata.core.ids import check_int
from strata.demo.layout import Array, Layout, Total
from strata.demo.letters import (
    ANSWER_BYTES,
    Letter,
    NoWeight,
    check_answer,
    farewell,
    is_weight,
    send_letter,
    send_mean,
)
from strata.demo.meeting import Address, Invitation, gather, join
from strata.demo.wires import PeersLost, Wire, carry
from strata.errors import InvalidInput

CONNECT_SECONDS = 10.0
EXCHANGE_SECONDS = 60.0
FAREWELL_SECONDS = 1.0
"""For what others still send when they are told that it is over: a connection closed before would swallow the word."""
BACKLOG = 1024


def listen(host: str = "127.0.0.1") -> socket.socket:
    """A socket that others can connect to, on a free port. It is opened before its address is registered, and kept for
    all worlds that this process will be part of."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family, backlog=BACKLOG)


class Summing:
    """This process's part in it, made when all places of the world have met. PeersLost, which is a ConnectionError, if
    they do not, and when one of them is lost later. For one thread at a time.

    place: which of `peers` this process is. peers: the addresses of all, by place. listener: as `listen` made it; it
    stays the caller's. token: the same for all of one world and for no other, such as "job-generation-point".
    connect_seconds, exchange_seconds: how long meeting the others, and one mean, may take.
    """

    def __init__(
        self,
        place: int,
        peers: Sequence[Address],
        listener: socket.socket,
        token: bytes | str,
        *,
        connect_seconds: float = CONNECT_SECONDS,
        exchange_seconds: float = EXCHANGE_SECONDS,
    ) -> None:
        if not token:
            raise InvalidInput("the token is empty: give one that no other world has, such as job-generation-point")
        self.place = check_int(place, "place", most=len(peers) - 1)
        self.places = len(peers)
        self._exchange_seconds = exchange_seconds
        self._count = 0
        self._over = ""
        invitation = Invitation(self.places, token.encode() if isinstance(token, str) else token)
        self._wires: list[Wire] = []
        if place:
            self._wires = [join(peers[0], place, invitation, connect_seconds)]
        elif self.places > 1:
            self._wires = gather(listener, invitation, connect_seconds)

    def mean(self, arrays: Sequence[Array], weight: float = 1.0) -> list[Array]:
        """The mean of what all places give, arrays of the same shapes and types, each counted with its `weight`.

        InvalidInput on all places, and the end of it, where shapes or types differ or nobody has a weight.
        """
        if self._over:
            raise PeersLost(f"this Summing is over ({self._over}): look who is there, and make another")
        if not is_weight(weight):
            raise InvalidInput(f"a weight must be a finite number and not negative, not {weight!r}")
        layout = Layout.of(arrays)
        exchange = self._follow if self.place else self._lead
        self._count += 1
        try:
            mean = exchange(layout, layout.pack(arrays), weight, time.monotonic() + self._exchange_seconds)
        except BaseException as error:
            self._end(error)
            raise
        return [view.astype(array.dtype) for view, array in zip(layout.views(mean), arrays, strict=True)]

    def close(self) -> None:
        """Whoever waits for a mean is told at once, and the others when they ask for one."""
        self._end(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _lead(self, layout: Layout, own: bytearray, weight: float, ends: float) -> bytearray:
        total = Total(layout)
        total.add(own, weight)
        letters = {wire.place: Letter(wire, layout, self._count) for wire in self._wires}
        in_order = list(letters.values())
        for wire in carry(self._wires, ends, watch_idle=True):
            letters[wire.place].take()
            while in_order and in_order[0].is_complete:
                letter = in_order.pop(0)
                total.add(letter.body, letter.weight)
        if not total.weight:
            raise NoWeight
        mean = total.mean()
        self._hand_out(mean, ends)
        return mean

    def _hand_out(self, mean: bytearray, ends: float) -> None:
        """To all who are there: those who are left have made the same step, and who was lost is missed at the next."""
        for wire in self._wires:
            send_mean(wire, self._count, mean)
        there = self._wires
        while there:
            try:
                for _ in carry(there, ends, watch_idle=False):
                    pass
                return
            except PeersLost as lost:
                there = [wire for wire in there if wire.place != lost.place]

    def _follow(self, layout: Layout, own: bytearray, weight: float, ends: float) -> bytearray:
        (wire,) = self._wires
        answer, mean = bytearray(ANSWER_BYTES), bytearray(len(own))
        send_letter(wire, self._count, layout, own, weight)
        wire.expect(answer)
        for number, _ in enumerate(carry([wire], ends, watch_idle=True)):
            if number == 0:
                check_answer(answer, self._count, layout)
                wire.expect(mean)
        return mean

    def _end(self, error: BaseException | None) -> None:
        if self._over:
            return
        self._over = "it was closed" if error is None else str(error) or type(error).__name__
        if error is not None and not self.place:
            self._say_farewell(farewell(self._count, error))
        for wire in self._wires:
            wire.connection.close()

    def _say_farewell(self, answer: bytes) -> None:
        """Tell all that are not in the middle of an answer, and take what they still send until they have heard."""
        ends = time.monotonic() + FAREWELL_SECONDS
        with selectors.DefaultSelector() as selector:
            for wire in self._wires:
                with suppress(OSError):  # it is gone itself
                    if not wire.is_sending:
                        wire.connection.send(answer)
                        wire.connection.shutdown(socket.SHUT_WR)
                        selector.register(wire.connection, selectors.EVENT_READ)
            while selector.get_map() and (left := ends - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    if _is_over(key.fileobj):
                        selector.unregister(key.fileobj)


def _is_over(connection: Any) -> bool:
    try:
        return not connection.recv(1 << 16)
    except BlockingIOError:
        return False
    except OSError:
        return True
