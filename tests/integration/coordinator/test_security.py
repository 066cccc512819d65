"""Tokens, TLS, and whoever means harm: each gets the right answer, and nobody else notices."""

import json
import os
import resource
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from strata.errors import Refused
from strata.rpc import RpcError
from strata.v1 import coordinator_pb2 as pb
from tests.servers.coordinator import Client, CoordinatorProcess, coordinator
from tests.until import until

HARM_SECONDS = 5.0
"""A heartbeat that takes longer is harm done to somebody else."""
TOKEN = "security-test-token"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    with coordinator(tmp_path_factory.mktemp("target"), "--lease-seconds", "30") as process:
        yield process


@contextmanager
def others_unharmed(process: CoordinatorProcess, job: str) -> Iterator[None]:
    """Somebody else goes on all the while, and never waits long or is refused."""
    stop = threading.Event()
    trouble: list[BaseException] = []
    beats = 0

    def go_on() -> None:
        nonlocal beats
        try:
            with Client(process.address, job) as client:
                who = client.register("bystander")
                while not stop.is_set():
                    client.heartbeat(who, timeout=HARM_SECONDS)
                    beats += 1
                    stop.wait(0.01)
        except BaseException as error:  # noqa: BLE001  told below
            trouble.append(error)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        until(lambda: beats or trouble)
        before = beats
        yield
        until(lambda: beats > before + 5 or trouble)
    finally:
        stop.set()
        thread.join()
    assert not trouble, trouble


