"""Strata's gRPC server: where it listens, how many it lets in, and how it goes."""

import asyncio
import os
import ssl
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from strata.errors import InvalidInput, StrataError
from strata.rpc.addresses import join_address, split_address
from strata.rpc.crowd import Crowd, alone
from strata.rpc.entrance import Entrance
from strata.rpc.limits import Limits, checked_limits
from strata.rpc.listening import BACKLOG, tcp_sockets, unix_socket
from strata.rpc.protocol import ServerProtocol
from strata.rpc.service import Admission, Interceptor, Method

TICK_SECONDS = 1.0
TICK_AT_ONCE = 512
LAST_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ServerTls:
    """Who the server is, in PEM files. With `client_ca`, clients must show a certificate that it signed."""

    certificate: Path | str
    key: Path | str
    client_ca: Path | str | None = None

    def context(self, speaks: str = "h2") -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols([speaks])
        try:
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            raise InvalidInput(
                f"cannot use the certificate {self.certificate} and the key {self.key}: {error}. Both must be PEM"
            ) from error
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except OSError as error:
                raise InvalidInput(
                    f"cannot use {self.client_ca} to know clients by: {error}. It must be PEM, with certificates"
                ) from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class Server:
    """Serves tables of methods on any number of addresses, on the loop that runs.

    `gzip_from_bytes`: messages of at least this size are compressed for clients that take that; never if None.
    """

    def __init__(
        self,
        services: Iterable[Iterable[Method]],
        *,
        interceptors: Iterable[Interceptor] = (),
        limits: Limits | None = None,
        gzip_from_bytes: int | None = None,
    ) -> None:
        self.limits = checked_limits(limits, gzip_from_bytes)
        self._admission = Admission(services, interceptors)
        self._gzip_from_bytes = gzip_from_bytes
        self._listeners: list[asyncio.AbstractServer | Entrance] = []
        self._protocols: dict[ServerProtocol, None] = {}
        self._paths: list[str] = []
        self._tasks: set[asyncio.Future[Any]] = set()
        self._crowd: Crowd | None = None
        self._all_left = asyncio.Event()
        self._all_left.set()
        self._ticking: asyncio.TimerHandle | None = None
        self._tick_due = 0.0
        self._was_late = False
        self._draining = False

    @property
    def connections(self) -> int:
        return len(self._protocols)

    async def listen(self, address: str, *, tls: ServerTls | None = None) -> str:
        """`host:port` (port 0: any that is free) or `unix:/path`. Gives the address as it is."""
        if self._draining:
            raise StrataError("this server was stopped: make another")
        loop = asyncio.get_running_loop()
        context = None if tls is None else tls.context()
        if address.startswith("unix:"):
            sockets, found = [unix_socket(address[5:])], address
            self._paths.append(address[5:])
        else:
            host, port = split_address(address)
            if not host and not port:
                raise InvalidInput("to listen on every interface say which port: several would be chosen otherwise")
            sockets = tcp_sockets(host, port)
            found = join_address(host, sockets[0].getsockname()[1])
        if context is not None:
            most, patience = self.limits.connections, self.limits.preface_seconds
            entrance = Entrance(sockets, context, self._protocol, most=most, patience_seconds=patience)
            self._listeners.append(entrance)
        for listener in sockets if context is None else ():
            make = loop.create_unix_server if address.startswith("unix:") else loop.create_server
            self._listeners.append(await make(self._protocol, sock=listener, backlog=BACKLOG))
        if self._ticking is None:
            self._tick_later()
        return found

    def forget_callers(self) -> None:
        """Ask the interceptors again about everyone: a token was changed."""
        for protocol in self._protocols:
            protocol.connection.forget_heads()

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """No new connections, no new calls; those under way may take so long to end."""
        self._draining = True
        for listener in self._listeners:
            listener.close()
        for path in self._paths:
            with suppress(FileNotFoundError):
                os.unlink(path)
        self._paths.clear()
        for protocol in list(self._protocols):
            alone(protocol, protocol.drain)
        try:
            await asyncio.wait_for(self._all_left.wait(), grace_seconds)
        except TimeoutError:
            for protocol in list(self._protocols):
                alone(protocol, protocol.stop)
            await self._cut_off()
        if self._tasks:  # handlers that were told to stop, and tidy up
            await asyncio.wait(self._tasks, timeout=LAST_SECONDS)
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None

    async def _cut_off(self) -> None:
        """Last words have a second to be read."""
        try:
            await asyncio.wait_for(self._all_left.wait(), LAST_SECONDS)
        except TimeoutError:
            for protocol in list(self._protocols):
                protocol.abort()
            await self._all_left.wait()

    def _protocol(self) -> ServerProtocol:
        return ServerProtocol(
            self._admission,
            self.limits,
            gzip_from_bytes=self._gzip_from_bytes,
            tasks=self._tasks,
            crowd=self._crowd or self._made_crowd(),
            joined=self._joined,
            left=self._left,
        )

    def _made_crowd(self) -> Crowd:
        self._crowd = Crowd()
        return self._crowd

    def _joined(self, protocol: ServerProtocol) -> bool:
        if self._draining or len(self._protocols) >= self.limits.connections:
            return False
        self._protocols[protocol] = None
        self._all_left.clear()
        return True

    def _left(self, protocol: ServerProtocol) -> None:
        self._protocols.pop(protocol, None)
        if not self._protocols:
            self._all_left.set()

    def _tick_later(self) -> None:
        self._tick_due = time.monotonic() + TICK_SECONDS
        self._ticking = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        """Unless it comes late: then this process was stopped, and what its peers said meanwhile is still to be read.
        Once at most, so that a server with too much to do looks at its connections too."""
        now = time.monotonic()
        self._was_late = now - self._tick_due > TICK_SECONDS and not self._was_late
        self._tick_later()
        if not self._was_late:
            self._tick_some(list(self._protocols), now)

    def _tick_some(self, protocols: list[ServerProtocol], now: float) -> None:
        if self._crowd is not None:
            self._crowd.see_to_reads()
        left = iter(protocols)
        for protocol in islice(left, TICK_AT_ONCE):
            alone(protocol, protocol.tick, now)
        if rest := list(left):
            asyncio.get_running_loop().call_soon(self._tick_some, rest, now)
