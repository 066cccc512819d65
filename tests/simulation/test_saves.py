"""Saves of many ranks on virtual time: what a job may rely on holds, the same seed gives the same run, and a protocol
that is broken on purpose is found out.
"""

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn, cast

import msgspec
import pytest

from strata.checkpoint import crewsaver, saver
from strata.checkpoint.attempt import Attempt
from strata.checkpoint.checkpoints import Checkpoints, Survey
from strata.checkpoint.committing import commit
from strata.checkpoint.council import Council
from strata.checkpoint.joining import Seat
from strata.checkpoint.saving import write_bytes
from strata.checkpoint.store import Folder, Store
from strata.checkpoint.words import Words
from strata.core.settings import Retention
from strata.errors import InvalidInput
from strata.testing.saves import SavesPlan, SavesResult, SavesSimulation, simulate_saves
from strata.testing.saves.plan import COORDINATOR_FAULTS, RANK_FAULTS, STORAGE_FAULTS
from strata.testing.saves.run import run_plan
from strata.testing.saves.strikes import STRIKES
from strata.testing.simulation.plan import Chaos, Fault


def held(result: SavesResult) -> bool:
    if result.failure is not None:
        lines = "\n".join(result.failure.history[-40:])
        plan = result.plan
        how = "" if plan.coordinator else " --no-coordinator"
        pytest.fail(
            f"strata simulate saves --seed {plan.seed} --ranks {plan.ranks}{how}: {result.failure.message}\n{lines}"
        )
    return True


def calm(ranks: int = 3, *faults: Fault, coordinator: bool = True, **given: Any) -> SavesPlan:
    """Nothing fails but what is said."""
    plan = SavesPlan(7, ranks, coordinator, 30.0, Chaos(0.0, 0.0, 0.0), storage=0.0, faults=faults)
    return msgspec.structs.replace(plan, **given)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("coordinator", [True, False], ids=["coordinator", "storage alone"])
def test_what_a_job_relies_on_holds(ranks: int, coordinator: bool) -> None:
    for seed in range(6):
        assert held(simulate_saves(seed, ranks, coordinator=coordinator))


@pytest.mark.long
@pytest.mark.parametrize("first", range(10_000, 10_250, 50))
@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
@pytest.mark.parametrize("coordinator", [True, False], ids=["coordinator", "storage alone"])
def test_it_holds_for_hundreds_of_seeds(ranks: int, coordinator: bool, first: int) -> None:
    for seed in range(first, first + 50):
        assert held(simulate_saves(seed, ranks, coordinator=coordinator))


@pytest.mark.parametrize("coordinator", [True, False], ids=["coordinator", "storage alone"])
def test_where_nothing_fails_every_save_is_committed_on_every_rank(coordinator: bool) -> None:
    result = run_plan(calm(3, coordinator=coordinator))
    assert held(result)
    assert result.outcomes == {"committed": 3 * result.commits}
    assert result.worlds == 2, "and the one at the end"
    assert bool(result.coordinator_calls) == coordinator


def test_the_same_seed_gives_the_same_run_whatever_the_process() -> None:
    script = (
        "from strata.testing.saves import simulate_saves as run; print(*(run(seed, 3).digest for seed in range(3, 6)))"
    )
    told = []
    for salt in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        told.append(done.stdout.split())
    assert told[0] == told[1]
    assert len(set(told[0])) == 3


@pytest.mark.parametrize("kind", STRIKES)
def test_each_fault_alone_is_got_over(kind: str) -> None:
    result = run_plan(calm(3, Fault(6.0, kind, 0, 8.0), Fault(15.0, kind, 1, 8.0), latency_seconds=0.1))
    assert held(result)
    assert result.faults == {kind: 2}
    assert result.commits > 5


def test_every_kind_of_fault_is_drawn() -> None:
    drawn = Counter(fault.kind for seed in range(40) for fault in SavesPlan.of(seed).faults)
    assert set(drawn) == set(STRIKES) == {*RANK_FAULTS, *STORAGE_FAULTS, *COORDINATOR_FAULTS}
    alone = {fault.kind for seed in range(40) for fault in SavesPlan.of(seed, coordinator=False).faults}
    assert not alone & {*COORDINATOR_FAULTS, "cut"}, "there is nobody to be cut off from"


def test_a_plan_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidInput, match="ranks"):
        SavesPlan.of(0, ranks=0)
    with pytest.raises(InvalidInput, match="not a fault"):
        calm(2, Fault(1.0, "flood", 0, 1.0))


