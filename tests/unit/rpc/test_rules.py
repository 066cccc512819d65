"""Every rule of RFC 9113 that a client can break, and what the server answers."""

import pytest

from strata.rpc import frames
from strata.rpc.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HAS_PRIORITY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    SETTINGS,
    ErrorCode,
    Setting,
    frame,
)
from strata.rpc.limits import Limits
from tests.unit.rpc.peer import FIELDS, HELLO, Echo, Peer, block, call, data, headers, message
from tests.unit.rpc.rules import ENDS_THE_CONNECTION, ENDS_THE_STREAM

E = ErrorCode


@pytest.mark.parametrize("rule", ENDS_THE_CONNECTION)
def test_what_ends_the_connection(rule: str) -> None:
    sent, code = ENDS_THE_CONNECTION[rule]
    peer = Echo()
    peer.say_slowly(sent)
    assert peer.goaway is code
    assert peer.connection.closing
    assert not peer.connection.streams
    said = peer.raw
    peer.say(call(101))  # nobody listens any more
    assert peer.raw == said


@pytest.mark.parametrize("rule", ENDS_THE_STREAM)
def test_what_ends_the_stream(rule: str) -> None:
    sent, code = ENDS_THE_STREAM[rule]
    peer = Echo()
    peer.say_slowly(sent)
    assert peer.resets() == {1: code}
    assert peer.goaway is None
    peer.say(data(1, b"late") + frames.window_update(1, 5) + frames.rst_stream(1, E.CANCEL))  # still under way
    peer.say(call(3, b"well"))
    assert peer.body(3) == message(b"well")
    assert not peer.connection.streams


@pytest.mark.parametrize(
    ("sent", "code"),
    [(data(1, b"x"), E.STREAM_CLOSED), (headers(1, [("x", "y")], end=True), E.STREAM_CLOSED)],
)
def test_what_comes_after_the_end_while_the_call_goes_on(sent: bytes, code: ErrorCode) -> None:
    peer = Peer()
    peer.say(call(1) + sent)
    assert peer.resets() == {1: code}


def test_a_stream_that_was_never_ours_to_close_is_told_apart() -> None:
    peer = Echo()
    peer.say(headers(1, [("X", "y")]) + call(3))
    assert peer.resets() == {1: E.PROTOCOL_ERROR}
    peer.say(headers(1, [("x", "y")], end=True) + call(5))  # trailers that were under way
    assert peer.body(5) == message(b"hello")
    peer.say(headers(1, [("x", "y")], end=True))  # and once more, which cannot be
    assert peer.goaway is E.STREAM_CLOSED


def test_more_data_than_the_window() -> None:
    peer = Peer(Limits(stream_window=65_535, connection_window=200_000))
    peer.say(headers(1) + b"".join(data(1, bytes(16_383)) for _ in range(4)))
    assert peer.resets() == {}
    peer.say(data(1, bytes(4)))
    assert peer.resets() == {1: E.FLOW_CONTROL_ERROR}


def test_more_data_than_the_connections_window() -> None:
    for size, outcome in ((10_000, None), (10_001, E.FLOW_CONTROL_ERROR)):
        peer = Peer(Limits(stream_window=1 << 20, connection_window=65_535))
        peer.connection.inbox.window = 10_000  # as if less were given back than was taken
        peer.say(headers(1) + data(1, bytes(size)))
        assert peer.goaway is outcome


def test_too_many_streams_are_refused_one_by_one() -> None:
    peer = Peer(Limits(streams=2))
    peer.say(headers(1) + headers(3) + headers(5) + headers(7))
    assert peer.resets() == {5: E.REFUSED_STREAM, 7: E.REFUSED_STREAM}
    assert set(peer.connection.streams) == {1, 3}


@pytest.mark.parametrize(
    "hello", [b"HELO there\r\n", frames.PREFACE[:20] + b"XXXX", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"]
)
def test_what_is_not_http2(hello: bytes) -> None:
    peer = Peer(greets=False)
    peer.say(hello)
    assert peer.goaway is E.PROTOCOL_ERROR
    assert peer.connection.closing


def test_http1_is_answered_in_its_own_words() -> None:
    peer = Peer(greets=False)
    peer.connection.receive(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", 0.0)
    said = peer.connection.outbox.take()
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert f"content-length: {len(body)}".encode() in head
    assert b"gRPC" in body
    assert peer.connection.closing


@pytest.mark.parametrize("first", [frames.ping(bytes(8)), headers(1), frames.settings_ack()])
def test_the_first_frame_must_be_settings(first: bytes) -> None:
    peer = Peer(greets=False)
    peer.say(frames.PREFACE + first)
    assert peer.goaway is E.PROTOCOL_ERROR


def test_what_breaks_no_rule() -> None:
    padded = frame(HEADERS, PADDED | HAS_PRIORITY | END_HEADERS, 1, b"\x03" + bytes(5) + block() + bytes(3))
    peer = Echo()
    peer.say(padded + frame(DATA, PADDED | END_STREAM, 1, b"\x02" + message(b"padded") + bytes(2)))
    cut = block()
    peer.say(frame(HEADERS, 0, 3, cut[:7]) + frame(CONTINUATION, 0, 3, cut[7:9]) + frame(CONTINUATION, 4, 3, cut[9:]))
    peer.say(data(3, message(b"continued")) + headers(3, [("x-trailer", "sound")], end=True))
    peer.say(frame(PRIORITY, 0, 9, bytes(5)) + frame(77, 3, 5, b"unknown") + frames.settings({Setting(3): 5}))
    peer.say(frame(SETTINGS, 0, 0, frames.setting.pack(0xF000, 7)) + frames.ping(b"12345678"))
    peer.say(headers(11, [*FIELDS, ("content-length", "10")]) + data(11, message(b"exact"), end=True))
    assert [peer.body(1), peer.body(3), peer.body(11)] == [message(b"padded"), message(b"continued"), message(b"exact")]
    assert [found.payload for found in peer.of(PING)] == [b"12345678"]
    assert peer.goaway is None
    assert peer.resets() == {}


def test_a_client_that_goes_away_gets_its_answers_first() -> None:
    peer = Peer()
    peer.say(call(1) + frames.goaway(0, E.NO_ERROR, ""))
    assert not peer.connection.closing
    peer.connection.answer(peer.stream(1), b"answer")
    peer.hear()
    assert peer.body(1) == message(b"answer")
    assert peer.connection.closing


def test_hello_may_come_in_pieces() -> None:
    peer = Echo(greets=False)
    for byte in HELLO + call(1):
        peer.say(bytes([byte]))
    assert peer.body(1) == message(b"hello")
