"""Starts of a simulated job: all ranks at once, as a launcher does it. When one dies, all are started again; some of
the old ones may go on for a while, as zombies that still save.
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING

from strata.testing.saves.process import Process

if TYPE_CHECKING:
    from strata.testing.saves.run import SavesSimulation


class World:
    """One start. While it is the job's own, its ranks wait for each other at every step, as collectives do."""

    def __init__(self, sim: "SavesSimulation", number: int) -> None:
        self.sim, self.number = sim, number
        self.is_over = False
        self.owed = sim.checks.safe
        """The step that must not be lost: somebody was told that it is committed before this world began."""
        self.processes = [Process(self, rank) for rank in range(sim.plan.ranks)]
        self.points: int | None = None
        """How often the job had been taken back when somebody was first told of a save."""
        self._met = 0
        self._gate = asyncio.Event()
        self._told: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def start(self, rng: Random) -> None:
        self.sim.note("launcher", f"world {self.number} starts")
        for process in self.processes:
            await asyncio.sleep(rng.uniform(0.0, self.sim.plan.start_seconds))
            if self.is_over:
                return
            if process.owner.alive:
                process.start()
            else:
                self.ended(process)

    def ended(self, process: Process) -> None:
        self.sim.world_failed(self, f"rank {process.rank} has ended")

    async def meet(self) -> None:
        """Until all have come. Nobody waits any more in a world that is over."""
        if self.is_over:
            return
        self._met += 1
        if self._met == len(self.processes):
            self._met = 0
            gate, self._gate = self._gate, asyncio.Event()
            gate.set()
        else:
            await self._gate.wait()

    def close(self) -> None:
        """It is not the job's own any more."""
        self.is_over = True
        self._gate.set()
        if not self._told.done():
            self._told.cancel()

    async def tell_step(self, step: int | None) -> None:
        """Rank 0 to the others: where to go on from."""
        if not self._told.done():
            self._told.set_result(step)

    async def heard_step(self) -> int | None:
        return await asyncio.shield(self._told)

    def saved(self) -> int:
        """How many saves every rank was told are committed."""
        return min(process.saved for process in self.processes)
