"""What comes in, within our windows: bytes kept until they are a message that somebody takes.

A stream may hold as much as its window, which is given back as messages are taken; so a handler that is slow slows its
own client, and costs no more than that. A message longer than the window gets the room it lacks, in turn, out of what
large messages may hold together.
"""

from collections.abc import Callable

from strata.rpc.frames import FRAME_BYTES, ErrorCode, window_update
from strata.rpc.limits import Limits
from strata.rpc.messages import PREFIX_BYTES, measure, unpack
from strata.rpc.status import RpcError, Status
from strata.rpc.stream import Stream
from strata.rpc.violations import StreamViolation, Violation


class Inbox:
    """The receiving half of a connection's flow control. `put` sends a frame."""

    __slots__ = ("_limits", "_put", "_uncredited", "inflated", "large", "small_bytes", "wanting", "window")

    def __init__(self, limits: Limits, put: Callable[[bytes], None]) -> None:
        self._limits, self._put = limits, put
        self.window = limits.connection_window
        self._uncredited = 0
        self.small_bytes = min(FRAME_BYTES, limits.message_bytes + PREFIX_BYTES, limits.stream_window)
        self.large = 0
        self.inflated = 0
        self.wanting: dict[int, Stream] = {}

    def count(self, size: int) -> None:
        """So many bytes of DATA. On the connection they are given back at once: each stream's own window holds."""
        self.window -= size
        if self.window < 0:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
        self._uncredited += size
        if self._uncredited >= self._limits.connection_window >> 1:
            self._put(window_update(0, self._uncredited))
            self.window += self._uncredited
            self._uncredited = 0

    def keep(self, stream: Stream, payload: bytes) -> bool:
        """Beside what is there; whether there is now something to take. Of a stream that failed nothing is kept."""
        stream.received += len(payload)
        if stream.failure is not None or stream.finished:
            self.credit(stream, len(payload))
            return False
        if not stream.buffer:
            stream.buffer = payload
        elif isinstance(stream.buffer, bytearray):
            stream.buffer += payload
        else:
            stream.buffer = bytearray(stream.buffer) + payload
        self._measure(stream)
        return _has_news(stream)

    def count_on_stream(self, stream: Stream, size: int) -> None:
        if stream.ended:
            raise StreamViolation(stream.id, ErrorCode.STREAM_CLOSED)
        stream.receive_window -= size
        if stream.receive_window < 0:
            raise StreamViolation(stream.id, ErrorCode.FLOW_CONTROL_ERROR)

    def message(self, stream: Stream) -> bytes | None:
        """The next one, or None if it is not all there. Raises RpcError for one that is wrong."""
        if stream.whole is not None:
            whole, stream.whole = stream.whole, None
            return whole
        buffer, start, needed = stream.buffer, stream.start, stream.needed
        stream.told = False
        if stream.failure is not None:
            raise stream.failure
        if not needed or len(buffer) - start < needed:
            if stream.ended and len(buffer) > start:
                raise RpcError(Status.INTERNAL, "the request ends in the middle of a message")
            return None
        flag, body = buffer[start], bytes(buffer[start + PREFIX_BYTES : start + needed])
        self._move_on(stream, needed)
        if flag:
            body = unpack(flag, body, stream.head.encoding, self._limits.message_bytes)
            self.inflated += len(body)
        return body

    def credit(self, stream: Stream, size: int) -> None:
        """So many bytes are taken, and as many more may come."""
        stream.uncredited += size
        if stream.uncredited >= self._limits.stream_window >> 1 and not stream.ended and stream.open:
            self._widen(stream, stream.uncredited)
            stream.uncredited = 0

    def forget(self, stream: Stream) -> None:
        """It is closed; others may have its room."""
        self.wanting.pop(stream.id, None)
        if stream.granted:
            self._release(stream)

    def _move_on(self, stream: Stream, taken: int) -> None:
        """Behind the message that was taken."""
        stream.needed = 0
        credited = taken - stream.granted  # what was granted beyond the window is not given again
        if stream.granted:
            self._release(stream)
        end = len(stream.buffer)
        if stream.start + taken == end:
            stream.buffer, stream.start = b"", 0
        else:
            stream.start += taken
            if stream.start > end >> 1:
                stream.buffer, stream.start = bytearray(memoryview(stream.buffer)[stream.start :]), 0
            self._measure(stream)
        if not stream.ended:
            self.credit(stream, credited)

    def _measure(self, stream: Stream) -> None:
        """How long the message is that comes next; and room for it, if it is longer than the window."""
        if stream.needed or stream.failure is not None:
            return
        try:
            stream.needed = measure(stream.buffer, stream.start, self._limits.message_bytes)
        except RpcError as error:
            stream.failure = error
            return
        if stream.open and not stream.ended and _shortfall(stream) > 0:
            self.wanting[stream.id] = stream
            self._grant()

    def _grant(self) -> None:
        """In the order they came, as long as they do not take too much together."""
        while self.wanting:
            stream = next(iter(self.wanting.values()))
            if not stream.ended:
                if stream.uncredited:
                    self._widen(stream, stream.uncredited)
                    stream.uncredited = 0
                extra = max(0, _shortfall(stream))
                if self.large + extra > self._limits.large_bytes and self.large:
                    return
                if extra:
                    self.large += extra
                    stream.granted = extra
                    self._widen(stream, extra)
            del self.wanting[stream.id]

    def _release(self, stream: Stream) -> None:
        self.large -= stream.granted
        stream.granted = 0
        self._grant()

    def _widen(self, stream: Stream, increment: int) -> None:
        stream.receive_window += increment
        self._put(window_update(stream.id, increment))


def _has_news(stream: Stream) -> bool:
    """A message, or that there will be none."""
    return stream.failure is not None or 0 < stream.needed <= len(stream.buffer) - stream.start


def _shortfall(stream: Stream) -> int:
    """How much of its next message the peer may not send yet."""
    return stream.needed - (len(stream.buffer) - stream.start) - stream.receive_window
