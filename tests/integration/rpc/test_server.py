"""Where a server listens and how it goes: TLS, Unix sockets, limits, and the last words of one that stops."""

import asyncio
import json
import os
import signal
import socket
import ssl
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from strata.errors import InvalidInput, StrataError
from strata.rpc import Call, Kind, Limits, Method, Server, ServerTls, frames
from strata.rpc.addresses import join_address, split_address
from strata.rpc.connection import ALIVE_PING
from strata.rpc.grpcio_server import GrpcioServer
from strata.rpc.protocol import ServerProtocol
from tests.servers.grpc_process import Running, interop_server
from tests.servers.interop import SERVICE
from tests.unit.rpc.peer import HELLO, call
from tests.until import until, until_async

KINDS = ["strata", "grpcio"]


class Pki:
    """An authority of our own: a server, a client, and a client that somebody else vouches for."""

    def __init__(self, folder: Path) -> None:
        authority, stranger = trustme.CA(), trustme.CA()
        self.ca = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        self.server = self._issue(authority, folder / "server", "localhost", "127.0.0.1")
        self.client = self._issue(authority, folder / "client", "worker-7", common_name="worker-7")
        self.stranger = self._issue(stranger, folder / "stranger", "worker-7")

    def _issue(self, ca: trustme.CA, stem: Path, *names: str, common_name: str | None = None) -> tuple[Path, Path]:
        issued = ca.issue_cert(*names, common_name=common_name)
        certificate, key = stem.with_suffix(".pem"), stem.with_suffix(".key")
        issued.private_key_pem.write_to_path(str(key))
        for blob in issued.cert_chain_pems:
            blob.write_to_path(str(certificate), append=True)
        return certificate, key

    def arguments(self, *, mutual: bool = False) -> list[str]:
        certificate, key = self.server
        found = ["--certificate", str(certificate), "--key", str(key)]
        return [*found, "--client-ca", str(self.ca)] if mutual else found

    def credentials(self, client: tuple[Path, Path] | None = None) -> grpc.ChannelCredentials:
        certificate, key = (None, None) if client is None else (file.read_bytes() for file in client)
        return grpc.ssl_channel_credentials(self.ca.read_bytes(), key, certificate)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


def whoami(channel: grpc.Channel) -> dict[str, Any]:
    with channel:
        found: dict[str, Any] = json.loads(channel.unary_unary(f"/{SERVICE}/Whoami")(b"", timeout=10))
        return found


@pytest.mark.parametrize("kind", KINDS)
def test_tls(kind: str, pki: Pki) -> None:
    with interop_server(kind, *pki.arguments()) as running:
        found = whoami(grpc.secure_channel(running.address, pki.credentials()))
        assert found["peer"].startswith("127.0.0.1:")
        assert found["subject"] is None
        with pytest.raises(grpc.RpcError) as raised:
            whoami(grpc.insecure_channel(running.address))
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("kind", KINDS)
def test_mutual_tls(kind: str, pki: Pki) -> None:
    with interop_server(kind, *pki.arguments(mutual=True)) as running:
        known = grpc.secure_channel(running.address, pki.credentials(pki.client))
        assert whoami(known)["subject"]["commonName"] == "worker-7"
        for stranger in (None, pki.stranger):
            with pytest.raises(grpc.RpcError) as raised:
                whoami(grpc.secure_channel(running.address, pki.credentials(stranger)))
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("offered", [None, ["http/1.1"], ["h2"]])
def test_tls_without_h2_is_refused(offered: list[str] | None, pki: Pki) -> None:
    context = ssl.create_default_context(cafile=str(pki.ca))
    if offered:
        context.set_alpn_protocols(offered)
    with interop_server("strata", *pki.arguments()) as running:
        host, port = split_address(running.address)
        with socket.create_connection((host, port), timeout=20) as plain:
            try:
                with context.wrap_socket(plain, server_hostname="localhost") as secure:
                    secure.sendall(HELLO + call(1))
                    heard = secure.recv(9)
            except (ssl.SSLError, ConnectionError):
                heard = b""
    assert bool(heard) is (offered == ["h2"])


@pytest.mark.parametrize("kind", KINDS)
def test_unix_sockets(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "strata.sock"
    with interop_server(kind, f"unix:{path}") as running:
        assert running.address == f"unix:{path}"
        assert whoami(grpc.insecure_channel(running.address))["peer"] == "unix"
        if kind == "strata":
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_socket_left_over_is_replaced_and_one_in_use_is_not(tmp_path: Path) -> None:
    path = tmp_path / "strata.sock"
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(path))

    async def work() -> None:
        first, second = Server([]), Server([])
        await first.listen(f"unix:{path}")
        with pytest.raises(StrataError, match=r"cannot listen on unix:.*in use"):
            await second.listen(f"unix:{path}")
        await first.stop()
        assert not path.exists()
        with pytest.raises(StrataError, match="was stopped"):
            await first.listen("127.0.0.1:0")

    asyncio.run(work())


