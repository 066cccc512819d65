"""The mean over places: the same bits everywhere, and the end for all when one is lost."""

import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from strata.demo.layout import Layout
from strata.demo.meeting import Invitation
from strata.demo.summing import Summing, listen
from strata.demo.wires import PeersLost
from strata.errors import InvalidInput, RankFailed
from tests.unit.demo.places import Places, means, outcome, world


def numbers(place: int, *, dtype: Any = np.float32) -> list[Any]:
    rng = np.random.default_rng(place)
    return [rng.normal(size=shape).astype(dtype) for shape in ((17, 3), (), (0, 5), (1000,))]


def expected(given: list[list[Any]], weights: list[float]) -> list[Any]:
    """The definition, in the order of places."""
    found = []
    for each in zip(*given, strict=True):
        total = np.zeros(each[0].shape)
        for array, weight in zip(each, weights, strict=True):
            total = total + array.astype(np.float64) * weight
        found.append((total / sum(weights)).astype(each[0].dtype))
    return found


def assert_same(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


# -- the mean ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_place_gets_the_same_mean_to_the_last_bit(count: int, dtype: Any) -> None:
    with world(count) as (places, met):
        for turn in range(3):
            given = [numbers(10 * turn + place, dtype=dtype) for place in range(count)]
            for found in means(places, met, given):
                assert_same(found, expected(given, [1.0] * count))


def test_shares_that_differ_are_weighted() -> None:
    given, weights = [numbers(place) for place in range(3)], [11.0, 10.0, 10.0]
    with world(3) as (places, met):
        for found in means(places, met, given, weights):
            assert_same(found, expected(given, weights))


def test_who_comes_when_changes_nothing() -> None:
    """Numbers of which every order of adding gives another sum."""
    given = [[np.array([value])] for value in (1e16, 1.0, -1e16)]
    assert len({sum(each[0][0] for each in order) for order in permutations(given)}) > 1
    found = set()
    with world(3) as (places, met):
        for order in permutations(range(3)):
            asked = []
            for place in order:
                asked.append(places.start(met[place].mean, given[place]))
                time.sleep(0.02)  # the one before is on its way, as a rule
            found |= {each.result(20)[0].tobytes() for each in asked}
    assert len(found) == 1


def test_what_is_given_stays_and_what_is_got_is_the_callers_own() -> None:
    with world(2) as (places, met):
        given = [numbers(place) for place in range(2)]
        before = [array.copy() for array in given[0]]
        first, second = means(places, met, given)
        assert_same(given[0], before)
        first[0] += 1
        assert_same(means(places, met, given)[0], second)


def test_arrays_of_no_bytes_are_a_meeting_all_the_same() -> None:
    with world(3) as (places, met):
        assert means(places, met, [[]] * 3) == [[]] * 3
        for found in means(places, met, [[np.zeros((0, 4), np.float32)]] * 3):
            assert found[0].shape == (0, 4)
        early = places.start(met[0].mean, [])
        time.sleep(0.05)
        assert not early.done()
        assert means(places, met[1:], [[]] * 2) == [[]] * 2
        assert early.result(20) == []


def test_large_arrays_pass_in_both_directions() -> None:
    with world(3) as (places, met):
        given = [[np.full(2_000_000, float(place), np.float32)] for place in range(3)]
        for found in means(places, met, given):
            assert_same(found, [np.ones(2_000_000, np.float32)])


def test_a_place_without_a_weight_counts_for_nothing() -> None:
    with world(2) as (places, met):
        found = means(places, met, [[np.array([np.nan])], [np.array([3.0])]], [0.0, 2.0])
        assert [each[0].tolist() for each in found] == [[3.0], [3.0]]


# -- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        np.zeros(3_000_000, np.float64),
        np.zeros((1000, 3000), np.float32),
        np.zeros(0, np.float32),
        np.zeros(3_000_001, np.float32),
    ],
)
def test_other_shapes_or_types_are_an_error_on_every_place(other: Any) -> None:
    usual = [np.zeros(3_000_000, np.float32)]
    with world(4) as (places, met):
        for place, error in enumerate(means(places, met, [usual, usual, [other], usual])):
            assert isinstance(error, InvalidInput), (place, error)
            assert "place 2 gives other arrays" in str(error)
            assert "arrays of" in str(error)
        with pytest.raises(ConnectionError, match=r"this Summing is over \(place 2 gives"):
            met[0].mean(usual)


