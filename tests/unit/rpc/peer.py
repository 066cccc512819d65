"""The other end of a sans-I/O connection: it speaks HTTP/2 by hand, so that it can also speak it wrongly."""

from collections.abc import Iterable
from typing import NamedTuple

from hpack import Decoder, Encoder

from strata.rpc import frames
from strata.rpc.connection import Connection
from strata.rpc.frames import DATA, END_HEADERS, END_STREAM, HEADERS, ErrorCode
from strata.rpc.head import Head
from strata.rpc.limits import Limits
from strata.rpc.stream import Called, Cancelled, Event, Readable, Stream

FIELDS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Service/Method"),
    (":authority", "here"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)
HELLO = frames.PREFACE + frames.settings({})


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def admit_all(head: Head) -> None:
    head.method = head.path


def message(body: bytes, flag: int = 0) -> bytes:
    return bytes([flag]) + len(body).to_bytes(4, "big") + body


def block(fields: Iterable[tuple[str, str]] = FIELDS) -> bytes:
    """Literals only, so that it means the same at any time."""
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode("latin-1") + bytes([len(value)]) + value.encode("latin-1")
        for name, value in fields
    )


def headers(stream: int, fields: Iterable[tuple[str, str]] = FIELDS, *, end: bool = False) -> bytes:
    return frames.headers(stream, block(fields), end=end)


def data(stream: int, body: bytes, *, end: bool = False) -> bytes:
    return frames.frame(DATA, END_STREAM if end else 0, stream, body)


def call(stream: int, body: bytes = b"hello") -> bytes:
    """A whole unary call."""
    return headers(stream) + data(stream, message(body), end=True)


class Peer:
    """Feeds a connection and looks at what comes back. `now` is the clock."""

    def __init__(self, limits: Limits | None = None, *, greets: bool = True) -> None:
        self.now = 0.0
        self.connection = Connection(limits or Limits(), admit_all, self.now)
        self.encoder = Encoder()
        self.events: list[Event] = []
        self.frames: list[Frame] = []
        self.raw = b""
        self._rest = b""
        self.hear()
        if greets:
            self.say(HELLO + frames.settings_ack())

    def say(self, raw: bytes) -> None:
        call = self.connection.receive(raw, self.now)
        if call is not None:
            self.events.append(Called(call))
        self.hear()

    def say_slowly(self, raw: bytes) -> None:
        """Frame by frame, each answered before the next."""
        while raw:
            end = 9 + (int.from_bytes(raw[:3], "big"))
            self.say(raw[:end])
            raw = raw[end:]

    def hear(self) -> None:
        self.events += self.connection.take_events()
        while out := self.connection.outbox.take():
            self.raw += out
            self._rest += out
        while len(self._rest) >= 9:
            word, flags, stream = frames.head.unpack_from(self._rest)
            end = 9 + (word >> 8)
            self.frames.append(Frame(word & 0xFF, flags, stream, self._rest[9:end]))
            self._rest = self._rest[end:]

    def tick(self, seconds: float) -> bool:
        self.now += seconds
        well = self.connection.tick(self.now)
        self.hear()
        return well

    def stream(self, number: int) -> Stream:
        return self.connection.streams[number]

    def of(self, kind: int, stream: int | None = None) -> list[Frame]:
        return [frame for frame in self.frames if frame.kind == kind and stream in (None, frame.stream)]

    @property
    def goaway(self) -> ErrorCode | None:
        found = self.of(frames.GOAWAY)
        return ErrorCode(int.from_bytes(found[-1].payload[4:8], "big")) if found else None

    @property
    def why(self) -> str:
        return self.of(frames.GOAWAY)[-1].payload[8:].decode()

    def resets(self) -> dict[int, ErrorCode]:
        return {frame.stream: ErrorCode(int.from_bytes(frame.payload, "big")) for frame in self.of(frames.RST_STREAM)}

    def body(self, stream: int) -> bytes:
        return b"".join(frame.payload for frame in self.of(DATA, stream))

    def ended(self, stream: int) -> bool:
        return any(frame.flags & END_STREAM for frame in self.frames if frame.stream == stream)

    def fields(self, stream: int) -> list[list[tuple[str, str]]]:
        return [
            [(str(name), str(value)) for name, value in Decoder().decode(frame.payload)]
            for frame in self.of(HEADERS, stream)
            if frame.flags & END_HEADERS
        ]


class Echo(Peer):
    """With a server behind the connection that gives back each message of a call when the call is whole."""

    def __init__(self, limits: Limits | None = None, *, greets: bool = True) -> None:
        self.cancelled: list[Cancelled] = []
        super().__init__(limits, greets=greets)

    def hear(self) -> None:
        super().hear()
        while self.events:
            for event in self._take():
                if isinstance(event, Called | Readable) and event.stream.open:
                    self._answer(event.stream)
                elif isinstance(event, Cancelled):
                    self.cancelled.append(event)
            super().hear()

    def _take(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def _answer(self, stream: Stream) -> None:
        connection = self.connection
        stream.call = stream.call or []
        while (found := connection.inbox.message(stream)) is not None:
            stream.call.append(found)
        if connection.at_end(stream):
            if len(stream.call) == 1:
                connection.answer(stream, stream.call[0])
                return
            connection.send_head(stream, b"\x88")
            for one in stream.call:
                connection.send(stream, message(one))
            connection.finish(stream, b"\x88")
