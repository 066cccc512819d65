"""Saves of a job of many ranks on virtual time, from a seed: the real protocol, on a storage, a network and processes
that fail.
"""

import asyncio
import hashlib
import logging
import traceback
from collections import Counter, deque
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from random import Random
from time import perf_counter
from typing import Any

import msgspec

from strata.storage.memory import Space, _Stored
from strata.testing.faulty import Faults
from strata.testing.saves.checks import Checks
from strata.testing.saves.depot import Depot
from strata.testing.saves.host import CoordinatorHost
from strata.testing.saves.plan import SavesPlan
from strata.testing.saves.process import Process
from strata.testing.saves.strikes import STRIKES
from strata.testing.saves.virtualtime import on_virtual_time
from strata.testing.saves.wire import Network
from strata.testing.saves.worlds import World
from strata.testing.simulation.plan import Chaos
from strata.testing.simulation.run import Failure
from strata.testing.simulation.violation import Violation

HISTORY_KEPT = 4000
HEAL_SECONDS = 400.0
"""So long it may take until saves are made again once nothing fails any more: leases and patience have to run out."""
SAVES_WANTED = 3
LONG_SECONDS = 90_000.0
"""More than a day: after that nothing counts that was left behind."""


class SavesResult(msgspec.Struct, frozen=True):
    """How a run went."""

    plan: SavesPlan
    failure: Failure | None
    virtual_seconds: float
    wall_seconds: float
    worlds: int
    commits: int
    recoveries: int
    outcomes: dict[str, int]
    faults: dict[str, int]
    messages: dict[str, int]
    coordinator_calls: int
    coordinator_restarts: int
    storage_calls: int
    storage_faults: int
    digest: str
    """Of the whole history."""