def test_no_weight_at_all_is_an_error_on_every_place() -> None:
    with world(3) as (places, met):
        for error in means(places, met, [[np.ones(3)]] * 3, [0.0] * 3):
            assert isinstance(error, InvalidInput)
            assert "weight" in str(error)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_is_none_is_refused_before_anything_is_sent(weight: float) -> None:
    with world(2) as (places, met):
        with pytest.raises(InvalidInput, match="weight"):
            met[1].mean([np.ones(2)], weight)
        with pytest.raises(InvalidInput, match="array 0"):
            met[1].mean([np.ones(2, int)])
        assert [each[0].tolist() for each in means(places, met, [[np.ones(1)]] * 2)] == [[1.0]] * 2


def test_a_place_that_is_none_and_an_empty_token_are_refused() -> None:
    with listen() as listener:
        for place in (-1, 2, True):
            with pytest.raises(InvalidInput, match="place"):
                Summing(place, [("127.0.0.1", 1)] * 2, listener, "world")
        for token in ("", b""):
            with pytest.raises(InvalidInput, match="token"):
                Summing(0, [("127.0.0.1", 1)], listener, token)


# -- those who are lost ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_a_place_that_closes_ends_it_for_all_others(lost: int) -> None:
    with world(4) as (places, met):
        others = [each for each in met if each.place != lost]
        asked = [places.start(each.mean, [np.ones(100_000)]) for each in others]
        time.sleep(0.05)  # they are waiting for it, as a rule
        met[lost].close()
        for error in map(outcome, asked):
            assert isinstance(error, ConnectionError)
            assert isinstance(error, RankFailed)
            assert isinstance(error, PeersLost)
            assert f"place {lost} is gone" in str(error)
            assert error.place == lost
        for each in met:
            with pytest.raises(ConnectionError, match="this Summing is over"):
                each.mean([np.ones(100_000)])


def test_who_closed_before_the_others_asked_is_missed_when_they_do() -> None:
    with world(3) as (places, met):
        met[1].close()
        for error in means(places, [met[0], met[2]], [[np.ones(2)]] * 2):
            assert isinstance(error, PeersLost)


def test_closing_again_does_nothing_and_the_listener_serves_the_next_world() -> None:
    with world(3) as (places, met):
        for each in met:
            each.close()
            each.close()
        again = places.meet("world-2")
        assert [each[0].tolist() for each in means(places, again, [[np.ones(1)]] * 3)] == [[1.0]] * 3
        for each in again:
            with each as entered:
                assert entered is each
        with pytest.raises(ConnectionError):
            again[0].mean([])


def test_a_place_that_is_silent_is_named_when_time_is_up() -> None:
    places = Places(3)
    patience = [0.2, 20.0, 20.0]
    made = [places.meeting(place, exchange_seconds=seconds) for place, seconds in enumerate(patience)]
    met = [each.result(20) for each in made]
    for error in means(places, met[:2], [[np.ones(2)]] * 2):
        assert isinstance(error, PeersLost)
        assert error.place == 2
    for each in met:
        each.close()
    places.close()


def test_a_silent_place_0_is_named_by_the_others() -> None:
    with world(2, exchange_seconds=0.2) as (_, met), pytest.raises(ConnectionError, match="place 0 did not send"):
        met[1].mean([np.ones(3_000_000)])


def test_the_error_travels_between_processes_as_it_is() -> None:
    error = pickle.loads(pickle.dumps(PeersLost.at(3, "place 3 is gone")))
    assert (type(error), str(error), error.place) == (PeersLost, "place 3 is gone", 3)


# -- those who speak otherwise -----------------------------------------------------------------------------------------


@contextmanager
def impostor(places: Places, of: int) -> Iterator[tuple[Summing, socket.socket]]:
    """Place 0 of a world whose place 1 knows the token, and then says what it wants."""
    first = places.meeting(0)
    with socket.create_connection(places.peers[0], timeout=20) as connection:
        connection.sendall(Invitation(of, b"world-1").hello(1))
        with first.result(20) as made:
            yield made, connection


def letter(number: int = 1, weight: float = 1.0, digest: bytes = bytes(16), size: int = 8) -> bytes:
    return struct.pack("<Qd16sQ", number, weight, digest, size)


