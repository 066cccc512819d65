"""Talks: each request answered before the next is heard, words in between, and no task for any of it."""

import asyncio
import gc
from typing import Any

import pytest

from strata.errors import InvalidInput
from strata.rpc import Call, Kind, Later, Limits, Line, Method, RpcError, Status, Talk, frames, talking
from strata.rpc.calls import TALK_BREATH
from strata.rpc.frames import DATA
from tests.unit.rpc.peer import data, headers, message
from tests.unit.rpc.served import PATH, Served, named, run
from tests.until import until_async


class Echoing(Talk):
    """Answers what it is told to, and remembers."""

    def __init__(self, line: Line, call: Call) -> None:
        self.line, self.call = line, call
        self.requests: list[bytes] = []
        self.laters: list[Later] = []
        self.overs = 0

    def heard(self, request: bytes) -> Any:
        self.requests.append(request)
        if request == b"later":
            self.laters.append(Later())
            return self.laters[-1]
        if request == b"refuse":
            raise RpcError(Status.ABORTED, "no more of that")
        if request == b"break":
            raise ValueError("a defect")
        return None if request.startswith(b"silence") else request

    def over(self) -> None:
        self.overs += 1


class Room:
    """The talks of a server, as they are opened."""

    def __init__(self, **more: Any) -> None:
        self.talks: list[Echoing] = []

        @talking
        def handler(line: Line, call: Call) -> Talk:
            self.talks.append(Echoing(line, call))
            return self.talks[-1]

        self.served = Served(Method(PATH, handler, Kind.BOTH_STREAM), **more)

    def open(self, *requests: bytes, number: int = 1) -> Echoing:
        self.served.say(headers(number))
        self.say(*requests, number=number)
        return self.talks[-1]

    def say(self, *requests: bytes, number: int = 1, end: bool = False) -> None:
        for request in requests[:-1] if end else requests:
            self.served.say(data(number, message(request)))
        if end:
            self.served.say(data(number, message(requests[-1]) if requests else b"", end=True))

    def heard(self, number: int = 1) -> list[bytes]:
        """What was answered on a stream."""
        sent = b"".join(f.payload for f in self.served.network.frames() if f.kind == DATA and f.stream == number)
        found = []
        while sent:
            size = int.from_bytes(sent[1:5], "big")
            found.append(sent[5 : 5 + size])
            sent = sent[5 + size :]
        return found


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_each_request_is_answered_as_it_comes_and_more_is_said_in_between() -> None:
    async def work() -> None:
        room = Room()
        talk = room.open(b"one", b"silence", b"two")
        assert room.heard() == [b"one", b"two"]
        talk.line.say(b"news")
        assert room.heard() == [b"one", b"two", b"news"]
        room.say(b"three", end=True)
        assert room.heard() == [b"one", b"two", b"news", b"three"]
        assert room.served.statuses().keys() == {1}
        assert talk.overs == 1
        talk.line.say(b"too late")
        talk.line.end()
        assert room.heard()[-1] == b"three"

    run(work)


def test_the_next_request_is_heard_once_the_last_is_answered() -> None:
    async def work() -> None:
        room = Room()
        talk = room.open(b"later", b"next")
        room.say(end=True)
        await turns()
        assert (talk.requests, room.heard()) == ([b"later"], [])
        talk.line.say(b"meanwhile")
        talk.laters[0].answer(b"at last")
        await turns()
        assert room.heard() == [b"meanwhile", b"at last", b"next"]
        assert talk.overs == 1, "the client had sent all"

    run(work)


@pytest.mark.parametrize(
    ("request_", "status"), [(b"refuse", b"10"), (b"break", b"2")], ids=["an error of its own", "a defect"]
)
def test_what_is_raised_ends_the_call(request_: bytes, status: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        room = Room()
        talk = room.open(b"one", request_, b"two")
        assert talk.requests == [b"one", request_]
        assert talk.overs == 1
        assert status in room.served.statuses()[1]

    run(work)


def test_a_later_that_fails_or_comes_too_late() -> None:
    async def work() -> None:
        room = Room()
        first, second = room.open(b"later"), room.open(b"later", number=3)
        first.laters[0].fail(RpcError(Status.ABORTED, "it was refused"))
        room.served.say(frames.rst_stream(3, frames.ErrorCode.CANCEL))
        assert second.laters[0].given_up
        second.laters[0].answer(b"nobody hears it")
        await turns()
        assert room.served.statuses().keys() == {1}
        assert (first.overs, second.overs) == (1, 1)
        assert room.heard(3) == []

    run(work)


def test_the_talk_may_end_it() -> None:
    async def work() -> None:
        room = Room()
        first, second = room.open(b"one"), room.open(b"one", number=3)
        first.line.end()
        second.line.end(RpcError(Status.UNAVAILABLE, "the server goes"))
        assert (first.overs, second.overs) == (1, 1)
        statuses = room.served.statuses()
        assert b"grpc-status\x010" in statuses[1]
        assert b"14" in statuses[3]

    run(work)


@pytest.mark.parametrize("full", ["the network", "the stream's window"])
def test_who_does_not_read_is_not_heard(full: str) -> None:
    """Or answers would pile up, as many as it likes to ask for."""

    async def work() -> None:
        room = Room()
        if full == "the stream's window":
            room.served.say(frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: 20}))
            talk = room.open(b"a" * 10, b"b" * 10)
        else:
            talk = room.open(b"a" * 10)
            room.served.protocol.pause_writing()
        room.say(b"c" * 10, b"d" * 10)
        held = len(talk.requests)
        assert held < 3
        if full == "the network":
            room.served.protocol.resume_writing()
        else:
            room.served.say(frames.window_update(1, 1000))
        await turns()
        assert room.heard() == talk.requests
        assert len(talk.requests) > held

    run(work)


