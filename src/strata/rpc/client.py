"""Calls to a server at one of several addresses, on grpcio's client.

Everything runs on Strata's private loop; `Channel` can be awaited from any other loop, `BlockingChannel` called from
any thread, and both used again in a forked child, which makes connections of its own.
"""

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from strata import background
from strata.errors import InvalidInput, StrataError
from strata.forks import NativePackage
from strata.rpc.addresses import split_address
from strata.rpc.fields import check_metadata
from strata.rpc.silence import Silence
from strata.rpc.status import Metadata, RpcError, Status

LONGEST_SECONDS = 1_000_000_000
"""Of a timeout: grpcio takes a longer one for one that has passed."""

Request = TypeVar("Request")
Response = TypeVar("Response")
T = TypeVar("T")

_chance = random.Random()
"""Of our own: a training run's random numbers are not drawn from behind its back."""


FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"
_is_fork_safe = True


def _load() -> Any:
    # Its own care for forks brings down children that were forked while a call was under way, whatever they do. It is
    # not needed: a child of ours never touches what its parent had, and loads the library anew.
    global _is_fork_safe  # noqa: PLW0603  known once, when it is loaded
    _is_fork_safe = "grpc" not in sys.modules or os.environ.get(FORK_SUPPORT) == "0"
    os.environ.setdefault(FORK_SUPPORT, "0")
    import grpc
    import grpc.aio

    # grpcio ends its thread, and waits for it, once the last channel is collected. In a forked child the collector may
    # find the last one of the parent, whose thread does not live there: the child crashes, or hangs. This counts as one
    # more channel, so that there is never a last one.
    grpc.aio.init_grpc_aio()
    return grpc


_grpc = NativePackage("grpc._cython.cygrpc", _load).module


def is_fork_safe() -> bool:
    """Whether this process may be forked while a call is under way, so that a stream may stay open. Where somebody else
    has loaded grpcio before, with its own care for forks, children are brought down by it."""
    _grpc()
    return _is_fork_safe


def load() -> None:
    """The library comes with the first call otherwise, which then takes a good part of a second longer."""
    _grpc()


@dataclass(frozen=True, slots=True)
class Remote(Generic[Request, Response]):
    """A method as a client knows it. One that is `idempotent` may be asked again when no answer came."""

    path: str
    encode: Callable[[Request], bytes]
    decode: Callable[[bytes], Response]
    idempotent: bool = False


