"""How much a peer may ask of a server, in size, number and time. Everything has a bound, and it is said here."""

from dataclasses import dataclass, fields

from strata.errors import InvalidInput
from strata.rpc.frames import FIRST_WINDOW, MOST_WINDOW

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may do; `connections` is how many of them a server takes, and how many more may
    be in their TLS handshake.

    streams: calls under way at once. More are refused, and may be tried again.
    stream_window, connection_window: bytes a peer may send on a stream before its handler takes them, and on all
        streams before they are read.
    header_list_bytes: of the headers of a call, which is refused if they are longer; four times as much ends the
        connection. continuations: frames they may be cut into.
    message_bytes: of one message, before and after decompression, in both directions.
    large_bytes: what messages larger than a stream's window may hold together; the next one waits for room.
    unsent_bytes: answers that wait for the peer's windows. A call that would add to more ends RESOURCE_EXHAUSTED.
    queued_bytes: bytes ready to go that the network does not take, beyond which the connection is cut.
    preface_seconds, header_block_seconds, stalled_seconds: how long a peer may take to say hello (TLS included), to
        finish a header block, and to take anything at all of an answer that is ready, or acknowledge settings.
    resets, pings, empty_frames: so many in each `rate_seconds`; one more ends the connection. Resets count from either
        side, and each answered call makes good for one; pings count with settings, and only since the last answer.
    calls_at_once: calls answered before other connections have their turn.
    calls_per_second: on one connection; more end RESOURCE_EXHAUSTED. Any number if None.
    keepalive_seconds, keepalive_timeout_seconds: a silent peer is pinged after the one and cut off after the other.
    idle_seconds: a connection without calls is closed after this; never if None.
    """

    streams: int = 256
    stream_window: int = 256 * KIB
    connection_window: int = MIB
    header_list_bytes: int = 16 * KIB
    continuations: int = 8
    message_bytes: int = 4 * MIB
    large_bytes: int = 16 * MIB
    unsent_bytes: int = 16 * MIB
    queued_bytes: int = MIB
    preface_seconds: float = 5.0
    header_block_seconds: float = 10.0
    stalled_seconds: float = 20.0
    rate_seconds: float = 10.0
    resets: int = 100
    pings: int = 20
    empty_frames: int = 100
    calls_at_once: int = 64
    calls_per_second: int | None = None
    connections: int = 20_000
    keepalive_seconds: float = 60.0
    keepalive_timeout_seconds: float = 20.0
    idle_seconds: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            whole = field.type in (int, int | None)
            kinds = int if whole else int | float
            if (value is None and field.name in ("idle_seconds", "calls_per_second")) or (
                isinstance(value, kinds) and 0 < value < MOST_WINDOW + 1
            ):
                continue
            raise InvalidInput(f"{field.name} must be {'an integer' if whole else 'a number'} above 0, not {value!r}")
        for name in ("stream_window", "connection_window"):
            window = getattr(self, name)
            if not FIRST_WINDOW <= window <= MOST_WINDOW:
                raise InvalidInput(f"{name} must be from {FIRST_WINDOW:,} to {MOST_WINDOW:,}, not {window!r}")
        if self.large_bytes < self.message_bytes or self.unsent_bytes < self.message_bytes:
            raise InvalidInput("large_bytes and unsent_bytes must hold at least one message of message_bytes")


def checked_limits(limits: Limits | None, gzip_from_bytes: int | None) -> Limits:
    """What either server is given, or InvalidInput: told late, it would look like clients that cannot connect."""
    if limits is not None and not isinstance(limits, Limits):
        raise InvalidInput(f"limits must be Limits(...), not {type(limits).__name__}")
    if gzip_from_bytes is not None and not isinstance(gzip_from_bytes, int):
        raise InvalidInput(f"gzip_from_bytes must be a number of bytes or None, not {gzip_from_bytes!r}")
    return limits or Limits()


class Rate:
    """Things that happened in the current stretch of time."""

    __slots__ = ("_began", "_count", "_most", "_seconds")

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._count, self._began = 0, float("-inf")

    def exceeded(self, now: float) -> bool:
        """Count one more; whether that is too many."""
        if now - self._began >= self._seconds:
            self._count, self._began = 0, now
        self._count += 1
        return self._count > self._most

    def forgive(self, count: int) -> None:
        self._count = max(0, self._count - count)

    def clear(self) -> None:
        self._count = 0
