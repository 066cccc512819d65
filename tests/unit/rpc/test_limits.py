"""Attacks with names, and what they run into; windows, time and memory that do not grow."""

import gzip
import tracemalloc
from typing import Any

import pytest

from strata.errors import InvalidInput
from strata.rpc import frames
from strata.rpc.connection import Connection
from strata.rpc.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    PRIORITY,
    WINDOW_UPDATE,
    ErrorCode,
    Setting,
    frame,
)
from strata.rpc.limits import Limits, Rate
from strata.rpc.status import RpcError, Status
from tests.unit.rpc.peer import FIELDS, HELLO, Echo, Peer, admit_all, block, call, data, headers, message

CALM = ErrorCode.ENHANCE_YOUR_CALM


def odd(count: int, start: int = 1) -> range:
    return range(start, start + 2 * count, 2)


FLOODS = {
    "CVE-2023-44487, rapid reset": [headers(n) + frames.rst_stream(n, ErrorCode.CANCEL) for n in odd(101)],
    "CVE-2019-9514, resets of one stream": [headers(1), *[frames.rst_stream(1, ErrorCode.CANCEL)] * 102],
    "CVE-2025-8671, resets provoked by windows": [headers(n) + frames.window_update(n, 0) for n in odd(101)],
    "CVE-2025-8671, resets provoked by fields": [headers(n, [("X", "y")]) for n in odd(101)],
    "CVE-2025-8671, resets provoked by data": [
        headers(n, [*FIELDS, ("content-length", "9")]) + data(n, b"x", end=True) for n in odd(101)
    ],
    "CVE-2019-9512, pings": [frames.ping(bytes(8))] * 21,
    "CVE-2019-9515, settings": [frames.settings({Setting.HEADER_TABLE_SIZE: 0})] * 21,
    "settings and pings together": [frames.settings({}) + frames.ping(bytes(8))] * 11,
    "CVE-2019-9518, empty DATA": [headers(1), *[data(1, b"")] * 101],
    "CVE-2019-9518, empty DATA of padding": [headers(1), *[frame(DATA, frames.PADDED, 1, b"\x03abc")] * 101],
    "CVE-2019-9513, priorities": [headers(1), *[frame(PRIORITY, 0, 1, bytes(5))] * 101],
    "unknown frames": [frame(200, 0, 0, b"x")] * 101,
    "acknowledgements of nothing": [frames.settings_ack()] * 101,
    "pings acknowledged that were never sent": [frames.ping(bytes(8), ack=True)] * 101,
    "goodbyes": [headers(1), *[frames.goaway(0, ErrorCode.NO_ERROR, "")] * 101],
    "empty data for nobody": [headers(1, [("X", "y")]), *[data(1, b"")] * 101],
    "CVE-2024-27316, CONTINUATION": [frame(HEADERS, 0, 1, block()), *[frame(CONTINUATION, 0, 1, b"")] * 9],
    "CVE-2024-27316, long CONTINUATION": [
        frame(HEADERS, 0, 1, bytes(16_000)),
        *[frame(CONTINUATION, 0, 1, bytes(16_384))] * 4,
    ],
    "CVE-2016-6581, a header bomb": [
        # One large entry, then as many references to it as fit.
        frames.headers(1, b"\x40\x01x\x7f\x81\x1e" + b"y" * 4000 + b"\xbe" * 10_000, end=True)
    ],
    "CVE-2019-9516, names of nothing": [frames.headers(1, b"\x00\x00\x00" * 5000, end=True)],
    "CVE-2023-33953, a long list of nothing": [frames.headers(1, block() + b"\x00\x01x\x00" * 4000, end=True)],
    "a header block longer than the list may be": [frames.headers(1, bytes(16_384) + block(), end=True)],
    "too many streams, again and again": [*[headers(n) for n in odd(256)], *[headers(n) for n in odd(101, 513)]],
}


