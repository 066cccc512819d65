"""Who is let in: those of the same world, whatever else connects."""

import socket
from contextlib import ExitStack

import numpy as np
import pytest

from strata.demo import meeting
from strata.demo.meeting import Invitation
from strata.demo.wires import PeersLost
from tests.unit.demo.places import Places, means, outcome


def connected(places: Places, said: bytes = b"") -> socket.socket:
    """Somebody who connects to place 0, and says this."""
    connection = socket.create_connection(places.peers[0], timeout=20)
    connection.sendall(said)
    return connection


def test_a_process_of_another_world_is_refused_and_holds_up_nobody() -> None:
    places = Places(3)
    first, third = places.meeting(0), places.meeting(2)
    error = outcome(places.meeting(1, "world-0"))
    assert isinstance(error, PeersLost)
    assert "refused this process, which is of another world" in str(error)
    second = places.meeting(1)
    met = [each.result(20) for each in (first, second, third)]
    assert means(places, met, [[]] * 3) == [[]] * 3
    for each in met:
        each.close()
    places.close()


def test_a_token_may_be_bytes_or_text() -> None:
    places = Places(2)
    met = [places.meeting(0, b"world"), places.meeting(1, "world")]
    for each in met:
        each.result(20).close()
    places.close()


def test_who_counts_other_places_is_of_another_world() -> None:
    places = Places(2)
    first = places.meeting(0, connect_seconds=0.5)
    with connected(places, Invitation(3, b"world-1").hello(1)) as other:
        assert other.recv(100) == bytes(32)
    assert "place 1 did not come in time" in str(outcome(first))
    places.close()


@pytest.mark.parametrize("place", [0, 2, 2**32 - 1])
def test_a_place_that_is_none_is_refused(place: int) -> None:
    places = Places(2)
    first = places.meeting(0)
    with connected(places, Invitation(2, b"world-1").hello(place)) as other:
        assert other.recv(100) == bytes(32)
    second = places.meeting(1)
    for each in (first, second):
        each.result(20).close()
    places.close()


def test_strays_hold_up_nobody() -> None:
    """Garbage, a browser, a port scan, one that says a byte and no more, and one that is of an older world."""
    hello = Invitation(2, b"world-1").hello(1)
    with ExitStack() as stack:
        places = Places(2)
        stack.callback(places.close)
        for said in (b"\xff" * 1000, b"GET / HTTP/1.1\r\nhost: here\r\n\r\n", b"", hello[:1], hello[:-1]):
            stack.enter_context(connected(places, said))
        connected(places, b"").close()
        connected(places, Invitation(2, b"world-0").hello(1)).close()
        met = places.meet()
        late = stack.enter_context(connected(places, b"while they are at it"))
        assert [each[0].tolist() for each in means(places, met, [[np.ones(1)]] * 2)] == [[1.0]] * 2
        late.close()
        for each in met:
            each.close()


def test_more_silent_strangers_than_are_kept_hold_up_nobody() -> None:
    with ExitStack() as stack:
        places = Places(2)
        stack.callback(places.close)
        for _ in range(meeting.MOST_STRANGERS + 20):
            stack.enter_context(connected(places))
        for each in places.meet():
            each.close()


def test_who_gave_up_and_came_back_takes_its_place_again() -> None:
    places = Places(3)
    hello = Invitation(3, b"world-1").hello(1)
    connected(places, hello).close()
    first = places.meeting(0)
    waiting = connected(places, hello)
    again = places.meeting(1)
    assert waiting.recv(100) == b"", "the one before it is let go"
    third = places.meeting(2)
    met = [each.result(20) for each in (first, again, third)]
    assert means(places, met, [[]] * 3) == [[]] * 3
    waiting.close()
    for each in met:
        each.close()
    places.close()


def test_who_waits_in_vain_is_told_who_is_missing() -> None:
    places = Places(3)
    first, second = places.meeting(0, connect_seconds=0.3), places.meeting(1)
    error = outcome(first)
    assert isinstance(error, PeersLost)
    assert error.place == 2
    assert "place 2 did not come in time" in str(error)
    assert isinstance(outcome(second), ConnectionError), "it is told at once, and waits no longer"
    places.close()


def test_a_place_0_that_does_not_answer_or_is_not_there_is_named() -> None:
    places = Places(2)
    error = outcome(places.meeting(1, connect_seconds=0.2))
    assert isinstance(error, ConnectionError)
    assert "place 0 did not" in str(error)
    places.listeners[0].close()
    error = outcome(places.meeting(1))
    assert isinstance(error, ConnectionError)
    assert "place 0 at 127.0.0.1:" in str(error)
    places.close()


def test_the_listener_is_as_it_was() -> None:
    places = Places(2)
    places.listeners[0].settimeout(7.0)
    for each in places.meet():
        each.close()
    assert places.listeners[0].gettimeout() == 7.0
    places.close()
