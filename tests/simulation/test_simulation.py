"""The simulation: reproducible, honest about failures, and wide enough to meet every kind of trouble."""

import os
import subprocess
import sys
from collections import Counter

import msgspec
import pytest

from strata.core.records import every_record
from strata.errors import InvalidInput
from strata.testing import Plan, Result, Simulation, simulate
from strata.testing.simulation.faults import STRIKES
from strata.testing.simulation.host import Host
from strata.testing.simulation.many import run_many
from strata.testing.simulation.plan import COORDINATOR_FAULTS, JOB_FAULTS, WORKER_FAULTS, Chaos, Fault
from strata.testing.simulation.shrink import shrink
from strata.testing.simulation.store import PartFile, Store
from strata.testing.simulation.story import tell
from strata.testing.simulation.violation import Violation


def held(result: Result) -> bool:
    if result.failure is not None:
        lines = "\n".join(result.failure.history[-40:])
        pytest.fail(f"strata simulate --seed {result.plan.seed}: {result.failure.message}\n{lines}")
    return True


@pytest.mark.parametrize("seed", range(24))
def test_a_small_cluster_keeps_every_promise(seed: int) -> None:
    assert held(simulate(seed, workers=12))


@pytest.mark.parametrize("seed", range(1000, 1012))
def test_a_cluster_of_fifty_keeps_every_promise(seed: int) -> None:
    assert held(simulate(seed))


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_the_smallest_clusters_keep_every_promise(workers: int) -> None:
    for seed in range(8):
        assert held(simulate(seed, workers=workers, faults=4))


def test_a_calm_cluster_loses_nobody() -> None:
    result = Simulation(msgspec.structs.replace(Plan.of(1, faults=0), chaos=Chaos(0.0, 0.0, 0.0))).run()
    assert held(result)
    assert "WorkerLost" not in result.records
    assert "BarrierBroken" not in result.records
    assert result.records["CheckpointCommitted"] > 5
    assert result.epochs_proven >= 1
    assert result.epochs_followed >= 2


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = simulate(5, workers=16), simulate(5, workers=16)
    same = {"wall_seconds": 0.0}
    assert msgspec.structs.replace(first, **same) == msgspec.structs.replace(second, **same)
    assert simulate(6, workers=16).digest != first.digest


def test_a_run_does_not_depend_on_the_hash_seed() -> None:
    code = "from strata.testing import simulate; r = simulate(5, workers=16); print(r.digest, r.events, r.messages)"
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "4242")
    }
    assert len(told) == 1


def test_the_seeds_meet_every_fault_and_every_record() -> None:
    """A promise that no run puts to the test is not checked."""
    faults: Counter[str] = Counter()
    records: Counter[str] = Counter()
    for seed in range(40):
        result = simulate(seed, workers=12, faults=14)
        faults.update(result.faults)
        records.update(result.records)
    assert set(faults) == {*WORKER_FAULTS, *COORDINATOR_FAULTS, *JOB_FAULTS} == set(STRIKES)
    unmet = {kind.__name__ for kind in every_record()} - set(records)
    asked_for = {"SaveWanted", "SaveAgreed", "SaveReopened", "SaveDropped", "JobStopping"}
    found = {"CheckpointAdopted", "EpochProven"}  # in the storage, without the coordinator: see the simulation of saves
    shown = {"WorkerDescribed"}  # from which nothing follows
    assert unmet == {
        "DatasetRemoved",
        "CheckpointPinned",
        "WorkersForgotten",
        "HistoryLost",
        *asked_for,
        *found,
        *shown,
    }


def test_results_over_several_processes_are_those_of_one() -> None:
    plans = [Plan.of(seed, workers=8) for seed in range(6)]
    spread = sorted(run_many(plans, processes=2), key=lambda result: result.plan.seed)
    assert [result.digest for result in spread] == [Simulation(plan).run().digest for plan in plans]


@pytest.mark.parametrize(("workers", "seconds"), [(1, 60.0), (0, 60.0), (-3, 60.0), (4, 5.0)])
def test_a_cluster_too_small_to_mean_anything_is_refused(workers: int, seconds: float) -> None:
    with pytest.raises(InvalidInput):
        Plan.of(0, workers, seconds)


