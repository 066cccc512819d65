"""The usual answer: framed once for many streams, and never with the bytes of another message."""

from hypothesis import given
from hypothesis import strategies as st

from strata.rpc import frames
from strata.rpc.frames import DATA, END_HEADERS, END_STREAM, HEADERS
from strata.rpc.usual import OK_HEAD, OK_TRAILERS
from tests.unit.rpc.peer import Frame, Peer, call, message


@given(st.lists(st.sampled_from([b"", b"one", b"another", bytes(300)]), min_size=1, max_size=12))
def test_every_stream_gets_the_message_that_was_meant_for_it(answers: list[bytes]) -> None:
    peers = [Peer(), Peer()]
    for peer in peers:
        peer.say(frames.window_update(0, 1 << 20))
        peer.frames.clear()
    for place, answer in enumerate(answers):
        for peer in peers:
            peer.say(call(2 * place + 1))
            peer.connection.answer(peer.stream(2 * place + 1), answer)
            peer.hear()
    for peer in peers:
        assert peer.frames == [
            frame
            for place, answer in enumerate(answers)
            for frame in (
                Frame(HEADERS, END_HEADERS, 2 * place + 1, OK_HEAD),
                Frame(DATA, 0, 2 * place + 1, message(answer)),
                Frame(HEADERS, END_HEADERS | END_STREAM, 2 * place + 1, OK_TRAILERS),
            )
        ]