@pytest.mark.parametrize("attack", FLOODS)
def test_a_flood_ends_the_connection_and_not_before(attack: str) -> None:
    *before, last = FLOODS[attack]
    peer = Peer()
    for part in before:
        peer.say(part)
    assert peer.goaway in (None, ErrorCode.NO_ERROR)
    assert not peer.connection.closing
    peer.say(last)
    assert peer.goaway is CALM
    assert peer.connection.closing
    assert not peer.connection.streams


@pytest.mark.parametrize(
    "attack", [name for name, parts in FLOODS.items() if len(parts) > 20 and "CONTINUATION" not in name]
)
def test_the_same_slowly_is_no_flood(attack: str) -> None:
    peer = Peer(Limits(stream_window=1 << 20))
    for part in FLOODS[attack][:-1]:
        peer.say(part)
    peer.now += 10
    peer.say(FLOODS[attack][-1])
    assert peer.goaway in (None, ErrorCode.NO_ERROR)


def test_what_was_under_way_when_a_call_ended_early_is_no_flood() -> None:
    peer = Peer()
    peer.say(headers(1) + data(1, message(b"x")))
    peer.connection.finish(peer.stream(1), b"\x88")
    peer.hear()
    for _ in range(500):
        peer.say(data(1, message(b"x")))
    assert peer.goaway is None
    for _ in range(20):
        peer.say(data(1, bytes(16_384)))
    assert peer.goaway is ErrorCode.FLOW_CONTROL_ERROR  # more than its window ever had room for


def test_callers_that_give_up_when_they_said_they_would_are_no_flood() -> None:
    peer = Peer()
    patient = [*FIELDS, ("grpc-timeout", "1S")]
    for number in odd(200):
        peer.say(headers(number, patient))
    peer.now += 0.95
    for number in odd(200):
        peer.say(frames.rst_stream(number, ErrorCode.CANCEL))
    assert peer.goaway is None


def test_each_answer_makes_good_for_a_reset() -> None:
    peer = Echo()
    for number in odd(400, 1)[::2]:
        peer.say(call(number) + headers(number + 2) + frames.rst_stream(number + 2, ErrorCode.CANCEL))
    assert peer.goaway is None


def test_many_settings_in_one_frame_are_one() -> None:
    peer = Peer()
    for number in odd(200):
        peer.say(headers(number))
    peer.say(frames.frame(frames.SETTINGS, 0, 0, frames.setting.pack(4, 1000) * 2000 + frames.setting.pack(4, 70_000)))
    assert {stream.send_window for stream in peer.connection.streams.values()} == {70_000}


def test_settings_that_are_never_acknowledged() -> None:
    peer = Peer(greets=False)
    peer.say(HELLO)
    peer.tick(20)
    assert peer.goaway is None
    peer.tick(0.1)
    assert peer.goaway is ErrorCode.SETTINGS_TIMEOUT


def test_draining_does_not_wait_for_ever_for_a_word() -> None:
    peer = Echo()
    peer.connection.drain()
    peer.tick(21)
    assert peer.connection.closing


def test_a_slow_reader_is_not_given_up_while_it_reads() -> None:
    peer = Peer()
    peer.say(call(1))
    peer.connection.answer(peer.stream(1), bytes(1 << 20))
    for _ in range(20):
        peer.tick(10)
        peer.say(frames.window_update(1, 1000) + frames.window_update(0, 1000))
    assert peer.resets() == {}
    peer.tick(21)
    assert peer.resets() == {1: ErrorCode.CANCEL}


def test_pings_between_answers_are_no_flood() -> None:
    """Clients measure the round trip while data flows."""
    peer = Echo()
    for number in odd(200):
        peer.say(call(number) + frames.ping(bytes(8)) * 2)
    assert peer.goaway is None
    assert len(peer.of(PING)) == 400


def test_refusals_before_the_client_knows_the_limit_are_no_flood() -> None:
    peer = Peer(greets=False)
    peer.say(HELLO + b"".join(headers(number) for number in odd(1000)))
    assert peer.goaway is None
    assert len(peer.connection.streams) == 256