class SavesSimulation:
    """One run of one plan."""

    def __init__(self, plan: SavesPlan) -> None:
        self.plan = plan
        self.rng = Random(f"launcher {plan.seed}")
        self.space = Space()
        self.history: deque[str] = deque(maxlen=HISTORY_KEPT)
        self.struck: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.worlds: list[World] = []
        self.checks = Checks(self)
        self.depot = Depot(self.space, self.checks.committed)
        self.faults = self._faults(plan.storage)
        self._sum = hashlib.blake2b(digest_size=8)
        self.is_calm = False
        self._restarting = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._strikes: set[asyncio.Task[None]] = set()

    @property
    def objects(self) -> dict[str, _Stored]:
        return self.space.objects

    def _faults(self, share: float, latency: float = 1.0) -> Faults:
        late = self.plan.latency_seconds * latency
        return Faults(before=share, after=share, partial=share, stuck=share / 4, latency_seconds=late)

    def note(self, who: str, what: str) -> None:
        line = f"{asyncio.get_running_loop().time():9.3f} s  {who:<12} {what}"
        self._sum.update(line.encode())
        self.history.append(line)

    # -- processes ---------------------------------------------------------------------------------------------------

    @property
    def world(self) -> World:
        return self.worlds[-1]

    def launch(self) -> World:
        world = World(self, len(self.worlds) + 1)
        self.worlds.append(world)
        self.later(world.start(self.rng))
        return world

    def world_failed(self, world: World, why: str) -> None:
        """The launcher hears of it after a while, and starts all of it again. Some it does not find."""
        if world is not self.world or world.is_over or self._restarting:
            return
        self._restarting = True
        self.note("launcher", f"world {world.number} is to be started again: {why}")
        self.later(self._restart(world))

    async def _restart(self, world: World) -> None:
        await asyncio.sleep(self.rng.uniform(0.2, 3.0))
        for process in world.processes:
            if process.owner.alive and (self.is_calm or self.rng.random() < 0.7):
                process.kill()
            elif process.owner.alive:
                self.note(process.name, "is left behind, and goes on")
                self.later(self._kill_later(process, self.rng.uniform(1.0, 60.0)))
        world.close()
        self._restarting = False
        self.launch()

    async def _kill_later(self, process: Process, seconds: float) -> None:
        await asyncio.sleep(seconds)
        process.kill()

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Beside everything else. Whatever goes wrong there goes wrong with the run."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def processes(self) -> list[Process]:
        """All that are alive."""
        return [each for world in self.worlds for each in world.processes if each.owner.alive]

    def set_storage(self, share: float, latency: float = 1.0) -> None:
        """What share of calls fails, and how many times as slow as usual they are, for everybody."""
        self.faults = self._faults(share, latency)
        for process in self.processes():
            process.faulty.faults = self.faults

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self) -> SavesResult:
        """To the end, or to the first broken promise."""
        began = perf_counter()
        failure: Failure | None = None
        with on_virtual_time(self.plan.seed) as loop, _quiet():
            try:
                loop.run_until_complete(self._run())
            except Violation as violation:
                failure = Failure(violation.rule, str(violation), loop.time(), list(self.history))
            except Exception as error:  # noqa: BLE001  whatever else escapes is a broken promise too
                trace = traceback.format_exception(error)[-6:]
                why = f"{type(error).__name__}: {error}"
                failure = Failure("crash", why, loop.time(), [*self.history, *trace])
            finally:
                _end_all(loop)
            seconds = loop.time()
        return self._result(failure, seconds, perf_counter() - began)

    def _result(self, failure: Failure | None, virtual_seconds: float, wall_seconds: float) -> SavesResult:
        network = self.network
        calls = [call for world in self.worlds for process in world.processes for call in process.faulty.calls]
        return SavesResult(
            plan=self.plan,
            failure=failure,
            virtual_seconds=virtual_seconds,
            wall_seconds=wall_seconds,
            worlds=len(self.worlds),
            commits=self.checks.commits,
            recoveries=self.checks.recoveries,
            outcomes=dict(sorted(self.outcomes.items())),
            faults=dict(sorted(self.struck.items())),
            messages={
                "sent": network.sent,
                "lost": network.lost,
                "late": network.late,
                "doubled": network.doubled,
            },
            coordinator_calls=self.host.handled,
            coordinator_restarts=max(0, self.host.starts - 1),
            storage_calls=len(calls),
            storage_faults=sum(call.outcome != "done" for call in calls),
            digest=self._sum.hexdigest(),
        )

    async def _begin(self) -> None:
        self.host = CoordinatorHost(self.plan.policy, self.plan.seed)
        self.network = Network(self.host, self.plan.seed, self.plan.chaos)
        if self.plan.coordinator:
            await self.host.start()

    async def _run(self) -> None:
        await self._begin()
        self.launch()
        await self._strike_all()
        await self._heal()
        await self._saves_again("the faults are over")
        await self._last_world()

    async def _strike_all(self) -> None:
        clock = asyncio.get_running_loop().time
        for fault in self.plan.faults:
            await self._until(fault.at)
            self.struck[fault.kind] += 1
            self.note("fault", f"{fault.kind}, {fault.seconds:.1f} s")
            strike = asyncio.ensure_future(STRIKES[fault.kind](self, fault))
            self._strikes.add(strike)
        await self._until(max(self.plan.seconds, clock()))

    async def _until(self, when: float) -> None:
        """Stops at the first broken promise."""
        clock = asyncio.get_running_loop().time
        while clock() < when:
            await asyncio.sleep(min(1.0, when - clock()))
            self._check()

    def _check(self) -> None:
        if self.checks.violation is not None:
            raise self.checks.violation

    async def _heal(self) -> None:
        """From now on nothing fails; what the faults have left behind is still there."""
        self.note("fault", "all is well from now on")
        self.is_calm = True
        for strike in self._strikes:
            strike.cancel()
        self.network.chaos, self.network.is_silent = Chaos(0.0, 0.0, 0.0), False
        self.network.cut_off.clear()
        self.set_storage(0.0)
        for process in self.processes():
            process.faulty.release()
            process.owner.thaw()
        if self.plan.coordinator and not self.host.is_up:
            await self.host.start()

    async def _saves_again(self, since: str) -> None:
        """Whatever state the job is in, it must get out of it by itself; the launcher starts again what ends."""
        clock = asyncio.get_running_loop().time
        began = clock()
        while self.world.saved() < SAVES_WANTED:
            await self._until(clock() + 1.0)
            if clock() - began > HEAL_SECONDS:
                raise Violation("stuck", f"{since} for {HEAL_SECONDS:g} s, and world {self.world.number} saves nothing")
        await self.checks.line()
        self._check()

    async def _last_world(self) -> None:
        """A day later the job is started once more: what was left behind goes, and the lists agree."""
        self.world.close()
        for process in self.processes():
            process.kill()
        if self.plan.coordinator:
            self.host.crash()
        await asyncio.sleep(LONG_SECONDS)
        if self.plan.coordinator:
            await self.host.start()
        self.launch()
        await self._saves_again("the job was started anew")
        last = self.world
        self._restarting = True
        for process in last.processes:
            process.stop_after = last.processes[0].step + 1
        while any(not process.task.done() for process in last.processes):
            await self._until(asyncio.get_running_loop().time() + 1.0)
        await self.checks.at_rest(f"run-{last.number}")
        self._check()


def _end_all(loop: asyncio.AbstractEventLoop) -> None:
    """Whoever still waits waits for nothing."""
    left = [task for task in asyncio.all_tasks(loop) if not task.done()]
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=1.0))


@contextmanager
def _quiet() -> Iterator[None]:
    """What ranks log is in the history."""
    loggers = [logging.getLogger(name) for name in ("strata", "asyncio")]  # noqa: TID251 - they only go quiet
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def simulate_saves(seed: int, ranks: int = 3, *, coordinator: bool = True, faults: int | None = None) -> SavesResult:
    """Run the simulation that belongs to this seed."""
    return SavesSimulation(SavesPlan.of(seed, ranks, coordinator=coordinator, faults=faults)).run()


def run_plan(plan: SavesPlan) -> SavesResult:
    """For a process of its own."""
    return SavesSimulation(plan).run()
