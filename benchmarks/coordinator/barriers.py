"""Barriers: how many rounds a second, and how long from the last arrival until all are released."""

import statistics
from collections.abc import Iterator
from typing import Protocol

from benchmarks import Row, Table
from benchmarks.coordinator import calls
from benchmarks.coordinator.gathering import Script
from benchmarks.coordinator.servers import NAMES, available, serving
from benchmarks.coordinator.wire import Calls, StoreConnection
from benchmarks.rpc.raw import HELLO
from benchmarks.rpc.server import Running

ROUNDS, PAUSE_SECONDS = 5, 0.05
STREAMING = "streaming"
"""Strata whose workers each have their stream of heartbeats open, as sessions do."""
TITLES = NAMES | {STREAMING: "Strata, a heartbeat stream for each worker"}
RATE_LEAST, THOUSAND_MOST_MS, TEN_THOUSAND_MOST_MS = 400, 40.0, 1000.0


def tables() -> Iterator[Table]:
    kinds = available(("strata", "torchft", "etcd", "grpcio", "tcpstore"))
    hundred = _measured([*kinds, STREAMING], 100, rounds=200, releases=20)
    yield Table("Barriers of 100, a connection each", [*_rates(hundred), *_ratio(hundred), *_releases(hundred, None)])
    # TCPStore looks up the name of whoever connects, and a thousand of them would take minutes.
    thousand = _measured(["strata"], 1000, rounds=10, releases=5)
    if "etcd" in kinds:
        thousand |= _measured(["etcd"], 1000, rounds=10, releases=5)
    if "torchft" in kinds:
        thousand |= _measured(["torchft"], 1000, rounds=1, releases=2)
    yield Table("Barriers of 1,000, a connection each", _releases(thousand, THOUSAND_MOST_MS))
    yield _ten_thousand()


Found = dict[str, list[tuple[float, list[float]]]]


def _measured(kinds: list[str], count: int, rounds: int, releases: int) -> Found:
    found: Found = {kind: [] for kind in kinds}
    for _ in range(ROUNDS):
        for kind in kinds:
            with serving("strata" if kind == STREAMING else kind) as server:
                calls.populate(server, count)
                found[kind].append(_play(_MEETINGS.get(kind, _GrpcMeeting)(server, count), count, rounds, releases))
    return found


def _rates(found: Found) -> list[Row]:
    rows = []
    for kind, own in found.items():
        rates = [rate for rate, _ in own]
        least = RATE_LEAST if kind == "strata" else None
        rows.append(Row(TITLES[kind], statistics.median(rates), max(rates), "barriers/s", least, at_least=True))
    return rows


def _ratio(found: Found) -> list[Row]:
    if "tcpstore" not in found:
        return []
    ratios = [own / other for (own, _), (other, _) in zip(found["strata"], found["tcpstore"], strict=True)]
    return [Row("Strata / TCPStore", statistics.median(ratios), max(ratios), "")]


def _releases(found: Found, most: float | None) -> list[Row]:
    rows = []
    for kind, own in found.items():
        medians = [statistics.median(times) * 1000 for _, times in own]
        target = most if kind == "strata" else None
        what = f"{TITLES[kind]}, last arrival to all released"
        rows.append(Row(what, statistics.median(medians), min(medians), "ms", target))
    return rows


def _play(meeting: "_Meeting", count: int, rounds: int, releases: int) -> tuple[float, list[float]]:
    """Rounds a second, one after the other; and seconds from the last arrival on, when the others have waited."""
    script = meeting.script
    meeting.meet()
    script.note()
    for _ in range(rounds):
        meeting.meet()
    script.note()
    for _ in range(releases):
        meeting.meet(PAUSE_SECONDS * count / 100)
        script.note()
    began, ended, *moments = script.play()
    return rounds / (ended - began), [after - before for before, after in zip(moments[::2], moments[1::2], strict=True)]


class _Meeting(Protocol):
    """How the connections of a kind of server meet, as a script."""

    script: Script

    def __init__(self, server: Running, count: int) -> None: ...

    def meet(self, pause: float = 0.0) -> None:
        """One round; with a pause the moment before the last arrival is noted."""


