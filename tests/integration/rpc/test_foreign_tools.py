"""Peers that are no gRPC clients: nghttp and h2load speak HTTP/2 alone, and python's h2 breaks its rules."""

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, Event, StreamEnded, StreamReset, TrailersReceived
from hpack import Encoder

from strata.rpc.frames import ErrorCode
from tests.servers.grpc_process import Running
from tests.servers.interop import SERVICE, TOKEN
from tests.unit.rpc.peer import FIELDS, message
from tests.unit.rpc.rules import ENDS_THE_CONNECTION, ENDS_THE_STREAM

GRPC = ["-H", "content-type: application/grpc", "-H", "te: trailers", "-H", f"authorization: Bearer {TOKEN}"]


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"missing component: {name} (Debian: nghttp2-client)")
    return found


@pytest.fixture
def body(tmp_path: Path) -> Path:
    file = tmp_path / "body"
    file.write_bytes(message(b"hello"))
    return file


def test_nghttp_sees_head_message_and_trailers(server: Running, body: Path) -> None:
    url = f"http://{server.address}/{SERVICE}/Echo"
    command = [tool("nghttp"), "-v", *GRPC, "-H", "grpc-timeout: 5S", "-d", str(body), url]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    said = re.sub(r"\x1b\[[0-9;]*m", "", said)
    heads = re.findall(r"recv \(stream_id=\d+\) (\S+): (\S+)", said)
    assert heads[0] == (":status", "200")
    assert ("content-type", "application/grpc") in heads
    assert ("grpc-status", "0") in heads
    assert "recv DATA frame <length=10" in said


@pytest.mark.parametrize(("connections", "at_once"), [(1, 1), (8, 16), (50, 1)])
def test_h2load_finds_no_failure(server: Running, body: Path, connections: int, at_once: int) -> None:
    url = f"http://{server.address}/{SERVICE}/Echo"
    load = ["-n", "2000", "-c", str(connections), "-m", str(at_once)]
    command = [tool("h2load"), *load, *GRPC, "-H", "grpc-timeout: 5S", "-d", str(body), url]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "2000 done, 2000 succeeded, 0 failed, 0 errored" in said
    assert "2000 2xx" in said


# -- python's h2, which keeps the rules itself and lets us send what we like -------------------------------------------


class H2Peer:
    def __init__(self, opened: socket.socket) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.socket = opened
        self.h2.initiate_connection()
        self.flush()

    def flush(self, more: bytes = b"") -> None:
        self.socket.sendall(self.h2.data_to_send() + more)

    def events(self) -> Iterator[Event]:
        """Until the server closes the connection."""
        while heard := self.socket.recv(65_536):
            yield from self.h2.receive_data(heard)
            self.flush()


@contextmanager
def h2_peer(address: str) -> Iterator[H2Peer]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as opened:
        yield H2Peer(opened)


def slowly(raw: bytes) -> Iterator[bytes]:
    while raw:
        end = 9 + int.from_bytes(raw[:3], "big")
        yield raw[:end]
        raw = raw[end:]


SENT_TO_NOBODY = [
    "HEADERS on a closed stream",
    "DATA on a closed stream",
    "HEADERS on a stream that was passed over",
]
"""Their calls end only when answered, and the paths in these tables are not served here: refused, not answered."""


@pytest.mark.parametrize("rule", [rule for rule in ENDS_THE_CONNECTION if rule not in SENT_TO_NOBODY])
def test_h2_breaks_a_rule_of_the_connection(strata_server: Running, rule: str) -> None:
    raw, code = ENDS_THE_CONNECTION[rule]
    with h2_peer(strata_server.address) as peer:
        peer.flush(_on_a_method_that_waits(raw))
        ended = [event for event in peer.events() if isinstance(event, ConnectionTerminated)]
    assert [event.error_code for event in ended] == [code]


