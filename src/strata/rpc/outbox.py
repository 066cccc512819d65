"""What goes out, within the peer's windows: frames ready to be written, and chunks that wait for room."""

from collections import deque
from collections.abc import Callable

from strata.rpc.frames import DATA, FIRST_WINDOW, FRAME_BYTES, MOST_WINDOW, head
from strata.rpc.stream import Stream

BATCH_BYTES = 256 << 10
"""Handed to the network at a time: what it does not take stays here, where it is counted."""


class Outbox:
    """The sending half of a connection's flow control. `sent` is told of each stream whose last chunk went."""

    __slots__ = ("_frames", "_sent", "now", "paused", "size", "unsent", "waiting", "window")

    def __init__(self, sent: Callable[[Stream], None]) -> None:
        self._sent = sent
        self._frames: list[bytes] = []
        self.waiting: dict[int, Stream] = {}
        self.size = 0
        self.unsent = 0
        self.window = FIRST_WINDOW
        self.paused = False
        self.now = 0.0

    def put(self, frame: bytes) -> None:
        self._frames.append(frame)
        self.size += len(frame)

    def clear(self) -> None:
        """Unsay what was put and not taken."""
        self._frames.clear()
        self.size = 0

    def take(self) -> bytes:
        """What can go now; nothing while the network takes nothing."""
        if self.waiting:
            self.pump()
        if self.paused or not self._frames:
            return b""
        taken = b"".join(self._frames)
        self._frames.clear()
        self.size = 0
        return taken

    def send(self, stream: Stream, message: bytes) -> None:
        size = len(message)
        if size <= stream.send_window and size <= self.window and size <= FRAME_BYTES and not stream.unsent:
            self.window -= size
            stream.send_window -= size
            self.put(head.pack(size << 8 | DATA, 0, stream.id) + message)
            return
        if stream.chunks is None:
            stream.chunks = deque()
        stream.chunks.append(memoryview(message))
        stream.unsent += size
        self.unsent += size
        self.ready(stream)

    def ready(self, stream: Stream) -> None:
        """It has chunks, or has room for them now."""
        if stream.unsent and stream.send_window > 0:
            self.waiting[stream.id] = stream

    def drop(self, stream: Stream) -> None:
        """Nobody wants the rest."""
        self.waiting.pop(stream.id, None)
        self.unsent -= stream.unsent
        stream.unsent = 0
        stream.chunks = None

    def widen(self, increment: int) -> bool:
        """More room on the connection; False if that is more than there can be."""
        self.window += increment
        return self.window <= MOST_WINDOW

    def pump(self) -> None:
        """A frame of each stream in turn, as long as there is room."""
        while self.waiting and self.window > 0 and self.size < BATCH_BYTES and not self.paused:
            stream = self.waiting.pop(next(iter(self.waiting)))
            self._frame(stream)
            if stream.unsent:
                self.ready(stream)
            else:
                self._sent(stream)

    def _frame(self, stream: Stream) -> None:
        assert stream.chunks
        room = min(FRAME_BYTES, stream.send_window, self.window)
        made: list[bytes | memoryview] = []
        size = 0
        while size < room and stream.chunks:
            chunk = stream.chunks[0]
            part = chunk[: room - size]
            made.append(part)
            size += len(part)
            if len(part) == len(chunk):
                stream.chunks.popleft()
            else:
                stream.chunks[0] = chunk[len(part) :]
        self.window -= size
        stream.send_window -= size
        stream.moved_at = self.now
        stream.unsent -= size
        self.unsent -= size
        self.put(b"".join([head.pack(size << 8 | DATA, 0, stream.id), *made]))