def endpoint(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def test_a_wrong_token_is_refused_in_words_and_shows_nowhere(tmp_path: Path) -> None:
    with coordinator(tmp_path, environment={"STRATA_TOKEN": TOKEN}) as process:
        with Client(process.address, token=TOKEN) as client:
            client.register("w0")
        for token in ("", "wrong-token-here", TOKEN + "x"):
            with (
                Client(process.address, token=token) as client,
                pytest.raises(RpcError, match="UNAUTHENTICATED") as error,
            ):
                client.register("w1")
            assert "STRATA_TOKEN" in str(error.value)
        told = json.dumps(process.get("/api/dashboard", TOKEN))
        assert process.stop() == 0
        everything = told + "".join(file.read_text("utf-8") for file in tmp_path.glob("*.log"))
        assert TOKEN not in everything
        assert "wrong-token-here" not in everything
        state = b"".join(file.read_bytes() for file in process.state_dir.iterdir())
        assert TOKEN.encode() not in state


def test_a_token_is_replaced_while_everybody_works(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("the-first-token\n")
    with coordinator(tmp_path, "--token-file", str(file)) as process, ExitStack() as stack:
        old = stack.enter_context(Client(process.address, token="the-first-token"))
        new = stack.enter_context(Client(process.address, token="the-second-token"))
        who = old.register("w0")
        for _ in range(3):
            old.heartbeat(who)
        file.write_text("the-first-token\nthe-second-token\n")
        until(lambda: _goes_well(lambda: new.heartbeat(who)))
        old.heartbeat(who)
        request, watch = old.prepared("WatchEvents")
        stream = watch(request, metadata=(("authorization", "Bearer the-first-token"),), timeout=30)
        file.write_text("the-second-token\n")
        until(lambda: _refused(lambda: old.heartbeat(who)))
        with pytest.raises(grpc.RpcError) as error:
            list(stream)
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED, "streams end with the token that let them in"
        new.heartbeat(who)
        assert process.get("/api/v1/coordinator", "the-second-token")["term"] == 1


def _goes_well(question: Any) -> bool:
    try:
        return bool(question())
    except RpcError:
        return False


def _refused(question: Any) -> bool:
    try:
        question()
    except RpcError as error:
        return "UNAUTHENTICATED" in str(error)
    return False


def test_a_made_up_host_opens_no_door(tmp_path: Path) -> None:
    with coordinator(tmp_path, environment={"STRATA_TOKEN": TOKEN}) as process:
        for host in ("a/healthz?", "x/healthz#", "healthz"):
            with socket.create_connection(endpoint(process.http), timeout=10) as raw:
                raw.sendall(f"GET /api/dashboard HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
                assert raw.recv(1000).split(b" ")[1] in (b"400", b"401")


def test_half_a_request_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    """The second one on a connection no more than the first."""
    with coordinator(tmp_path) as process, ExitStack() as stack:
        raws = [stack.enter_context(socket.create_connection(endpoint(process.http), timeout=40)) for _ in range(2)]
        raws[0].sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        answer = b""
        while b"true" not in answer:
            answer += raws[0].recv(1000)
        for raw in raws:
            raw.sendall(b"GET /healthz HTTP/1.1\r\n")
        for raw in raws:
            assert raw.recv(1000) == b""


def test_it_does_not_listen_beyond_this_machine_without_a_token(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "strata", "coordinator", "0.0.0.0:0", "--state-dir", str(tmp_path / "state")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STRATA_")}
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert told.returncode == 2
    assert told.stderr.startswith("error: refusing to listen on 0.0.0.0:0")
    assert "--insecure" in told.stderr
    assert not (tmp_path / "state").exists()


def _tls_flags(authority: trustme.CA, folder: Path) -> list[str]:
    server = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    server.private_key_pem.write_to_path(folder / "key.pem")
    server.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    return ["--tls-certificate", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem")]


def test_tls_and_client_certificates(tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    ours, theirs = authority.issue_cert("us"), stranger.issue_cert("them")
    flags = [*_tls_flags(authority, tmp_path), "--client-ca", str(tmp_path / "ca.pem")]

    def register(client: Any) -> Any:
        credentials = grpc.ssl_channel_credentials(
            authority.cert_pem.bytes(), client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes()
        )
        with grpc.secure_channel(process.address, credentials) as channel:
            call = channel.unary_unary("/strata.v1.Coordinator/Register")
            request = pb.RegisterRequest(job_id="j", worker_id="w", nonce="n")
            return pb.RegisterResponse.FromString(call(request.SerializeToString(), timeout=10))

    with coordinator(tmp_path, *flags) as process:
        assert register(ours).rank == 0
        with pytest.raises(grpc.RpcError):
            register(theirs)
        assert b"200 OK" in _healthz(process, tmp_path / "ca.pem", ours, tmp_path)
        assert _healthz(process, tmp_path / "ca.pem", None, tmp_path) == b""


def test_thousands_who_never_shake_hands_cost_little(tmp_path: Path) -> None:
    """Not even where no more files can be opened."""
    count, (_, hard) = 1000, resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with coordinator(tmp_path, *_tls_flags(trustme.CA(), tmp_path)) as process, ExitStack() as stack:
        for room in (hard, 300):
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (room, hard))
            before = _memory(process.pid)
            for where in (process.address, process.http) * count:
                stack.enter_context(socket.create_connection(endpoint(where), timeout=10))
            assert b"200 OK" in _healthz(process, tmp_path / "ca.pem", None, tmp_path)
            assert _memory(process.pid) - before < count * 2 * 5_000


def _healthz(process: CoordinatorProcess, ca: Path, client: Any, folder: Path) -> bytes:
    context = ssl.create_default_context(cafile=ca)
    if client is not None:
        client.private_key_and_cert_chain_pem.write_to_path(folder / "client.pem")
        context.load_cert_chain(folder / "client.pem")
    try:
        with (
            socket.create_connection(endpoint(process.http), timeout=10) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1") as secure,
        ):
            secure.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            return secure.recv(1000)
    except (ssl.SSLError, ConnectionError):
        return b""


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00" * 100_000,
        os.urandom(100_000),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff" * 99,
    ],
    ids=["zeros", "random", "http1", "half-http2"],
)
def test_garbage_on_the_grpc_port_is_cut_off(target: CoordinatorProcess, garbage: bytes) -> None:
    with others_unharmed(target, "garbage"), socket.create_connection(endpoint(target.address), timeout=20) as raw:
        try:
            raw.sendall(garbage)
            while raw.recv(65536):
                pass
        except (ConnectionError, BrokenPipeError):
            pass


def test_a_message_of_a_gigabyte_is_refused_before_it_is_read(target: CoordinatorProcess) -> None:
    before = _memory(target.pid)
    with others_unharmed(target, "gigabyte"), Client(target.address) as client:
        with pytest.raises(RpcError, match="RESOURCE_EXHAUSTED"):
            client.call("RequestCheckpoint", reason="x" * (64 << 20))
        # Announced, and never sent.
        path, length = b"/strata.v1.Coordinator/Register", struct.pack(">I", 1 << 30)
        answer = _announce(endpoint(target.address), path, b"\x00" + length)
    assert answer
    assert _memory(target.pid) - before < 50 << 20


def _announce(where: tuple[str, int], path: bytes, body: bytes) -> bytes:
    from h2.config import H2Configuration
    from h2.connection import H2Connection

    connection = H2Connection(H2Configuration(client_side=True))
    connection.initiate_connection()
    headers = [(":method", "POST"), (":scheme", "http"), (":path", path.decode()), (":authority", "x")]
    connection.send_headers(1, [*headers, ("content-type", "application/grpc"), ("te", "trailers")])
    connection.send_data(1, body)
    with socket.create_connection(where, timeout=10) as raw:
        raw.sendall(connection.data_to_send())
        told = b""
        while data := raw.recv(65536):
            told += data
            if any(type(event).__name__ == "StreamEnded" for event in connection.receive_data(data)):
                break
        return told


def _memory(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no memory")


@pytest.mark.parametrize("count", [2000, pytest.param(10_000, marks=pytest.mark.long)])
def test_thousands_of_idle_connections_cost_others_nothing(target: CoordinatorProcess, count: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count + 1000:
        pytest.skip(f"this user may not open {count:,} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    before = _memory(target.pid)
    with others_unharmed(target, f"idle-{count}"), ExitStack() as stack:
        for where, several in ((target.address, count), (target.http, 500)):
            for _ in range(several):
                stack.enter_context(socket.create_connection(endpoint(where), timeout=10))
        until(lambda: target.get("/api/dashboard")["coordinator"]["connections"] >= count)
        assert target.get("/healthz") == {"done": True}
        assert _memory(target.pid) - before < count * 20_000


def test_a_client_that_never_reads_is_cut_off(target: CoordinatorProcess) -> None:
    before = _memory(target.pid)
    with Client(target.address, "unread") as client:
        client.register("w0", rank=0, world_size=1)
        client.call("RegisterDataset", dataset_id="big", total_samples=400_000, shard_size=1)
        assert len(client.call("GetShards", dataset_id="big", rank=0).shard_ids) == 400_000
        client.call("RegisterDataset", dataset_id="huge", total_samples=600_000, shard_size=1)
        with pytest.raises(Refused, match="larger shard_size"):
            client.call("GetShards", dataset_id="huge", rank=0)
    with others_unharmed(target, "never-reads"):
        _ask_and_never_read(endpoint(target.address))
    assert _memory(target.pid) - before < 150 << 20, "a hundred answers of a megabyte and more would be more"


def _ask_and_never_read(where: tuple[str, int]) -> None:
    from h2.config import H2Configuration
    from h2.connection import H2Connection

    connection = H2Connection(H2Configuration(client_side=True))
    connection.initiate_connection()
    headers = [(":method", "POST"), (":scheme", "http"), (":path", "/strata.v1.Coordinator/GetShards")]
    headers += [(":authority", "x"), ("content-type", "application/grpc"), ("te", "trailers")]
    message = pb.GetShardsRequest(job_id="unread", dataset_id="big", rank=0).SerializeToString()
    with socket.create_connection(where, timeout=3) as raw:
        for stream in range(1, 200, 2):
            connection.send_headers(stream, headers)
            connection.send_data(stream, b"\0" + struct.pack(">I", len(message)) + message, end_stream=True)
        raw.sendall(connection.data_to_send())
        time.sleep(3)
