"""A peer played from bytes, for a fuzzer: any bytes are a conversation, and no conversation may do harm.

`python -m tests.fuzz.connection [libFuzzer's options] CORPUS` runs atheris, which looks for bytes that reach new code;
`play` is one conversation, without atheris. The law: nothing raises out of a connection; streams, tasks and memory stay
bounded while it lives, and none is left when it is gone.
"""

import asyncio
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

PATHS = (
    "/test.Service/Method",
    "/test.Service/Wait",
    "/test.Service/Stream",
    "/test.Service/Both",
    "/test.Service/Talk",
    "/no.Body/Knows",
)


class Parts(NamedTuple):
    """What is tried, and what tries it."""

    rpc: Any
    frames: Any
    peer: Any
    served: Any


def parts() -> Parts:
    """Under atheris these are instrumented as they are imported."""
    names = ("strata.rpc", "strata.rpc.frames", "tests.unit.rpc.peer", "tests.unit.rpc.served")
    rpc, frames, peer, protocol = map(import_module, names)
    return Parts(rpc, frames, peer, protocol.Served)


class Bytes:
    """What decides, taken from the front; zeros when it runs out."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def take(self, count: int) -> bytes:
        self._at += count
        return self._data[self._at - count : self._at]


class Harm(Exception):
    """The law was broken."""


class Play:
    """One conversation with a server that answers at once, later, in streams, or not at all."""

    def __init__(self) -> None:
        self._parts = parts()
        self.now = 1000.0
        limits = self._parts.rpc.Limits(streams=16, stream_window=65_535, message_bytes=1 << 17, large_bytes=1 << 18)
        self._served = self._parts.served(*self._methods(), limits=limits, gzip=64)
        self._limits = limits

    def _methods(self) -> list[Any]:
        rpc = self._parts.rpc
        method, kind = rpc.Method, rpc.Kind

        def echo(request: bytes, call: Any) -> bytes:
            return request

        async def wait(request: bytes, call: Any) -> bytes:
            await asyncio.sleep(0)
            return request * 3

        async def stream(request: bytes, call: Any) -> AsyncIterator[bytes]:
            for _ in range(len(request) % 50):
                yield request

        async def both(requests: AsyncIterator[bytes], call: Any) -> AsyncIterator[bytes]:
            async for request in requests:
                yield request

        class Echo(rpc.Talk):  # type: ignore[misc,name-defined]
            """Now, or in the next turn; and once more than it was asked."""

            def __init__(self, line: Any) -> None:
                self._line = line

            def heard(self, request: bytes) -> Any:
                if len(request) % 3:
                    return request
                later = rpc.Later()
                asyncio.get_running_loop().call_soon(later.answer, request)
                return later

            def over(self) -> None:
                self._line.say(b"nobody hears it")

        @rpc.talking  # type: ignore[untyped-decorator]
        def talk(line: Any, call: Any) -> Any:
            line.say(b"hello")
            return Echo(line)

        return [
            method(PATHS[0], echo),
            method(PATHS[1], wait),
            method(PATHS[2], stream, kind.SERVER_STREAM),
            method(PATHS[3], both, kind.BOTH_STREAM),
            method(PATHS[4], talk, kind.BOTH_STREAM),
        ]

    async def run(self, data: Bytes) -> None:
        acts = (self._raw, self._frame, self._call, self._headers, self._data, self._window, self._time, self._network)
        try:
            for _ in range(400):
                if not data:
                    break
                acts[data.byte() % len(acts)](data)
                self._check()
                if data.byte() & 1:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
            self._check()
        finally:
            self._served.protocol.connection_lost(None)
        await self._check_end()

    # -- what a peer may do ------------------------------------------------------------------------------------------

    def _say(self, raw: bytes) -> None:
        self._served.say(raw)

    def _raw(self, data: Bytes) -> None:
        self._say(data.take(data.byte()))

    def _frame(self, data: Bytes) -> None:
        kind, flags, stream = data.byte() % 12, data.byte(), data.byte() % 64
        self._say(self._parts.frames.frame(kind, flags, stream, data.take(data.byte())))

    def _call(self, data: Bytes) -> None:
        stream, body = data.byte() | 1, self._parts.peer.message(data.take(data.byte() % 64), data.byte() % 3)
        self._say(self._head(data, stream) + self._parts.frames.frame(0, 1, stream, body))

    def _headers(self, data: Bytes) -> None:
        self._say(self._head(data, data.byte() | 1, end=bool(data.byte() & 1)))

    def _head(self, data: Bytes, stream: int, *, end: bool = False) -> bytes:
        path = PATHS[data.byte() % len(PATHS)]
        fields = [(name, path if name == ":path" else value) for name, value in self._parts.peer.FIELDS]
        extra = data.byte()
        if extra & 1:
            fields.append(("grpc-timeout", f"{data.byte()}m"))
        if extra & 2:
            fields.append(("grpc-encoding", "gzip"))
        if extra & 4:
            fields.append(("grpc-accept-encoding", "gzip"))
        block = self._parts.peer.block(fields)
        if extra & 8:
            block += data.take(data.byte() % 16)
        made: bytes = self._parts.frames.headers(stream, block, end=end)
        return made

    def _data(self, data: Bytes) -> None:
        size = data.byte() << 6
        body = data.take(min(size, 5)).ljust(min(size, 5), b"\0") + bytes(max(0, size - 5))
        self._say(self._parts.frames.frame(0, data.byte() & 1, data.byte() | 1, body))

    def _window(self, data: Bytes) -> None:
        frames = self._parts.frames
        if data.byte() & 1:
            self._say(frames.window_update(data.byte() % 64, data.byte() << (data.byte() % 24)))
        else:
            self._say(frames.settings({frames.Setting(data.byte() % 6 + 1): data.byte() << (data.byte() % 24)}))

    # -- what else may happen ----------------------------------------------------------------------------------------

    def _time(self, data: Bytes) -> None:
        self.now += data.byte() / 4
        self._served.protocol.connection.now = self.now
        if data.byte() & 1:
            self._served.protocol.tick(self.now)
        if data.byte() == 255:
            self._served.protocol.drain()

    def _network(self, data: Bytes) -> None:
        protocol = self._served.protocol
        if protocol.connection.paused:
            protocol.resume_writing()
        else:
            protocol.pause_writing()

    # -- the law -----------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        connection, limits = self._served.protocol.connection, self._limits
        held = sum(len(stream.buffer) for stream in connection.streams.values())
        most = limits.streams * (limits.stream_window + 16_384) + limits.large_bytes + limits.message_bytes
        _hold(len(connection.streams) <= limits.streams, "too many streams")
        _hold(held <= most, f"{held} bytes are held")
        _hold(0 <= connection.inbox.large <= limits.large_bytes + limits.message_bytes, "room is miscounted")
        _hold(len(connection.rest) <= 16_384 + 9, "an endless frame")
        waiting = sum(stream.unsent for stream in connection.streams.values())
        _hold(connection.outbox.unsent == waiting, "what waits is miscounted")
        if not connection.closing:
            _hold(all(stream.open for stream in connection.streams.values()), "a closed stream is kept")

    async def _check_end(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)
        connection = self._served.protocol.connection
        _hold(not connection.streams, "streams are left")
        _hold(connection.outbox.unsent == 0, "bytes are left")
        _hold(connection.inbox.large == 0, "room is left taken")
        _hold(not connection.inbox.wanting, "somebody still waits for room")
        _hold(asyncio.all_tasks() == {asyncio.current_task()}, "tasks are left")


def _hold(well: bool, otherwise: str) -> None:
    if not well:
        raise Harm(otherwise)


@contextmanager
def player(broken: list[object]) -> Iterator[Callable[[bytes], None]]:
    """Plays one conversation after the other, on one loop. `broken` is also what others find."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: broken.append(context.get("exception") or context["message"]))

    async def converse(data: bytes) -> None:
        await Play().run(Bytes(data))

    def play(data: bytes) -> None:
        loop.run_until_complete(converse(data))
        if broken:
            raise Harm(f"broken in passing: {broken}")

    try:
        yield play
    finally:
        loop.close()


def main() -> None:
    import atheris  # type: ignore[import-untyped]

    with atheris.instrument_imports(include=["strata", "hpack"]):
        parts()
    broken: list[object] = []
    warnings.simplefilter("error")  # a coroutine that nobody awaited, say, of which the hook is told
    sys.unraisablehook = lambda unraisable: broken.append(unraisable.exc_value)
    with player(broken) as play:
        atheris.Setup(sys.argv, play)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
