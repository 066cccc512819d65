"""The asyncio side, on a transport made by hand: one write for a read, a fair share of turns, no reading while nothing
gets out, and no task left behind."""

import asyncio
import functools
import gc
import gzip
import time
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest

from strata.errors import InvalidInput
from strata.rpc import Call, Interceptor, Kind, Later, Limits, Method, RpcError, Status, frames
from strata.rpc.connection import Connection
from strata.rpc.crowd import Crowd
from strata.rpc.frames import ErrorCode
from strata.rpc.head import Head
from strata.rpc.stream import Stream
from tests.unit.rpc.peer import data, headers, message
from tests.unit.rpc.served import ECHO, PATH, AtOnce, Served, Together, calls, echo, named, run
from tests.until import until_async


@pytest.fixture(autouse=True, params=[AtOnce, Together])
def _crowd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever holds, holds for a read that comes alone and for one that came with others."""
    monkeypatch.setattr(Served, "crowd", request.param)


def test_a_read_is_answered_in_one_write() -> None:
    async def work() -> None:
        served = Served(ECHO)
        served.network.writes.clear()
        served.say(calls(range(1, 33, 2)))
        assert len(served.network.writes) == 1
        assert len(served.statuses()) == 16

    run(work)


def test_answers_of_many_connections_go_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.rpc.crowd.ALONE_SECONDS", 1e9)

    async def work() -> None:
        crowd = Crowd()
        several = [Served(ECHO, crowd=crowd) for _ in range(3)]
        await asyncio.sleep(0)
        for served in several:
            served.network.writes.clear()
        for served in several:
            served.say(calls([1, 3]))
            served.say(calls([5]))
        assert not any(served.network.writes for served in several)
        several[1].protocol.connection_lost(None)
        await asyncio.sleep(0)
        assert [len(served.network.writes) for served in several] == [1, 0, 1]
        assert len(several[0].statuses()) == 3

    run(work)


def test_what_comes_after_a_silence_is_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.rpc.crowd.ALONE_SECONDS", 1e9)

    async def work() -> None:
        crowd = Crowd()
        one, other = Served(ECHO, crowd=crowd), Served(ECHO, crowd=crowd)
        await asyncio.sleep(0)
        crowd.read_at = -2e9
        one.say(calls([1]))
        assert len(one.statuses()) == 1
        other.say(calls([1]))
        assert not other.statuses(), "it came right behind another, and others may come"
        await asyncio.sleep(0)
        assert len(other.statuses()) == 1

    run(work)


def heard_by(crowd: Crowd, heard: list[bytes]) -> list[Served]:
    """Three connections whose calls are noted, none of which comes alone."""

    def note(request: bytes, call: Call) -> bytes:
        heard.append(request)
        return request

    return [Served(Method(PATH, note), crowd=crowd) for _ in range(3)]


def test_all_that_comes_at_once_is_read_before_any_of_it_is_seen_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.rpc.crowd.ALONE_SECONDS", 1e9)

    async def work() -> None:
        heard: list[bytes] = []
        one, other, third = heard_by(Crowd(), heard)
        await asyncio.sleep(0)
        whole = calls([1], b"in two pieces")
        one.say(whole[:20])
        other.say(calls([1], b"other"))
        one.say(whole[20:])
        third.say(calls([1], b"third"))
        assert not heard
        await asyncio.sleep(0)
        assert heard == [b"other", b"in two pieces", b"third"]
        assert [len(each.statuses()) for each in (one, other, third)] == [1, 1, 1]

    run(work)


def test_what_came_before_the_end_is_answered_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.rpc.crowd.ALONE_SECONDS", 1e9)

    async def work() -> None:
        one, other, _ = heard_by(Crowd(), [])
        await asyncio.sleep(0)
        other.say(calls([1]))
        one.say(calls([1, 3]))
        assert not one.protocol.eof_received(), "the transport is to be closed"
        assert len(one.statuses()) == 2
        await asyncio.sleep(0)
        assert len(other.statuses()) == 1

    run(work)


def test_reads_that_wait_for_others_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.rpc.crowd.ALONE_SECONDS", 1e9)
    monkeypatch.setattr("strata.rpc.crowd.GATHERED_BYTES", 300)

    async def work() -> None:
        heard: list[bytes] = []
        one, other, third = heard_by(Crowd(), heard)
        await asyncio.sleep(0)
        one.say(calls([1], b"few"))
        assert not heard
        other.say(calls([1], b"many" * 100))
        assert heard == [b"few", b"many" * 100]
        third.say(calls([1], b"few"))
        assert len(heard) == 2, "what was seen to no longer counts"
        await asyncio.sleep(0)
        assert len(heard) == 3
        assert [len(each.statuses()) for each in (one, other, third)] == [1, 1, 1]

    run(work)


def test_a_connection_that_fails_is_cut_off_and_costs_others_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("strata.rpc.crowd.ALONE_SECONDS", 1e9)

    receive = Connection.receive

    async def work() -> None:
        heard: list[bytes] = []
        one, other, third = heard_by(Crowd(), heard)
        await asyncio.sleep(0)

        def broken(own: Connection, data: bytes, now: float) -> Stream | None:
            if own is other.protocol.connection and not own.closing:
                raise ZeroDivisionError("a defect")
            return receive(own, data, now)

        monkeypatch.setattr(Connection, "receive", broken)
        for each in (one, other, third):
            each.say(calls([1]))
        other.say(calls([3]))
        await asyncio.sleep(0)
        assert [len(each.statuses()) for each in (one, other, third)] == [1, 0, 1]
        assert heard == [b"hello"] * 2, "nothing more is heard of what has failed once"
        assert [each.network.gone for each in (one, other, third)] == [False, True, False]
        assert "a defect" in caplog.text

    run(work)


def test_an_answer_that_cannot_be_written_costs_others_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("strata.rpc.crowd.ALONE_SECONDS", 1e9)

    async def work() -> None:
        one, other, third = heard_by(Crowd(), [])
        await asyncio.sleep(0)
        one.network.write_eof()
        for number in (1, 3):
            for each in (one, other, third):
                each.say(calls([number]))
            await asyncio.sleep(0)
        assert [len(each.statuses()) for each in (one, other, third)] == [0, 2, 2]
        assert one.network.gone
        assert "write_eof" in caplog.text

    run(work)


def test_others_have_their_turn_after_a_share_of_calls() -> None:
    heard: list[bytes] = []

    def remember(request: bytes, call: Call) -> bytes:
        heard.append(request)
        return request

    async def work() -> None:
        greedy, modest = Served(Method(PATH, remember)), Served(ECHO)
        each = range(1, 401, 2)
        greedy.say(b"".join(headers(n) + data(n, message(b"%d" % n), end=True) for n in each))
        assert len(greedy.statuses()) == 64
        assert not greedy.network.reading
        modest.say(calls([1]))
        assert len(modest.statuses()) == 1
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(greedy.statuses()) == 200
        assert heard == [b"%d" % n for n in each]
        assert greedy.network.reading

    run(work)


def test_a_call_that_comes_alone_waits_for_those_that_came_before() -> None:
    async def work() -> None:
        order: list[bytes] = []
        served = Served(Method(PATH, lambda request, call: order.append(request) or b""))
        served.say(calls(range(1, 201, 2), b"first"))
        assert len(order) == 64
        served.say(calls([201], b"last"))  # it had been read already when reading was paused
        assert len(order) == 64
        for _ in range(5):
            await asyncio.sleep(0)
        assert order == [b"first"] * 100 + [b"last"]
        assert len(served.statuses()) == 101

    run(work)


def test_more_calls_a_second_than_allowed_are_refused_one_by_one() -> None:
    async def work() -> None:
        served = Served(ECHO, limits=Limits(calls_per_second=10))
        served.say(calls(range(1, 41, 2)))
        told = list(served.statuses().values())
        assert [b"grpc-status\x010" in each for each in told] == [True] * 10 + [False] * 10
        assert all(b"grpc-status\x018" in each for each in told[10:])
        other = Served(ECHO, limits=Limits(calls_per_second=10))
        other.say(calls([1]))
        assert b"grpc-status\x010" in other.statuses()[1], "each connection has its own"

    with pytest.raises(InvalidInput, match="calls_per_second must be an integer"):
        Limits(calls_per_second=0)
    run(work)


def test_an_answer_may_come_later_from_somebody_else() -> None:
    async def work() -> None:
        waiting: list[Later] = []

        def handler(request: bytes, call: Call) -> Later:
            waiting.append(Later())
            return waiting[-1]

        served = Served(Method(PATH, handler))
        served.say(calls([1, 3, 5, 7]))
        assert served.statuses() == {}
        waiting[1].answer(b"second")
        waiting[0].fail(RpcError(Status.ABORTED, "no"))
        waiting[0].answer(b"too late")
        await asyncio.sleep(0)
        told = served.statuses()
        assert b"grpc-status\x010" in told[3]
        assert b"grpc-status\x0210" in told[1]
        assert not waiting[2].given_up
        served.say(frames.rst_stream(5, ErrorCode.CANCEL))
        assert waiting[2].given_up
        waiting[2].answer(b"nobody")
        served.protocol.connection_lost(None)
        assert waiting[3].given_up
        waiting[3].fail(RuntimeError("nobody"))
        ready = Later()
        ready.answer(b"at once")
        assert await ready == b"at once"

    run(work)


def test_nothing_is_read_while_nothing_gets_out() -> None:
    async def work() -> None:
        served = Served(ECHO)
        served.protocol.pause_writing()
        assert not served.network.reading
        written = len(served.network.writes)
        served.say(calls([1, 3]))  # it was read already
        assert len(served.network.writes) == written
        served.protocol.resume_writing()
        assert served.network.reading
        assert len(served.statuses()) == 2

    run(work)


async def endless(request: bytes, call: Call) -> AsyncIterator[bytes]:
    while True:
        endless.sent += 1  # type: ignore[attr-defined]
        yield bytes(10_000)


@pytest.mark.parametrize("full", ["the network", "the stream's window", "the connection's window"])
def test_a_stream_waits_for_a_peer_that_does_not_read(full: str) -> None:
    async def work() -> None:
        endless.sent = 0  # type: ignore[attr-defined]
        served = Served(Method(PATH, endless, Kind.SERVER_STREAM))
        if full == "the network":
            served.say(frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: (1 << 31) - 1}))
            served.network.write = lambda _: served.protocol.pause_writing()  # type: ignore[assignment, method-assign]
        elif full == "the connection's window":
            served.say(frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: (1 << 31) - 1}))
            served.protocol.connection.outbox.window = 65_535
        served.say(calls([1]))
        for _ in range(200):
            await asyncio.sleep(0)
        assert endless.sent < 60  # type: ignore[attr-defined]
        before = endless.sent  # type: ignore[attr-defined]
        if full == "the network":
            served.protocol.resume_writing()
        else:
            served.say(frames.window_update(0 if full == "the connection's window" else 1, 100_000))
        for _ in range(200):
            await asyncio.sleep(0)
        assert before < endless.sent < before + 60  # type: ignore[attr-defined]
        served.protocol.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)

    run(work)


def test_handlers_of_a_lost_connection_are_stopped() -> None:
    stopped = []

    async def sleep(request: bytes, call: Call) -> bytes:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.append(request)
            raise
        return b""

    async def collect(requests: AsyncIterator[bytes], call: Call) -> bytes:
        try:
            return b"".join([request async for request in requests])
        except asyncio.CancelledError:
            stopped.append(b"collect")
            raise

    async def work() -> None:
        served = Served(Method(PATH, sleep), Method("/test.Service/Collect", collect, Kind.CLIENT_STREAM))
        served.say(calls([1, 3]) + headers(5, named("/test.Service/Collect")) + headers(7))
        await asyncio.sleep(0)
        served.say(frames.rst_stream(1, ErrorCode.CANCEL))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert stopped == [b"hello"]
        served.protocol.connection_lost(None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert sorted(stopped) == [b"collect", b"hello", b"hello"]
        assert served.left

    run(work)


def test_a_deadline_ends_what_waits_and_what_never_came() -> None:
    async def sleep(request: bytes, call: Call) -> bytes:
        await asyncio.sleep(60)
        return b""

    async def work() -> None:
        served = Served(Method(PATH, sleep))
        soon = named(PATH, ("grpc-timeout", "20m"))
        past = named(PATH, ("grpc-timeout", "0n"))
        served.say(headers(1, soon) + data(1, message(b"x"), end=True))
        served.say(headers(3, soon) + data(3, b"\0\0"))
        served.say(headers(5, past) + data(5, message(b"x"), end=True))
        assert set(served.statuses()) == {5}
        await until_async(lambda: len(served.statuses()) == 3)
        assert all(b"grpc-status\x014" in block for block in served.statuses().values())
        assert set(served.statuses()) == {1, 3, 5}

    run(work)


def test_a_handler_may_find_that_it_must_wait() -> None:
    gate: list[asyncio.Event] = []

    def sometimes(request: bytes, call: Call) -> Any:
        async def later() -> bytes:
            await gate[0].wait()
            return b"later"

        return later() if request == b"wait" else b"now"

    async def work() -> None:
        gate.append(asyncio.Event())
        served = Served(Method(PATH, sometimes))
        served.say(calls([1], b"wait") + calls([3]))
        await asyncio.sleep(0)
        assert set(served.statuses()) == {3}
        gate[0].set()
        for _ in range(4):
            await asyncio.sleep(0)
        assert set(served.statuses()) == {1, 3}

    run(work)


def test_what_is_wrong_with_a_request_is_told() -> None:
    def decode(request: bytes) -> bytes:
        raise ValueError("not mine")

    async def work() -> None:
        served = Served(ECHO, Method("/test.Service/Picky", echo, decode=decode))
        served.say(headers(1, end=True))
        served.say(headers(3) + data(3, message(b"a") + message(b"b"), end=True))
        served.say(headers(5) + data(5, message(b"abc")[:6], end=True))
        served.say(headers(7, named("/test.Service/Picky")) + data(7, message(b"a"), end=True))
        told = served.statuses()
        assert b"exactly one message" in told[1]
        assert b"exactly one message" in told[3]
        assert b"in the middle of a message" in told[5]
        assert b"cannot be decoded (not mine)" in told[7]

    run(work)


def test_metadata_that_cannot_be_sent_is_the_servers_fault(caplog: pytest.LogCaptureFixture) -> None:
    def wrong(request: bytes, call: Call) -> bytes:
        if request == b"raise":
            raise RpcError(Status.NOT_FOUND, metadata=[("x", 7)])  # type: ignore[list-item]
        call.set_trailing_metadata(("grpc-status", "0"))
        return b""

    async def work() -> None:
        served = Served(Method(PATH, wrong))
        served.say(calls([1]) + calls([3], b"raise"))
        assert b"grpc-status\x012" in served.statuses()[1]
        assert b"grpc-status\x0213" in served.statuses()[3]

    run(work)
    assert "failed" in caplog.text


def test_large_answers_are_compressed_for_those_who_take_it() -> None:
    async def work() -> None:
        served = Served(ECHO, gzip=1000)
        served.say(headers(1, named(PATH, ("grpc-accept-encoding", "gzip"))) + data(1, message(bytes(2000)), end=True))
        served.say(headers(3) + data(3, message(bytes(2000)), end=True))
        bodies = {f.stream: f.payload for f in served.network.frames() if f.kind == 0}
        assert len(bodies[1]) < 200
        assert bodies[1][0] == 1
        assert bodies[3] == message(bytes(2000))

    run(work)


class Guard(Interceptor):
    def __init__(self, token: str) -> None:
        self.token = token
        self.asked = 0
        self.ends: list[tuple[str, Status]] = []

    def authenticate(self, head: Head) -> object:
        self.asked += 1
        if head.value("authorization") == "break":
            raise KeyError("oh")
        if head.value("authorization") != self.token:
            raise RpcError(Status.UNAUTHENTICATED, "who?")
        return "known"

    def around(self, method: Method) -> Method:
        def louder(request: bytes, call: Call) -> bytes:
            answer: bytes = method.handler(request, call)
            return answer.upper()

        return Method(method.path, louder)

    def ended(self, path: str, status: Status, seconds: float) -> None:
        self.ends.append((path, status))


def test_interceptors_are_asked_once_for_each_look_and_again_when_told(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        guard = Guard("one")
        served = Served(ECHO, interceptors=[guard])
        sent = headers(1, named(PATH, ("authorization", "one")))[9:]
        for number in range(1, 21, 2):
            served.say(frames.headers(number, sent, end=False) + data(number, message(b"hi"), end=True))
        assert guard.asked == 2
        assert {f.payload for f in served.network.frames() if f.kind == 0} == {message(b"HI")}
        guard.token = "two"
        served.protocol.connection.forget_heads()
        served.say(frames.headers(21, sent, end=False) + data(21, message(b"hi"), end=True))
        assert b"grpc-status\x0216" in served.statuses()[21]
        served.say(headers(23, named("/test.Service/Nobody", ("authorization", "two")), end=True))
        served.say(headers(25, named(PATH, ("authorization", "break")), end=True))
        assert b"grpc-status\x0212" in served.statuses()[23]
        assert b"grpc-status\x0213" in served.statuses()[25]
        assert guard.ends == [
            *[(PATH, Status.OK)] * 10,
            ("", Status.UNAUTHENTICATED),
            ("", Status.UNIMPLEMENTED),
            ("", Status.INTERNAL),
        ]

    run(work)
    assert "failed to tell who calls" in caplog.text


def test_who_is_cut_off_and_who_is_told() -> None:
    async def work() -> None:
        served = Served(ECHO)
        served.say(headers(1))
        served.protocol.stop()
        assert b"grpc-status\x0214" in served.statuses()[1]
        assert served.network.ended
        late = Served(ECHO)
        late.protocol.pause_writing()
        late.protocol.tick(time.monotonic() + 21)
        assert late.network.gone

    run(work)


def test_what_breaks_beside_a_handler_breaks_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    class Deaf(Interceptor):
        def around(self, method: Method) -> Method:
            @functools.wraps(method.handler)
            def refuse(requests: Any, call: Call) -> Any:
                if method.kind is Kind.CLIENT_STREAM:
                    raise RpcError(Status.ABORTED, "not today")
                return method.handler(requests, call)

            return Method(method.path, refuse, method.kind)

        def ended(self, path: str, status: Status, seconds: float) -> None:
            raise KeyError("deaf")

    def give_up(request: bytes, call: Call) -> bytes:
        raise asyncio.CancelledError

    async def collect(requests: AsyncIterator[bytes], call: Call) -> bytes:
        return b""

    async def work() -> None:
        served = Served(
            ECHO,
            Method("/test.Service/GiveUp", give_up),
            Method("/test.Service/Collect", collect, Kind.CLIENT_STREAM),
            interceptors=[Deaf()],
        )
        served.say(headers(1, named("/test.Service/Collect")))
        served.say(headers(3, named("/test.Service/GiveUp")) + data(3, message(b""), end=True))
        served.say(headers(5, named("/no.Body/Knows"), end=True))
        served.say(calls(range(7, 207, 2)))
        for _ in range(5):
            await asyncio.sleep(0)
        told = served.statuses()
        assert b"grpc-status\x0210" in told[1]
        assert b"grpc-status\x011" in told[3]
        assert b"grpc-status\x0212" in told[5]
        assert len(told) == 103
        assert served.network.reading

    run(work)
    assert "failed to hear" in caplog.text


def test_a_message_that_is_too_long_is_refused_at_once_in_any_read() -> None:
    async def work() -> None:
        served = Served(ECHO)
        served.say(headers(1) + data(1, b"\0" + (1 << 30).to_bytes(4, "big")))
        assert b"grpc-status\x018" in served.statuses()[1]

    run(work)


def test_errors_with_metadata_that_cannot_be_sent_are_told_without_it(caplog: pytest.LogCaptureFixture) -> None:
    def end(request: bytes, call: Call) -> bytes:
        raise RpcError(Status.NOT_FOUND, metadata=[("X-Upper", "a\r\nb")])

    async def work() -> None:
        served = Served(Method(PATH, end))
        served.say(calls([1]))
        assert b"grpc-status\x0213" in served.statuses()[1]
        assert b"X-Upper" not in served.statuses()[1]

    run(work)


def test_last_words_wait_for_the_network() -> None:
    async def work() -> None:
        served = Served(ECHO)
        served.protocol.pause_writing()
        served.say(headers(0))
        assert not served.network.ended
        served.protocol.drain()
        served.protocol.resume_writing()
        assert served.network.ended
        assert [f.kind for f in served.network.frames()][-1] == frames.GOAWAY
        served.protocol.drain()
        served.protocol.tick(time.monotonic())
        served.protocol.stop()

    run(work)


def test_a_reader_that_outlives_its_call_is_stopped() -> None:
    readers: list[asyncio.Task[None]] = []

    async def both(requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        async def read() -> None:
            async for _ in requests:
                pass

        readers.append(asyncio.ensure_future(read()))
        await asyncio.sleep(0)
        yield b"early"

    async def work() -> None:
        served = Served(Method(PATH, both, Kind.BOTH_STREAM))
        served.say(headers(1))
        for _ in range(6):
            await asyncio.sleep(0)
        assert readers[0].cancelled()

    run(work)


@pytest.mark.slow
def test_nothing_of_a_connection_outlives_it() -> None:
    """Whatever was left to do when it went; and calls leave nothing for the garbage collector."""

    async def work() -> None:
        served = Served(ECHO)
        served.say(calls(range(1, 9, 2)))
        gc.collect()
        gc.disable()
        try:
            before = sum(type(found) is Stream for found in gc.get_objects())
            served.say(calls(range(9, 109, 2)))
            assert sum(type(found) is Stream for found in gc.get_objects()) <= before + 1
        finally:
            gc.enable()
        served.say(calls(range(109, 409, 2)) + headers(409) + headers(411, named("/no.Body/Knows")))
        served.protocol.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)
        gone = weakref.ref(served.protocol.connection)
        del served
        gc.collect()
        assert gone() is None

    run(work)


def test_few_bytes_that_become_many_are_counted() -> None:
    async def work() -> None:
        served = Served(Method(PATH, lambda request, call: b""))
        packed = gzip.compress(bytes(3 << 20))
        assert len(packed) < 16_000
        zipped = named(PATH, ("grpc-encoding", "gzip"))
        served.say(b"".join(headers(n, zipped) + data(n, message(packed, 1), end=True) for n in range(1, 21, 2)))
        assert len(served.statuses()) == 2
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(served.statuses()) == 10

    run(work)