# -- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", [b"", frames.PREFACE, frames.PREFACE[:10]])
def test_a_client_that_never_says_hello(said: bytes) -> None:
    peer = Peer(greets=False)
    peer.say(said)
    assert peer.tick(5)
    assert peer.goaway is None
    peer.tick(0.1)
    assert peer.goaway is ErrorCode.SETTINGS_TIMEOUT
    assert peer.connection.closing


def test_a_header_block_that_never_ends() -> None:
    peer = Peer()
    peer.say(frame(HEADERS, 0, 1, block()))
    for _ in range(5):
        peer.tick(2)
        assert peer.goaway is None
        peer.say(frame(CONTINUATION, 0, 1, b""))
    peer.tick(0.1)
    assert peer.goaway is CALM


def test_a_silent_client_is_pinged_and_then_cut_off() -> None:
    peer = Peer()
    assert peer.tick(60)
    assert peer.of(PING) == []
    assert peer.tick(1)
    assert len(peer.of(PING)) == 1
    assert peer.tick(20)
    assert not peer.tick(1)


def test_a_client_that_answers_stays() -> None:
    peer = Peer()
    for _ in range(200):
        peer.tick(61)
        peer.say(frames.ping(peer.of(PING)[-1].payload, ack=True))
    assert peer.goaway is None


def test_an_idle_connection_is_ended_kindly() -> None:
    peer = Echo(Limits(idle_seconds=30))
    peer.say(call(1))
    peer.tick(29)
    peer.say(headers(3))
    peer.tick(100)
    assert peer.goaway is None
    peer.say(data(3, message(b"x"), end=True))
    peer.tick(31)
    assert peer.goaway is ErrorCode.NO_ERROR


def test_a_network_that_takes_nothing_is_given_up() -> None:
    peer = Peer()
    peer.connection.pause(peer.now)
    assert peer.tick(20)
    assert not peer.tick(0.1)


def test_bytes_that_nobody_takes_are_given_up() -> None:
    peer = Peer(Limits(queued_bytes=100_000))
    peer.say(frames.window_update(0, 1 << 20))
    peer.connection.pause(peer.now)
    for number in odd(10):
        peer.say(call(number))
        peer.connection.answer(peer.stream(number), bytes(12_000))
    assert not peer.tick(0.1)


# -- memory ----------------------------------------------------------------------------------------------------------


def test_a_peer_that_does_not_read_costs_no_more_than_its_answers_may_wait() -> None:
    peer = Peer(Limits(unsent_bytes=8 << 20))
    waiting = 0
    for number in odd(200):
        peer.say(call(number))
        if peer.connection.room_for(100_000):
            peer.connection.answer(peer.stream(number), bytes(100_000))
            waiting += 100_000
    assert waiting == 8_400_000  # and 65,535 of it went
    peer.tick(19)
    assert peer.resets() == {}
    peer.tick(2)  # nobody wants them
    assert len(peer.resets()) == 84
    assert peer.connection.outbox.unsent == 0


def test_a_stream_that_is_not_read_stops_its_sender() -> None:
    peer = Peer()
    sent = 0
    peer.say(headers(1))
    while peer.stream(1).receive_window >= 1000:
        peer.say(data(1, message(bytes(995))))
        sent += 1000
    assert peer.of(WINDOW_UPDATE, 1) == []
    assert len(peer.stream(1).buffer) == sent
    while peer.connection.inbox.message(peer.stream(1)) is not None:
        pass
    peer.hear()
    assert sum(int.from_bytes(found.payload, "big") for found in peer.of(WINDOW_UPDATE, 1)) >= 128 << 10


def test_messages_longer_than_the_window_get_room_in_turn() -> None:
    limits = Limits(large_bytes=4 << 20, stream_window=65_535)
    peer = Peer(limits)
    size = 3 << 20
    for number in (1, 3, 5):
        peer.say(headers(number) + data(number, b"\0" + size.to_bytes(4, "big")))
    assert [found.stream for found in peer.of(WINDOW_UPDATE) if found.stream] == [1]
    for number, following in ((1, 3), (3, 5), (5, None)):
        _send(peer, number, size)
        assert peer.connection.inbox.message(peer.stream(number)) == bytes(size)
        peer.hear()
        assert (following is None) or peer.of(WINDOW_UPDATE, following)
    assert peer.goaway is None
    assert peer.connection.inbox.large == 0


