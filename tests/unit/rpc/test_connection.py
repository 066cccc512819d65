"""Properties of a connection: how the bytes are cut does not matter, and what is sent arrives whatever the windows."""

from itertools import pairwise
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, ResponseReceived, StreamEnded, TrailersReceived
from hypothesis import given
from hypothesis import strategies as st

from strata.rpc import frames
from strata.rpc.connection import Connection
from strata.rpc.frames import DATA, END_STREAM, MOST_WINDOW, PADDED, PING, RST_STREAM, ErrorCode, Setting
from strata.rpc.limits import Limits
from strata.rpc.stream import Called, Cancelled, Stream
from strata.rpc.usual import OK_HEAD, OK_TRAILERS
from tests.unit.rpc.peer import FIELDS, HELLO, Echo, Peer, admit_all, call, data, headers, message

small = st.integers(0, 12).map(lambda half: 2 * half + 1)
pieces = st.one_of(
    # Enough of them that their head is known, and one after the other is taken whole.
    st.builds(lambda n, b: b"".join(call(n + 2 * more, b) for more in range(6)), small, st.binary(max_size=20)),
    st.builds(call, small, st.binary(max_size=40)),
    st.builds(headers, small, st.just(FIELDS), end=st.booleans()),
    st.builds(headers, small, st.just((("X", "y"),)), end=st.booleans()),
    st.builds(data, small, st.binary(max_size=60), end=st.booleans()),
    st.builds(lambda n, b: data(n, message(b)), small, st.binary(max_size=60)),
    st.builds(lambda n, b: frames.frame(DATA, PADDED, n, b"\x03" + b + bytes(3)), small, st.binary(max_size=20)),
    st.builds(frames.rst_stream, small, st.just(ErrorCode.CANCEL)),
    st.builds(frames.window_update, st.integers(0, 25), st.integers(0, MOST_WINDOW)),
    st.builds(lambda value: frames.settings({Setting.INITIAL_WINDOW_SIZE: value}), st.integers(0, 1 << 32 - 1)),
    st.builds(frames.ping, st.binary(min_size=8, max_size=8), ack=st.booleans()),
    st.builds(frames.goaway, small, st.just(ErrorCode.NO_ERROR), st.just("")),
    st.builds(frames.frame, st.integers(0, 20), st.integers(0, 255), st.integers(0, 25), st.binary(max_size=30)),
    st.binary(max_size=12),
)
streams = st.lists(pieces, max_size=12).map(lambda made: HELLO + b"".join(made))


def outcome(cuts: list[bytes]) -> tuple[object, ...]:
    """All that can be seen of a connection whose server does nothing yet."""
    peer = Peer(greets=False)
    for cut in cuts:
        peer.say(cut)
    told = [(type(event).__name__, event.stream.id, getattr(event, "code", None)) for event in peer.events]
    left = {n: (_held(s), s.ended, s.ended or s.receive_window) for n, s in peer.connection.streams.items()}
    return peer.raw, told, left, peer.connection.closing


def _held(stream: Stream) -> bytes:
    return bytes(stream.buffer) if stream.whole is None else message(stream.whole)


@given(streams, st.lists(st.integers(0, 400), max_size=20))
def test_any_cut_of_the_bytes_has_the_same_outcome(raw: bytes, cuts: list[int]) -> None:
    at = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    whole = outcome([raw])
    assert outcome([raw[start:end] for start, end in pairwise(at)]) == whole
    assert outcome([raw[number : number + 1] for number in range(len(raw))]) == whole


@given(streams)
def test_every_call_ends_once_and_nothing_is_left_when_the_peer_goes(raw: bytes) -> None:
    peer = Peer(greets=False)
    peer.say(raw)
    peer.connection.lost()
    peer.hear()
    began = [event.stream for event in peer.events if isinstance(event, Called)]
    ended = [event.stream for event in peer.events if isinstance(event, Cancelled)]
    assert len(set(began)) == len(began)
    assert {id(stream) for stream in ended} == {id(stream) for stream in began}
    assert not any(stream.open for stream in began)
    assert not peer.connection.streams
    assert peer.connection.inbox.large == 0
    assert peer.connection.outbox.unsent == 0


