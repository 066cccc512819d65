"""Who asks nothing, not to the end, or does not read the answer, is in nobody's way: the HTTP server within this
process, with less patience than it has in service."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from strata.coordinator import http, streams
from strata.coordinator.auth import Tokens
from strata.coordinator.http import HttpServer
from strata.coordinator.hub import Hub
from strata.coordinator.stats import BarrierStats, JournalStats, RequestStats
from strata.coordinator.views import Views
from tests.unit.coordinator.hubs import SlowJournal, register, run
from tests.until import until_async

ASK = "GET {} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Served:
    """A server, and what a client does to it."""

    def __init__(self, hub: Hub, server: HttpServer, address: str) -> None:
        self.hub, self._server, self._address = hub, server, address

    @property
    def connections(self) -> int:
        return self._server.connections

    async def open(self, said: str, receive_bytes: int = 0) -> Opened:
        host, _, port = self._address.rpartition(":")
        raw = socket.socket()
        if receive_bytes:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
        opened = await asyncio.open_connection(sock=raw, limit=4096 if receive_bytes else 1 << 22)
        opened[1].write(said.encode())
        return opened

    async def asked(self, path: str) -> bytes:
        """The status line and the headers."""
        reader, writer = await self.open(ASK.format(path))
        told = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        return told


def _serving(folder: Path, work: Callable[[_Served], Awaitable[None]]) -> None:
    async def served(hub: Hub, journal: SlowJournal) -> None:
        views = Views(hub, RequestStats(), BarrierStats(), JournalStats(), version="0")
        server = HttpServer(views, Tokens(), lambda: True, None)
        address = await server.listen("127.0.0.1:0")
        try:
            async with asyncio.timeout(60):
                await work(_Served(hub, server, address))
        finally:
            hub.release_waits()
            await server.stop()

    run(folder, served)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "IDLE_SECONDS", 0.6)
    monkeypatch.setattr(http, "STALLED_SECONDS", 0.8)


@pytest.mark.parametrize("before", ["", ASK.format("/healthz")], ids=["first", "second"])
def test_a_request_that_trickles_in_is_not_heard_out(tmp_path: Path, impatient: None, before: str) -> None:
    async def work(served: _Served) -> None:
        reader, writer = await served.open(before + "GET /healthz HTTP/1.1\r\nx: ")
        ended = asyncio.ensure_future(reader.read())
        while not ended.done():
            writer.write(b"a")
            await asyncio.sleep(0.05)
        assert ended.exception() is not None or ended.result().count(b"200 OK") == bool(before)
        writer.close()

    _serving(tmp_path, work)


def test_an_answer_that_is_not_read_is_taken_back(tmp_path: Path, impatient: None) -> None:
    async def work(served: _Served) -> None:
        for number in range(1000):
            register(served.hub, f"w{number}", metadata={"about": "x" * 4000})
        await served.hub.settled()
        _, writer = await served.open(ASK.format("/api/v1/workers?limit=1000"), receive_bytes=4096)
        await until_async(lambda: served.connections)
        await until_async(lambda: not served.connections)
        writer.transport.abort()

    _serving(tmp_path, work)


def test_a_stream_that_is_read_lives_on(tmp_path: Path, impatient: None) -> None:
    async def work(served: _Served) -> None:
        reader, writer = await served.open(ASK.format("/api/v1/stream"))
        for _ in range(3):
            await reader.readuntil(b"event: pulse")
        writer.close()

    _serving(tmp_path, work)


def test_when_too_many_come_the_longest_waiting_go_and_health_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "CONNECTIONS", 8)

    async def work(served: _Served) -> None:
        stream = await served.open(ASK.format("/api/v1/stream"))
        await stream[0].readuntil(b"event: snapshot")
        halves = [await served.open("GET /healthz HTTP/1.1\r\nx: ") for _ in range(30)]
        assert (await served.asked("/healthz")).startswith(b"HTTP/1.1 200 ")
        assert served.connections <= 8
        await stream[0].readuntil(b"event: pulse")
        for _, writer in (stream, *halves):
            writer.transport.abort()

    _serving(tmp_path, work)


def test_one_watcher_too_many_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(served: _Served) -> None:
        monkeypatch.setattr(streams, "WATCHERS_MOST", len(served.hub.watchers) + 1)
        first = await served.open(ASK.format("/api/v1/stream"))
        await first[0].readuntil(b"event: snapshot")
        assert (await served.asked("/api/v1/stream")).startswith(b"HTTP/1.1 503 ")
        first[1].transport.abort()
        await until_async(lambda: not served.connections)
        assert (await served.asked("/api/v1/stream")).startswith(b"HTTP/1.1 200 ")

    _serving(tmp_path, work)