# -- what is broken on purpose is found ------------------------------------------------------------------------------


def broken(result: SavesResult) -> str:
    assert result.failure is not None, "nobody noticed"
    assert result.failure.history, "and what led to it is told"
    return result.failure.rule


@pytest.mark.parametrize("way", [Council, Words])
def test_a_commit_that_waits_for_no_parts_is_found(way: type, monkeypatch: pytest.MonkeyPatch) -> None:
    async def parts(self: object, save: str, attempt: str, *, compare: bool) -> dict[int, Any]:
        return {}

    async def decide(self: object, *about: object) -> bool:
        return True

    async def of_one(store: Any, attempt: Any, found: Any, references: Any, *_: object, **how: bool) -> Any:
        return await commit(store, attempt, found, references, len(references), **how)

    monkeypatch.setattr(way, "parts", parts)
    monkeypatch.setattr(way, "decide", decide)
    monkeypatch.setattr(crewsaver, "commit", of_one)
    assert broken(run_plan(calm(3, coordinator=way is Council))) == "whole"


@pytest.mark.parametrize("coordinator", [True, False], ids=["coordinator", "storage alone"])
def test_a_part_that_is_told_before_it_is_durable_is_found(coordinator: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[asyncio.Future[None]] = []

    async def hasty(store: Any, attempt: Any, data: Any, progress: Callable[[int], None]) -> Any:
        class Later:
            """The storage, which is given the bytes some time after it said that it has them."""

            def __getattr__(self, name: str) -> Any:
                return getattr(store.storage, name)

            async def put_if_absent(self, key: str, data: Any) -> None:
                async def put() -> None:
                    await asyncio.sleep(2.0)
                    await store.storage.put_if_absent(key, data)

                late.append(asyncio.ensure_future(put()))

        class Hasty:
            storage = Later()

            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

        return await write_bytes(cast(Store, Hasty()), attempt, data, progress)

    monkeypatch.setattr(saver, "write_bytes", hasty)
    assert broken(run_plan(calm(3, coordinator=coordinator))) == "whole"


def test_a_rank_that_takes_whatever_is_latest_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks for itself, and says that it did not: the save that the zombies are about to commit comes between."""
    real = Seat.point

    async def stale(self: Any, looked: Any) -> Any:
        found = await real(self, looked)
        if self._process.world.number > 1 and self._process.rank == 1:
            steps = await self._checkpoints.line()
            return steps[min(steps)]
        return found

    monkeypatch.setattr(Seat, "point", stale)
    assert broken(run_plan(calm(3, Fault(12.0, "kill", 2, 1.0)))) in ("same", "kept")


def test_a_rank_that_loses_what_was_committed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(self: Any) -> Any:
        return self.line[min(self.line)] if self.line else None

    monkeypatch.setattr(Survey, "latest", first)
    assert broken(run_plan(calm(2, Fault(12.0, "kill", 1, 1.0), coordinator=False))) == "kept"


def test_a_job_that_is_taken_back_for_what_was_saved_without_the_coordinator_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Council, "catch_up", lambda council, latest, _: council.go_on_from(latest))
    assert broken(run_plan(calm(2, Fault(12.0, "crash", 0, 7.0)))) == "steady"


def test_what_is_never_swept_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: object, names: object = None) -> list[str]:
        return []

    monkeypatch.setattr(Checkpoints, "sweep", nothing)
    plan = calm(2, Fault(12.0, "kill", 1, 1.0), coordinator=False, retention=Retention(keep_count=2))
    assert broken(run_plan(plan)) == "clean"


def test_a_job_that_never_saves_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(store: Store, attempt: Attempt, *given: Any, **named: Any) -> Folder:
        if attempt.folder.step >= 5:
            await asyncio.sleep(1e6)
        return await commit(store, attempt, *given, **named)

    monkeypatch.setattr("strata.checkpoint.crewsaver.commit", never)
    assert broken(run_plan(calm(2, coordinator=False))) == "stuck"


def test_a_defect_in_the_simulation_itself_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(self: object) -> NoReturn:
        raise ZeroDivisionError

    monkeypatch.setattr(SavesSimulation, "launch", defect)
    result = run_plan(calm(2))
    assert result.failure is not None
    assert result.failure.rule == "crash"
    assert "ZeroDivisionError" in result.failure.message
