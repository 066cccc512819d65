"""A protocol on a transport made by hand, and what is said to it."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from strata.rpc import Call, Interceptor, Limits, Method, frames
from strata.rpc.crowd import Crowd
from strata.rpc.frames import HEADERS
from strata.rpc.protocol import ServerProtocol
from strata.rpc.service import Admission
from tests.unit.rpc.peer import FIELDS, HELLO, Frame, data, headers, message


class Network(asyncio.Transport):
    """Takes what is written, unless it is told to be full."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.reading = True
        self.ended = False
        self.gone = False

    def write(self, data: Any) -> None:
        if self.ended:
            raise RuntimeError("Cannot call write() after write_eof()")
        self.writes.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.gone

    def close(self) -> None:
        self.gone = True

    def abort(self) -> None:
        self.gone = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def frames(self) -> list[Frame]:
        raw, found = b"".join(self.writes), []
        while raw:
            word, flags, number = frames.head.unpack_from(raw)
            found.append(Frame(word & 0xFF, flags, number, raw[9 : 9 + (word >> 8)]))
            raw = raw[9 + (word >> 8) :]
        return found


class AtOnce(Crowd):
    """Nothing to wait for: there is one connection."""

    def is_quiet(self, now: float) -> bool:
        return True

    def flush_later(self, protocol: ServerProtocol) -> None:
        protocol.flushing = False
        protocol.flush()


class Together(Crowd):
    """As if others always came with it; but their turn is over at once."""

    def is_quiet(self, now: float) -> bool:
        return False

    def _soon(self) -> None:
        if self._reads or self._due:
            self._turn()


class Served:
    """A protocol that has been greeted."""

    crowd: type[Crowd] = AtOnce

    def __init__(
        self,
        *methods: Method,
        interceptors: Iterable[Interceptor] = (),
        limits: Limits | None = None,
        gzip: int | None = None,
        crowd: Crowd | None = None,
    ) -> None:
        self.network = Network()
        self.left = False
        self.protocol = ServerProtocol(
            Admission([methods], interceptors),
            limits or Limits(),
            gzip_from_bytes=gzip,
            tasks=set(),
            crowd=crowd or self.crowd(),
            joined=lambda _: True,
            left=lambda _: setattr(self, "left", True),
        )
        self.protocol.connection_made(self.network)
        self.say(HELLO + frames.settings_ack() + frames.window_update(0, 1 << 30))

    def say(self, raw: bytes) -> None:
        self.protocol.data_received(raw)

    def statuses(self) -> dict[int, bytes]:
        return {f.stream: f.payload for f in self.network.frames() if f.kind == HEADERS and b"grpc-status" in f.payload}


def named(path: str = "/test.Service/Method", *extra: tuple[str, str]) -> list[tuple[str, str]]:
    return [*((name, path if name == ":path" else value) for name, value in FIELDS), *extra]


def calls(numbers: Iterable[int], body: bytes = b"hello") -> bytes:
    return b"".join(headers(number) + data(number, message(body), end=True) for number in numbers)


def echo(request: bytes, call: Call) -> bytes:
    return request


PATH = "/test.Service/Method"
ECHO = Method(PATH, echo)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def checked() -> None:
        await work()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(checked())