class _GrpcMeeting(_Meeting):
    """Connections that each call once in a round."""

    def __init__(self, server: Running, count: int) -> None:
        self.script = Script(server.address, count, HELLO)
        self._kind, self._count, self._arrival = server.kind, count, 0
        path = calls.path(server.kind, "WaitBarrier")
        self._calls = [Calls(path, self._watch(number)) for number in range(count)]

    def _watch(self, number: int) -> tuple[str, bytes] | None:
        """What else is open on a connection, and the first message there."""
        return None

    def meet(self, pause: float = 0.0) -> None:
        self._arrival += 1
        for number, own in enumerate(self._calls):
            if pause and number == self._count - 1:
                self.script.sleep(pause)
                self.script.note()
            self.script.send(number, own.request(calls.arrive(self._kind, number, self._arrival, self._count)))
        self.script.all_answered()


class _StreamingMeeting(_GrpcMeeting):
    """The same, while each worker's heartbeats come on a stream beside."""

    def __init__(self, server: Running, count: int) -> None:
        super().__init__(server, count)
        for number, own in enumerate(self._calls):
            self.script.send(number, own.opening)
        self.script.all_told()  # the first answer

    def _watch(self, number: int) -> tuple[str, bytes]:
        return calls.path(self._kind, "HeartbeatStream"), calls.heartbeat(self._kind, number)


class _EtcdMeeting(_Meeting):
    """Everybody puts a key, and the last one the key that all watch. That nobody has to count who is there is more than
    its users can have."""

    def __init__(self, server: Running, count: int) -> None:
        self.script = Script(server.address, count, HELLO)
        self._last, self._round = count - 1, 0
        watch = (calls.path("etcd", "Watch"), calls.watch_released())
        self._calls = [Calls(calls.path("etcd", "WaitBarrier"), watch) for _ in range(count)]
        for number, own in enumerate(self._calls):
            self.script.send(number, own.opening)
        self.script.all_told()  # that they watch

    def meet(self, pause: float = 0.0) -> None:
        self._round += 1
        script, last = self.script, self._last
        for number, own in enumerate(self._calls):
            if pause and number == last:
                script.sleep(pause)
                script.note()
            script.send(number, own.request(calls.put_arrival(number, self._round)))
        script.all_answered()
        script.send(last, self._calls[last].request(calls.put_released(self._round)))
        script.all_told()
        script.answered(last)


class _StoreMeeting(_Meeting):
    """As its users do it: everybody adds one, the last adds the key that all wait for."""

    def __init__(self, server: Running, count: int) -> None:
        self.script = Script(server.address, count, StoreConnection.HELLO)
        self._last, self._round = count - 1, 0

    def meet(self, pause: float = 0.0) -> None:
        self._round += 1
        add, released = StoreConnection.add(b"arrived-%d" % self._round), b"released-%d" % self._round
        wait, script, last = StoreConnection.wait(released), self.script, self._last
        for number in range(last):
            script.send(number, add + wait)
        for number in range(last):
            script.read(number, 8)
        if pause:
            script.sleep(pause)
            script.note()
        script.send(last, add)
        script.read(last, 8)
        script.send(last, StoreConnection.add(released) + wait)
        script.read(last, 8)
        script.all_bytes(1)


_MEETINGS: dict[str, type[_Meeting]] = {
    "tcpstore": _StoreMeeting,
    "etcd": _EtcdMeeting,
    STREAMING: _StreamingMeeting,
}


def _ten_thousand() -> Table:
    """One barrier of 10,000, a hundred of them waiting on each connection."""
    count, connections = 10_000, 100
    with serving("strata") as server:
        calls.populate(server, count)
        script = Script(server.address, connections, HELLO)
        own = [Calls(calls.path("strata", "WaitBarrier")) for _ in range(connections)]
        for arrival in range(1, 6):
            requests = [
                own[number % connections].request(calls.arrive("strata", number, arrival, count))
                for number in range(count)
            ]
            for place in range(connections):
                script.send(place, b"".join(requests[place : count - 1 : connections]))
            script.sleep(3.0)
            script.note()
            script.send(connections - 1, requests[-1])
            script.all_answered(count // connections)
            script.note()
        moments = script.play()
    found = [(after - before) * 1000 for before, after in zip(moments[::2], moments[1::2], strict=True)]
    row = Row("Strata, last arrival to all released", statistics.median(found), min(found), "ms", TEN_THOUSAND_MOST_MS)
    return Table("A barrier of 10,000 waiting calls on 100 connections", [row])
