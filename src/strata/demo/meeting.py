"""How the places of one world find each other: place 0 takes the others in, each of which proves that it is of it.

    place n ──hello: n of how many, proof of the token──▶ place 0
    place n ◀──welcome, once all are there; or a refusal── place 0

Anybody may connect. Whoever is of another world is refused, whoever says anything else is cut off, whoever says nothing
is left waiting, and none of them holds up the others.
"""

import selectors
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from hmac import compare_digest
from itertools import count

from strata.demo.wires import PeersLost, Wire, carry

_HELLO = struct.Struct("<8sII32s")
_MAGIC = b"strata/1"
_REFUSAL = bytes(32)
MOST_STRANGERS = 256
"""Connections that have not said who they are. Beyond, the oldest goes: who belongs here speaks at once."""

Address = tuple[str, int]


class Invitation:
    """What those of one world know of it: how many they are, and what they prove it with."""

    def __init__(self, places: int, token: bytes) -> None:
        self.places = places
        self._proof = blake2b(token, digest_size=32, person=b"strata hello").digest()
        self.welcome = blake2b(token, digest_size=32, person=b"strata welcome").digest()

    def hello(self, place: int) -> bytes:
        return _HELLO.pack(_MAGIC, place, self.places, self._proof)

    def place_of(self, hello: bytes) -> int | None:
        """Of whoever says this; None if it is of another world. ValueError if it is no hello at all."""
        magic, place, places, proof = _HELLO.unpack(hello)
        if magic != _MAGIC:
            raise ValueError("this is no hello")
        is_ours = compare_digest(proof, self._proof) and places == self.places and 0 < place < places
        return int(place) if is_ours else None


def join(first: Address, place: int, invitation: Invitation, seconds: float) -> Wire:
    """The connection of any other place to place 0, once all are there."""
    ends = time.monotonic() + seconds
    where = f"place 0 at {first[0]}:{first[1]}"
    try:
        wire = Wire(socket.create_connection(first, timeout=seconds), 0)
    except OSError as error:
        raise PeersLost(f"{where} cannot be reached: {error}. Look who is there, and meet again") from error
    answer = bytearray(len(_REFUSAL))
    try:
        wire.send(invitation.hello(place))
        wire.expect(answer)
        for _ in carry([wire], ends, watch_idle=False):
            pass
        if not compare_digest(answer, invitation.welcome):
            why = "refused this process, which is of another world" if answer == _REFUSAL else "is something else"
            raise PeersLost(f"{where} {why}. Look who is there, and meet again")
    except BaseException:
        wire.connection.close()
        raise
    return wire


def gather(listener: socket.socket, invitation: Invitation, seconds: float) -> list[Wire]:
    """The connections of place 0 to all others, in their order."""
    door, before = _Door(listener, invitation), listener.gettimeout()
    listener.setblocking(False)
    try:
        return door.wait_for_all(time.monotonic() + seconds)
    finally:
        listener.settimeout(before)


@dataclass(eq=False)
class _Caller:
    """Who came to place 0, as the how many-th, and what it has said."""

    connection: socket.socket
    number: int
    heard: bytes = b""


class _Door:
    """Those who came to place 0. A place belongs to who came for it last: it may have given up and come back."""

    def __init__(self, listener: socket.socket, invitation: Invitation) -> None:
        self._listener, self._invitation = listener, invitation
        self._numbers = count()
        self._strangers: dict[int, _Caller] = {}
        self._guests: dict[int, _Caller] = {}
        self._selector = selectors.DefaultSelector()

    def wait_for_all(self, ends: float) -> list[Wire]:
        self._selector.register(self._listener, selectors.EVENT_READ, self._open)
        try:
            while missing := [place for place in range(1, self._invitation.places) if place not in self._guests]:
                for key, _ in self._selector.select(max(0.0, ends - time.monotonic())):
                    key.data()
                if time.monotonic() >= ends:
                    names = ", ".join(map(str, missing[:10]))
                    why = f"place {names} did not come in time: look who is there, and meet again"
                    raise PeersLost.at(missing[0], why)
            return [self._welcomed(place) for place in sorted(self._guests)]
        except BaseException:
            for guest in self._guests.values():
                guest.connection.close()
            raise
        finally:
            for stranger in self._strangers.values():
                stranger.connection.close()
            self._selector.close()

    def _welcomed(self, place: int) -> Wire:
        connection = self._guests[place].connection
        try:
            connection.sendall(self._invitation.welcome)  # the first that is sent to it: there is room
        except OSError as error:
            raise PeersLost.at(place, f"place {place} is gone: {error}") from error
        return Wire(connection, place)

    def _open(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # it is gone already
            return
        connection.setblocking(False)
        stranger = _Caller(connection, next(self._numbers))
        self._strangers[stranger.number] = stranger
        self._selector.register(connection, selectors.EVENT_READ, partial(self._hear, stranger))
        if len(self._strangers) > MOST_STRANGERS:
            self._drop(next(iter(self._strangers.values())))

    def _hear(self, stranger: _Caller) -> None:
        if stranger.number not in self._strangers:  # dropped in this very turn
            return
        try:
            more = stranger.connection.recv(_HELLO.size - len(stranger.heard))
        except OSError:
            more = b""
        stranger.heard += more
        if not more:
            self._drop(stranger)
        elif len(stranger.heard) == _HELLO.size:
            self._know(stranger)

    def _know(self, stranger: _Caller) -> None:
        try:
            place = self._invitation.place_of(stranger.heard)
        except ValueError:
            self._drop(stranger)
            return
        if place is None:
            with suppress(OSError):
                stranger.connection.send(_REFUSAL)
            self._drop(stranger)
            return
        before = self._guests.get(place)
        if before is not None and before.number > stranger.number:
            self._drop(stranger)
            return
        if before is not None:
            self._let_go(place, before)
        del self._strangers[stranger.number]
        self._guests[place] = stranger
        self._selector.modify(stranger.connection, selectors.EVENT_READ, partial(self._let_go, place, stranger))

    def _let_go(self, place: int, guest: _Caller) -> None:
        """It closed its connection, or did not wait to be welcomed."""
        if self._guests.get(place) is guest:
            del self._guests[place]
            self._selector.unregister(guest.connection)
            guest.connection.close()

    def _drop(self, stranger: _Caller) -> None:
        del self._strangers[stranger.number]
        self._selector.unregister(stranger.connection)
        stranger.connection.close()
