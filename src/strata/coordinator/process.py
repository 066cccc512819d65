"""The coordinator as a process: what it listens on, how it starts, what ends it, and how it goes."""

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strata import __version__
from strata.coordinator import translate
from strata.coordinator.auth import TokenCheck, Tokens
from strata.coordinator.events import event_of
from strata.coordinator.exposure import is_loopback
from strata.coordinator.garbage import Garbage
from strata.coordinator.hub import SNAPSHOT_BYTES, Hub
from strata.coordinator.journal import Journal
from strata.coordinator.replay import Entry
from strata.coordinator.service import coordinator_service
from strata.coordinator.stats import BarrierStats, JournalStats, RequestStats
from strata.coordinator.views import Views
from strata.core.records import BarrierReleased, WorkerJoined
from strata.core.settings import Policy
from strata.errors import InvalidInput
from strata.logs import get_logger
from strata.rpc import GrpcioServer, Limits, Server, ServerTls
from strata.rpc.addresses import split_address
from strata.rpc.health import Health
from strata.rpc.reflection import Reflection

logger = get_logger("strata.coordinator")

SERVICE = "strata.v1.Coordinator"
TOKEN_SECONDS = 2.0
DRAIN_SECONDS = 5.0
CALLS_PER_SECOND = 20_000
"""On one connection: far more than the workers of a node have to say."""
SWITCH_SECONDS = 0.0005
"""How long one thread may keep the interpreter from another: the journal's must not wait for a busy loop."""


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """Everything that a coordinator is told. `http` is None for none; a port of 0 is any that is free."""

    listen: str = "127.0.0.1:50051"
    http: str | None = "127.0.0.1:8080"
    state_dir: Path = Path("strata-state")
    tokens: Tokens = field(default_factory=Tokens)
    tls: ServerTls | None = None
    insecure: bool = False
    rpc: str = "strata"
    policy: Policy = field(default_factory=Policy)
    snapshot_after_bytes: int = SNAPSHOT_BYTES
    limits: Limits = field(default_factory=lambda: Limits(calls_per_second=CALLS_PER_SECOND))

    def __post_init__(self) -> None:
        if self.rpc not in ("strata", "grpcio"):
            raise InvalidInput(f"rpc must be strata or grpcio, not {self.rpc!r}")
        for address in (self.listen, self.http):
            if address is not None:
                self._check_exposure(address)

    def _check_exposure(self, address: str) -> None:
        if not address.startswith("unix:"):
            split_address(address)  # says what is wrong with one that is none
        if is_loopback(address) or self.tokens or self.insecure:
            return
        if self.tls is not None and self.tls.client_ca is not None:
            return
        raise InvalidInput(
            f"refusing to listen on {address}, where others can reach it, without a token: anybody could stop jobs. "
            "Set STRATA_TOKEN (or --token-file), or say --insecure if the network is closed"
        )


@dataclass(frozen=True, slots=True)
class Started:
    """Where it can be reached, and what it found."""

    address: str
    http: str | None
    term: int
    jobs: int
    workers: int
    records_replayed: int
    seconds: float


