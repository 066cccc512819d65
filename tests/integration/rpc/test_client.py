"""Strata's client: both faces, both servers, several addresses, and what may be asked again."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from strata.errors import InvalidInput, StrataError
from strata.rpc import RpcError, Status
from strata.rpc.client import BlockingChannel, Channel, ChannelOptions, ClientTls, Remote
from strata.rpc.server import ServerTls
from tests.integration.rpc.test_server import Pki
from tests.servers.grpc_process import Running, interop_server
from tests.servers.interop import SERVICE, TOKEN

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def remote(name: str, *, idempotent: bool = False) -> Remote[bytes, bytes]:
    return Remote(f"/{SERVICE}/{name}", bytes, bytes, idempotent)


ECHO = remote("Echo", idempotent=True)
QUICK = ChannelOptions(connect_seconds=0.5, timeout_seconds=1.5, backoff_seconds=0.05)


@contextmanager
def deaf_address() -> Iterator[str]:
    """Somebody listens there, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def dead_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"


def test_calls_from_a_script_and_from_any_loop(server: Running) -> None:
    channel = Channel(server.address, token=TOKEN)
    with BlockingChannel(channel) as blocking:
        assert blocking.call(ECHO, b"script") == b"script"
        assert b'"identity": "somebody"' in blocking.call(remote("Whoami"), b"", metadata=(("x-a", "b"),))

        async def work() -> list[bytes]:
            return list(await asyncio.gather(*(channel.call(ECHO, str(n).encode()) for n in range(50))))

        assert asyncio.run(work()) == [str(n).encode() for n in range(50)]
        assert asyncio.run(work()) == [str(n).encode() for n in range(50)]
    with pytest.raises(StrataError, match="closed"):
        blocking.call(ECHO, b"")


def test_streams(server: Running) -> None:
    with BlockingChannel(Channel(server.address)) as channel:
        with channel.stream(remote("PingPong")) as talk:
            for said in (b"one", b"two"):
                talk.send(said)
                assert talk.receive() == said
            talk.end()
            assert talk.receive() is None
            assert list(talk) == []
        with channel.stream(remote("Sizes")) as sizes:
            sizes.send(b"[1, 2, 3]")
            sizes.end()
            assert [len(found) for found in sizes] == [1, 2, 3]
        with channel.stream(remote("Nothing")) as none:
            with pytest.raises(RpcError) as raised:
                none.receive()
            assert raised.value.status is Status.UNIMPLEMENTED
        with channel.stream(remote("SleepStream"), timeout_seconds=0.3) as late:
            late.send(b"")
            late.end()
            with pytest.raises(RpcError) as raised:
                list(late)
            assert raised.value.status is Status.DEADLINE_EXCEEDED


def test_a_stream_awaited_from_another_loop(server: Running) -> None:
    async def work() -> None:
        async with Channel(server.address) as channel, channel.stream(remote("PingPong")) as talk:
            await talk.send(b"hello")
            await talk.end()
            assert [found async for found in talk] == [b"hello"]

    asyncio.run(work())


def test_errors_come_whole(server: Running) -> None:
    with BlockingChannel(Channel(server.address)) as channel, pytest.raises(RpcError) as raised:
        channel.call(remote("End"), b'{"status": 9, "message": "no \\u2603", "details": "more", "trailing": "x"}')
    error = raised.value
    assert (error.status, error.message, error.details) == (Status.FAILED_PRECONDITION, "no ☃", b"more")
    assert dict(error.metadata)["x-end"] == "x"
    assert error.code == "rpc_failed_precondition"


def test_a_call_that_takes_too_long(server: Running) -> None:
    with BlockingChannel(Channel(server.address)) as channel, pytest.raises(RpcError) as raised:
        channel.call(remote("Sleep"), b"client", timeout_seconds=0.2)
    assert raised.value.status is Status.DEADLINE_EXCEEDED


@pytest.mark.parametrize("idempotent", [False, True])
def test_an_address_that_does_not_answer_is_passed_over(strata_server: Running, idempotent: bool) -> None:
    """Whatever the call: nothing of it was sent."""
    options = ChannelOptions(connect_seconds=0.5)
    with deaf_address() as deaf:
        addresses = [dead_address(), deaf, strata_server.address]
        with BlockingChannel(Channel(addresses, options=options)) as channel:
            assert channel.call(remote("Echo", idempotent=idempotent), b"found") == b"found"
            assert channel.channel.address == strata_server.address
            with channel.stream(remote("PingPong")) as talk:
                talk.send(b"x")
                assert talk.receive() == b"x"


