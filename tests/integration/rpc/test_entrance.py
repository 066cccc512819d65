"""Who comes in by TLS, and who never gets that far: on asyncio's own loop and on uvloop."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
import trustme
import uvloop

from strata.rpc.entrance import Entrance
from strata.rpc.listening import tcp_sockets
from tests.until import until_async

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
HALF_A_HELLO = b"\x16\x03\x01\x02\x00"


class Echo(asyncio.Protocol):
    """Answers with what it gets."""

    def __init__(self, place: "Place") -> None:
        self._place = place

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._place.inside.add(self)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._place.inside.discard(self)


class Place:
    """An entrance, and ways to it."""

    def __init__(self, context: ssl.SSLContext, trust: ssl.SSLContext, *, most: int, patience_seconds: float) -> None:
        self.inside: set[Echo] = set()
        self.trust = trust
        (listener,) = tcp_sockets("127.0.0.1", 0)
        self.address = listener.getsockname()
        self.entrance = Entrance([listener], context, lambda: Echo(self), most=most, patience_seconds=patience_seconds)

    async def say(self, word: bytes) -> bytes:
        """From a client that does everything right."""
        reader, writer = await asyncio.open_connection(*self.address, ssl=self.trust)
        writer.write(word)
        answer = await reader.readexactly(len(word))
        writer.close()
        await writer.wait_closed()
        return answer

    async def knock(self, first: bytes = b"") -> socket.socket:
        """A connection that goes no further."""
        made = socket.socket()
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, self.address)
        if first:
            await asyncio.get_running_loop().sock_sendall(made, first)
        await turns()  # it is taken in, and heard
        return made


async def turns() -> None:
    """Of the loop, in each of which it looks at all that came in."""
    for _ in range(20):
        await asyncio.sleep(0)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(params=LOOPS)
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Plays a scene before an entrance, and sees to it that all that was opened is closed."""
    authority = trustme.CA()
    context, trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(trust)

    def run(
        scene: Callable[[Place], Coroutine[Any, Any, None]], *, most: int = 10, patience_seconds: float = 10.0
    ) -> None:
        async def work() -> None:
            await turns()
            before = descriptors()
            place = Place(context, trust, most=most, patience_seconds=patience_seconds)
            try:
                await scene(place)
            finally:
                place.entrance.close()
                await until_async(lambda: descriptors() <= before + 2)  # the loop keeps a few for itself

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(work())

    return run


async def closed(connection: socket.socket) -> bool:
    """Whether the other side has closed it, at the latest in a few seconds."""
    try:
        async with asyncio.timeout(5):
            while await asyncio.get_running_loop().sock_recv(connection, 1000):
                pass  # last words
        return True
    except ConnectionError:
        return True
    finally:
        connection.close()


def still_open(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True


def test_whoever_comes_through_is_heard(play: Callable[..., None]) -> None:
    async def scene(place: Place) -> None:
        assert await place.say(b"hello") == b"hello"
        words = [b"%06d" % number for number in range(50)]
        assert await asyncio.gather(*map(place.say, words)) == words

    play(scene, most=100)


def test_the_silent_give_way_and_who_waited_longest_first(play: Callable[..., None]) -> None:
    async def scene(place: Place) -> None:
        silent = [await place.knock() for _ in range(5)]
        assert await closed(silent[0])
        assert await closed(silent[1])
        assert all(map(still_open, silent[2:]))
        assert await place.say(b"hello") == b"hello"
        assert await closed(silent[2])
        assert all(map(still_open, silent[3:]))
        for each in silent[3:]:
            each.close()

    play(scene, most=3)


def test_those_in_the_middle_of_a_handshake_stay(play: Callable[..., None]) -> None:
    async def scene(place: Place) -> None:
        begun = [await place.knock(HALF_A_HELLO) for _ in range(2)]
        silent = await place.knock()
        assert await closed(silent), "nobody else could make room"
        assert all(map(still_open, begun))
        for each in begun:
            each.close()
        await until_async(lambda: not place.entrance.coming)
        assert await place.say(b"hello") == b"hello", "they left, and left room"

    play(scene, most=2)


@pytest.mark.parametrize("first", [b"", HALF_A_HELLO], ids=["silent", "half a hello"])
def test_patience_ends(play: Callable[..., None], first: bytes) -> None:
    async def scene(place: Place) -> None:
        slow = [await place.knock(first) for _ in range(3)]
        assert all([await closed(each) for each in slow])
        assert await place.say(b"hello") == b"hello"
        assert await closed(await place.knock(first)), "later ones, too"

    play(scene, patience_seconds=0.3)


def test_garbage_and_strangers_are_cut_off_and_told_of_now_and_then(
    play: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(place: Place) -> None:
        for first in (b"GET / HTTP/1.1\r\n\r\n", bytes(1000), os.urandom(1000), HALF_A_HELLO + bytes(600)):
            assert await closed(await place.knock(first))
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection(*place.address, ssl=ssl.create_default_context())
        assert await place.say(b"hello") == b"hello"

    play(scene, patience_seconds=2.0)
    (told,) = [record.getMessage() for record in caplog.records if record.name == "strata.rpc"]
    assert told.startswith("no TLS with 127.0.0.1:")


def test_who_only_looks_whether_somebody_listens_is_no_news(
    play: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(place: Place) -> None:
        for _ in range(3):
            (await place.knock()).close()
        await until_async(lambda: not place.entrance.coming)
        assert await place.say(b"hello") == b"hello"

    play(scene)
    assert not [record for record in caplog.records if record.name == "strata.rpc"]


def test_close_sends_everybody_away_who_is_not_in(play: Callable[..., None]) -> None:
    async def scene(place: Place) -> None:
        reader, writer = await asyncio.open_connection(*place.address, ssl=place.trust)
        silent, begun = await place.knock(), await place.knock(HALF_A_HELLO)
        place.entrance.close()
        assert await closed(silent)
        assert await closed(begun)
        with pytest.raises(ConnectionError):
            await asyncio.open_connection(*place.address)
        writer.write(b"still here")
        assert await reader.readexactly(10) == b"still here", "who is in is not the entrance's any more"
        writer.close()
        await writer.wait_closed()

    play(scene)
