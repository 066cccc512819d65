"""How a process of a simulation reaches the coordinator: a channel that delays, loses and doubles, and tries again as
the real one does. What becomes of a call depends on the seed, the process and how many it has made before.
"""

import asyncio
from random import Random
from typing import Any

from strata.rpc import RpcError, Status
from strata.rpc.silence import Silence
from strata.testing.saves.host import CoordinatorHost
from strata.testing.saves.virtualtime import Owner, outside
from strata.testing.simulation.plan import Chaos

LEAST_SECONDS, MOST_SECONDS = 0.0005, 0.005
BACKOFF_SECONDS = 0.1, 5.0
BREAKS = 0.75
"""How often a lost message breaks the connection; else it is waited for until it is time to give up."""


class Network:
    """Between all processes and the coordinator. Who is cut off neither hears nor is heard; `is_silent`: nobody is."""

    def __init__(self, host: CoordinatorHost, seed: int, chaos: Chaos) -> None:
        self.host, self.seed, self.chaos = host, seed, chaos
        self.cut_off: set[str] = set()
        self.is_silent = False
        self.seconds = LEAST_SECONDS, MOST_SECONDS
        self.sent = self.lost = self.doubled = self.late = 0

    def reaches(self, name: str) -> bool:
        return not self.is_silent and name not in self.cut_off


class VirtualChannel:
    """As `rpc.Channel`, for one process."""

    def __init__(self, network: Network, owner: Owner) -> None:
        self._network, self._owner = network, owner
        self.where = "the simulated network"
        self.calls = 0
        self.closed = False
        self.silence = Silence(asyncio.get_running_loop().time)

    async def call(
        self, remote: Any, request: Any, *, timeout_seconds: float | None = None, metadata: object = ()
    ) -> Any:
        await self._owner.act()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (30.0 if timeout_seconds is None else timeout_seconds)
        payload, backoff = remote.encode(request), BACKOFF_SECONDS[0]
        self.calls += 1
        rng = Random(f"{self._network.seed} {self._owner.name} {self.calls}")
        while True:
            try:
                answer = await self._try(remote.path, payload, deadline - loop.time(), rng)
                await self._owner.act()
                self.silence.ends()
                return remote.decode(answer)
            except RpcError as error:
                if error.status is Status.UNAVAILABLE:
                    self.silence.begins()
                elif error.status is not Status.DEADLINE_EXCEEDED:
                    self.silence.ends()
                over = loop.time() + backoff >= deadline
                if error.status is not Status.UNAVAILABLE or not remote.idempotent or over:
                    raise
            await asyncio.sleep(rng.uniform(backoff / 2, backoff))
            await self._owner.act()
            backoff = min(backoff * 2, BACKOFF_SECONDS[1])

    def stream(self, remote: Any) -> Any:
        """What is pushed is only sooner than the next heartbeat."""
        raise RpcError(Status.UNIMPLEMENTED, "there are no streams in the simulation")

    async def close(self) -> None:
        """Nothing is open; calls that are under way go on."""
        self.closed = True

    async def _try(self, path: str, payload: bytes, seconds: float, rng: Random) -> bytes:
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        copies = 1
        if rng.random() < self._network.chaos.doubled:
            copies, self._network.doubled = 2, self._network.doubled + 1
        for _ in range(copies):
            outside(self._carried(path, payload, answered, Random(rng.random())))
        try:
            async with asyncio.timeout(max(0.001, seconds)):
                return await answered
        except TimeoutError:
            raise RpcError(Status.DEADLINE_EXCEEDED, "the coordinator did not answer in time") from None

    async def _carried(self, path: str, payload: bytes, answered: "asyncio.Future[bytes]", rng: Random) -> None:
        """There and back. A message that is lost may break the connection, which both ends see."""
        network = self._network
        if not await self._passes(answered, rng):
            return
        try:
            answer = await network.host.serve(path, payload)
        except asyncio.CancelledError:  # it crashed
            if network.reaches(self._owner.name):
                _fail(answered, RpcError(Status.UNAVAILABLE, "the connection broke"))
            return
        except RpcError as error:
            if await self._passes(answered, rng):
                _fail(answered, RpcError(error.status, error.message, details=error.details))
            return
        if await self._passes(answered, rng) and not answered.done():
            answered.set_result(answer)

    async def _passes(self, answered: "asyncio.Future[bytes]", rng: Random) -> bool:
        network, chaos = self._network, self._network.chaos
        network.sent += 1
        fate = rng.random()
        delay = rng.uniform(*network.seconds)
        if fate < chaos.late:
            network.late += 1
            delay = rng.uniform(0.0, chaos.late_seconds)
        await asyncio.sleep(delay)
        is_lost = fate > 1 - chaos.lost or not network.reaches(self._owner.name)
        if is_lost:
            network.lost += 1
            if rng.random() < BREAKS:
                await asyncio.sleep(rng.random())
                _fail(answered, RpcError(Status.UNAVAILABLE, "the connection broke"))
        return not is_lost


def _fail(answered: "asyncio.Future[bytes]", error: RpcError) -> None:
    if not answered.done():
        answered.set_exception(error)
