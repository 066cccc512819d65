"""Barriers: how many rounds a second, and how long from the last arrival until all are released."""

import statistics
import time
from collections.abc import Callable, Iterator

from benchmarks import Row, Table
from benchmarks.coordinator import calls
from benchmarks.coordinator.servers import NAMES, available, serving
from benchmarks.coordinator.wire import Gathering, GrpcConnection, StoreConnection
from benchmarks.rpc.server import Running

ROUNDS, PAUSE_SECONDS = 5, 0.05
RATIO_LEAST = 400 / 661
"""Of TCPStore's rate in the same round: what the two numbers were when the target was set, on a quiet machine."""
RATE_LEAST, THOUSAND_MOST_MS, TEN_THOUSAND_MOST_MS = 400, 40.0, 1000.0


def tables() -> Iterator[Table]:
    kinds = available(("strata", "torchft", "grpcio", "tcpstore"))
    hundred = _measured(kinds, 100, rounds=200, releases=20)
    yield Table("Barriers of 100, a connection each", [*_rates(hundred), *_ratio(hundred), *_releases(hundred, None)])
    # TCPStore looks up the name of whoever connects, and a thousand of them would take minutes.
    thousand = _measured(["strata"], 1000, rounds=10, releases=5)
    if "torchft" in kinds:
        thousand |= _measured(["torchft"], 1000, rounds=1, releases=2)
    yield Table("Barriers of 1,000, a connection each", _releases(thousand, THOUSAND_MOST_MS))
    yield _ten_thousand()


Found = dict[str, list[tuple[float, list[float]]]]


def _measured(kinds: list[str], count: int, rounds: int, releases: int) -> Found:
    found: Found = {kind: [] for kind in kinds}
    for _ in range(ROUNDS):
        for kind in kinds:
            with serving(kind) as server:
                calls.populate(server, count)
                found[kind].append(_play(server, count, rounds, releases))
    return found


def _rates(found: Found) -> list[Row]:
    rows = []
    for kind, own in found.items():
        rates = [rate for rate, _ in own]
        least = RATE_LEAST if kind == "strata" else None
        rows.append(Row(NAMES[kind], statistics.median(rates), max(rates), "barriers/s", least, at_least=True))
    return rows


def _ratio(found: Found) -> list[Row]:
    if "tcpstore" not in found:
        return []
    ratios = [own / other for (own, _), (other, _) in zip(found["strata"], found["tcpstore"], strict=True)]
    return [Row("Strata / TCPStore", statistics.median(ratios), max(ratios), "", RATIO_LEAST, at_least=True)]


def _releases(found: Found, most: float | None) -> list[Row]:
    rows = []
    for kind, own in found.items():
        medians = [statistics.median(times) * 1000 for _, times in own]
        target = most if kind == "strata" else None
        what = f"{NAMES[kind]}, last arrival to all released"
        rows.append(Row(what, statistics.median(medians), min(medians), "ms", target))
    return rows


def _play(server: Running, count: int, rounds: int, releases: int) -> tuple[float, list[float]]:
    """Rounds a second, one after the other; and seconds from the last arrival on, when the others have waited."""
    kind_of_meeting = _store_meeting if server.kind == "tcpstore" else _grpc_meeting
    meet = kind_of_meeting(server, count, 1 + rounds + releases)
    meet(False)
    began = time.perf_counter()
    for _ in range(rounds):
        meet(False)
    rate = rounds / (time.perf_counter() - began)
    return rate, [meet(True) for _ in range(releases)]


def _grpc_meeting(server: Running, count: int, rounds: int) -> Callable[[bool], float]:
    path = calls.path(server.kind, "WaitBarrier")
    gathering = Gathering([GrpcConnection(server.address, path) for _ in range(count)])
    prepared = iter(
        [
            [
                connection.request(calls.arrive(server.kind, number, arrival, count))
                for number, connection in enumerate(gathering.connections)
            ]
            for arrival in range(1, rounds + 1)
        ]
    )

    def meet(pause: bool) -> float:
        *first, last = next(prepared)
        for connection, request in zip(gathering.connections, first, strict=False):
            connection.socket.sendall(request)
        if pause:
            time.sleep(PAUSE_SECONDS * count / 100)
        began = time.perf_counter()
        gathering.connections[-1].socket.sendall(last)
        return gathering.wait() - began

    return meet


def _store_meeting(server: Running, count: int, rounds: int) -> Callable[[bool], float]:
    """As its users do it: everybody adds one, the last adds the key that all wait for."""
    gathering = Gathering([StoreConnection(server.address) for _ in range(count)])
    numbers = iter(range(rounds))

    def meet(pause: bool) -> float:
        number = next(numbers)
        add, released = StoreConnection.add(b"arrived-%d" % number), b"released-%d" % number
        wait = StoreConnection.wait(released)
        others = gathering.connections[:-1]
        for connection in others:
            connection.socket.sendall(add + wait)
        for connection in others:
            connection.read(8)
        if pause:
            time.sleep(PAUSE_SECONDS)
        began = time.perf_counter()
        last = gathering.connections[-1]
        last.socket.sendall(add)
        last.read(8)
        last.socket.sendall(StoreConnection.add(released) + wait)
        last.read(8)
        return gathering.wait(answer_bytes=1) - began

    return meet


def _ten_thousand() -> Table:
    """One barrier of 10,000, a hundred of them waiting on each connection."""
    count, connections = 10_000, 100
    found = []
    with serving("strata") as server:
        calls.populate(server, count)
        path = calls.path("strata", "WaitBarrier")
        gathering = Gathering([GrpcConnection(server.address, path) for _ in range(connections)])
        for arrival in range(1, 6):
            requests = [
                [gathering.connections[place].request(calls.arrive("strata", number, arrival, count)) for number in own]
                for place, own in enumerate(range(place, count, connections) for place in range(connections))
            ]
            last = requests[-1].pop()
            gathering.send([b"".join(own) for own in requests])
            time.sleep(3.0)
            began = time.perf_counter()
            gathering.connections[-1].socket.sendall(last)
            found.append((gathering.wait(count // connections) - began) * 1000)
    row = Row("Strata, last arrival to all released", statistics.median(found), min(found), "ms", TEN_THOUSAND_MOST_MS)
    return Table("A barrier of 10,000 waiting calls on 100 connections", [row])