# -- failures --------------------------------------------------------------------------------------------------------


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Result:
    """A disk that lies about what is durable, and the first run that catches it."""
    crash = Host.crash

    def crash_and_forget(self: Host, seconds: float) -> None:
        crash(self, seconds)
        del self._journal[-1:]

    monkeypatch.setattr(Host, "crash", crash_and_forget)
    for seed in range(50):
        result = simulate(seed, workers=12)
        if result.failure is not None:
            return result
    pytest.fail("nobody noticed")


def test_a_failure_shrinks_and_still_fails_in_the_same_way(forgetful: Result) -> None:
    smallest = shrink(forgetful, seconds=30)
    assert smallest.failure is not None
    assert forgetful.failure is not None
    assert smallest.failure.rule == forgetful.failure.rule == "replay"
    assert len(smallest.plan.faults) == 1
    assert smallest.plan.faults[0].kind == "coordinator_crash"
    assert smallest.plan.workers <= 4


def test_a_failing_plan_survives_the_trip_through_a_file(forgetful: Result) -> None:
    plan = msgspec.json.decode(msgspec.json.encode(forgetful.plan), type=Plan)
    again = Simulation(plan).run()
    assert again.failure == forgetful.failure


def test_what_escapes_the_core_is_a_failure_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.testing.simulation.faults.STRIKES", STRIKES)
    monkeypatch.setitem(STRIKES, "crash", lambda *_: 1 / 0)
    plan = msgspec.structs.replace(Plan.of(0, workers=4), faults=(Fault(3.0, "crash", 0, 1.0),))
    failure = Simulation(plan).run().failure
    assert failure is not None
    assert failure.rule == "crash"
    assert "ZeroDivisionError" in failure.message
    assert any("test_simulation.py" in line for line in failure.history)


def test_a_stuck_cluster_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.testing.simulation.lockstep.LockstepTrainer._save", lambda self: None)
    failure = simulate(0, workers=4).failure
    assert failure is not None
    assert failure.rule == "stuck"


@pytest.mark.parametrize("seed", range(4))
def test_a_job_that_bad_weather_keeps_from_saving_is_not_stuck(seed: int) -> None:
    """Somebody's lease runs out before each commit, as it does among thousands that lose few messages."""
    stormy = msgspec.structs.replace(Plan.of(seed, workers=24), chaos=Chaos(lost=0.3))
    result = Simulation(stormy).run()
    assert held(result)
    assert result.virtual_seconds > stormy.seconds, "no time in good weather was needed"


def test_the_store_notices_two_writers_of_one_part() -> None:
    store = Store()
    store.put_part("job", 1, 0, PartFile("a", "w", 1, 1, 0, 5, 0, 0, 0))
    store.put_part("job", 1, 0, PartFile("a", "w", 1, 1, 0, 5, 0, 0, 0))
    with pytest.raises(Violation, match="two processes wrote rank 0"):
        store.put_part("job", 1, 0, PartFile("b", "w", 2, 1, 0, 5, 0, 0, 0))
    store.put_manifest("job", 1, ("a",))
    with pytest.raises(Violation, match="two different manifests"):
        store.put_manifest("job", 1, ("b",))


def test_the_history_is_told_in_words() -> None:
    simulation = Simulation(Plan.of(2, workers=12, faults=14))
    assert held(simulation.run())
    silent = {"JobOpened", "JobConfigured"}
    for _, _, what in simulation.history:
        if not isinstance(what, str) and type(what).__name__ not in silent:
            assert tell(what) != type(what).__name__


# -- long ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_thousand_clusters_keep_every_promise() -> None:
    for result in run_many([Plan.of(seed) for seed in range(1000)]):
        assert held(result)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_ten_thousand_workers_with_a_thousand_failures_keep_every_promise() -> None:
    result = simulate(1, workers=10_000, seconds=90.0, faults=1_000)
    assert held(result)
    assert sum(result.faults.values()) >= 900