@dataclass(frozen=True, slots=True)
class ClientTls:
    """Whom to trust, in PEM files; nothing given: whom the system trusts. `certificate` and `key` prove who we are."""

    ca: Path | str | None = None
    certificate: Path | str | None = None
    key: Path | str | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InvalidInput("a client's certificate and its key belong together: give both, or neither")


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """How a channel behaves.

    connect_seconds: how long one address may take to answer before the next is tried.
    timeout_seconds: how long a call may take, all tries together, unless it says otherwise. A stream may take any time.
    keepalive_seconds, keepalive_timeout_seconds: a silent server is pinged after the one and given up after the other.
    backoff_seconds, most_backoff_seconds: the wait after a round of all addresses, doubled each time up to the last.
    message_bytes: of one message, in both directions.
    """

    connect_seconds: float = 5.0
    timeout_seconds: float = 30.0
    keepalive_seconds: float = 20.0
    keepalive_timeout_seconds: float = 10.0
    backoff_seconds: float = 0.1
    most_backoff_seconds: float = 5.0
    message_bytes: int = 4 << 20

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0 < getattr(self, name) < LONGEST_SECONDS:
                raise InvalidInput(f"{name} must be above 0 and below {LONGEST_SECONDS:,}, not {getattr(self, name)!r}")

    def for_grpc(self) -> list[tuple[str, Any]]:
        return [
            ("grpc.keepalive_time_ms", int(self.keepalive_seconds * 1000)),
            ("grpc.keepalive_timeout_ms", int(self.keepalive_timeout_seconds * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.min_reconnect_backoff_ms", int(self.connect_seconds * 1000)),  # as long as a connection may take
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2000),
            ("grpc.enable_retries", 0),
            ("grpc.max_receive_message_length", self.message_bytes),
            ("grpc.max_send_message_length", self.message_bytes),
        ]


@dataclass(slots=True)
class _Addresses:
    """In the order given; the one that answered last is tried first."""

    names: tuple[str, ...]
    current: int = 0
    open: dict[str, Any] = field(default_factory=dict)

    def in_turn(self) -> list[str]:
        return [*self.names[self.current :], *self.names[: self.current]]


class Channel:
    """`await channel.call(remote, request)`; `async with channel.stream(remote) as stream` for streams.

    `token`, or what a function gives each time it is asked, goes along as a bearer token. An address is `host:port` or
    `unix:/path`.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        token: str | Callable[[], str | None] | None = None,
        tls: ClientTls | None = None,
        options: ChannelOptions | None = None,
    ) -> None:
        names = (addresses,) if isinstance(addresses, str) else tuple(addresses)
        if not names or not all(names):
            raise InvalidInput("a channel needs at least one address, such as 127.0.0.1:50051")
        for name in names:
            if not name.startswith("unix:"):
                split_address(name)
        self.options = options or ChannelOptions()
        self._addresses = _Addresses(names)
        self.where = ", ".join(names)
        self._token = token if callable(token) else lambda: token
        self._tls = tls
        self._process = os.getpid()
        self._abandoned: list[Any] = []
        self.closed = False
        self.silence = Silence()

    @property
    def address(self) -> str:
        """The one that answered last: it is tried first."""
        return self._addresses.names[self._addresses.current]

    async def call(
        self,
        remote: Remote[Request, Response],
        request: Request,
        *,
        timeout_seconds: float | None = None,
        metadata: Metadata = (),
    ) -> Response:
        """One request, one response; RpcError if there is none."""
        return await background.awaited(self._call(remote, request, timeout_seconds, metadata))

    def stream(
        self, remote: Remote[Request, Response], *, timeout_seconds: float | None = None, metadata: Metadata = ()
    ) -> "ClientStream[Request, Response]":
        """Many requests, many responses. It is not tried again: only its user knows where to go on."""
        return ClientStream(self, remote, timeout_seconds, metadata)

    async def close(self) -> None:
        await background.awaited(self._close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- on the private loop -----------------------------------------------------------------------------------------

    async def _call(
        self, remote: Remote[Request, Response], request: Request, timeout_seconds: float | None, metadata: Metadata
    ) -> Response:
        check_metadata(metadata)
        patience = self.options.timeout_seconds if timeout_seconds is None else timeout_seconds
        deadline = time.monotonic() + min(patience, LONGEST_SECONDS)
        payload, tries, backoff = remote.encode(request), 0, self.options.backoff_seconds
        last = RpcError(Status.UNAVAILABLE, "no address was tried")
        while True:
            for address in self._addresses.in_turn():
                tries += 1
                try:
                    answer = await self.try_once(address, remote, payload, deadline, metadata)
                except _NotSent as error:
                    last = error.error
                except RpcError as error:
                    if error.status is not Status.UNAVAILABLE:
                        if error.status is not Status.DEADLINE_EXCEEDED:
                            self.silence.ends()
                        raise
                    if not remote.idempotent:
                        self.silence.begins()
                        raise
                    last = error
                else:
                    self.silence.ends()
                    return remote.decode(answer)
                self._next(address)
            self.silence.begins()
            if time.monotonic() + backoff >= deadline:
                raise _gave_up(last, tries, self._addresses.names)
            await asyncio.sleep(_chance.uniform(backoff / 2, backoff))
            backoff = min(backoff * 2, self.options.most_backoff_seconds)

    async def try_once(
        self, address: str, remote: Remote[Any, Any], payload: bytes, deadline: float, metadata: Metadata
    ) -> bytes:
        """The answer, as bytes."""
        channel = self._channel(address)
        await self._ready(channel, address, deadline)
        call = channel.unary_unary(remote.path)
        left = max(0.001, deadline - time.monotonic())
        try:
            answer: bytes = await call(payload, timeout=left, metadata=self._metadata(metadata))
        except _grpc().aio.AioRpcError as error:
            raise translated(error, address) from None
        except asyncio.CancelledError:
            self.check_not_closed()
            raise
        return answer

    async def _ready(self, channel: Any, address: str, deadline: float) -> None:
        """Connected: whatever fails before that was never sent, and may be tried elsewhere whatever it was."""
        left = min(self.options.connect_seconds, max(0.001, deadline - time.monotonic()))
        states = _grpc().ChannelConnectivity
        try:
            async with asyncio.timeout(left):
                while (state := channel.get_state(try_to_connect=True)) is not states.READY:
                    if state is states.TRANSIENT_FAILURE:
                        raise _NotSent(RpcError(Status.UNAVAILABLE, f"cannot connect to {address}"))
                    await channel.wait_for_state_change(state)
        except TimeoutError:
            raise _NotSent(RpcError(Status.UNAVAILABLE, f"{address} does not answer ({left:.1f} s)")) from None

    def check_not_closed(self) -> None:
        """Whoever is told to stop is told why."""
        if self.closed:
            raise RpcError(Status.CANCELLED, "the channel was closed meanwhile") from None

    def _metadata(self, metadata: Metadata) -> list[tuple[str, str | bytes]]:
        token = self._token()
        if token is not None and not _sendable(token):
            raise InvalidInput("a token must be printable ASCII text: does it end in a line's end?")
        return [*metadata, ("authorization", f"Bearer {token}")] if token else [*metadata]

    def _next(self, failed: str) -> None:
        addresses = self._addresses
        if addresses.names[addresses.current] == failed:
            addresses.current = (addresses.current + 1) % len(addresses.names)

    def _channel(self, address: str) -> Any:
        if self.closed:
            raise StrataError("this channel is closed: make another")
        if self._process != os.getpid():
            # The parent's, which this process must neither use nor tidy up.
            self._abandoned.append(self._addresses.open)
            self._addresses.open = {}
            self._process = os.getpid()
        found = self._addresses.open.get(address)
        if found is None:
            found = self._addresses.open[address] = self._connect(address)
        return found

    def _connect(self, address: str) -> Any:
        grpc, options = _grpc(), self.options.for_grpc()
        if self._tls is None:
            return grpc.aio.insecure_channel(address, options)
        tls = self._tls
        try:
            ca, key, certificate = (
                None if file is None else Path(file).read_bytes() for file in (tls.ca, tls.key, tls.certificate)
            )
        except OSError as error:
            raise InvalidInput(f"cannot read {error.filename}: {error.strerror}") from error
        if tls.server_name is not None:
            options.append(("grpc.ssl_target_name_override", tls.server_name))
        return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca, key, certificate), options)

    async def open_stream(self, remote: Remote[Any, Any], timeout_seconds: float | None, metadata: Metadata) -> Any:
        """At the first address that answers."""
        last = RpcError(Status.UNAVAILABLE, "no address was tried")
        check_metadata(metadata)
        patience = self.options.timeout_seconds
        deadline = time.monotonic() + (patience if timeout_seconds is None else min(patience, timeout_seconds))
        for address in self._addresses.in_turn():
            channel = self._channel(address)
            try:
                await self._ready(channel, address, deadline)
            except _NotSent as error:
                last = error.error
                self._next(address)
                continue
            self.silence.ends()
            opened = channel.stream_stream(remote.path)
            return opened(timeout=timeout_seconds, metadata=self._metadata(metadata))
        self.silence.begins()
        raise _gave_up(last, len(self._addresses.names), self._addresses.names)

    async def _close(self) -> None:
        self.closed = True
        if self._process == os.getpid():
            channels = list(self._addresses.open.values())
            self._addresses.open.clear()
            await asyncio.gather(*(channel.close() for channel in channels))


class ClientStream(Generic[Request, Response]):
    """One call with many messages both ways; iterate over it for the responses.

    A method that takes one request waits for `end` after it, as gRPC's servers may.
    """

    def __init__(
        self,
        channel: Channel,
        remote: Remote[Request, Response],
        timeout_seconds: float | None,
        metadata: Metadata,
    ) -> None:
        self._channel, self._remote = channel, remote
        self._timeout_seconds, self._metadata = timeout_seconds, metadata
        self._call: Any = None
        self._process = os.getpid()

    async def send(self, request: Request) -> None:
        payload = self._remote.encode(request)
        await background.awaited(self._told(lambda call: call.write(payload)))

    async def end(self) -> None:
        """No further request."""
        await background.awaited(self._told(lambda call: call.done_writing()))

    async def receive(self) -> Response | None:
        """The next response; None after the last, if all went well. To give up waiting is to give up the stream."""
        answer = await background.awaited(self._told(lambda call: call.read()))
        if answer is not _grpc().aio.EOF:
            return self._remote.decode(answer)
        await background.awaited(self._check())
        return None

    async def __aiter__(self) -> AsyncIterator[Response]:
        while (response := await self.receive()) is not None:
            yield response

    async def __aenter__(self) -> Self:
        self._process = os.getpid()
        opening = self._channel.open_stream(self._remote, self._timeout_seconds, self._metadata)
        self._call = await background.awaited(opening)
        return self

    async def __aexit__(self, *_: object) -> None:
        call, self._call = self._call, None
        if self._process == os.getpid():  # a child that ended it would end it for its parent
            background.loop().call_soon_threadsafe(call.cancel)

    async def _told(self, step: Callable[[Any], Any]) -> Any:
        grpc = _grpc()
        if self._call is None:
            raise InvalidInput("a stream is used within its `with` or `async with`, which opens and closes it")
        if self._process != os.getpid():
            raise InvalidInput("this stream belongs to the parent process: open one here")
        try:
            return await step(self._call)
        except grpc.aio.AioRpcError as error:
            raise translated(error) from None
        except asyncio.CancelledError:
            self._channel.check_not_closed()
            raise
        except (asyncio.InvalidStateError, grpc.aio.UsageError):
            await self._check()
            raise RpcError(Status.CANCELLED, "the stream has ended") from None

    async def _check(self) -> None:
        if self._call is None:
            raise RpcError(Status.CANCELLED, "the stream was left")
        code = await self._call.code()
        if code.value[0]:
            trailing = await self._call.trailing_metadata()
            raise _rpc_error(code.value[0], await self._call.details(), trailing)


class BlockingChannel:
    """`BlockingChannel(channel).call(…)` does what `await channel.call(…)` does, from any thread."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    def call(
        self,
        remote: Remote[Request, Response],
        request: Request,
        *,
        timeout_seconds: float | None = None,
        metadata: Metadata = (),
    ) -> Response:
        return background.run(self.channel.call(remote, request, timeout_seconds=timeout_seconds, metadata=metadata))

    def stream(
        self, remote: Remote[Request, Response], *, timeout_seconds: float | None = None, metadata: Metadata = ()
    ) -> "BlockingStream[Request, Response]":
        return BlockingStream(self.channel.stream(remote, timeout_seconds=timeout_seconds, metadata=metadata))

    def close(self) -> None:
        background.run_while_alive(self.channel.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BlockingStream(Generic[Request, Response]):
    """The blocking twin of `ClientStream`. One thread may send while another receives."""

    def __init__(self, stream: ClientStream[Request, Response]) -> None:
        self._stream = stream

    def send(self, request: Request) -> None:
        background.run(self._stream.send(request))

    def end(self) -> None:
        background.run(self._stream.end())

    def receive(self) -> Response | None:
        return background.run(self._stream.receive())

    def __iter__(self) -> Iterator[Response]:
        while (response := self.receive()) is not None:
            yield response

    def __enter__(self) -> Self:
        background.run(self._stream.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        background.run_while_alive(self._stream.__aexit__)


class _NotSent(Exception):
    """Nothing reached the server."""

    def __init__(self, error: RpcError) -> None:
        super().__init__(error)
        self.error = error


def _sendable(token: object) -> bool:
    return isinstance(token, str) and token.isascii() and token.isprintable()


def translated(error: Any, address: str = "") -> RpcError:
    """grpcio's error as ours."""
    message = error.details() or ""
    if error.code().value[0] == Status.UNAVAILABLE and address:
        message = f"{address}: {message}"
    return _rpc_error(error.code().value[0], message, error.trailing_metadata())


def _rpc_error(status: int, message: str | None, trailing: Any) -> RpcError:
    pairs = [(name, value) for name, value in trailing or ()]
    details = next((value for name, value in pairs if name == "grpc-status-details-bin"), b"")
    metadata = [(name, value) for name, value in pairs if name != "grpc-status-details-bin"]
    return RpcError(Status(status), message or "", details=details, metadata=metadata)


def _gave_up(last: RpcError, tries: int, names: tuple[str, ...]) -> RpcError:
    where = names[0] if len(names) == 1 else f"any of {', '.join(names)}"
    return RpcError(
        Status.UNAVAILABLE,
        f"no answer from {where} ({tries} tries). The last one: {last.message}",
        details=last.details,
        metadata=last.metadata,
    )
