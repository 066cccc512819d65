"""One HTTP/2 connection of a gRPC server, without I/O: bytes and the time in, events and bytes out.

The law: no input raises. What a peer gets wrong ends its stream (RST_STREAM) or its connection (GOAWAY), as RFC 9113
says; what it overdoes ends its connection with ENHANCE_YOUR_CALM. Everything kept for a peer is bounded by `Limits`.

    receive(data, now), tick(now), resume()      what happens to it
    take_events(), outbox.take(), closing        what comes of it
    inbox.message, send, finish, reset, ...      what the server does with a stream
"""

import struct
from collections.abc import Callable
from typing import TypeAlias

from strata.rpc import frames
from strata.rpc.decompression import BadBlock, TooLong
from strata.rpc.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FIRST_WINDOW,
    FRAME_BYTES,
    HAS_PRIORITY,
    HEADERS,
    MOST_WINDOW,
    PADDED,
    PREFACE,
    SETTINGS,
    ErrorCode,
    Setting,
)
from strata.rpc.greeting import answer_to_http1
from strata.rpc.head import Malformed
from strata.rpc.headers import HARD_LIMIT, Admit, HeaderReader
from strata.rpc.inbox import Inbox
from strata.rpc.limits import Limits
from strata.rpc.messages import PREFIX_BYTES
from strata.rpc.outbox import BATCH_BYTES, Outbox
from strata.rpc.stream import Called, Cancelled, Event, Readable, Stream, Writable
from strata.rpc.usual import OK_HEAD, OK_TRAILERS, usual
from strata.rpc.violations import Floods, StreamViolation, Violation

EARLY_KEPT = 1024
NEARLY_ALL = 0.9
"""Of its own deadline that a caller waits before it gives up: clocks and the way to us differ a little."""
SKIPPED_KEPT = 16
DRAIN_PING = b"strata-d"
ALIVE_PING = b"strata-k"

_HEAD_BYTES = frames.head.size
_number = frames.uint32.pack
_DATA_START = struct.Struct(">IBIBI")
"""A frame's head, and the prefix of a message that begins it."""


