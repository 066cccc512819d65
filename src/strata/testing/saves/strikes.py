"""What can go wrong in a simulation of saves, each as it strikes and as it passes."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias

from strata.testing.simulation.plan import Fault

if TYPE_CHECKING:
    from strata.testing.saves.run import SavesSimulation

Strike: TypeAlias = Callable[["SavesSimulation", Fault], Coroutine[Any, Any, None]]
SLOW_TIMES = 60.0


async def _kill(sim: "SavesSimulation", fault: Fault) -> None:
    sim.world.processes[fault.target].kill()


async def _freeze(sim: "SavesSimulation", fault: Fault) -> None:
    """A process that does nothing for a while; the launcher may have lost patience with it by then."""
    world = sim.world
    process = world.processes[fault.target]
    process.owner.freeze()
    sim.note(process.name, "is frozen")
    await asyncio.sleep(fault.seconds / 2)
    if sim.rng.random() < 0.5:
        sim.world_failed(world, f"rank {process.rank} does not move")
    await asyncio.sleep(fault.seconds / 2)
    sim.note(process.name, "goes on")
    process.owner.thaw()


async def _cut(sim: "SavesSimulation", fault: Fault) -> None:
    name = sim.world.processes[fault.target].name
    sim.network.cut_off.add(name)
    await asyncio.sleep(fault.seconds)
    sim.network.cut_off.discard(name)


async def _storage(sim: "SavesSimulation", fault: Fault) -> None:
    sim.set_storage(sim.plan.trouble)
    await asyncio.sleep(fault.seconds)
    sim.set_storage(sim.plan.storage)


async def _slow(sim: "SavesSimulation", fault: Fault) -> None:
    sim.set_storage(sim.plan.storage, SLOW_TIMES)
    await asyncio.sleep(fault.seconds)
    sim.set_storage(sim.plan.storage)


async def _crash(sim: "SavesSimulation", fault: Fault) -> None:
    sim.host.crash()
    await asyncio.sleep(fault.seconds)
    if not sim.host.is_up:
        await sim.host.start()


async def _silence(sim: "SavesSimulation", fault: Fault) -> None:
    sim.network.is_silent = True
    await asyncio.sleep(fault.seconds)
    sim.network.is_silent = False


STRIKES: dict[str, Strike] = {
    "kill": _kill,
    "freeze": _freeze,
    "cut": _cut,
    "storage": _storage,
    "slow": _slow,
    "crash": _crash,
    "silence": _silence,
}
