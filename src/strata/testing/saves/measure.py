"""What one save costs a job of many ranks, the protocol alone: on virtual time, where nothing fails, with a network and
a storage that always take the same time.
"""

import asyncio
from time import process_time
from typing import NamedTuple

from strata.core.settings import Policy
from strata.testing.faulty import Faults
from strata.testing.saves.plan import SavesPlan
from strata.testing.saves.run import SavesSimulation
from strata.testing.simulation.plan import Chaos


class Cost(NamedTuple):
    """Of one save of all ranks: processor time of the whole simulation, virtual time from the first rank's call to the
    last one's answer, and calls."""

    cpu_seconds: float
    virtual_seconds: float
    coordinator_calls: int
    storage_calls: int


def cost_of_saves(
    ranks: int, saves: int, *, coordinator: bool, network_seconds: float, storage_seconds: float
) -> list[Cost]:
    """Of each of so many saves, after a first one that begins the run."""
    plan = SavesPlan(
        0,
        ranks,
        coordinator,
        chaos=Chaos(0.0, 0.0, 0.0),
        policy=Policy(),
        storage=0.0,
        latency_seconds=0.0,
        start_seconds=0.0,
        step_seconds=(0.0, 0.0),
        ranks_seconds=900.0,
        stuck_seconds=300.0,
    )
    return _Measured(plan, saves, network_seconds, storage_seconds).costs()


class _Measured(SavesSimulation):
    """One world, that saves at once and in step."""

    def __init__(self, plan: SavesPlan, saves: int, network_seconds: float, storage_seconds: float) -> None:
        super().__init__(plan)
        self._saves, self._network_seconds, self._storage_seconds = saves, network_seconds, storage_seconds
        self._found: list[Cost] = []

    def costs(self) -> list[Cost]:
        result = self.run()
        if result.failure is not None:
            raise RuntimeError(f"a save that was measured was not well: {result.failure.message}")
        return self._found

    def _faults(self, share: float, latency: float = 1.0) -> Faults:
        return Faults(latency_seconds=0.0)

    async def _run(self) -> None:
        await self._begin()
        self.network.seconds = (self._network_seconds, self._network_seconds)
        self.depot.seconds = self._storage_seconds
        world = self.launch()
        self._restarting = True  # whoever has nothing more to do ends, and is not started again
        for process in world.processes:
            process.stop_after = process.base[0]  # it is called from here, and does not train
        await asyncio.gather(*(process.ready.wait() for process in world.processes))
        await self._save_all(0)
        for step in range(1, self._saves + 1):
            self._found.append(await self._save_all(step))
        self._check()

    async def _save_all(self, step: int) -> Cost:
        clock = asyncio.get_running_loop().time
        before = Cost(process_time(), clock(), self.host.handled, self._storage_calls())
        processes = self.world.processes
        saved = await asyncio.gather(*(process.owner.run(process.save(step)) for process in processes))
        assert all(saved)
        cost = Cost(
            process_time() - before.cpu_seconds,
            clock() - before.virtual_seconds,
            self.host.handled - before.coordinator_calls,
            self._storage_calls() - before.storage_calls,
        )
        await asyncio.sleep(1.0)  # nothing of one save is left when the next one begins
        return cost

    def _storage_calls(self) -> int:
        return sum(len(process.faulty.calls) for process in self.world.processes)