class Connection:
    """The server's end. `closing` says that once the bytes are out, the transport is to be closed."""

    __slots__ = (
        "__weakref__",
        "_accepted",
        "_acknowledged",
        "_began",
        "_block",
        "_block_began",
        "_closed_at",
        "_drain_began",
        "_early",
        "_floods",
        "_greeted",
        "_heard",
        "_idle_since",
        "_known_head",
        "_last",
        "_paused_since",
        "_peer_window",
        "_pinged",
        "_reader",
        "_settled",
        "_skipped",
        "closing",
        "drained",
        "draining",
        "events",
        "inbox",
        "limits",
        "now",
        "outbox",
        "rest",
        "streams",
    )

    def __init__(self, limits: Limits, admit: Admit, now: float) -> None:
        self.limits = limits
        self.streams: dict[int, Stream] = {}
        self.closing = False
        self.draining = False
        self.drained = False
        self._reader = HeaderReader(limits.header_list_bytes, admit)
        self._known_head = self._reader.known
        self.outbox = Outbox(self._all_sent)
        self.inbox = Inbox(limits, self.outbox.put)
        self.events: list[Event] = []
        self.rest = b""
        self._began = self.now = self._heard = self._idle_since = now
        self._closed_at = self._drain_began = now
        self._greeted = False
        self._settled = False
        self._acknowledged = False
        self._last = 0
        self._accepted = 0
        self._skipped: list[range] = []
        self._early: dict[int, int] = {}
        self._block: tuple[int, int, list[bytes]] | None = None
        self._block_began = 0.0
        self._peer_window = FIRST_WINDOW
        self._pinged: float | None = None
        self._paused_since = 0.0
        self._floods = Floods(limits)
        self.outbox.put(
            frames.settings(
                {
                    Setting.MAX_CONCURRENT_STREAMS: limits.streams,
                    Setting.INITIAL_WINDOW_SIZE: limits.stream_window,
                    Setting.MAX_HEADER_LIST_SIZE: limits.header_list_bytes,
                }
            )
        )
        if limits.connection_window > FIRST_WINDOW:
            self.outbox.put(frames.window_update(0, limits.connection_window - FIRST_WINDOW))

    # -- what comes in -----------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> Stream | None:
        """Any bytes, cut anywhere. Most reads are one usual call and nothing else: that one is given. Of all the rest
        there are events."""
        if self.closing:
            return None
        self.now = self._heard = self.outbox.now = now
        self._pinged = None
        if self.rest:
            data = self.rest + data
        elif self._settled and len(data) > _HEAD_BYTES:
            word, flags, number = frames.head.unpack_from(data)
            if flags == END_HEADERS and word & 0xFF == HEADERS:
                after = _HEAD_BYTES + (word >> 8)
                call = self._whole_call(number, data[_HEAD_BYTES:after], data, after, alone=True)
                if call is not None:
                    return call
        try:
            position = 0 if self._greeted else self._greet(data)
            if self._greeted:
                position = self._frames(data, position)
        except Violation as violation:
            self._fail(violation.code, violation.why)
        else:
            if self.rest or position < len(data):
                self.rest = data[position:]
        return None

    def take_events(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    @property
    def wants_flush(self) -> bool:
        """Whether there is anything to write, to finish or to tell: for a call that waits there is not."""
        outbox = self.outbox
        return outbox.size > 0 or self.closing or bool(outbox.waiting) or bool(self.events)

    def _greet(self, buffer: bytes) -> int:
        if buffer.startswith(PREFACE):
            self._greeted = True
            return len(PREFACE)
        if PREFACE.startswith(buffer):
            return 0
        if (answer := answer_to_http1(buffer)) is None:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "the connection does not begin as HTTP/2 does")
        self.outbox.clear()
        self.outbox.put(answer)
        self._shut()
        return len(buffer)

    def _frames(self, buffer: bytes, position: int) -> int:
        """All that are whole; where the rest begins."""
        end = len(buffer)
        unpack_head = frames.head.unpack_from
        while end - position >= 9 and not self.closing:
            word, flags, number = unpack_head(buffer, position)
            length, kind = word >> 8, word & 0xFF
            number &= 0x7FFFFFFF
            if length > FRAME_BYTES:
                raise Violation(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length:,} bytes")
            after = position + 9 + length
            if after > end:
                break
            payload = buffer[position + 9 : after]
            if flags == END_HEADERS and kind == HEADERS:
                stream = self._whole_call(number, payload, buffer, after, alone=False)
                if stream is not None:
                    assert stream.whole is not None
                    position = after + _DATA_START.size + len(stream.whole)
                    self.events.append(Called(stream))
                    continue
            position = after
            if self._block is not None and (kind != CONTINUATION or number != self._block[0]):
                raise Violation(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
            if not self._settled and (kind != SETTINGS or flags & ACK):
                raise Violation(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            try:
                if kind == DATA:
                    self._data(flags, number, payload)
                elif kind == HEADERS:
                    self._headers(flags, number, payload)
                elif kind < len(_OTHERS):
                    _OTHERS[kind](self, flags, number, payload)
                else:
                    self._floods.empty(self.now)
            except StreamViolation as violation:
                self._break(violation.stream, violation.code)
        return position

    def _whole_call(self, number: int, block: bytes, buffer: bytes, at: int, *, alone: bool) -> Stream | None:
        """A usual call whose only message follows its head: a head seen before, and nothing out of the way. `alone`,
        nothing comes behind it.

        Most calls come so, and this is all that is done for them. For any other it answers None and has done nothing.
        """
        head, size = self._known_head(block), len(buffer)
        if head is None or size - at < _DATA_START.size or self._block is not None:
            return None
        word, flags, data_number, flag, length = _DATA_START.unpack_from(buffer, at)
        start, inbox, streams = at + _DATA_START.size, self.inbox, self.streams
        end, length = start + length, length + PREFIX_BYTES
        if word != length << 8 or flags != END_STREAM or data_number != number or flag:
            return None
        if end > size or (alone and end < size) or not 0 < number - self._last <= 2 or not number & 1:
            return None
        if length > inbox.window or length > inbox.small_bytes or head.content_length not in (None, length):
            return None
        if self.drained or len(streams) >= self.limits.streams:
            return None
        self._last = self._accepted = number
        stream = streams[number] = Stream(number, head, self.limits.stream_window, self._peer_window)
        stream.began = self.now
        stream.whole = buffer[start:end]
        stream.ended = True
        inbox.count(length)
        return stream

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        if flags & (PADDED | HAS_PRIORITY):
            payload = _unpadded(flags, payload)
            if flags & HAS_PRIORITY:
                if len(payload) < 5:
                    raise Violation(ErrorCode.FRAME_SIZE_ERROR, "HEADERS are too short for their priority")
                payload = payload[5:]
        if not number & 1:
            raise Violation(ErrorCode.PROTOCOL_ERROR, f"HEADERS on stream {number}")
        if flags & END_HEADERS:
            self._whole_block(flags, number, payload)
        else:
            self._block = (number, flags, [payload])
            self._block_began = self.now

    def _continuation(self, flags: int, number: int, payload: bytes) -> None:
        if self._block is None:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a CONTINUATION of nothing")
        _, first_flags, parts = self._block
        parts.append(payload)
        if len(parts) > self.limits.continuations + 1:
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "a header block of too many frames")
        if sum(map(len, parts)) > self.limits.header_list_bytes * HARD_LIMIT:
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too long")
        if flags & END_HEADERS:
            self._block = None
            self._whole_block(first_flags, number, b"".join(parts))

    def _whole_block(self, flags: int, number: int, block: bytes) -> None:
        try:
            if number > self._last:
                self._new_stream(flags, number, block)
            else:
                self._more_headers(flags, number, block)
        except BadBlock as error:
            raise Violation(ErrorCode.COMPRESSION_ERROR, str(error)) from None
        except TooLong as error:
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, str(error)) from None
        except Malformed:
            raise StreamViolation(number, ErrorCode.PROTOCOL_ERROR) from None

    def _new_stream(self, flags: int, number: int, block: bytes) -> None:
        if number - self._last > 2 and len(self._skipped) < SKIPPED_KEPT:
            self._skipped.append(range(self._last + 1, number))
        self._last = number
        head = self._reader.head(block)
        if self.drained or len(self.streams) >= self.limits.streams:
            self._ended_early(number, self.limits.stream_window)
            raise StreamViolation(number, ErrorCode.REFUSED_STREAM)
        self._accepted = number
        stream = Stream(number, head, self.limits.stream_window, self._peer_window)
        stream.began = self.now
        self.streams[number] = stream
        self.events.append(Called(stream))
        if flags & END_STREAM:
            self._end(stream)

    def _more_headers(self, flags: int, number: int, block: bytes) -> None:
        stream = self.streams.get(number)
        if stream is None:
            self._reader.skip(block)
            if number not in self._early:
                skipped = any(number in missed for missed in self._skipped)
                code = ErrorCode.PROTOCOL_ERROR if skipped else ErrorCode.STREAM_CLOSED
                raise Violation(code, f"HEADERS on stream {number}, which is closed")
            if not flags & END_STREAM:
                raise Violation(ErrorCode.PROTOCOL_ERROR, f"trailers on stream {number} that do not end it")
            del self._early[number]
            return
        self._reader.trailers(block)
        if stream.ended:
            raise StreamViolation(number, ErrorCode.STREAM_CLOSED)
        if not flags & END_STREAM:
            raise StreamViolation(number, ErrorCode.PROTOCOL_ERROR)
        self._end(stream)
        self._tell(stream)

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        size, inbox = len(payload), self.inbox
        inbox.count(size)
        stream = self.streams.get(number)
        if stream is None:
            self._late_data(number, flags, size)
            return
        inbox.count_on_stream(stream, size)
        if flags & PADDED:
            payload = _unpadded(flags, payload)
        if payload:
            readable = inbox.keep(stream, payload)
        else:
            readable = False
            if not flags & END_STREAM:
                self._floods.empty(self.now)
        if len(payload) < size:
            inbox.credit(stream, size - len(payload))  # the padding
        if flags & END_STREAM:
            self._end(stream)
        if readable or stream.ended:
            self._tell(stream)

    def _late_data(self, number: int, flags: int, size: int) -> None:
        """It was under way when the call ended early: as much of it as the stream's window still had room for."""
        if number > self._last or not number & 1:
            raise Violation(ErrorCode.PROTOCOL_ERROR, f"DATA on stream {number}, which was never opened")
        if number not in self._early:
            raise Violation(ErrorCode.STREAM_CLOSED, f"DATA on stream {number}, which is closed")
        self._early[number] -= size
        if self._early[number] < 0:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, f"more DATA than the window of stream {number}")
        if flags & END_STREAM:
            del self._early[number]
        elif not size:
            self._floods.empty(self.now)

    def _ended_early(self, number: int, window: int) -> None:
        """The peer may not know yet: what it still sends is ignored."""
        if len(self._early) >= EARLY_KEPT:
            del self._early[next(iter(self._early))]
        self._early.setdefault(number, window)

    def _end(self, stream: Stream) -> None:
        """The peer has said everything on it."""
        stream.ended = True
        expected = stream.head.content_length
        if expected is not None and expected != stream.received:
            raise StreamViolation(stream.id, ErrorCode.PROTOCOL_ERROR)

    def _tell(self, stream: Stream) -> None:
        if not stream.told and not stream.finished:
            stream.told = True
            self.events.append(Readable(stream))

    # -- the other frames --------------------------------------------------------------------------------------------

    def _priority(self, flags: int, number: int, payload: bytes) -> None:
        if not number:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if len(payload) != 5:
            if number not in self.streams:  # what was never opened cannot be reset
                raise Violation(ErrorCode.FRAME_SIZE_ERROR, "PRIORITY of a wrong length")
            raise StreamViolation(number, ErrorCode.FRAME_SIZE_ERROR)
        self._floods.empty(self.now)

    def _rst_stream(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Violation(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM of a wrong length")
        self._check_opened(number, "RST_STREAM")
        stream = self.streams.get(number)
        if stream is None:
            self._floods.empty(self.now)
            return
        patience = stream.head.timeout_seconds
        if patience is None or self.now - stream.began < patience * NEARLY_ALL:
            self._floods.reset(self.now)  # whoever waited as long as it said it would does no harm
        self._cancel(stream, frames.uint32.unpack(payload)[0])

    def _settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise Violation(ErrorCode.PROTOCOL_ERROR, f"SETTINGS on stream {number}")
        if len(payload) % 6 or (flags & ACK and payload):
            raise Violation(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a wrong length")
        if flags & ACK:
            if self._acknowledged:
                self._floods.empty(self.now)
            self._acknowledged = True
            return
        if self._settled:
            self._floods.ping(self.now)
        self._settled = True
        said = dict(frames.setting.iter_unpack(payload))  # of several the last one holds
        for name, value in frames.setting.iter_unpack(payload):
            self._check_setting(name, value)
        if Setting.INITIAL_WINDOW_SIZE in said:
            self._widen_all(said[Setting.INITIAL_WINDOW_SIZE])
        self.outbox.put(frames.settings_ack())

    def _check_setting(self, name: int, value: int) -> None:
        if name == Setting.ENABLE_PUSH and value > 1:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
        if name == Setting.MAX_FRAME_SIZE and not FRAME_BYTES <= value <= frames.MOST_FRAME_BYTES:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of its range")
        if name == Setting.INITIAL_WINDOW_SIZE and value > MOST_WINDOW:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is out of its range")

    def _widen_all(self, window: int) -> None:
        wider, self._peer_window = window - self._peer_window, window
        for stream in self.streams.values():
            stream.send_window += wider
            if stream.send_window > MOST_WINDOW:
                raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "a window grew beyond its range")
            self.outbox.ready(stream)

    def _push_promise(self, flags: int, number: int, payload: bytes) -> None:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "a client cannot push")

    def _ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise Violation(ErrorCode.PROTOCOL_ERROR, f"PING on stream {number}")
        if len(payload) != 8:
            raise Violation(ErrorCode.FRAME_SIZE_ERROR, "PING of a wrong length")
        if flags & ACK:
            if payload == DRAIN_PING and self.draining:
                self._last_word()
            elif payload != ALIVE_PING:
                self._floods.empty(self.now)
            return
        self._floods.ping(self.now)
        self.outbox.put(frames.ping(payload, ack=True))

    def _goaway(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise Violation(ErrorCode.PROTOCOL_ERROR, f"GOAWAY on stream {number}")
        if len(payload) < 8:
            raise Violation(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY of a wrong length")
        self._floods.empty(self.now)
        self.drained = self.draining = True
        self._close_if_done()

    def _window_update(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Violation(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong length")
        increment = frames.uint32.unpack(payload)[0] & MOST_WINDOW
        if not number:
            if not increment:
                raise Violation(ErrorCode.PROTOCOL_ERROR, "a WINDOW_UPDATE by nothing")
            if not self.outbox.widen(increment):
                raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window grew beyond its range")
            return
        self._check_opened(number, "WINDOW_UPDATE")
        stream = self.streams.get(number)
        if stream is None:
            return
        if not increment:
            raise StreamViolation(number, ErrorCode.PROTOCOL_ERROR)
        stream.send_window += increment
        if stream.send_window > MOST_WINDOW:
            raise StreamViolation(number, ErrorCode.FLOW_CONTROL_ERROR)
        self.outbox.ready(stream)

    def _check_opened(self, number: int, kind: str) -> None:
        if not number & 1 or number > self._last:
            raise Violation(ErrorCode.PROTOCOL_ERROR, f"{kind} on stream {number}, which was never opened")

    # -- what the server does ----------------------------------------------------------------------------------------

    def at_end(self, stream: Stream) -> bool:
        """Whether no further message can come."""
        return stream.ended and stream.whole is None and len(stream.buffer) <= stream.start

    def answer(self, stream: Stream, message: bytes) -> None:
        """All of a usual answer at once: head, one message, trailers that say OK."""
        size, outbox = len(message) + PREFIX_BYTES, self.outbox
        fits = size <= stream.send_window and size <= outbox.window and size <= FRAME_BYTES
        if not (fits and stream.ended and stream.open):
            self.send_head(stream, OK_HEAD)
            self.send(stream, b"\0" + len(message).to_bytes(4, "big") + message)
            self.finish(stream, OK_TRAILERS)
            return
        if message is not usual.message:
            usual.frame(message)
        outbox.put(_number(stream.id).join(usual.parts))
        outbox.window -= size
        floods = self._floods
        floods.answered = True
        floods.answers += 1
        stream.finished = True
        self._remove(stream)

    def send_head(self, stream: Stream, block: bytes) -> None:
        if stream.open and not stream.headed:
            stream.headed = True
            self.outbox.put(frames.headers(stream.id, block, end=False))

    def send(self, stream: Stream, packed: bytes) -> bool:
        """A message with its prefix, behind the head. False if it waits for the peer: `Writable` tells when it went."""
        if stream.open:
            self._floods.answered = True
            self.outbox.send(stream, packed)
        return not stream.unsent

    def room_for(self, size: int) -> bool:
        """Whether as much more may wait for the peer's windows."""
        return self.outbox.unsent + size <= self.limits.unsent_bytes

    def finish(self, stream: Stream, block: bytes) -> None:
        """The trailers, behind all that was sent; they are the whole answer if nothing was."""
        if not stream.open or stream.finished:
            return
        stream.finished, stream.moved_at = True, self.now
        stream.closing = block
        self._floods.answers += 1
        stream.buffer, stream.start, stream.needed = b"", 0, 0
        if not stream.unsent:
            self._close(stream)

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        if stream.open:
            self.outbox.put(frames.rst_stream(stream.id, code))
            if not stream.ended:
                self._ended_early(stream.id, stream.receive_window)
            self._remove(stream)

    def _all_sent(self, stream: Stream) -> None:
        if stream.closing is not None:
            self._close(stream)
        elif stream.open:
            self.events.append(Writable(stream))

    def _close(self, stream: Stream) -> None:
        assert stream.closing is not None
        self.outbox.put(frames.headers(stream.id, stream.closing, end=True))
        self._gone(stream)

    def _gone(self, stream: Stream) -> None:
        """Everything is said. A peer that still sends is told that nobody listens."""
        if not stream.ended:
            self.outbox.put(frames.rst_stream(stream.id, ErrorCode.NO_ERROR))
            self._ended_early(stream.id, stream.receive_window)
        self._remove(stream)

    def _remove(self, stream: Stream) -> None:
        stream.open = False
        del self.streams[stream.id]
        if stream.unsent:
            self.outbox.drop(stream)
        if stream.granted or self.inbox.wanting:
            self.inbox.forget(stream)
        if not self.streams:
            self._idle_since = self.now
            if self.draining:
                self._close_if_done()

    def _cancel(self, stream: Stream, code: int | None) -> None:
        self._remove(stream)
        self.events.append(Cancelled(stream, code))

    def _break(self, number: int, code: ErrorCode) -> None:
        """One stream's peer broke a rule."""
        stream = self.streams.get(number)
        self.outbox.put(frames.rst_stream(number, code))
        self._ended_early(number, self.limits.stream_window if stream is None else max(0, stream.receive_window))
        if stream is not None:
            self._cancel(stream, code)
        if self._acknowledged or code is not ErrorCode.REFUSED_STREAM:  # it may not know yet how many are allowed
            self._floods.reset(self.now)

    # -- the connection as a whole -----------------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        return self.outbox.paused

    @property
    def crowded(self) -> bool:
        """Enough to be handed to the network before more is added."""
        return self.outbox.size >= BATCH_BYTES

    def pause(self, now: float) -> None:
        """The network takes no more for now."""
        self.outbox.paused = True
        self._paused_since = now

    def resume(self) -> None:
        self.outbox.paused = False

    def forget_heads(self) -> None:
        """Tokens changed: look at each caller anew."""
        self._reader.forget()

    def drain(self) -> None:
        """No more new calls: say so, and once the peer knows, say which was the last."""
        if not self.draining and not self.closing:
            self.draining = True
            self._drain_began = self.now
            self.outbox.put(frames.goaway(MOST_WINDOW, ErrorCode.NO_ERROR, "the server is going away"))
            self.outbox.put(frames.ping(DRAIN_PING))
            if not self._settled:
                self._last_word()

    def _last_word(self) -> None:
        if not self.drained:
            self.drained = True
            self.outbox.put(frames.goaway(self._last, ErrorCode.NO_ERROR, "the server is going away"))
            self._close_if_done()

    def _close_if_done(self) -> None:
        if self.drained and not self.streams:
            self._shut()

    def _shut(self) -> None:
        self.closing = True
        self._closed_at = self.now

    def lost(self) -> None:
        """The peer is gone, or is to be."""
        self._shut()
        for stream in list(self.streams.values()):
            self._cancel(stream, None)

    def _fail(self, code: ErrorCode, why: str) -> None:
        self.outbox.put(frames.goaway(self._accepted, code, why))
        self.rest, self._block = b"", None
        self.lost()

    def tick(self, now: float) -> bool:
        """Look at the clock. False if the peer is beyond talking to: cut it off."""
        self.now = self.outbox.now = now
        limits = self.limits
        if self.outbox.unsent:
            self._give_up_unread(now)
        if self.paused:
            return now - self._paused_since <= limits.stalled_seconds and self.outbox.size <= limits.queued_bytes
        if self.closing:
            return now - self._closed_at <= limits.stalled_seconds
        if not self._settled and now - self._began > limits.preface_seconds:
            self._fail(ErrorCode.SETTINGS_TIMEOUT, "no SETTINGS in time")
        elif self._block is not None and now - self._block_began > limits.header_block_seconds:
            self._fail(ErrorCode.ENHANCE_YOUR_CALM, "a header block did not end in time")
        elif not self._acknowledged and self._settled and now - self._began > limits.stalled_seconds:
            self._fail(ErrorCode.SETTINGS_TIMEOUT, "SETTINGS were not acknowledged in time")
        elif self.draining and not self.drained and now - self._drain_began > limits.keepalive_timeout_seconds:
            self._last_word()
        elif self._pinged is not None:
            return now - self._pinged <= limits.keepalive_timeout_seconds
        elif now - self._heard > limits.keepalive_seconds:
            self._pinged = now
            self.outbox.put(frames.ping(ALIVE_PING))
        elif limits.idle_seconds is not None and not self.streams and now - self._idle_since > limits.idle_seconds:
            self.drain()
        return True

    def _give_up_unread(self, now: float) -> None:
        """Answers that a peer asked for and leaves no room for."""
        for stream in list(self.streams.values()):
            if stream.finished and now - stream.moved_at > self.limits.stalled_seconds:
                self.reset(stream, ErrorCode.CANCEL)


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload:
        raise Violation(ErrorCode.FRAME_SIZE_ERROR, "a padded frame is too short")
    if payload[0] >= len(payload):
        raise Violation(ErrorCode.PROTOCOL_ERROR, "a frame has more padding than room")
    return payload[1 : len(payload) - payload[0]]


_Handler: TypeAlias = Callable[[Connection, int, int, bytes], None]

_OTHERS: tuple[_Handler, ...] = (
    Connection._data,
    Connection._headers,
    Connection._priority,
    Connection._rst_stream,
    Connection._settings,
    Connection._push_promise,
    Connection._ping,
    Connection._goaway,
    Connection._window_update,
    Connection._continuation,
)
"""By the number of the frame's kind."""
