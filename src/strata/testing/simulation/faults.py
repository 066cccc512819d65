"""The faults: what each kind of trouble does to a simulated cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from strata.core.events import DrainRequested, EpochAdvanceRequested, RollBackRequested
from strata.testing.simulation import freerun, lockstep
from strata.testing.simulation.lockstep import LockstepTrainer
from strata.testing.simulation.plan import Fault, rack_size

if TYPE_CHECKING:
    from strata.testing.simulation.run import Simulation


def crash(sim: Simulation, worker: str, fault: Fault) -> None:
    process = sim.current(worker)
    if process is not None:
        process.kill()
        sim.loop.after(fault.seconds, sim.respawn, worker)


def rack(sim: Simulation, worker: str, fault: Fault) -> None:
    names = sim.lockstep if worker in sim.rank_of else sim.freerun
    first = names.index(worker)
    for neighbour in names[first : first + rack_size(sim.plan.workers)]:
        sim.struck["crash"] += 1
        crash(sim, neighbour, fault)


def hang(sim: Simulation, worker: str, fault: Fault) -> None:
    process = sim.current(worker)
    if process is not None:
        process.hang(fault.seconds)
        if fault.target % 2:
            sim.loop.after(fault.seconds / 2, replace, sim, worker, fault)


def partition(sim: Simulation, worker: str, fault: Fault) -> None:
    sim.network.cut_off.add(worker)
    sim.loop.after(fault.seconds, sim.network.cut_off.discard, worker)


def leave(sim: Simulation, worker: str, fault: Fault) -> None:
    process = sim.current(worker)
    if process is not None and process.incarnation and not process.leaving:
        process.run(process.leave, ())
        sim.loop.after(fault.seconds + 5.0, sim.respawn, worker)


def drain(sim: Simulation, worker: str, fault: Fault) -> None:
    job = lockstep.JOB if worker in sim.rank_of else freerun.JOB
    sim.operate(DrainRequested(job, worker, "maintenance"))
    sim.loop.after(fault.seconds + 8.0, sim.respawn, worker)


def replace(sim: Simulation, worker: str, fault: Fault) -> None:
    """The scheduler starts a second process while the first still runs."""
    sim.spawn(worker)


def blackout(sim: Simulation, worker: str, fault: Fault) -> None:
    """A whole job dies, long enough for every lease to run out."""
    names = sim.lockstep if fault.target % 2 else sim.freerun
    down = max(fault.seconds, sim.plan.policy.lease_seconds + 1.0)
    for name in names:
        crash(sim, name, msgspec.structs.replace(fault, seconds=down))


def roll_back(sim: Simulation, worker: str, fault: Fault) -> None:
    job = sim.checker.standby.state.jobs.get(lockstep.JOB)
    steps = sorted(a.step for a in job.attempts.values() if a.usable) if job else []
    if job and steps:
        sim.operate(RollBackRequested(job.job, steps[fault.target % len(steps)], job.world.generation))


def damage(sim: Simulation, worker: str, fault: Fault) -> None:
    process = sim.current(sim.lockstep[fault.target % len(sim.lockstep)])
    if isinstance(process, LockstepTrainer):
        process.finds_damage = True


def resize(sim: Simulation, worker: str, fault: Fault) -> None:
    sim.versions.append(sim.versions[-1] + 1 + fault.target)
    sim.operate(sim.pages())


def advance(sim: Simulation, worker: str, fault: Fault) -> None:
    job = sim.checker.standby.state.jobs.get(freerun.JOB)
    if job and freerun.DATASET in job.datasets:
        epoch = job.datasets[freerun.DATASET].epoch
        sim.operate(EpochAdvanceRequested(job.job, freerun.DATASET, epoch, "an operator"))


def join(sim: Simulation, worker: str, fault: Fault) -> None:
    worker = f"node-{len(sim.freerun)}"
    sim.freerun.append(worker)
    sim.spawn(worker)


def coordinator_crash(sim: Simulation, worker: str, fault: Fault) -> None:
    sim.note("coordinator", "killed")
    sim.host.crash(fault.seconds)


def coordinator_pause(sim: Simulation, worker: str, fault: Fault) -> None:
    sim.note("coordinator", "paused")
    sim.host.pause(fault.seconds)


STRIKES: dict[str, Callable[[Simulation, str, Fault], None]] = {
    "crash": crash,
    "rack": rack,
    "hang": hang,
    "partition": partition,
    "leave": leave,
    "drain": drain,
    "replace": replace,
    "blackout": blackout,
    "rollback": roll_back,
    "damage": damage,
    "resize": resize,
    "advance": advance,
    "join": join,
    "coordinator_crash": coordinator_crash,
    "coordinator_pause": coordinator_pause,
}