class Coordinator:
    """One coordinator on the loop that runs: `start`, then `run` until it is told to stop or its journal fails."""

    def __init__(self, config: CoordinatorConfig) -> None:
        self.config = config
        self.stopping = asyncio.Event()
        self._serving = False
        self._server: Server | GrpcioServer | None = None
        self._http: Any = None

    async def start(self) -> Started:
        began = time.monotonic()
        config = self.config
        journal = Journal(config.state_dir)
        try:
            self.hub = Hub(
                journal,
                config.policy,
                tell_verdict=translate.verdict,
                snapshot_after_bytes=config.snapshot_after_bytes,
            )
            await self.hub.start()
        except BaseException:
            journal.close()
            raise
        try:
            address, http = await self._serve()
        except BaseException:
            await self.stop(0.0)
            raise
        state = self.hub.machine.state
        self._serving = True
        return Started(
            address,
            http,
            state.term,
            len(state.jobs),
            sum(len(job.world.by_rank) for job in state.jobs.values()),
            self.hub.records_replayed,
            time.monotonic() - began,
        )

    async def _serve(self) -> tuple[str, str | None]:
        config = self.config
        requests, barriers, saves = RequestStats(), BarrierStats(), JournalStats()
        saves.hear(self.hub.history)
        self.hub.watchers.add(saves.hear)
        self.hub.verdict_watchers.add(barriers.hear)
        self.hub.watchers.add(_log)
        self.views = Views(self.hub, requests, barriers, saves, version=__version__, connections=self._connections)
        self._health = Health([SERVICE])
        door = TokenCheck(config.tokens)
        services = [
            coordinator_service(self.hub, door.still_welcome),
            self._health.methods(),
            Reflection([SERVICE, "grpc.health.v1.Health"]).methods(),
        ]
        make = GrpcioServer if config.rpc == "grpcio" else Server
        self._server = make(services, interceptors=[door, requests], limits=config.limits)
        address = await self._server.listen(config.listen, tls=config.tls)
        if config.http is None:
            return address, None
        from strata.coordinator.http import HttpServer

        self._http = HttpServer(self.views, config.tokens, lambda: self._serving, config.tls)
        return address, await self._http.listen(config.http)

    def end_on_signals(self) -> None:
        """From here on a signal ends it in good order: before anybody is told that it has started."""
        for number in _endings():
            with contextlib.suppress(NotImplementedError):
                asyncio.get_running_loop().add_signal_handler(number, self.stopping.set)

    async def run(self) -> None:
        """Until it is told to end, and then in good order; JournalError if the journal cannot be written."""
        loop = asyncio.get_running_loop()
        watching = loop.create_task(self._watch_tokens())
        told = loop.create_task(self.stopping.wait())
        ends: set[asyncio.Future[Any]] = {told, self.hub.failure}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        watching.cancel()
        failure = self.hub.failure.result() if self.hub.failure.done() else None
        await self.stop(0.0 if failure else DRAIN_SECONDS)
        if failure is not None:
            raise failure

    async def stop(self, grace_seconds: float = DRAIN_SECONDS) -> None:
        """Take no more calls, let those under way end, make everything durable, and let go of the journal."""
        self._serving = False
        self._health.set_all(serving=False)
        self.hub.release_waits()
        async with contextlib.AsyncExitStack() as stops:  # the last one first, and all of them, also if one fails
            stops.push_async_callback(self.hub.stop)
            if self._server is not None:
                stops.push_async_callback(self._server.stop, grace_seconds)
            if self._http is not None:
                stops.push_async_callback(self._http.stop)

    async def _watch_tokens(self) -> None:
        while True:
            await asyncio.sleep(TOKEN_SECONDS)
            if self.config.tokens.reload() and self._server is not None:
                self._server.forget_callers()
                self.hub.wake_watchers()
                logger.info("the tokens were changed")

    def _connections(self) -> int:
        """grpcio does not tell how many it has."""
        return self._server.connections if isinstance(self._server, Server) else 0


_FREQUENT = (WorkerJoined, BarrierReleased)
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def _log(entries: list[Entry]) -> None:
    """The events, one line each; what happens thousands of times is for those who debug."""
    for entry in entries:
        frequent = isinstance(entry.record, _FREQUENT)
        event = None if frequent and not logger.isEnabledFor(logging.DEBUG) else event_of(entry)
        if event is not None:
            level = logging.DEBUG if frequent else _LEVELS[event.severity]
            if logger.isEnabledFor(level):
                fields = {"event": event.kind, "id": event.id, "job_id": event.job_id}
                logger.log(
                    level, "%s%s", f"[{event.job_id}] " * bool(event.job_id), event.message, extra={"fields": fields}
                )


def run(config: CoordinatorConfig, announce: Callable[[Started], None]) -> None:
    """Run a coordinator in this process until it is told to stop."""
    sys.setswitchinterval(SWITCH_SECONDS)
    _allow_connections()

    async def main() -> None:
        coordinator = Coordinator(config)
        started = await coordinator.start()
        with Garbage(asyncio.get_running_loop()):
            coordinator.end_on_signals()
            announce(started)
            await coordinator.run()

    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.run(main())


def _endings() -> list[signal.Signals]:
    """The signals that tell it to end. The end of its terminal does, unless it was started by `nohup`."""
    endings = [signal.SIGTERM, signal.SIGINT]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # not there on Windows
        endings.append(signal.SIGHUP)
    return endings


def _allow_connections() -> None:
    """As many open files as this user may have: each connection is one, and the usual limit is a thousand."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS has a limit of its own
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def tls_from(certificate: str, key: str, client_ca: str) -> ServerTls | None:
    """Nothing given is no TLS; some of it is a mistake."""
    if not certificate and not key and not client_ca:
        return None
    if not certificate or not key:
        raise InvalidInput("TLS needs both a certificate and its key (--tls-certificate and --tls-key)")
    return ServerTls(certificate, key, client_ca or None)