@pytest.mark.parametrize("make", [Server, GrpcioServer])
@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:99999", "unix:"])
def test_an_address_that_is_none_is_not_listened_on(make: Any, address: str) -> None:
    async def work() -> None:
        server = make([])
        with pytest.raises((InvalidInput, StrataError)):
            await server.listen(address)
        await server.stop()

    asyncio.run(work())


def test_a_file_of_somebodys_is_not_replaced(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("words")
    with pytest.raises(StrataError, match="in use"):
        asyncio.run(Server([]).listen(f"unix:{precious}"))
    assert precious.read_text("utf-8") == "words"


@pytest.mark.parametrize("make", [Server, GrpcioServer])
def test_an_address_in_use_is_told(make: Any) -> None:
    async def work() -> None:
        first, second = Server([]), make([])
        address = await first.listen("127.0.0.1:0")
        with pytest.raises(StrataError, match=f"cannot listen on {address}"):
            await second.listen(address)
        await first.stop()
        await second.stop()

    asyncio.run(work())


def test_a_certificate_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("not a key")
    with pytest.raises(InvalidInput, match="must be PEM"):
        ServerTls(tmp_path / "missing", tmp_path / "key").context()


def test_addresses() -> None:
    assert split_address("127.0.0.1:50051") == ("127.0.0.1", 50051)
    assert split_address("[::1]:0") == ("::1", 0)
    assert split_address(":80") == ("", 80)
    assert join_address("::1", 5) == "[::1]:5"
    for wrong in ("nowhere", "host:", "host:x", "host:70000", ""):
        with pytest.raises(InvalidInput, match="is no address"):
            split_address(wrong)


# -- the end -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stopping() -> Iterator[Running]:
    with interop_server("strata", "--grace", "1.0", told_to_stop=True) as running:
        yield running


def test_a_server_that_stops_finishes_its_calls_and_takes_no_new_ones() -> None:
    with (
        interop_server("strata", "--grace", "120", told_to_stop=True) as patient,
        grpc.insecure_channel(patient.address) as channel,
    ):
        talk = channel.stream_stream(f"/{SERVICE}/PingPong")
        going_on, requests = threading.Event(), iter([b"one", b"two"])

        def send() -> Iterator[bytes]:
            yield next(requests)
            going_on.wait(60)
            yield next(requests)

        talking = talk(send(), timeout=60)
        assert next(talking) == b"one"
        os.kill(patient.pid, signal.SIGTERM)
        until(lambda: not _listens(patient.address))
        with pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary(f"/{SERVICE}/Echo")(b"late", timeout=0.3)
        assert raised.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
        going_on.set()
        assert next(talking) == b"two"
        assert list(talking) == []
        assert talking.code() is grpc.StatusCode.OK


def _listens(address: str) -> bool:
    try:
        socket.create_connection(split_address(address), timeout=10).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_call_that_does_not_end_is_told_to(stopping: Running) -> None:
    with grpc.insecure_channel(stopping.address) as channel:
        sleeping = channel.unary_stream(f"/{SERVICE}/SleepStream")(b"", timeout=20)
        assert next(sleeping) == b"first"
        os.kill(stopping.pid, signal.SIGTERM)
        with pytest.raises(grpc.RpcError):
            next(sleeping)
        assert sleeping.code() is grpc.StatusCode.UNAVAILABLE
        assert "going away" in sleeping.details()


def test_a_server_that_nobody_uses_stops_at_once() -> None:
    async def work() -> None:
        server = Server([])
        await server.listen("127.0.0.1:0")
        await asyncio.wait_for(server.stop(grace_seconds=3600), 60)

    asyncio.run(work())


def test_a_server_stops_while_somebody_is_being_turned_away() -> None:
    async def work() -> None:
        server = Server([])
        host, port = split_address(await server.listen("127.0.0.1:0"))
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.readline() == b"HTTP/1.1 400 Bad Request\r\n"
        await server.stop(grace_seconds=0.1)
        writer.close()

    asyncio.run(work())


def test_a_peer_that_is_gone_does_not_keep_the_others_from_being_stopped() -> None:
    """What is sent to a socket that the peer has closed is answered with a reset, of which no event has told yet."""

    async def work() -> None:
        server = Server([])
        host, port = split_address(await server.listen("127.0.0.1:0"))
        peers = [socket.create_connection((host, port)) for _ in range(3)]
        while server.connections < len(peers):
            await asyncio.sleep(0)
        peers[0].close()
        await server.stop(grace_seconds=0)
        assert not server.connections
        for peer in peers[1:]:
            with peer, peer.makefile("rb") as said:
                assert said.read(), "it is told, and the connection is closed"

    asyncio.run(work())


def test_a_connection_that_cannot_be_stopped_does_not_keep_the_others_from_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(act: str) -> None:
        server = Server([])
        host, port = split_address(await server.listen("127.0.0.1:0"))
        peers = [socket.create_connection((host, port)) for _ in range(3)]
        while server.connections < len(peers):
            await asyncio.sleep(0)
        own, broken = getattr(ServerProtocol, act), list[ServerProtocol]()

        def fails_for_the_first(protocol: ServerProtocol) -> None:
            if not broken:
                broken.append(protocol)
            if protocol in broken:
                raise ZeroDivisionError
            own(protocol)

        with monkeypatch.context() as patch:
            patch.setattr(ServerProtocol, act, fails_for_the_first)
            await asyncio.wait_for(server.stop(grace_seconds=0), 20)
        assert broken
        assert not server.connections
        for peer in peers:
            peer.close()

    for act in ("drain", "stop"):
        asyncio.run(work(act))
    assert "ZeroDivisionError" in caplog.text


def test_handlers_that_tidy_up_are_waited_for() -> None:
    tidied, has_begun = [], asyncio.Event()

    async def slow(request: bytes, call: Call) -> bytes:
        has_begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.2)
            tidied.append(True)
        return b""

    async def work() -> None:
        server = Server([[Method("/test.Service/Method", slow)]])
        host, port = split_address(await server.listen("127.0.0.1:0"))
        _, writer = await asyncio.open_connection(host, port)
        writer.write(HELLO + call(1))
        await has_begun.wait()
        await server.stop(grace_seconds=0.1)
        assert tidied == [True]
        writer.close()

    asyncio.run(work())


