"""Talks on either server, with grpcio's client: the same order and ends, and little kept for who does not read."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc
import pytest

from strata.rpc import Call, GrpcioServer, Kind, Later, Line, Method, RpcError, Server, Status, Talk, talking
from strata.rpc.client import load
from tests.until import until_async

load()  # other tests of this process fork, and their children find what the servers leave

SERVERS: dict[str, type[Server | GrpcioServer]] = {"strata": Server, "grpcio": GrpcioServer}
PATH = "/test.Service/Talk"


class Answering(Talk):
    def __init__(self, line: Line, call: Call) -> None:
        self.line = line
        self.count = 0
        self.overs = 0

    def heard(self, request: bytes) -> Any:
        self.count += 1
        loop, later = asyncio.get_running_loop(), Later()
        if request == b"later":

            def both() -> None:
                later.answer(b"the answer")
                self.line.say(b"what is newer")

            loop.call_later(0.01, both)
            return later
        if request == b"later cancelled":
            loop.call_soon(later.fail, asyncio.CancelledError())
            return later
        if request == b"cancelled":
            raise asyncio.CancelledError
        if request == b"refuse":
            raise RpcError(Status.ABORTED, "no more of that")
        if request == b"much":
            for _ in range(100_000):
                self.line.say(bytes(1000))
            return None
        return bytes(1000) if request == b"x" else request

    def over(self) -> None:
        self.overs += 1
        if self.count == 1:
            raise ValueError("a defect, which is nobody's business but the log's")


@pytest.fixture(params=SERVERS)
def served(request: pytest.FixtureRequest) -> Callable[[Callable[[Any, list[Answering]], Awaitable[None]]], None]:
    def run(work: Callable[[Any, list[Answering]], Awaitable[None]]) -> None:
        talks: list[Answering] = []

        @talking
        def handler(line: Line, call: Call) -> Any:
            if ("none", "1") in call.metadata:
                return "no talk"
            talks.append(Answering(line, call))
            return talks[-1]

        async def main() -> None:
            server = SERVERS[request.param]([[Method(PATH, handler, Kind.BOTH_STREAM)]])
            address = await server.listen("127.0.0.1:0")
            async with asyncio.timeout(60), grpc.aio.insecure_channel(address) as channel:
                await work(channel.stream_stream(PATH), talks)
            await server.stop(0)

        asyncio.run(main())

    return run


async def told(call: Any, *requests: bytes, end: bool = True) -> tuple[list[bytes], str]:
    for request in requests:
        await call.write(request)
    if end:
        await call.done_writing()
    found: list[bytes] = []
    with suppress(grpc.aio.AioRpcError):
        async for response in call:
            found += [response]
    return found, (await call.code()).name


def test_an_answer_comes_before_what_was_said_after_it(served: Any) -> None:
    async def work(open_: Any, talks: list[Answering]) -> None:
        found = await told(open_(), b"one", b"later", b"two")
        assert found == ([b"one", b"the answer", b"what is newer", b"two"], "OK")
        assert talks[0].overs == 1

    served(work)


@pytest.mark.parametrize(
    ("request_", "code"),
    [(b"refuse", "ABORTED"), (b"cancelled", "CANCELLED"), (b"later cancelled", "CANCELLED")],
)
def test_it_ends_alike(served: Any, request_: bytes, code: str) -> None:
    async def work(open_: Any, talks: list[Answering]) -> None:
        assert await told(open_(), b"one", request_, end=False) == ([b"one"], code)
        assert talks[0].overs == 1

    served(work)


def test_what_breaks_at_the_end_does_not_change_it_and_no_talk_is_an_error(served: Any) -> None:
    async def work(open_: Any, talks: list[Answering]) -> None:
        assert await told(open_(), b"one") == ([b"one"], "OK")
        assert await told(open_(metadata=(("none", "1"),)), end=False) == ([], "UNKNOWN")

    served(work)


def test_who_does_not_read_is_not_heard_and_little_is_kept_for_it(served: Any) -> None:
    async def work(open_: Any, talks: list[Answering]) -> None:
        call = open_()
        sending = asyncio.ensure_future(_send(call, 20_000))
        counts = [-1]

        def stands_still() -> bool:
            counts.append(talks[0].count if talks else -1)
            return counts[-1] == counts[-2] > 0

        await until_async(stands_still, every=0.5)
        assert counts[-1] < 20_000
        sending.cancel()
        call.cancel()
        assert (await told(open_(), b"much"))[1] == "RESOURCE_EXHAUSTED"

    served(work)


async def _send(call: Any, count: int) -> None:
    for _ in range(count):
        await call.write(b"x")
