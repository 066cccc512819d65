"""A coordinator that is away while ranks save: on virtual time, from each point of a save on, for one to a hundred
seconds, and from one point for ten minutes, nobody waits for it, goes back, or loses a save, and in the end it knows
every checkpoint.
"""

import asyncio
from functools import cache
from typing import Any, NamedTuple

import pytest

from strata.core.settings import Policy, Retention
from strata.testing.saves import SavesPlan, SavesSimulation
from strata.testing.saves.process import JOB
from strata.testing.simulation.plan import Chaos
from strata.testing.simulation.violation import Violation

MOST_SECONDS = 2.0
SECONDS = (1.0, 3.0, 6.5, 13.0, 40.0, 100.0)
BEFORE, AFTER = 2, 4
"""So many saves are made before the coordinator goes, and after it is back."""


class Crew(NamedTuple):
    ranks: int
    is_open: bool
    keep: int = 0
    """So many checkpoints are kept; 0: all."""

    def plan(self) -> SavesPlan:
        calm = Chaos(lost=0.0, doubled=0.0, late=0.0)
        how: dict[str, Any] = {
            "storage": 0.0,
            "step_seconds": (0.7, 0.9),
            "coordinator_seconds": 10.0,
            "ranks_seconds": 900.0,
        }
        how["retention"] = Retention(keep_count=self.keep)
        return SavesPlan(7, self.ranks, is_open=self.is_open, chaos=calm, policy=Policy(), **how)


CREWS = [Crew(ranks, is_open, keep) for ranks in (1, 2, 4) for is_open in (False, True) for keep in (0, 2)]


class Outage(SavesSimulation):
    """The coordinator ends at that time, and is started again so many seconds later, as often as is said."""

    def __init__(self, crew: Crew, at: float = 0.0, away: float = 0.0, times: int = 1) -> None:
        super().__init__(crew.plan())
        self._at, self._away, self._times = at, away, times
        self.calls: list[float] = []

    async def _saves(self, count: int) -> None:
        ends = self.world.saved() + count
        while self.world.saved() < ends:
            await self._until(asyncio.get_running_loop().time() + 0.1)

    async def _run(self) -> None:
        await self._begin()
        serve = self.host.serve

        def counted(path: str, payload: bytes) -> "asyncio.Task[bytes]":
            self.calls.append(asyncio.get_running_loop().time())
            return serve(path, payload)

        self.host.serve = counted  # type: ignore[method-assign]
        self.launch()
        await self._saves(BEFORE)
        if not self._away:
            self.calls.clear()
            await self._saves(1)
            return
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(self._at - clock())
        before = self._job
        for time in range(self._times):
            if time:
                await self._saves(time)  # it has only just heard of the first, and of all when it goes a third time
            await self._goes_away()
        await self._saves(AFTER)
        if self._job != before:
            raise Violation("steady", f"(generation, point) were {before}, and are {self._job}")
        slowest = max(process.slowest for process in self.world.processes)
        if slowest > MOST_SECONDS:
            raise Violation("pause", f"a save took {slowest:.1f} s")
        await self._until(clock() + 10.0)
        await self._comes_to_rest()
        await self.checks.line()
        await self.checks.listed()
        await self.checks.all_listed()
        self._check()

    async def _goes_away(self) -> None:
        saved = self.world.saved()
        self.host.crash()
        await self._until(asyncio.get_running_loop().time() + self._away)
        if self.world.saved() - saved < (self._away - MOST_SECONDS) / 2:
            raise Violation("pause", f"in {self._away:g} s, {self.world.saved() - saved} saves are made")
        await self.host.start()

    async def _comes_to_rest(self) -> None:
        """All ranks make one more save, and end."""
        self._restarting = True
        last = max(process.step for process in self.world.processes) + 1
        for process in self.world.processes:
            process.stop_after = last
        while any(not process.task.done() for process in self.world.processes):
            await self._until(asyncio.get_running_loop().time() + 0.1)

    @property
    def _job(self) -> tuple[int, int]:
        job = self.host.job(JOB)
        return job.world.generation, job.points


@cache
def points(crew: Crew) -> list[float]:
    """Of one save: as each call of the coordinator comes there, a moment later, and when it is answered."""
    calm = Outage(crew)
    assert calm.run().failure is None
    return sorted({round(when + later, 6) for when in calm.calls for later in (-1e-5, 1e-5, 0.003)})


def check(crew: Crew, at: float, away: float, times: int = 1) -> None:
    run = Outage(crew, at, away, times)
    result = run.run()
    told = "\n".join(list(run.history)[-60:])
    assert result.failure is None, f"{crew}, away for {away:g} s from {at:.5f} s on: {result.failure}\n{told}"
    assert set(result.outcomes) == {"committed"}, told
    assert result.worlds == 1


@pytest.mark.parametrize("seconds", SECONDS[:4])
@pytest.mark.parametrize("crew", CREWS, ids=str)
def test_nobody_waits_for_a_coordinator_that_is_away(crew: Crew, seconds: float) -> None:
    moments = points(crew)
    at = 7 * CREWS.index(crew) + 5 * SECONDS.index(seconds)
    check(crew, moments[at % len(moments)], seconds)


@pytest.mark.parametrize("crew", CREWS, ids=str)
def test_nobody_waits_for_a_coordinator_that_goes_away_three_times(crew: Crew) -> None:
    moments = points(crew)
    check(crew, moments[11 * CREWS.index(crew) % len(moments)], SECONDS[CREWS.index(crew) % 4], times=3)


@pytest.mark.long
@pytest.mark.parametrize("crew", CREWS, ids=str)
def test_from_each_point_of_a_save_on_nobody_waits_for_a_coordinator_that_is_away(crew: Crew) -> None:
    for number, at in enumerate(points(crew)):
        check(crew, at, SECONDS[number % len(SECONDS)])


@pytest.mark.long
@pytest.mark.parametrize("crew", CREWS, ids=str)
def test_ten_minutes_without_a_coordinator_are_no_reason_to_go_back(crew: Crew) -> None:
    check(crew, points(crew)[len(points(crew)) // 2], 600.0)


def test_a_rank_that_waited_longer_for_a_coordinator_that_is_away_would_be_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("strata.session.session.SILENT_SECONDS", 5.0)
    crew = CREWS[0]
    failure = Outage(crew, points(crew)[0], 6.5).run().failure
    assert failure is not None
    assert failure.rule == "pause"
