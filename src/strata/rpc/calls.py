"""One call on Strata's own server, from its head to its status: how handlers are run, waited for and stopped."""

import asyncio
import time
from collections.abc import Awaitable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from strata.rpc.answers import head_block, trailers_block, unknown
from strata.rpc.fields import check_metadata
from strata.rpc.later import Later
from strata.rpc.messages import pack, too_long
from strata.rpc.service import Call, Method, logger
from strata.rpc.status import RpcError, Status
from strata.rpc.stream import Stream
from strata.rpc.talks import Talk, hang_up

if TYPE_CHECKING:
    from strata.rpc.protocol import ServerProtocol

BREATH = 64
"""Messages of one stream handled before others have their turn."""
TALK_BREATH = 8
"""The same of a talk: those of many streams may come in one read, and all be heard in one turn."""

_awaitable: dict[type, bool] = {}


class WireCall(Call):
    """What its handler sees, and what the protocol drives."""

    _over = False
    _breath = 0
    _task: asyncio.Future[Any] | None = None
    _talk: Talk | None = None
    _hears_soon = False
    _later: Later | None = None
    _timer: asyncio.TimerHandle | None = None
    _reading: asyncio.Future[None] | None = None
    _writing: asyncio.Future[None] | None = None

    def __init__(self, protocol: "ServerProtocol", stream: Stream) -> None:
        self.head = head = stream.head
        self.method: Method = head.method
        self._protocol = protocol
        self._stream = stream
        self._began = began = stream.began
        if head.timeout_seconds is not None:
            self.deadline = began + head.timeout_seconds

    @property
    def peer(self) -> str:
        return self._protocol.peer

    @property
    def peer_certificate(self) -> Mapping[str, Any] | None:
        return self._protocol.peer_certificate

    # -- what the protocol does --------------------------------------------------------------------------------------

    def wait_for_request(self) -> None:
        """It comes in more than one piece; the caller's patience counts from now."""
        self._stream.told = False
        self._watch()

    def answer_at_once(self) -> None:
        """A unary call, now that its request is whole."""
        try:
            if self.deadline is not None and self.deadline <= self._began:
                raise expired()
            response = self.method.handler(self._only_request(), self)
            kind = type(response)
            if kind is Later:
                self._later = response
                if self.deadline is not None:
                    self._watch()
                response.then(self._settled)
                return
            waits = _awaitable.get(kind)
            if waits is None:
                waits = _awaitable[kind] = hasattr(response, "__await__")
            if waits:
                self._wait_for(response)
            else:
                self._answer(response)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  told to the client
            self.fail(error)

    def start_stream(self) -> None:
        if self.method.talks:
            self._watch()
            self._talk_on_it()
            return
        if self.method.kind.many_responses:
            self._watch()
            self._keep(asyncio.get_running_loop().create_task(self._stream_responses()))
            return
        try:
            self._wait_for(self.method.handler(_Requests(self), self))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  told to the client
            self.fail(error)

    def _wait_for(self, response: Awaitable[Any]) -> None:
        self._watch()
        self._keep(asyncio.ensure_future(response)).add_done_callback(self._responded)

    def _keep(self, task: "asyncio.Future[Any]") -> "asyncio.Future[Any]":
        self._task = task
        self._protocol.tasks.add(task)
        task.add_done_callback(self._protocol.tasks.discard)
        return task

    def readable(self) -> None:
        if self._talk is not None:
            self._hear()
        elif self._reading is not None and not self._reading.done():
            self._reading.set_result(None)

    def writable(self) -> None:
        if self._talk is not None:
            self._hear()
        elif self._writing is not None and not self._writing.done():
            self._writing.set_result(None)

    def cancel(self) -> None:
        """The client is gone; nothing can be told any more."""
        self._end(Status.CANCELLED)
        if self._task is not None:
            self._task.cancel()

    def stop(self, error: RpcError) -> None:
        """From outside: the handler is cancelled, and the client told why."""
        self.fail(error)
        if self._task is not None:
            self._task.cancel()

    # -- answers -----------------------------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        if self._over:
            return
        if not isinstance(error, RpcError):
            if isinstance(error, asyncio.CancelledError):
                error = RpcError(Status.CANCELLED, "the server gave the call up")
            else:
                logger.error("the handler of %s failed", self.method.path, exc_info=error)
                error = unknown(error)
        try:
            check_metadata(error.metadata)
            block = trailers_block(error, self.trailing_metadata, alone=not self._stream.headed)
        except (ValueError, TypeError, AttributeError):
            logger.exception("the handler of %s ended with metadata that cannot be sent", self.method.path)
            error = RpcError(Status.INTERNAL, "the server's metadata cannot be sent: see its log")
            block = trailers_block(error, (), alone=not self._stream.headed)
        self._protocol.connection.finish(self._stream, block)
        self._end(error.status)

    def _answer(self, response: Any) -> None:
        protocol, stream = self._protocol, self._stream
        payload = response if type(response) is bytes else self.method.write(response)
        if len(payload) > protocol.small_bytes:
            self._check_size(payload)
        gzips = protocol.gzip_from_bytes is not None and self._gzips(payload)
        if gzips or self.initial_metadata or self.trailing_metadata:
            self._send(payload)
            protocol.connection.finish(stream, trailers_block(None, self.trailing_metadata, alone=False))
        else:
            protocol.connection.answer(stream, payload)
        if self._timer is None:
            self._over = True
            stream.call = None
            if protocol.is_watched:
                protocol.ended(self.method.path, Status.OK, self._began)
        else:
            self._end(Status.OK)

    def _check_size(self, payload: bytes) -> None:
        connection = self._protocol.connection
        if len(payload) > connection.limits.message_bytes:
            raise too_long(len(payload), connection.limits.message_bytes)
        if not connection.room_for(len(payload)):
            raise RpcError(Status.RESOURCE_EXHAUSTED, "too many answers wait for the client to read them")

    def _gzips(self, payload: bytes) -> bool:
        least = self._protocol.gzip_from_bytes
        return least is not None and self.head.accepts_gzip and len(payload) >= least

    def _send(self, payload: bytes) -> bool:
        connection, stream = self._protocol.connection, self._stream
        if not stream.headed:
            compresses = self._protocol.gzip_from_bytes is not None and self.head.accepts_gzip
            connection.send_head(stream, head_block(self.initial_metadata, compressed=compresses))
        return connection.send(stream, pack(payload, compressed=self._gzips(payload)))

    def _finish(self) -> None:
        """A stream, behind its last response."""
        connection, stream = self._protocol.connection, self._stream
        connection.send_head(stream, head_block(self.initial_metadata, compressed=False))
        connection.finish(stream, trailers_block(None, self.trailing_metadata, alone=False))
        self._end(Status.OK)

    def _end(self, status: Status) -> None:
        if self._over:
            return
        self._over = True
        if self._later is not None:
            self._later.given_up = True
            self._later = None
        self._stream.call = None  # or the two would wait for the garbage collector
        if self._timer is not None:
            self._timer.cancel()
        if self._reading is not None:
            self._reading.cancel()
        if self._talk is not None:
            talk, self._talk = self._talk, None
            hang_up(talk, self.method.path)
        self._protocol.ended(self.method.path, status, self._began)

    def _watch(self) -> None:
        if self.deadline is not None and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, self.deadline - time.monotonic()), self._expire)

    def _expire(self) -> None:
        self.stop(expired())
        self._protocol.flush()

    # -- talks -------------------------------------------------------------------------------------------------------

    def _talk_on_it(self) -> None:
        try:
            talk = self.method.talk(self, self)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  told to the client
            self.fail(error)
            return
        if self._over:  # it ended it at once
            hang_up(talk, self.method.path)
        else:
            self._talk = talk
            self._hear()

    def _hear(self) -> None:
        """Requests that have come: each is answered before the next is taken. Who does not read is not heard."""
        connection, stream, left = self._protocol.connection, self._stream, TALK_BREATH
        if self._hears_soon:
            return
        try:
            while self._talk is not None and self._later is None and not stream.unsent and not connection.paused:
                if left <= 0:
                    self._hear_soon()
                    return
                message = connection.inbox.message(stream)
                if message is None:
                    if connection.at_end(stream):
                        self.end()
                    return
                left -= 1 + (len(message) >> 16)
                response = self._talk.heard(self.method.read(message))
                if type(response) is Later:
                    self._wait_to_say(response)
                elif response is not None and not self._over:
                    self._say(response)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  told to the client
            self.fail(error)

    def _hear_soon(self) -> None:
        if not self._hears_soon:
            self._hears_soon = True
            asyncio.get_running_loop().call_soon(self._hear_on)

    def _hear_on(self) -> None:
        self._hears_soon = False
        self._hear()
        self._protocol.flush_soon()

    def _wait_to_say(self, later: Later) -> None:
        if self._over:
            later.given_up = True
        else:
            self._later = later
            later.then(self._answered)

    def _answered(self, response: Any, error: BaseException | None) -> None:
        """Later, and the next request is heard in a turn of its own."""
        self._later = None
        if error is not None:
            self.fail(error)
        elif response is not None:
            self.say(response)
        self._hear_soon()

    def say(self, response: Any) -> None:
        if not self._over:
            try:
                self._say(response)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  told to the client
                self.fail(error)
            self._protocol.flush_soon()

    def _say(self, response: Any) -> None:
        payload = self.method.write(response)
        self._check_size(payload)
        self._send(payload)

    def end(self, error: RpcError | None = None) -> None:
        if self._over:
            return
        if error is None:
            self._finish()
        else:
            self.fail(error)
        self._protocol.flush_soon()

    # -- tasks -------------------------------------------------------------------------------------------------------

    def _responded(self, task: "asyncio.Future[Any]") -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if self._over:
            if isinstance(error, Exception):
                logger.error("the handler of %s failed when its call was over", self.method.path, exc_info=error)
            return
        self._settled(None if error is not None else task.result(), error)

    def _settled(self, response: Any, error: BaseException | None) -> None:
        if self._over:
            return
        if error is not None:
            self.fail(error)  # not raised: one error may be told to thousands, and would keep a trace of each
        else:
            try:
                self._answer(response)
            except (Exception, asyncio.CancelledError) as failure:  # noqa: BLE001  told to the client
                self.fail(failure)
        self._protocol.flush_soon()

    async def _stream_responses(self) -> None:
        try:
            requests = _Requests(self) if self.method.kind.many_requests else self._only_request()
            async with aclosing(self.method.handler(requests, self)) as responses:
                async for response in responses:
                    await self._stream_out(response)
            if not self._over:
                self._finish()
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._protocol.flush_soon()

    def _only_request(self) -> Any:
        stream = self._stream
        message = stream.whole
        if message is None:
            message = self._protocol.connection.inbox.message(stream)
            if message is None or stream.buffer:
                raise RpcError(Status.UNIMPLEMENTED, f"{self.method.path} takes exactly one message")
        else:
            stream.whole = None
        return self.method.read(message)

    async def next_message(self) -> bytes | None:
        """The next request as it came; None after the last."""
        connection, stream = self._protocol.connection, self._stream
        while True:
            message = connection.inbox.message(stream)
            if message is not None:
                self._protocol.flush_soon()  # the peer may have been given room
                await self._breathe(len(message))
                return message
            if connection.at_end(stream):
                return None
            if self._over:
                raise asyncio.CancelledError
            self._reading = asyncio.get_running_loop().create_future()
            await self._reading

    async def _stream_out(self, response: Any) -> None:
        connection, stream = self._protocol.connection, self._stream
        payload = self.method.write(response)
        self._check_size(payload)
        self._send(payload)
        if connection.crowded:
            self._protocol.flush()
        else:
            self._protocol.flush_soon()
        await self._breathe(len(payload))
        while stream.open and (stream.unsent or connection.paused):
            self._writing = asyncio.get_running_loop().create_future()
            await self._writing

    async def _breathe(self, size: int) -> None:
        self._breath += 1 + (size >> 16)
        if self._breath >= BREATH:
            self._breath = 0
            await asyncio.sleep(0)


class _Requests:
    """What a client sends, message by message. What is not taken stays with the client."""

    __slots__ = ("_call",)

    def __init__(self, call: WireCall) -> None:
        self._call = call

    def __aiter__(self) -> "_Requests":
        return self

    async def __anext__(self) -> Any:
        message = await self._call.next_message()
        if message is None:
            raise StopAsyncIteration
        return self._call.method.read(message)


def expired() -> RpcError:
    return RpcError(Status.DEADLINE_EXCEEDED, "the deadline passed before the server had answered")