@pytest.mark.parametrize("rule", ENDS_THE_STREAM)
def test_h2_breaks_a_rule_of_a_stream(strata_server: Running, rule: str) -> None:
    raw, code = ENDS_THE_STREAM[rule]
    with h2_peer(strata_server.address) as peer:
        peer.h2.send_headers(1, list(FIELDS))  # so that h2 knows of the stream; these bytes are not sent
        peer.h2.data_to_send()
        peer.h2.encoder = Encoder()
        peer.flush(_on_a_method_that_waits(raw))
        reset = next(event for event in peer.events() if isinstance(event, StreamReset | ConnectionTerminated))
        assert isinstance(reset, StreamReset)
        assert reset.error_code == code
        assert _echo(peer, 3) == message(b"still here")


def _on_a_method_that_waits(raw: bytes) -> bytes:
    """The rules are broken on calls that are under way: to a method that waits for its requests."""
    path = f"/{SERVICE}/PingPong".encode()
    old = b"\x05:path\x14/test.Service/Method"
    assert len(path) < 127
    new = b"\x05:path" + bytes([len(path)]) + path
    return b"".join(_with_length(part.replace(old, new)) for part in slowly(raw))


def _with_length(frame: bytes) -> bytes:
    return (len(frame) - 9).to_bytes(3, "big") + frame[3:]


def _echo(peer: H2Peer, number: int) -> bytes:
    fields = [(name, f"/{SERVICE}/Echo" if name == ":path" else value) for name, value in FIELDS]
    peer.h2.send_headers(number, fields)
    peer.h2.send_data(number, message(b"still here"), end_stream=True)
    peer.flush()
    body = b""
    for event in peer.events():
        if isinstance(event, DataReceived) and event.stream_id == number:
            body += event.data
        if isinstance(event, StreamEnded | TrailersReceived) and event.stream_id == number:
            break
    return body


def test_a_flood_is_told_to_calm_down_and_others_are_served(strata_server: Running) -> None:
    with h2_peer(strata_server.address) as bad, h2_peer(strata_server.address) as good:
        bad.socket.sendall(b"".join(b"\0\0\x08\x06\0\0\0\0\0" + bytes(8) for _ in range(100)))
        ended = [event for event in bad.events() if isinstance(event, ConnectionTerminated)]
        assert [event.error_code for event in ended] == [ErrorCode.ENHANCE_YOUR_CALM]
        assert _echo(good, 1) == message(b"still here")


def test_http1_gets_an_answer_it_can_read(strata_server: Running) -> None:
    host, _, port = strata_server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as opened:
        opened.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        said = b""
        while heard := opened.recv(4096):
            said += heard
    assert said.startswith(b"HTTP/1.1 400 ")


# -- services for tools ------------------------------------------------------------------------------------------------


def test_health_is_told_and_watched(server: Running) -> None:
    with grpc.insecure_channel(server.address) as channel:
        asked = health_pb2.HealthCheckRequest.SerializeToString
        answered = health_pb2.HealthCheckResponse.FromString
        check = channel.unary_unary("/grpc.health.v1.Health/Check", asked, answered)
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch", asked, answered)
        for service in ("", SERVICE):
            assert check(health_pb2.HealthCheckRequest(service=service)).status == 1
        with pytest.raises(grpc.RpcError) as raised:
            check(health_pb2.HealthCheckRequest(service="nobody"))
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND
        watching = watch(health_pb2.HealthCheckRequest(service="nobody"))
        assert next(watching).status == 3  # unknown, and waiting for it to appear
        watching.cancel()


def test_reflection_tells_a_tool_all_it_needs(server: Running) -> None:
    with grpc.insecure_channel(server.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert {SERVICE, "grpc.health.v1.Health"} <= set(database.get_services())
        found = database.FindFileContainingSymbol("grpc.health.v1.Health")
        assert found.service[0].name == "Health"
        assert database.FindFileByName(found.name) == found
        with pytest.raises(KeyError):
            database.FindFileContainingSymbol("nobody.knows.This")
