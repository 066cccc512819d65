"""The training loop in processes of its own: killed, given notice, started again, and left by others."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata import CheckpointManager, CheckpointReader, DatasetRegistry
from strata.data import Loader
from tests.integration.data.jobs import ROWS, write_rows
from tests.integration.worker.trainee import BATCH
from tests.servers.coordinator import Client, CoordinatorProcess, own_job
from tests.until import until

pytestmark = pytest.mark.usefixtures("job")

STEPS = 2 * -(-ROWS // BATCH)
TOTAL = 2 * sum(range(ROWS))
DONE = {"steps": STEPS, "total": TOTAL, "samples": 2 * ROWS, "went_back": 0}


class Trainee:
    """A process, which says in the end what it came to; and what it logged."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None, **how: Any) -> None:
        self._log = folder / f"log-{how.get('name', '')}-{time.monotonic_ns()}"
        command = [sys.executable, "-m", "tests.integration.worker.trainee", str(folder), json.dumps(how)]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **(environment or {})}
            )

    def send(self, sent: signal.Signals) -> None:
        self.process.send_signal(sent)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def ended(self, status: int = 0) -> dict[str, Any]:
        out, _ = self.process.communicate(timeout=120)
        assert self.process.returncode == status, f"status {self.process.returncode}: {self.said}"
        found: dict[str, Any] = json.loads(out) if out else {}
        assert 0 <= found.pop("goodput", 0.5) <= 1
        return found

    @property
    def said(self) -> str:
        return self._log.read_text("utf-8")


Start = Callable[..., Trainee]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_rows(tmp_path / "rows")
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """None of them outlives the test."""
    started: list[Trainee] = []

    def begin(environment: dict[str, str] | None = None, **how: Any) -> Trainee:
        started.append(Trainee(folder, environment, **how))
        return started[-1]

    yield begin
    for each in started:
        if each.process.returncode is None:
            each.kill()


def worked_on(folder: Path) -> list[tuple[int, list[int], list[int]]]:
    """Step, share, and samples, of all processes in the order in which each noted them."""
    lines = [line for file in folder.glob("steps-*") for line in file.read_text("utf-8").splitlines()]
    return [tuple(json.loads(line)) for line in lines]


def test_it_trains_all_epochs_and_commits_the_last_step(start: Start, folder: Path) -> None:
    assert start().ended() == DONE
    with CheckpointReader(folder / "checkpoints") as checkpoints:
        assert checkpoints.latest_step() == STEPS
        assert checkpoints.verify() > 0
    assert start().ended() == DONE, "there is nothing left to do"
    assert len(worked_on(folder)) == STEPS


@pytest.mark.parametrize("step", [1, 12, *(pytest.param(step, marks=pytest.mark.long) for step in (4, 11, 13, 20))])
def test_killed_at_any_step_it_ends_as_if_it_had_not_been(start: Start, folder: Path, step: int) -> None:
    process = start(seconds=0.02)
    until(lambda: len(worked_on(folder)) >= step)
    process.kill()
    assert start().ended() == DONE


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGUSR1])
def test_given_notice_it_saves_at_once_and_asks_to_be_started_again(
    start: Start, folder: Path, sent: signal.Signals
) -> None:
    process = start(seconds=0.05, save_every=1000)
    until(lambda: len(worked_on(folder)) >= 5)
    process.send(sent)
    process.ended(status=75)
    done = len(worked_on(folder))
    with CheckpointReader(folder / "checkpoints") as checkpoints:
        assert checkpoints.latest_step() == done, "not a step is lost"
    assert start().ended() == DONE
    assert len(worked_on(folder)) == STEPS


def test_however_often_notice_is_given_it_asks_to_be_started_again(start: Start, folder: Path) -> None:
    process = start(seconds=0.05, save_every=1000)
    until(lambda: len(worked_on(folder)) >= 5)
    while process.process.poll() is None:
        process.send(signal.SIGTERM)
        process.send(signal.SIGUSR1)
        time.sleep(0.01)
    process.ended(status=75)


def test_if_the_notice_is_too_short_the_last_commit_stays_and_that_is_said(start: Start, folder: Path) -> None:
    process = start(seconds=0.05, notice=1e-6)
    until(lambda: len(worked_on(folder)) >= 5)
    process.send(signal.SIGTERM)
    process.ended(status=75)
    assert "SIGTERM" in process.said
    assert "stays the last one" in process.said
    assert start().ended()["total"] == TOTAL