def test_nobody_answers() -> None:
    with (
        BlockingChannel(Channel([dead_address(), dead_address()], options=QUICK)) as channel,
        pytest.raises(RpcError, match=r"no answer from any of .* tries") as raised,
    ):
        channel.call(ECHO, b"")
    assert raised.value.status is Status.UNAVAILABLE
    assert raised.value.retry


def test_it_is_known_whether_anybody_is_there(strata_server: Running) -> None:
    with BlockingChannel(Channel(dead_address(), options=QUICK)) as channel:
        for ask in (lambda: channel.call(ECHO, b""), lambda: channel.stream(remote("PingPong")).__enter__()):
            channel.channel.silence.ends()
            with pytest.raises(RpcError):
                ask()
            assert channel.channel.silence.seconds > 0
    with BlockingChannel(Channel([dead_address(), strata_server.address], options=QUICK)) as channel:
        for name, said in (("Echo", b""), ("Nothing", b"")):
            channel.channel.silence.begins()
            with suppress(RpcError):  # an error is an answer, too
                channel.call(remote(name), said)
            assert channel.channel.silence.seconds == 0
        channel.channel.silence.begins()
        with channel.stream(remote("PingPong")):
            assert channel.channel.silence.seconds == 0


def test_only_what_may_be_asked_again_is(strata_server: Running) -> None:
    asked = b'{"status": 14, "message": "not now"}'
    with BlockingChannel(Channel(strata_server.address, options=QUICK)) as channel:
        with pytest.raises(RpcError, match="not now") as raised:
            channel.call(remote("End"), asked)
        assert "tries" not in str(raised.value)
        with pytest.raises(RpcError, match=r"\d+ tries.*not now"):
            channel.call(remote("End", idempotent=True), asked)
        with pytest.raises(RpcError, match=r"^ABORTED: stop$"):
            channel.call(remote("End", idempotent=True), b'{"status": 10, "message": "stop"}')


def test_a_server_that_comes_back_is_found_again() -> None:
    with interop_server("strata") as first:
        address = first.address
        channel = BlockingChannel(Channel(address, options=ChannelOptions(timeout_seconds=20)))
        assert channel.call(ECHO, b"before") == b"before"
    answers: list[bytes] = []
    asking = threading.Thread(target=lambda: answers.append(channel.call(ECHO, b"after")))
    asking.start()
    with interop_server("strata", address):
        asking.join(20)
        assert answers == [b"after"]
    channel.close()


def test_a_token_is_asked_for_anew_in_every_call(strata_server: Running) -> None:
    tokens = iter([TOKEN, "wrong", None])
    with BlockingChannel(Channel(strata_server.address, token=lambda: next(tokens))) as channel:
        assert channel.call(ECHO, b"1") == b"1"
        with pytest.raises(RpcError, match="the token is wrong"):
            channel.call(ECHO, b"2")
        assert channel.call(ECHO, b"3") == b"3"


def test_tls_both_ways(tmp_path_factory: pytest.TempPathFactory) -> None:
    pki = Pki(tmp_path_factory.mktemp("client-pki"))
    certificate, key = pki.client
    with interop_server("strata", *pki.arguments(mutual=True)) as running:
        with BlockingChannel(Channel(running.address, tls=ClientTls(pki.ca, certificate, key))) as channel:
            assert b'"commonName": "worker-7"' in channel.call(remote("Whoami"), b"")
        with (
            BlockingChannel(Channel(running.address, tls=ClientTls(pki.ca), options=QUICK)) as channel,
            pytest.raises(RpcError) as raised,
        ):
            channel.call(ECHO, b"")
        assert raised.value.status is Status.UNAVAILABLE
    with BlockingChannel(Channel("x:1", tls=ClientTls(pki.ca / "no"))) as channel, pytest.raises(InvalidInput):
        channel.call(ECHO, b"")
    assert ServerTls(*pki.server).context() is not None


def test_a_forked_child_calls_too(strata_server: Running) -> None:
    with BlockingChannel(Channel(strata_server.address)) as channel:
        assert channel.call(ECHO, b"parent") == b"parent"
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with channel.stream(remote("PingPong")) as talk:
                    talk.send(b"x")
                    code = 0 if (channel.call(ECHO, b"child"), talk.receive()) == (b"child", b"x") else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert channel.call(ECHO, b"parent again") == b"parent again"