@given(st.binary(max_size=300))
def test_no_bytes_raise(raw: bytes) -> None:
    for peer in (Echo(greets=False), Echo()):
        peer.say(raw)
        peer.tick(1)
        peer.connection.drain()
        peer.hear()


class Client:
    """The client of another library, which checks what the server sends."""

    def __init__(self, window: int, connection: Connection) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.h2.update_settings({4: window})
        self.connection = connection
        self.bodies: dict[int, bytes] = {}
        self.ended: dict[int, dict[Any, Any]] = {}
        self.heads: dict[int, dict[Any, Any]] = {}
        self.talk()

    def talk(self) -> None:
        while (said := self.h2.data_to_send()) or (heard := self.connection.outbox.take()):
            if said:
                self.connection.receive(said, 0.0)
                continue
            for event in self.h2.receive_data(heard):
                if isinstance(event, ResponseReceived):
                    self.heads[event.stream_id] = dict(event.headers)
                elif isinstance(event, DataReceived):
                    self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
                elif isinstance(event, TrailersReceived):
                    self.ended[event.stream_id] = dict(event.headers)
                elif isinstance(event, StreamEnded):
                    self.ended.setdefault(event.stream_id, {})


@given(
    st.integers(0, 70_000),
    st.lists(st.lists(st.integers(0, 40_000), max_size=4), min_size=1, max_size=5),
    st.data(),
)
def test_what_is_sent_arrives_whatever_the_windows(
    window: int, answers: list[list[int]], choices: st.DataObject
) -> None:
    connection = Connection(Limits(), admit_all, 0.0)
    client = Client(window, connection)
    numbers = []
    for _ in answers:
        numbers.append(client.h2.get_next_available_stream_id())
        client.h2.send_headers(numbers[-1], list(FIELDS), end_stream=True)
    client.talk()
    expected = {}
    for number, sizes in zip(numbers, answers, strict=True):
        stream = connection.streams[number]
        connection.send_head(stream, OK_HEAD)
        expected[number] = b"".join(message(bytes([number % 256]) * size) for size in sizes)
        for size in sizes:
            connection.send(stream, message(bytes([number % 256]) * size))
        connection.finish(stream, OK_TRAILERS)
    client.talk()
    while len(client.ended) < len(numbers):
        waiting = [number for number in numbers if number not in client.ended]
        opened = choices.draw(st.sampled_from([None, *waiting]))
        room = choices.draw(st.integers(1, 100_000))
        client.h2.increment_flow_control_window(room, opened)
        # A peer that opens one window at a time must open both before anything moves.
        client.h2.increment_flow_control_window(room, None if opened else waiting[0])
        client.talk()
    assert {number: body for number, body in client.bodies.items() if body} == {n: b for n, b in expected.items() if b}
    assert all(trailers == {"grpc-status": "0"} for trailers in client.ended.values())
    assert not connection.streams
    assert connection.outbox.unsent == 0


def test_a_usual_call_that_comes_alone_is_given_and_all_else_is_told() -> None:
    connection = Connection(Limits(), admit_all, 0.0)

    def heard(raw: bytes) -> tuple[int | None, list[int]]:
        given = connection.receive(raw, 1.0)
        return None if given is None else given.id, [event.stream.id for event in connection.take_events()]

    assert heard(HELLO) == (None, [])
    assert heard(call(1)) == (None, [1])
    assert heard(call(3)) == (None, [3])
    assert heard(call(5)) == (5, [])
    stream = connection.streams[5]
    assert stream.ended
    assert stream.began == 1.0
    assert connection.inbox.message(stream) == b"hello"
    assert heard(call(7) + call(9)) == (None, [7, 9])
    whole = call(13)
    assert heard(call(11) + whole[:4]) == (None, [11])
    assert heard(whole[4:]) == (None, [13])
    assert heard(headers(15)) == (None, [15])
    assert heard(call(19)) == (None, [19])  # one number was left out
    assert heard(call(17))[0] is None
    assert connection.closing