def test_beside_a_coordinator_that_does_not_know_its_data_it_goes_on_as_well(
    start: Start, folder: Path, running: CoordinatorProcess
) -> None:
    environment = {"COORDINATOR_URL": running.address}
    process = start(environment, seconds=0.05)
    until(lambda: len(worked_on(folder)) >= 10)
    process.kill()
    assert start(environment).ended() == DONE


def registered(folder: Path, running: CoordinatorProcess) -> dict[str, str]:
    with DatasetRegistry(running.address) as registry:
        registry.register("rows", str(folder / "rows"), "parquet", shard_size=16, shuffle=True)
    return {"COORDINATOR_URL": running.address}


def listed(running: CoordinatorProcess) -> list[int]:
    """The steps of the checkpoints that the coordinator knows, oldest first."""
    return [each.step for each in reversed(Client(running.address).call("ListCheckpoints").checkpoints)]


def check_batches(folder: Path) -> None:
    """The last time that each step was worked on, all shares of its world together are the global batch."""
    loader = Loader(str(folder / "rows"), global_batch_size=BATCH, tail="short", format="parquet", shard_size=16)
    expected = [batch["id"].tolist() for _ in range(2) for batch in loader]
    noted: dict[int, dict[tuple[int, int], list[int]]] = {}
    for step, (place, size), ids in worked_on(folder):
        noted.setdefault(step, {})[(size, place)] = ids
    for step, batch in enumerate(expected):
        sizes = {size for size, _ in noted[step]}
        whole = [[each for place in range(size) for each in noted[step].get((size, place), [])] for size in sizes]
        assert batch in whole, f"step {step}"


def test_those_who_are_left_go_on_without_one_that_is_killed_and_with_one_that_joins(
    start: Start, folder: Path, running: CoordinatorProcess
) -> None:
    environment = registered(folder, running)
    operator = Client(running.address)
    crew = [start(environment, job=own_job(), name=f"w{number}", seconds=0.1, least=3) for number in range(3)]
    until(lambda: len(worked_on(folder)) >= 18)
    crew.pop(1).kill()
    until(lambda: any(size == 2 for _, (_, size), _ in worked_on(folder)))
    crew.append(start(environment, job=own_job(), name="w3", seconds=0.1))
    found = [process.ended() for process in crew]
    assert [each.pop("went_back") > 0 for each in found] == [True, True, False]
    assert found == [{name: value for name, value in DONE.items() if name != "went_back"}] * 3
    check_batches(folder)
    ledger = operator.call("GetLedger", dataset_id="rows")
    assert [(each.epoch, each.consumed_samples) for each in ledger.finished] == [(0, ROWS), (1, ROWS)]
    with CheckpointReader(folder / "checkpoints") as checkpoints:
        assert all(checkpoints.verify(step) > 0 for step in checkpoints.list_checkpoints())


def test_a_coordinator_that_has_lost_all_it_knew_learns_where_the_job_is(
    start: Start, folder: Path, own_coordinator: CoordinatorProcess
) -> None:
    """Whoever asks it first where to go on from has not looked into the storage."""
    environment = registered(folder, own_coordinator)
    plan = {"job": own_job(), "seconds": 0.05, "least": 2}
    for process in [start(environment, name=f"w{number}", **plan) for number in range(2)]:
        until(lambda: len(worked_on(folder)) >= 16)
        process.kill()
    own_coordinator.kill()
    shutil.rmtree(own_coordinator.state_dir)
    own_coordinator.start()
    registered(folder, own_coordinator)
    found = [process.ended() for process in [start(environment, name=f"w{number}", **plan) for number in range(2)]]
    assert [{**each, "went_back": 0} for each in found] == [DONE] * 2
    assert len([step for step, _, _ in worked_on(folder) if step == 0]) == 2, "nobody began at the start again"
    check_batches(folder)