@pytest.mark.parametrize(
    ("said", "error", "why"),
    [
        (letter(size=1 << 62), InvalidInput, "4,611,686,018,427,387,904 bytes"),
        (letter(), InvalidInput, "other arrays"),
        (letter(number=2), ConnectionError, "no letter"),
        (letter(weight=float("nan")), ConnectionError, "no letter"),
        (letter(weight=-1.0), ConnectionError, "no letter"),
        (b"\xff" * 1000, ConnectionError, "no letter"),
        (b"\x00" * 10, ConnectionError, "closed"),
        (b"", ConnectionError, "closed"),
    ],
)
def test_what_is_no_letter_is_never_read_further(said: bytes, error: type[Exception], why: str) -> None:
    places = Places(2)
    with impostor(places, 2) as (first, connection):
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        with pytest.raises(error, match=why):
            first.mean([np.ones(1)])
    places.close()


def test_who_says_more_than_its_arrays_is_cut_off() -> None:
    places = Places(3)
    first, third = places.meeting(0), places.meeting(2)
    with socket.create_connection(places.peers[0], timeout=20) as connection:
        connection.sendall(Invitation(3, b"world-1").hello(1))
        with first.result(20) as made, third.result(20):
            layout = Layout.of([np.ones(1)])
            connection.sendall(letter(digest=layout.digest) + bytes(8) + b"and more")
            with pytest.raises(ConnectionError, match="place 1 is gone: it says what nobody asked for"):
                made.mean([np.ones(1)])
    places.close()


def test_who_goes_while_the_mean_is_handed_out_is_missed_at_the_next_and_the_others_have_this_one() -> None:
    places = Places(3)
    given = [np.ones(5_000_000)]
    layout = Layout.of(given)
    first, third = places.meeting(0), places.meeting(2)
    with socket.create_connection(places.peers[0], timeout=20) as connection:
        connection.sendall(Invitation(3, b"world-1").hello(1))
        met = [first.result(20), third.result(20)]
        assert len(connection.recv(32)) == 32
        asked = [places.start(each.mean, given) for each in met]
        connection.sendall(letter(digest=layout.digest, size=layout.total_bytes) + layout.pack(given))
        assert len(connection.recv(1)) == 1
    for each in asked:
        assert_same(each.result(20), given)
    for error in means(places, met, [given] * 2):
        assert isinstance(error, ConnectionError)
        assert "place 1 is gone" in str(error)
    places.close()


@pytest.mark.parametrize("said", [b"\x00" * 21, b"\xff" * 500, struct.pack("<QBIQ", 1, 0, 0, 1 << 60), b""])
def test_a_place_0_that_says_anything_else_is_given_up(said: bytes) -> None:
    invitation = Invitation(2, b"world-1")
    with listen() as listener:
        serving = threading.Thread(target=_serve, args=(listener, invitation.welcome, said))
        serving.start()
        peers = [listener.getsockname(), ("127.0.0.1", 1)]
        with Summing(1, peers, listener, "world-1") as made, pytest.raises(ConnectionError):
            made.mean([np.ones(4)])
        serving.join()


def _serve(listener: socket.socket, welcome: bytes, said: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(1000)
        connection.sendall(welcome)
        connection.recv(1000)
        connection.sendall(said)


# -- processes ---------------------------------------------------------------------------------------------------------

PROCESS = """
import sys
import numpy as np
from strata.demo.summing import Summing, listen

place = int(sys.argv[1])
listener = listen()
print(listener.getsockname()[1], flush=True)
peers = [("127.0.0.1", int(port)) for port in sys.stdin.readline().split()]
with Summing(place, peers, listener, "world") as summing:
    for step in range(1_000_000):
        try:
            (mean,) = summing.mean([np.full(300_000, float(place), np.float32)])
        except ConnectionError as error:
            print("lost", error, flush=True)
            break
        assert mean.tolist()[:2] == [1.5, 1.5], mean
        print("step", step, flush=True)
"""


class Process:
    def __init__(self, place: int) -> None:
        self.place = place
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.port = self.line()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def rest(self) -> list[str]:
        out, _ = self.process.communicate(timeout=20)
        return out.splitlines()

    def kill(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 2])
def test_a_process_that_is_killed_in_the_middle_ends_it_for_all_others(victim: int) -> None:
    with ExitStack() as stack:
        processes = []
        for place in range(4):
            processes.append(Process(place))
            stack.callback(processes[-1].kill)
        for each in processes:
            each.tell(" ".join(one.port for one in processes))
        assert processes[victim].line() == "step 0"
        assert processes[victim].line() == "step 1"
        os.kill(processes[victim].process.pid, signal.SIGKILL)
        for each in processes:
            if each.place != victim:
                *steps, last = each.rest()
                assert last.startswith(f"lost place {victim} is gone"), last
                assert steps
