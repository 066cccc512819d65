"""A rank, the coordinator, or both die at each point of a save, on virtual time, or a rank falls asleep there.

Whatever a process does that others could see is a point, before it is done and after. All laws of `saves.checks` hold.

    first world    saves, and loses a rank
    second world   loads, saves, and meets its doom
    third world    all load one and the same step, and save again

`tests/chaos/test_rank_kills.py` and `test_rank_zombies.py` do the same to real processes.
"""

import asyncio
from typing import NamedTuple

import msgspec
import pytest

from strata.core.settings import Retention
from strata.testing.saves import SavesPlan, SavesSimulation
from strata.testing.saves.process import Process
from strata.testing.saves.worlds import World
from strata.testing.simulation.plan import Chaos, Fault

FIRST_WORLD_SECONDS, SECONDS = 5.0, 10.0
SOON, LATE = 0.3, 30.0
FEWEST_POINTS = 20
"""Of a rank, up to its first commit: if it were fewer, they would not be counted well."""


class Trial(NamedTuple):
    """Who dies; after how many seconds the coordinator comes back, and a rank that sleeps wakes up."""

    rank: bool = True
    away: float = 0.0
    asleep: float = 0.0
    has_coordinator: bool = True


TRIALS = {
    "without coordinator": Trial(has_coordinator=False),
    "rank": Trial(),
    "coordinator": Trial(rank=False, away=SOON),
    "both": Trial(away=SOON),
    "coordinator for long": Trial(rank=False, away=LATE),
    "both for long": Trial(away=LATE),
    "zombie": Trial(rank=False, asleep=LATE),
    "zombie without coordinator": Trial(rank=False, asleep=LATE, has_coordinator=False),
}


class DoomedSimulation(SavesSimulation):
    """Nothing fails but one rank of the first world, and what the trial says, at the so-maniest point (counted from 1)
    of a rank of the second."""

    def __init__(self, trial: Trial, ranks: int, victim: int, at: int) -> None:
        calm = SavesPlan(7, ranks, trial.has_coordinator, SECONDS + trial.asleep, Chaos(0.0, 0.0, 0.0), storage=0.0)
        first = (Fault(FIRST_WORLD_SECONDS, "kill", 0, 1.0),)
        super().__init__(msgspec.structs.replace(calm, faults=first, retention=Retention(keep_count=2)))
        self.points = 0
        """How many there were up to the first commit, or the doom."""
        self._trial, self._victim, self._at = trial, victim, at

    def launch(self) -> World:
        world = super().launch()
        if world.number == 2:
            self._watch(world.processes[self._victim])
        return world

    def _watch(self, process: Process) -> None:
        act = process.owner.act
        # Without a coordinator, one that sleeps before it has loaded is no zombie: it loads late, and takes over.
        only_loaded = self._trial.asleep and not self._trial.has_coordinator

        async def point() -> None:
            await act()
            if process.saved or self.points == self._at > 0 or (only_loaded and not process.ready.is_set()):
                return
            self.points += 1
            if self.points == self._at:
                self._strike(process)
                await act()

        process.owner.act = point  # type: ignore[method-assign]

    def _strike(self, process: Process) -> None:
        if self._trial.away:
            self.host.crash()
            self.later(self._start_coordinator())
        if self._trial.rank:
            process.kill()
        if self._trial.asleep:
            process.owner.freeze()
            process.kill = lambda: None  # type: ignore[method-assign]  # its launcher does not find it
            self.world_failed(process.world, "one does not move")
            self.later(self._wake(process))

    async def _start_coordinator(self) -> None:
        await asyncio.sleep(self._trial.away)
        if not self.host.is_up:
            await self.host.start()

    async def _wake(self, process: Process) -> None:
        await asyncio.sleep(self._trial.asleep)
        vars(process).pop("kill", None)
        process.owner.thaw()

    async def _last_world(self) -> None:
        """Before the day that is waited for then, the zombie ends as well: it would look for the others all day."""
        for world in self.worlds:
            for process in world.processes:
                vars(process).pop("kill", None)
        await super()._last_world()


def strike(trial: Trial, ranks: int, victim: int, *, start: int = 1, stride: int = 1) -> set[int]:
    """At each point, or some. Gives the steps that were gone on from, counted from what the second world had loaded."""
    whole = DoomedSimulation(trial, ranks, victim, 0)
    assert whole.run().failure is None
    assert whole.points >= FEWEST_POINTS
    loaded = whole.worlds[1].processes[0].base[0]
    found = set()
    for at in range(start, whole.points + 1, stride):
        simulation = DoomedSimulation(trial, ranks, victim, at)
        result = simulation.run()
        if result.failure is not None:
            pytest.fail(f"at point {at}: {result.failure.message}\n" + "\n".join(result.failure.history[-40:]))
        assert simulation.points == at
        if trial == TRIALS["coordinator"]:
            assert len(simulation.worlds) == len(whole.worlds), "a save did not outlive the coordinator's restart"
        found.add(simulation.worlds[2].processes[0].base[0] - loaded)
    return found


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("name", TRIALS)
def test_two_ranks_at_some_points(name: str, victim: int) -> None:
    strike(TRIALS[name], 2, victim, start=1 + victim, stride=11)


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "victim"), [(ranks, victim) for ranks in (2, 3, 4) for victim in range(ranks)])
@pytest.mark.parametrize("name", TRIALS)
def test_any_rank_of_several_at_every_point(name: str, ranks: int, victim: int) -> None:
    outcomes = strike(TRIALS[name], ranks, victim)
    if TRIALS[name].rank:
        assert outcomes == {0, 1}