def test_streams_share_the_connections_window_fairly() -> None:
    peer = Peer()
    peer.say(call(1) + call(3))
    for number in (1, 3):
        peer.connection.answer(peer.stream(number), bytes(100_000))
    peer.hear()
    for _ in range(4):
        peer.say(frames.window_update(1, 1 << 20) + frames.window_update(3, 1 << 20))
        peer.say(frames.window_update(0, 32_768))
    sent = {number: len(peer.body(number)) for number in (1, 3)}
    assert abs(sent[1] - sent[3]) <= 65_536
    assert min(sent.values()) > 0


def test_messages_of_a_stream_are_taken_one_by_one() -> None:
    peer = Peer()
    peer.say(headers(1) + data(1, message(b"a") + message(b"bb") + message(b"ccc")[:6]))
    stream = peer.stream(1)
    take = peer.connection.inbox.message
    assert [take(stream), take(stream), take(stream)] == [b"a", b"bb", None]
    peer.say(data(1, message(b"ccc")[6:] + message(b""), end=True))
    assert [take(stream), take(stream), take(stream)] == [b"ccc", b"", None]
    assert peer.connection.at_end(stream)


def test_readers_are_told_once_until_they_have_looked() -> None:
    peer = Peer()
    peer.say(headers(1) + data(1, message(b"a")))
    assert [type(event).__name__ for event in peer.events] == ["Called"]
    stream = peer.stream(1)
    while peer.connection.inbox.message(stream) is not None:
        pass
    peer.say(data(1, message(b"b")) + data(1, message(b"c")))
    assert [type(event).__name__ for event in peer.events] == ["Called", "Readable"]


def test_an_answer_before_the_request_is_whole_tells_the_client_to_stop() -> None:
    peer = Peer()
    peer.say(headers(1) + data(1, b"\0\0\0"))
    peer.connection.finish(peer.stream(1), OK_HEAD + OK_TRAILERS)
    peer.hear()
    assert peer.resets() == {1: ErrorCode.NO_ERROR}
    peer.say(data(1, bytes(1000)) + headers(1, [("x", "y")], end=True))  # it was under way
    assert peer.goaway is None


def test_draining_lets_calls_end_and_takes_no_new_ones() -> None:
    peer = Peer()
    peer.say(call(1))
    peer.connection.drain()
    peer.hear()
    assert peer.of(frames.GOAWAY)[-1].payload[:4] == MOST_WINDOW.to_bytes(4, "big")
    peer.say(call(3))  # it crossed the news
    peer.say(frames.ping(peer.of(PING)[-1].payload, ack=True))
    assert peer.of(frames.GOAWAY)[-1].payload[:4] == (3).to_bytes(4, "big")
    peer.say(headers(5))
    assert peer.resets() == {5: ErrorCode.REFUSED_STREAM}
    assert not peer.connection.closing
    for number in (1, 3):
        peer.connection.answer(peer.stream(number), b"done")
    peer.hear()
    assert peer.connection.closing
    assert peer.body(3) == message(b"done")


def test_draining_who_never_said_hello_ends_at_once() -> None:
    peer = Peer(greets=False)
    peer.connection.drain()
    assert peer.connection.closing


def test_a_reset_drops_what_was_to_be_sent() -> None:
    peer = Peer()
    peer.say(call(1))
    peer.connection.answer(peer.stream(1), bytes(1 << 20))
    peer.hear()
    assert peer.connection.outbox.unsent > 0
    peer.say(frames.rst_stream(1, ErrorCode.CANCEL))
    assert peer.connection.outbox.unsent == 0
    assert [type(event).__name__ for event in peer.events] == ["Called", "Cancelled"]
    assert len(peer.of(RST_STREAM)) == 0
    assert not any(frame.flags & END_STREAM for frame in peer.of(DATA, 1))