def test_room_is_given_back_by_who_leaves() -> None:
    peer = Peer(Limits(large_bytes=4 << 20, stream_window=65_535))
    for number in (1, 3, 5):
        peer.say(headers(number) + data(number, b"\0" + (3 << 20).to_bytes(4, "big")))
    peer.say(frames.rst_stream(3, ErrorCode.CANCEL))
    peer.say(frames.rst_stream(1, ErrorCode.CANCEL))
    assert peer.of(WINDOW_UPDATE, 5)
    assert not peer.of(WINDOW_UPDATE, 3)


def _send(peer: Peer, number: int, size: int) -> None:
    for start in range(0, size, 16_384):
        peer.say(data(number, bytes(min(16_384, size - start))))


def test_a_message_that_is_too_long_is_refused_at_its_first_bytes() -> None:
    peer = Peer()
    peer.say(headers(1) + data(1, b"\0" + ((4 << 20) + 1).to_bytes(4, "big") + b"x"))
    with pytest.raises(RpcError, match="4,194,305 bytes") as raised:
        peer.connection.inbox.message(peer.stream(1))
    assert raised.value.status is Status.RESOURCE_EXHAUSTED


def test_a_zip_bomb_is_refused_before_it_goes_off() -> None:
    bomb = gzip.compress(bytes(64 << 20), 9)
    peer = Peer()
    peer.say(headers(1, [*FIELDS, ("grpc-encoding", "gzip")]))
    for start in range(0, len(packed := message(bomb, 1)), 16_384):
        peer.say(data(1, packed[start : start + 16_384]))
    tracemalloc.start()
    try:
        with pytest.raises(RpcError, match="when decompressed"):
            peer.connection.inbox.message(peer.stream(1))
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()


def test_many_small_messages_cost_what_they_weigh() -> None:
    """Kept as bytes until they are taken: as objects they would weigh ten times as much."""
    peer = Peer()
    peer.say(headers(1))
    tracemalloc.start()
    try:
        for _ in range(16):
            peer.say(data(1, message(b"") * 3276))
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
    count = 0
    while peer.connection.inbox.message(peer.stream(1)) is not None:
        count += 1
    assert count == 16 * 3276


def test_nothing_is_kept_of_calls_that_are_over() -> None:
    connection = Connection(Limits(), admit_all, 0.0)
    connection.receive(HELLO, 0.0)

    def calls(numbers: range) -> None:
        for number in numbers:
            connection.receive(call(number), 0.0)
            connection.answer(connection.streams[number], b"x")
            connection.take_events()
            connection.outbox.take()

    calls(odd(500))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        calls(odd(5000, 1001))
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()


# -- limits themselves -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"streams": None},
        {"streams": 1.5},
        {"keepalive_seconds": float("inf")},
        {"rate_seconds": "1"},
        {"streams": 0},
        {"resets": -1},
        {"stream_window": 1},
        {"connection_window": 1 << 31},
        {"unsent_bytes": 1},
    ],
)
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Limits(**wrong)


def test_a_rate_counts_within_its_time() -> None:
    rate = Rate(2, 10.0)
    assert [rate.exceeded(now) for now in (1.0, 2.0, 3.0, 10.9, 11.0, 12.0, 13.0)] == [
        *(False, False, True, True),
        *(False, False, True),
    ]
    rate.clear()
    assert not rate.exceeded(13.0)


def test_header_frames_of_any_length_are_sent() -> None:
    long = bytes(range(256)) * 200
    found = frames.headers(1, long, end=True)
    kinds, payload = [], b""
    while found:
        word, flags, _ = frames.head.unpack_from(found)
        kinds.append((word & 0xFF, flags))
        payload += found[9 : 9 + (word >> 8)]
        found = found[9 + (word >> 8) :]
    assert kinds == [(HEADERS, 1), (CONTINUATION, 0), (CONTINUATION, 0), (CONTINUATION, END_HEADERS)]
    assert payload == long