@pytest.mark.parametrize("place", [0, 1])
def test_one_that_is_lost_when_all_is_done_but_the_last_save_is_gone_back_for(
    start: Start, folder: Path, running: CoordinatorProcess, place: int
) -> None:
    environment = registered(folder, running)
    crew = []
    for each in range(2):
        dies = {"dies_at": STEPS} if each == place else {}
        crew.append(start(environment, job=own_job(), name=f"w{each}", least=2, save_every=5, **dies))
        until(lambda: len(running.get(f"/api/v1/workers?job={own_job()}")["items"]) == len(crew))
    found = crew[1 - place].ended()
    assert found.pop("went_back") > 0
    assert found == {name: value for name, value in DONE.items() if name != "went_back"}
    check_batches(folder)


@pytest.mark.parametrize("save_every", [1000, 1], ids=["none but that", "each step saved"])
def test_a_notice_to_one_stops_all_at_one_step_and_all_ask_to_be_started_again(
    start: Start, folder: Path, running: CoordinatorProcess, save_every: int
) -> None:
    environment = registered(folder, running)
    plan = {"job": own_job(), "seconds": 0.1, "save_every": save_every, "least": 2, "epochs": 20}
    crew = [start(environment, name=f"w{number}", **plan) for number in range(2)]
    until(lambda: len(worked_on(folder)) >= 8)
    crew[0].send(signal.SIGTERM)
    for process in crew:
        process.ended(status=75)
    with CheckpointReader(folder / "checkpoints") as checkpoints:
        latest = checkpoints.latest_step()
    assert latest == max(step for step, _, _ in worked_on(folder)) + 1, "not a step is lost"
    ledger = Client(running.address).call("GetLedger", dataset_id="rows").dataset
    epoch, batch = divmod(latest, -(-ROWS // BATCH))
    assert (ledger.epoch, ledger.consumed_samples) == (epoch, batch * BATCH), "the ledger has it, too"
    check_left(running, "preempted: SIGTERM at ")


def check_left(running: CoordinatorProcess, reason: str) -> None:
    """All workers are shown as left, for this reason."""
    shown = running.get(f"/api/v1/workers?job={own_job()}")["items"]
    assert [each["state"] for each in shown] == ["left"] * len(shown), shown
    assert all(each["reason"].startswith(reason) for each in shown), shown


PLACES = [({}, {}), ({"rank": 0, "world_size": 2}, {"rank": 1, "world_size": 2})]


@pytest.mark.parametrize("places", PLACES, ids=["an open world", "a declared one"])
@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_who_is_stopped_by_an_operator_has_left_for_that_reason(
    start: Start,
    folder: Path,
    running: CoordinatorProcess,
    places: tuple[dict[str, int], dict[str, int]],
    with_checkpoint: bool,
) -> None:
    environment = registered(folder, running)
    plan = {"job": own_job(), "seconds": 0.1, "save_every": 1000, "least": 2, "epochs": 20}
    crew = [start(environment, name=f"w{number}", place=place, **plan) for number, place in enumerate(places)]
    until(lambda: len(worked_on(folder)) >= 8)
    operator = Client(running.address)
    operator.call("StopJob", reason="the night is over", without_checkpoint=not with_checkpoint)
    for process in crew:
        process.ended()
        assert "goes on from step" not in process.said.partition("training goes back")[2], "nobody is gone back for"
    check_left(running, "stopped: the night is over")


def test_who_is_through_has_left_though_it_does_not_say_so(
    start: Start, folder: Path, running: CoordinatorProcess
) -> None:
    environment = registered(folder, running)
    crew = [start(environment, job=own_job(), name=f"w{number}", least=2, leaves=False) for number in range(2)]
    assert [process.ended() for process in crew] == [DONE] * 2
    check_left(running, f"finished at step {STEPS}")


def test_who_ends_in_an_error_has_failed_at_once_and_is_told_of_with_it(
    start: Start, folder: Path, running: CoordinatorProcess
) -> None:
    process = start(registered(folder, running), job=own_job(), name="w0", fails_at=5)
    process.ended(status=1)
    (shown,) = running.get(f"/api/v1/workers?job={own_job()}")["items"]
    assert (shown["state"], shown["reason"]) == ("failed", "its process died: ValueError: no number")


def test_what_the_coordinator_does_not_know_of_is_gone_on_from_all_the_same(
    start: Start, folder: Path, own_coordinator: CoordinatorProcess
) -> None:
    """It was away, or has lost its state; and orchestrators, who ask it first, do not see the storage."""
    environment, plan = registered(folder, own_coordinator), {"job": own_job(), "least": 2, "keep": 1}

    def latest() -> int:
        with CheckpointReader(folder / "checkpoints") as checkpoints:
            return checkpoints.latest_step() or 0

    def trained_on(what: str, steps: int) -> list[Trainee]:
        before = latest()
        crew = [start(environment, name=f"{what}{number}", seconds=0.1, **plan) for number in range(2)]
        until(lambda: latest() >= before + steps)
        return crew

    crew = trained_on("first", 6)
    own_coordinator.kill()
    known = latest()
    until(lambda: latest() > known)  # and that one is kept alone
    for process in crew:
        process.kill()
    own_coordinator.start()
    for process in trained_on("second", 3):
        assert process.process.poll() is None, process.said
        process.kill()
    own_coordinator.kill()
    shutil.rmtree(own_coordinator.state_dir)
    own_coordinator.start()
    registered(folder, own_coordinator)
    before = latest()
    made = len(worked_on(folder))
    crew = [start(environment, name=f"third{number}", **plan) for number in range(2)]
    found = [process.ended() for process in crew]
    assert [each["total"] for each in found] == [TOTAL, TOTAL]
    assert len(worked_on(folder)) - made <= 2 * (STEPS - before), "nothing was done again but what was not saved"
    check_batches(folder)


@pytest.mark.parametrize(
    ("ranks", "orchestrated"),
    [pytest.param(1, False, marks=pytest.mark.long), pytest.param(2, False, marks=pytest.mark.long), (2, True)],
)
def test_nobody_waits_for_a_coordinator_that_is_away_nor_goes_back_when_it_is_here_again(
    start: Start, folder: Path, own_coordinator: CoordinatorProcess, ranks: int, orchestrated: bool
) -> None:
    environment, epochs = {**registered(folder, own_coordinator), "STRATA_JOB_ID": own_job()}, 40
    plan: dict[str, Any] = {"seconds": 0.02, "save_every": 5, "epochs": epochs}
    if orchestrated:
        plan |= {"job": own_job(), "least": ranks}
        crew = [start(environment, name=f"w{number}", **plan) for number in range(ranks)]
    else:
        environment |= {"WORLD_SIZE": str(ranks), "STRATA_RUN_ID": "one"}
        crew = [start(environment | {"RANK": str(rank)}, of_a_job=True, **plan) for rank in range(ranks)]

    def everybody_is_at(step: int) -> None:
        until(lambda: len(worked_on(folder)) >= step * len(crew))

    everybody_is_at(22)
    own_coordinator.kill()
    everybody_is_at(22 + 10 * STEPS // 2)  # ten epochs
    for process in crew:  # on a slow machine they would be through before it has started
        process.send(signal.SIGSTOP)
    own_coordinator.start()
    for process in crew:
        process.send(signal.SIGCONT)
    parts = 1 if orchestrated else ranks  # with an orchestrator each has the sum of all
    found = [process.ended() for process in crew]
    assert [(each["steps"], each["went_back"]) for each in found] == [(STEPS // 2 * epochs, 0)] * ranks
    assert sum(each["samples"] for each in found) == ROWS * epochs * ranks // parts
    assert sum(each["total"] for each in found) == TOTAL // 2 * epochs * ranks // parts
    steps = [step for step, _, _ in worked_on(folder)]
    assert sorted(steps) == sorted([*range(STEPS // 2 * epochs)] * ranks), "no step is taken twice"
    check_batches(folder)
    ledger = Client(own_coordinator.address).call("GetLedger", dataset_id="rows")
    assert [(each.epoch, each.consumed_samples) for each in ledger.finished] == [(n, ROWS) for n in range(epochs)]
    with CheckpointReader(folder / "checkpoints") as checkpoints:
        assert checkpoints.list_checkpoints() == listed(own_coordinator) == [*range(0, STEPS // 2 * epochs + 1, 5)]


# -- notices while nobody can agree ------------------------------------------------------------------------------------


def test_given_notice_while_the_coordinator_is_down_it_saves_and_stops_by_itself(
    start: Start, folder: Path, own_coordinator: CoordinatorProcess
) -> None:
    environment = registered(folder, own_coordinator)
    process = start(environment, job=own_job(), name="w0", seconds=0.05, save_every=1000, epochs=200, notice=20.0)
    until(lambda: len(worked_on(folder)) >= 5)
    own_coordinator.kill()
    process.send(signal.SIGTERM)
    process.ended(status=75)
    with CheckpointReader(folder / "checkpoints") as checkpoints:
        assert checkpoints.latest_step() == len(worked_on(folder)), "not a step is lost"
    assert "no coordinator says where all ranks stop" in process.said


def test_several_that_cannot_ask_where_to_stop_keep_the_last_commit_and_end_in_time(
    start: Start, folder: Path, own_coordinator: CoordinatorProcess
) -> None:
    environment = registered(folder, own_coordinator)
    plan = {"job": own_job(), "seconds": 0.05, "save_every": 1000, "least": 2, "epochs": 500, "notice": 6.0}
    plan["ranks_seconds"] = 600.0  # for as long nobody waits for a coordinator that is not there
    crew = [start(environment, name=f"w{number}", **plan) for number in range(2)]
    until(lambda: len(worked_on(folder)) >= 8)
    own_coordinator.kill()
    for process in crew:
        process.send(signal.SIGTERM)
    for process in crew:
        process.ended(status=75)
    with CheckpointReader(folder / "checkpoints") as checkpoints:
        assert checkpoints.latest_step() == 0


@pytest.mark.parametrize("how", ["notice", pytest.param("operator", marks=pytest.mark.long)])
def test_one_that_waits_for_a_lost_one_stops_when_it_is_told(
    start: Start, folder: Path, running: CoordinatorProcess, how: str
) -> None:
    environment = registered(folder, running)
    plan = {"job": own_job(), "seconds": 0.05, "epochs": 200}
    crew = [start(environment, name=f"w{n}", place={"rank": n, "world_size": 2}, **plan) for n in range(2)]
    until(lambda: len(worked_on(folder)) >= 8)
    crew.pop().kill()
    until(lambda: "training goes back to a checkpoint" in crew[0].said)
    if how == "notice":
        crew[0].send(signal.SIGTERM)
    else:
        Client(running.address).call("StopJob", reason="enough")
    crew[0].ended(status=75 if how == "notice" else 0)


def test_one_that_waits_for_ranks_that_were_never_started_stops_when_it_is_told(start: Start, folder: Path) -> None:
    plan = {"ranks": {"rank": 0, "world_size": 2}, "ranks_seconds": 300.0}
    process = start({"STRATA_RUN_ID": "alone"}, **plan)
    until(lambda: list((folder / "checkpoints").rglob("part-0-*.json")))  # its own part of the first save
    process.send(signal.SIGTERM)
    process.ended(status=75)


def test_a_stop_without_a_checkpoint_is_no_failure_of_those_whose_save_comes_to_nothing(
    start: Start, folder: Path, running: CoordinatorProcess
) -> None:
    environment = registered(folder, running)
    plan = {"job": own_job(), "save_every": 4, "least": 2, "epochs": 500, "write_seconds": 1.0, "seconds": 0.1}
    crew = [start(environment, name=f"w{number}", **plan) for number in range(2)]
    until(lambda: len(worked_on(folder)) >= 30)
    Client(running.address).call("StopJob", reason="too often preempted on that partition", without_checkpoint=True)
    for process in crew:
        process.ended(status=0)


# -- what must not go wrong in silence ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stopped", [False, True])
def test_the_last_step_is_committed_though_saves_may_be_skipped(start: Start, folder: Path, stopped: bool) -> None:
    process = start(save_every=1, when_busy="skip", write_seconds=0.2, seconds=0.02)
    if stopped:
        until(lambda: len(worked_on(folder)) >= 5)
        process.send(signal.SIGTERM)
    process.ended(status=75 if stopped else 0)
    with CheckpointReader(folder / "checkpoints") as checkpoints:
        assert checkpoints.latest_step() == len(worked_on(folder))
        assert len(checkpoints.list_checkpoints()) < len(worked_on(folder)), "some were skipped"


def test_data_that_a_checkpoint_knows_nothing_of_is_not_begun_anew_in_silence(
    start: Start, folder: Path, running: CoordinatorProcess
) -> None:
    with CheckpointManager(folder / "checkpoints") as manager:
        state = {"total": np.zeros(1, np.int64), "samples": np.zeros(1, np.int64), "weight": np.ones(1)}
        manager.save(state, step=7)
    process = start()
    process.ended(status=1)
    assert "step 7 does not say where the data 'data' was: it has none" in process.said
    assert worked_on(folder) == []