def test_words_for_who_does_not_read_are_bounded() -> None:
    async def work() -> None:
        room = Room(limits=Limits(unsent_bytes=100_000, message_bytes=50_000))
        room.served.say(frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: 0}))
        talk = room.open()
        for _ in range(30):
            talk.line.say(bytes(10_000))
        assert talk.overs == 1
        assert room.served.protocol.connection.outbox.unsent <= 100_000

    run(work)


def test_others_have_their_turn_after_a_share_of_requests() -> None:
    async def work() -> None:
        room = Room()
        talk = room.open()
        room.served.say(b"".join(data(1, message(b"x")) for _ in range(200)))
        assert len(talk.requests) == TALK_BREATH
        room.served.say(data(1, message(b"y")))
        assert len(talk.requests) == TALK_BREATH, "those that wait have their turn soon, and no more than that"
        await asyncio.sleep(0)
        assert len(talk.requests) == 2 * TALK_BREATH
        await turns(200 // TALK_BREATH)
        assert talk.requests == [b"x"] * 200 + [b"y"]
        assert room.heard() == talk.requests

    run(work)


def test_large_requests_take_more_of_a_share() -> None:
    async def work() -> None:
        room = Room()
        room.served.protocol.pause_writing()
        talk, small = room.open(), TALK_BREATH - 2 * 2
        large = message(b"silence" + bytes(100_000)) * 2
        for at in range(0, len(large), 16_384):
            room.served.say(data(1, large[at : at + 16_384]))
        room.say(*[b"x"] * (small + 1))
        room.served.protocol.resume_writing()
        assert len(talk.requests) == 2 + small
        await turns()
        assert len(talk.requests) == 2 + small + 1

    run(work)


def test_what_waited_for_a_later_is_heard_and_its_answer_sent_without_another_read() -> None:
    async def work() -> None:
        room = Room()
        talk = room.open(b"later", b"next")
        talk.laters[0].answer(None)
        await turns()
        assert room.heard() == [b"next"]

    run(work)


@pytest.mark.parametrize("when", ["opened", "heard", "heard, and a later"])
def test_one_that_ends_the_call_says_nothing_more(when: str) -> None:
    laters: list[Later] = []

    class Ending(Echoing):
        def heard(self, request: bytes) -> Any:
            self.line.say(bytes(50))
            self.line.end()
            laters.append(Later())
            return laters[-1] if when == "heard, and a later" else b"too late"

    @talking
    def handler(line: Line, call: Call) -> Talk:
        made.append(Ending(line, call))
        if when == "opened":
            line.end()
        return made[-1]

    made: list[Ending] = []

    async def work() -> None:
        room = Room()
        room.served = Served(Method(PATH, handler, Kind.BOTH_STREAM))
        room.served.say(frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: 20}))
        room.served.say(headers(1))
        room.say(b"one")
        room.served.say(frames.window_update(1, 1000))
        await turns()
        assert room.heard() == ([] if when == "opened" else [bytes(50)])
        assert made[0].overs == 1
        if when == "heard, and a later":
            assert laters[0].given_up

    run(work)


def test_a_lost_connection_and_a_server_that_stops_are_told_once() -> None:
    async def work() -> None:
        for way in ("connection_lost", "stop"):
            room = Room()
            talks = [room.open(b"one", number=number) for number in (1, 3)]
            if way == "stop":
                room.served.protocol.stop()
            room.served.protocol.connection_lost(None)
            assert [talk.overs for talk in talks] == [1, 1]

    run(work)


def test_a_deadline_ends_it() -> None:
    async def work() -> None:
        room = Room()
        room.served.say(headers(1, named(PATH, ("grpc-timeout", "20m"))))
        await until_async(lambda: room.talks[0].overs)
        assert room.talks[0].overs == 1
        assert b"4" in room.served.statuses()[1]

    run(work)


def test_an_open_talk_costs_neither_a_task_nor_a_cycle_when_it_is_over() -> None:
    async def work() -> None:
        room = Room()
        room.open(b"one")
        assert asyncio.all_tasks() == {asyncio.current_task()}
        gc.collect()
        gc.disable()
        try:
            before = sum(type(found).__name__ in ("Stream", "WireCall") for found in gc.get_objects())
            for number in range(3, 103, 2):
                room.open(b"one", number=number).line.end()
            room.talks.clear()
            assert sum(type(found).__name__ in ("Stream", "WireCall") for found in gc.get_objects()) <= before + 2
        finally:
            gc.enable()

    run(work)


def test_a_handler_that_talks_is_of_a_stream_both_ways_and_gives_a_talk() -> None:
    @talking
    def wrong(line: Line, call: Call) -> Any:
        return "no talk"

    with pytest.raises(InvalidInput, match="BOTH_STREAM"):
        Method(PATH, wrong)

    async def work() -> None:
        served = Served(Method(PATH, wrong, Kind.BOTH_STREAM))
        served.say(headers(1))
        assert b"grpc-status\x012" in served.statuses()[1]

    run(work)