# -- limits ------------------------------------------------------------------------------------------------------------


def test_what_is_wrong_with_the_files_of_tls_is_told_of_the_right_one(pki: Pki) -> None:
    certificate, key = pki.server
    with pytest.raises(InvalidInput, match=f"cannot use {key} to know clients by"):
        ServerTls(certificate, key, key).context()
    with pytest.raises(InvalidInput, match=f"cannot use the certificate {pki.ca} and the key {key}"):
        ServerTls(pki.ca, key).context()


def test_a_handshake_that_never_ends_is_given_up(pki: Pki) -> None:
    async def work() -> None:
        server = Server([], limits=Limits(preface_seconds=0.3))
        host, port = split_address(await server.listen("127.0.0.1:0", tls=ServerTls(*pki.server)))
        reader, writer = await asyncio.open_connection(host, port)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        await server.stop()

    asyncio.run(work())


@pytest.mark.parametrize("waits_for", ["an answer to a ping", "the first words"])
def test_a_server_that_was_stopped_itself_cuts_nobody_off(waits_for: str) -> None:
    """What its peers said meanwhile is still to be read when it goes on."""
    limits = json.dumps({"keepalive_seconds": 0.5, "keepalive_timeout_seconds": 1, "preface_seconds": 1.5})
    with interop_server("strata", "--limits", limits) as running, ExitStack() as stack:
        where = split_address(running.address)
        peers = [stack.enter_context(socket.create_connection(where, timeout=10)) for _ in range(5)]
        said = HELLO + frames.settings_ack()
        if waits_for == "an answer to a ping":
            for peer in peers:
                peer.sendall(said)
            for peer in peers:
                _read_until(peer, ALIVE_PING)
            said = frames.ping(ALIVE_PING, ack=True)
        os.kill(running.pid, signal.SIGSTOP)
        for peer in peers:
            peer.sendall(said)
        time.sleep(3)
        os.kill(running.pid, signal.SIGCONT)
        for peer in peers:
            _read_until(peer, ALIVE_PING)


def _read_until(peer: socket.socket, word: bytes) -> None:
    told = b""
    while word not in told:
        more = peer.recv(1000)
        assert more, "cut off"
        told += more


def test_connections_beyond_the_limit_are_closed() -> None:
    async def work() -> None:
        server = Server([], limits=Limits(connections=2))
        host, port = split_address(await server.listen("127.0.0.1:0"))
        opened = [await asyncio.open_connection(host, port) for _ in range(3)]
        assert await asyncio.wait_for(opened[2][0].read(), 10) == b""
        assert server.connections == 2
        for _, writer in opened:
            writer.close()
        await server.stop()
        assert server.connections == 0

    asyncio.run(work())


def test_a_peer_that_does_not_read_is_cut_off_and_costs_little() -> None:
    made = 0

    async def endless(request: bytes, call: Call) -> Any:
        nonlocal made
        while True:
            made += 1
            yield bytes(100_000)

    async def work() -> None:

        limits = Limits(stalled_seconds=1.0)
        server = Server([[Method("/test.Service/Method", endless, Kind.SERVER_STREAM)]], limits=limits)
        host, port = split_address(await server.listen("127.0.0.1:0"))
        _, writer = await asyncio.open_connection(host, port, limit=1 << 16)
        wide = b"\0\0\x06\x04\0\0\0\0\0" + b"\0\x04\x7f\xff\xff\xff" + b"\0\0\x04\x08\0\0\0\0\0" + b"\x7f\x00\x00\x00"
        writer.write(HELLO + wide + call(1))
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until_async(lambda: not server.connections)
        assert made * 100_000 < 32 << 20  # what the kernel's buffers took, and a little more
        writer.close()
        await server.stop()

    asyncio.run(work())
