"""The HTTP server around the API: where it listens, whom it hears out, and how it goes."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import uvicorn
from starlette.middleware.trustedhost import TrustedHostMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol

from strata.coordinator.api import api
from strata.coordinator.auth import Tokens
from strata.coordinator.exposure import is_loopback
from strata.coordinator.views import Views
from strata.errors import StrataError
from strata.rpc import ServerTls
from strata.rpc.addresses import join_address, split_address
from strata.rpc.entrance import Entrance
from strata.rpc.listening import tcp_sockets

CONNECTIONS = 4096
"""Of which the longest waiting give way when more come."""
IDLE_SECONDS = 15
HANDSHAKE_SECONDS = 5
STALLED_SECONDS = 20
HEADER_BYTES = 32 << 10
STOP_SECONDS = 2


class _Impatient(H11Protocol):
    """A connection has a while to ask something to the end, from when it was made or last answered; and a while to take
    anything at all of an answer. Bytes that come slowly are no request, and make no time good."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._since = self._taken = self.loop.time()
        self._unsent = 0
        self._look_later()
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            self._make_room()

    def connection_lost(self, error: Exception | None) -> None:
        self._looking.cancel()
        super().connection_lost(error)

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    @property
    def _is_waiting(self) -> bool:
        """Whether the client has still to ask, or to end what it asks."""
        asked: Any = self.cycle
        return asked is None or asked.response_complete or (asked.more_body and not asked.response_started)

    def _make_room(self) -> None:
        """For several at once: to look for those who wait takes longer than to take one more. Who comes to find out
        whether this lives is the last to go; there is no room only if all the others are being answered."""
        others: Any = self.connections - {self}
        waiting = sorted((each for each in others if each._is_waiting), key=lambda each: each._since)
        for each in waiting[: max(1, CONNECTIONS // 16)] or [self]:
            self.connections.discard(each)
            each.transport.abort()

    def _look_later(self) -> None:
        self._looking = self.loop.call_later(IDLE_SECONDS / 3, self._look)

    def _look(self) -> None:
        now, unsent = self.loop.time(), self.transport.get_write_buffer_size()
        if not unsent or unsent != self._unsent:
            self._unsent, self._taken = unsent, now
        if now - self._taken >= STALLED_SECONDS:
            self.transport.abort()  # to close it would be to wait until it is read
            return
        if self._is_waiting and now - self._since >= IDLE_SECONDS:
            self.transport.close()
        self._look_later()


class _Server(uvicorn.Server):
    """Signals are the coordinator's to handle."""

    def capture_signals(self) -> Any:
        return nullcontext()


class HttpServer:
    """Serves the API on one address."""

    def __init__(self, views: Views, tokens: Tokens, is_ready: Callable[[], bool], tls: ServerTls | None) -> None:
        knows_clients = tls is not None and tls.client_ca is not None
        self._app: Any = api(views, tokens, is_ready, knows_clients=knows_clients)
        self._tls = tls
        self._open = not tokens and not knows_clients
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._entrance: Entrance | None = None

    @property
    def connections(self) -> int:
        """How many are open."""
        return 0 if self._server is None else len(self._server.server_state.connections)

    async def listen(self, address: str) -> str:
        host, port = split_address(address)
        context = None if self._tls is None else self._tls.context("http/1.1")
        try:
            listeners = tcp_sockets(host, port)
        except StrataError as error:
            raise StrataError(f"HTTP: {error}") from error
        if self._open and is_loopback(address):
            # Without a token, a page in a browser on this machine must not reach this under a name of its own.
            names = ["localhost", "127.0.0.1", "[::1]", host]
            self._app.add_middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False)
        config = uvicorn.Config(
            self._app,
            http=_Impatient,
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
            h11_max_incomplete_event_size=HEADER_BYTES,
        )
        server = self._server = _Server(config)
        self._task = asyncio.create_task(server.serve(listeners if context is None else []))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.005)
        if context is not None:
            make = partial(_Impatient, config=config, server_state=server.server_state, app_state={})
            self._entrance = Entrance(listeners, context, make, most=CONNECTIONS, patience_seconds=HANDSHAKE_SECONDS)
        return join_address(host, listeners[0].getsockname()[1])

    async def stop(self) -> None:
        if self._entrance is not None:
            self._entrance.close()
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
