"""The asyncio side of a connection: reads go in, answers to all of a read go out in one write.

What many connections bring at the same time is seen to together (`crowd.py`).
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

from strata.rpc.addresses import join_address
from strata.rpc.answers import http_block, trailers_block
from strata.rpc.calls import WireCall
from strata.rpc.connection import Connection
from strata.rpc.crowd import Crowd
from strata.rpc.frames import FRAME_BYTES
from strata.rpc.head import HttpRefusal
from strata.rpc.limits import Limits, Rate
from strata.rpc.messages import PREFIX_BYTES
from strata.rpc.service import Admission, tell_all
from strata.rpc.status import RpcError, Status
from strata.rpc.stream import Called, Cancelled, Event, Readable, Stream

LINGER_SECONDS = 1.0
INFLATED_AT_ONCE = 4 << 20
"""Bytes decompressed before others have their turn."""


class ServerProtocol(asyncio.Protocol):
    """One client. `left` is told when it is gone."""

    __slots__ = (
        "_crowd",
        "_ended",
        "_events",
        "_joined",
        "_leaving",
        "_left",
        "_loop",
        "_rate",
        "_reading",
        "_transport",
        "_working",
        "connection",
        "flushing",
        "gzip_from_bytes",
        "is_watched",
        "small_bytes",
        "tasks",
    )

    def __init__(
        self,
        admission: Admission,
        limits: Limits,
        *,
        gzip_from_bytes: int | None,
        tasks: "set[asyncio.Future[Any]]",
        crowd: Crowd,
        joined: "Callable[[ServerProtocol], bool]",
        left: "Callable[[ServerProtocol], None]",
    ) -> None:
        self.connection = Connection(limits, admission.admit, time.monotonic())
        self.gzip_from_bytes = gzip_from_bytes
        self.tasks = tasks
        self._crowd = crowd
        self._ended = admission.ended
        self.is_watched = bool(admission.ended)
        self._rate = None if limits.calls_per_second is None else Rate(limits.calls_per_second, 1.0)
        self.small_bytes = min(FRAME_BYTES, limits.message_bytes) - PREFIX_BYTES
        self._joined, self._left = joined, left
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._events: list[Event] = []
        self._working = False
        self._reading = True
        self.flushing = False
        self._leaving = False

    # -- asyncio's calls ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        secure = transport.get_extra_info("ssl_object")
        if (secure is not None and secure.selected_alpn_protocol() != "h2") or not self._joined(self):
            self.abort()

    def data_received(self, data: bytes) -> None:
        crowd, now = self._crowd, time.monotonic()
        if not crowd.is_quiet(now):
            crowd.gather(self, data)
            return
        if self.see_to(data, now) and not self.flushing:
            self.flush()
        crowd.was_busy()

    def see_to(self, data: bytes, now: float) -> bool:
        """A read; whether it is to be flushed because of it."""
        connection = self.connection
        stream = connection.receive(data, now)
        if stream is not None and not self._working:
            self._call(stream)
        elif not self._take_on(connection.take_events() if stream is None else [Called(stream)]):
            return False
        if self._reading is connection.outbox.paused:
            self._read_or_not()
        return connection.wants_flush

    def _take_on(self, events: list[Event]) -> bool:
        """Whether they were few enough to be seen to at once."""
        connection = self.connection
        if self._working or len(events) > connection.limits.calls_at_once:
            self._events.extend(events)
            if not self._working:
                self._work()
            return False
        for event in events:
            if type(event) is not Called:
                self._other(event)
                continue
            self._call(event.stream)
            if connection.inbox.inflated > INFLATED_AT_ONCE and event is not events[-1]:
                self._events.extend(events[events.index(event) + 1 :])
                self._later()
                break
        return True

    def eof_received(self) -> bool:
        self._crowd.see_to_reads()  # what came before the end
        self.flush()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.connection.lost()
        self._transport = None
        self._events.extend(self.connection.take_events())
        self._work()
        self._left(self)

    def pause_writing(self) -> None:
        self.connection.pause(time.monotonic())
        self._read_or_not()

    def resume_writing(self) -> None:
        self.connection.resume()
        for stream in list(self.connection.streams.values()):
            if stream.call is not None:
                stream.call.writable()
        self.flush()
        self._read_or_not()

    # -- events ------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """What a read brought, but no more than a fair share of it at once: others wait for this thread too."""
        self._working = False
        events, self._events = self._events, []
        left = self.connection.limits.calls_at_once
        for place, event in enumerate(events, 1):
            if type(event) is Called:
                self._call(event.stream)
            else:
                self._other(event)
                if type(event) is not Readable:
                    continue
            left -= 1
            if (not left or self.connection.inbox.inflated > INFLATED_AT_ONCE) and place < len(events):
                self._events[:0] = events[place:]
                self._later()
                break
        self.flush()
        self._read_or_not()

    def _later(self) -> None:
        self._working = True
        self.connection.inbox.inflated = 0
        self._loop.call_soon(self._work)

    def _other(self, event: Event) -> None:
        if type(event) is Readable:
            self._readable(event.stream)
        elif event.stream.call is None:
            return
        elif type(event) is Cancelled:
            event.stream.call.cancel()
        else:
            event.stream.call.writable()

    def _call(self, stream: Stream) -> None:
        if not stream.open:
            return
        if stream.head.refusal is not None:
            self._refuse(stream, stream.head.refusal)
            return
        if self._rate is not None and self._rate.exceeded(stream.began):
            most = self.connection.limits.calls_per_second
            self._refuse(stream, RpcError(Status.RESOURCE_EXHAUSTED, f"at most {most:,} calls a second are taken here"))
            return
        call = stream.call = WireCall(self, stream)
        if call.method.is_unary and stream.ended:
            call.answer_at_once()
        elif call.method.kind.many_requests:
            call.start_stream()
        elif stream.ended or stream.failure is not None:
            self._whole(call)
        else:
            call.wait_for_request()

    def _readable(self, stream: Stream) -> None:
        call = stream.call
        if call is None or not stream.open:
            return
        if call.method.kind.many_requests:
            call.readable()
        elif stream.ended or stream.failure is not None:
            self._whole(call)
        else:
            stream.told = False

    def _whole(self, call: WireCall) -> None:
        if call.method.is_unary:
            call.answer_at_once()
        else:
            call.start_stream()

    def _refuse(self, stream: Stream, refusal: RpcError | HttpRefusal) -> None:
        if isinstance(refusal, HttpRefusal):
            self.connection.finish(stream, http_block(refusal))
            return
        self.connection.finish(stream, trailers_block(refusal, (), alone=True))
        self.ended("" if stream.head.method is None else stream.head.path, refusal.status, time.monotonic())

    # -- what calls use ----------------------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        address = None if self._transport is None else self._transport.get_extra_info("peername")
        return join_address(address[0], address[1]) if isinstance(address, tuple) else "unix"

    @property
    def peer_certificate(self) -> Mapping[str, Any] | None:
        certificate = None if self._transport is None else self._transport.get_extra_info("peercert")
        return certificate or None

    def ended(self, path: str, status: Status, began: float) -> None:
        tell_all(self._ended, path, status, time.monotonic() - began)

    def flush_soon(self) -> None:
        if not self.flushing:
            self.flushing = True
            self._crowd.flush_later(self)

    def flush(self) -> None:
        """Everything that can go. Chunks that went may let handlers go on."""
        transport, connection = self._transport, self.connection
        if transport is None or self._leaving:
            return
        outbox = connection.outbox
        while out := outbox.take():
            transport.write(out)
            if not outbox.waiting:
                break
        if connection.closing and not outbox.size:
            self._leaving = True
            self._leave(transport)
        if connection.events:
            self._events.extend(connection.take_events())
            if not self._working:
                self._later()

    def _leave(self, transport: asyncio.Transport) -> None:
        """Last words first. To close while the peer still sends would take them from it, so it is heard out a while."""
        if transport.is_closing():
            return
        if not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:  # the peer is gone, which no event has told of yet
            transport.abort()
            return
        self._loop.call_later(LINGER_SECONDS, self._left_behind)

    def _left_behind(self) -> None:
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size():
            self._loop.call_later(LINGER_SECONDS, self._left_behind)  # it still reads, or is cut off by `tick`
        else:
            self._transport.close()

    def _read_or_not(self) -> None:
        """No more in while nothing gets out, or while there is enough to do."""
        wanted = not self._working and not self.connection.paused
        if wanted is self._reading or self._transport is None or self._transport.is_closing():
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # -- what the server does ----------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        connection = self.connection
        if connection.tick(now):
            if connection.wants_flush:
                self.flush()
        else:
            self.abort()

    def drain(self) -> None:
        self.connection.drain()
        self.flush()

    def stop(self) -> None:
        """Patience is over: end what is under way, in words, and go."""
        for stream in list(self.connection.streams.values()):
            if stream.call is not None:
                stream.call.stop(RpcError(Status.UNAVAILABLE, "the server is going away"))
        self.connection.lost()
        self.flush()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