FORKS = """
import os, sys, threading
from strata.rpc import BlockingChannel, Channel, Remote
from strata.errors import InvalidInput
address, service = sys.argv[1:]
echo, talk = (Remote(f"/{service}/{name}", bytes, bytes) for name in ("Echo", "PingPong"))
channel = BlockingChannel(Channel(address))
over = threading.Event()

def busy():
    while not over.is_set():
        assert channel.call(echo, b"busy") == b"busy"

calling = threading.Thread(target=busy)
with channel.stream(talk) as stream:
    stream.send(b"one")
    assert stream.receive() == b"one"
    calling.start()
    for number in range(40):
        child = os.fork()
        if child == 0:
            if number % 2:
                try:
                    stream.send(b"mine")
                except InvalidInput:
                    stream.__exit__()
                else:
                    os._exit(3)
            if number % 10 == 0 and channel.call(echo, b"child") != b"child":
                os._exit(4)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        assert status == 0, (number, status)
    over.set()
    calling.join()
    stream.send(b"two")
    assert stream.receive() == b"two"
channel.close()
"""


COLLECTED = """
import asyncio, gc, os, signal, sys
from strata.rpc import BlockingChannel, Channel, Remote
address, service = sys.argv[1:]
gc.disable()
with BlockingChannel(Channel(address)) as channel:
    channel.call(Remote(f"/{service}/Echo", bytes, bytes), b"")
import grpc.aio

async def use():
    theirs = grpc.aio.insecure_channel(address)
    assert await theirs.unary_unary(f"/{service}/Echo")(b"x") == b"x"
    await theirs.close()
    ring = [theirs]
    ring.append(ring)

for number in range(10):
    asyncio.run(use())
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        gc.collect()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status == 0, (number, status)
    gc.collect()
"""


def test_a_child_may_collect_the_last_channel_of_its_parent(strata_server: Running) -> None:
    """grpcio ends its thread with the last channel, and no thread of the parent lives in a child."""
    command = [sys.executable, "-W", "ignore", "-c", COLLECTED, strata_server.address, SERVICE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_children_forked_while_calls_are_under_way_live_and_let_live(strata_server: Running) -> None:
    """As a loader's workers are, beside a heartbeat."""
    command = [sys.executable, "-W", "ignore", "-c", FORKS, strata_server.address, SERVICE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("wrong", ["", [], ["127.0.0.1:1", ""], "127.0.0.1", "127.0.0.1:99999", "http://127.0.0.1"])
def test_a_channel_needs_addresses(wrong: object) -> None:
    with pytest.raises(InvalidInput, match="address"):
        Channel(wrong)  # type: ignore[arg-type]


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    for certificate, key in ((tmp_path, None), (None, tmp_path)):
        with pytest.raises(InvalidInput, match="belong together"):
            ClientTls(tmp_path, certificate, key)


def test_a_token_that_cannot_be_sent_is_told(strata_server: Running) -> None:
    for token in ("secret\n", b"secret"):
        with (
            BlockingChannel(Channel(strata_server.address, token=token)) as channel,  # type: ignore[arg-type]
            pytest.raises(InvalidInput, match="printable ASCII"),
        ):
            channel.call(ECHO, b"")


def test_a_stream_outside_its_block_is_told(strata_server: Running) -> None:
    with BlockingChannel(Channel(strata_server.address)) as channel:
        stream = channel.stream(remote("PingPong"))
        with pytest.raises(InvalidInput, match="within its `with`"):
            stream.receive()
        with stream:
            stream.send(b"x")
        with pytest.raises(InvalidInput, match="within its `with`"):
            stream.send(b"y")


def test_a_call_may_have_all_the_time_there_is(strata_server: Running) -> None:
    with BlockingChannel(Channel(strata_server.address)) as channel:
        assert channel.call(ECHO, b"x", timeout_seconds=float("inf")) == b"x"


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidInput, match="connect_seconds"):
        ChannelOptions(connect_seconds=0)


@pytest.mark.parametrize("name", ["Sleep", "SleepStream"])
def test_a_channel_closed_under_a_call_says_so(strata_server: Running, name: str) -> None:
    channel, told = BlockingChannel(Channel(strata_server.address)), []
    begun = threading.Event()

    def wait() -> None:
        with channel.stream(remote(name)) as waiting:
            waiting.send(b"closed")
            waiting.end()
            begun.set()
            try:
                list(waiting)
            except RpcError as error:
                told.append((error.status, error.message))

    asking = threading.Thread(target=wait)
    asking.start()
    assert begun.wait(10)
    channel.close()
    asking.join(10)
    assert told == [(Status.CANCELLED, "the channel was closed meanwhile")]
