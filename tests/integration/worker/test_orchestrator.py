"""`TrainingOrchestrator` with a real coordinator: its place, barriers, saves that all ranks agree on, recovery."""

import asyncio
import sys
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata import CheckpointManager, DatasetRegistry
from strata.data import Loader
from strata.errors import BarrierFailed, CheckpointDamaged, CheckpointMismatch, InvalidInput, NotFound, Refused
from strata.rpc import RpcError
from strata.session import active, session
from strata.worker import training
from strata.worker.orchestrator import TrainingOrchestrator
from strata.worker.preemption import Stopped
from strata.worker.settings import OrchestratorConfig
from tests.integration.data.jobs import BATCH, ROWS, write_rows
from tests.servers.coordinator import Client, CoordinatorProcess, own_job
from tests.until import until

pytestmark = pytest.mark.usefixtures("job")

ALONE = OrchestratorConfig(helper=False)
"""One helper for each of many workers in one process would be a crowd."""


class Crew:
    """Workers of one job in one process, each of which does what it is told in a thread of its own."""

    def __init__(self, url: str) -> None:
        self._url, self._open = url, ExitStack()
        self._threads = self._open.enter_context(ThreadPoolExecutor(16))
        self.members: list[TrainingOrchestrator] = []

    def join(self, size: int | None = None, **how: Any) -> TrainingOrchestrator:
        rank = None if size is None else len(self.members)
        about = {"coordinator_url": self._url, "world_size": size, "rank": rank, "config": ALONE, **how}
        member = TrainingOrchestrator(f"w{len(self.members)}", **about)
        member.blocking.register_worker(ip="127.0.0.1", port=8080, gpu_count=0)
        self.members.append(member)
        return member

    def world(self, size: int, **how: Any) -> list[TrainingOrchestrator]:
        return [self.join(size, **how) for _ in range(size)]

    def start(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        return self._threads.submit(work, *given)

    def each(self, work: Callable[[TrainingOrchestrator], Any]) -> list[Any]:
        return [done.result(60) for done in [self._threads.submit(work, member) for member in self.members]]

    def close(self) -> None:
        for member in self.members:
            member.blocking.deregister()
        self._open.close()


@pytest.fixture
def crew(running: CoordinatorProcess) -> Iterator[Crew]:
    found = Crew(running.address)
    yield found
    found.close()


@pytest.fixture
def own_crew(own_coordinator: CoordinatorProcess) -> Iterator[Crew]:
    """With a coordinator that it may kill, and that hears of each every half a second."""
    found = Crew(own_coordinator.address)
    yield found
    found.close()


def shown(running: CoordinatorProcess) -> dict[str, dict[str, Any]]:
    """None before the job is known."""
    with suppress(urllib.error.HTTPError):
        return {each["worker_id"]: each for each in running.get(f"/api/v1/workers?job={own_job()}")["items"]}
    return {}


def test_its_place_is_what_the_launcher_said(crew: Crew, running: CoordinatorProcess) -> None:
    first, second = crew.world(2)
    assert [(each.rank, each.world_size) for each in (first, second)] == [(0, 2), (1, 2)]
    about = shown(running)["w1"]
    assert (about["rank"], about["address"]) == (1, "127.0.0.1:8080")
    again = second.blocking.register_worker()
    assert (again.worker_id, again.rank) == ("w1", 1)


def test_what_is_said_of_it_is_known_also_where_a_manager_was_made_first(
    running: CoordinatorProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which has joined the job, and knows no address."""
    for name, value in {"COORDINATOR_URL": running.address, "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    operator = Client(running.address)
    with CheckpointManager(tmp_path / "checkpoints"):
        until(lambda: "rank-0" in shown(running))
        assert [each.ip for each in operator.call("GetWorld").peers] == [""]
        orchestrator = TrainingOrchestrator.from_env(config=ALONE)
        registered = orchestrator.blocking.register_worker(ip="192.168.1.10", port=8080, gpu_count=3)
        about = shown(running)["rank-0"]
        assert (about["address"], about["gpu_count"]) == ("192.168.1.10:8080", 3)
        assert about["memory_bytes"] > 0
        assert [(each.ip, each.port) for each in operator.call("GetWorld").peers] == [("192.168.1.10", 8080)]
        again = orchestrator.blocking.register_worker(port=9090)
        assert (again.incarnation, again.generation) == (registered.incarnation, registered.generation)
        assert shown(running)["rank-0"]["address"] == "192.168.1.10:9090", "what is not said stays"
        orchestrator.blocking.deregister()


def test_who_says_more_while_the_coordinator_is_away_stays_and_that_is_told_later(
    own_crew: Crew, own_coordinator: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "CALL_SECONDS", 0.5)
    (only,) = own_crew.world(1)
    before = only.blocking.register_worker()
    own_coordinator.kill()
    assert only.blocking.register_worker(port=9090) == before
    assert only.is_registered
    assert not only.should_save(3)
    own_coordinator.start()
    until(lambda: shown(own_coordinator)["w0"]["address"] == "127.0.0.1:9090")
    assert only.session.incarnation == before.incarnation


def test_who_says_what_is_refused_keeps_the_place_that_it_has(crew: Crew, running: CoordinatorProcess) -> None:
    (only,) = crew.world(1)
    with pytest.raises(InvalidInput, match="at most 4096 are kept"):
        only.blocking.register_worker(metadata={"name": "x" * 10_000})
    assert only.blocking.register_worker(port=9090).rank == 0
    assert shown(running)["w0"]["address"] == "127.0.0.1:9090"


def test_without_a_rank_the_coordinator_gives_one(crew: Crew) -> None:
    assert [crew.join().rank for _ in range(3)] == [0, 1, 2]


def test_without_a_rank_the_coordinator_gives_one_in_a_world_of_a_size_that_was_said(crew: Crew) -> None:
    found = [crew.join(2, rank=None) for _ in range(2)]
    assert [(each.rank, each.world_size) for each in found] == [(0, 2), (1, 2)]


def test_a_rank_that_is_said_is_taken_also_where_nobody_says_how_many_there_are(crew: Crew) -> None:
    """As in an indexed job of Kubernetes."""
    found = [crew.join(rank=rank) for rank in (1, 0)]
    assert [each.rank for each in found] == [1, 0]
    assert [(each.rank, each.world_size) for each in crew.each(lambda member: member.blocking.recover(2))] == [
        (1, 2),
        (0, 2),
    ]


def test_a_rank_that_cannot_be_had_is_refused_with_the_reason(crew: Crew, running: CoordinatorProcess) -> None:
    crew.world(2)
    late = TrainingOrchestrator("w9", running.address, 2, 1, config=OrchestratorConfig(register_seconds=1))
    with pytest.raises((Refused, RpcError), match=r"rank 1.*w1"):
        late.blocking.register_worker()
    assert not late.is_registered


def test_one_that_is_not_registered_says_what_to_do(running: CoordinatorProcess) -> None:
    idle = TrainingOrchestrator("w0", running.address)
    with pytest.raises(InvalidInput, match="call register_worker first"):
        idle.blocking.wait_barrier("b")
    with pytest.raises(InvalidInput, match="call register_worker first"):
        idle.should_save(1)


def test_a_barrier_releases_all_when_the_last_one_comes_and_may_be_used_again(crew: Crew) -> None:
    crew.world(3)
    for round in range(3):
        released = crew.each(lambda member: member.blocking.wait_barrier("epoch"))
        assert {each.round for each in released} == {released[0].round}, round


def test_who_registers_again_as_a_worker_that_stayed_comes_to_barriers_as_before(
    crew: Crew, running: CoordinatorProcess, tmp_path: Path
) -> None:
    """A manager of this process keeps the worker in its job, also while no orchestrator does."""
    (only,) = crew.world(1)
    with CheckpointManager(tmp_path / "checkpoints") as manager:
        manager.save(b"state", 1)
        rounds = [only.blocking.wait_barrier("epoch", 20.0).round for _ in range(3)]
        only.blocking.deregister()
        assert active() is None, "nothing new takes part in a job that has no orchestrator any more"
        only.blocking.register_worker()
        rounds += [only.blocking.wait_barrier("epoch", 20.0).round for _ in range(3)]
    assert rounds == sorted(set(rounds))


def test_a_barrier_names_who_is_missing(crew: Crew) -> None:
    crew.world(2)
    with pytest.raises(BarrierFailed, match="w1") as failure:
        crew.members[0].blocking.wait_barrier("epoch", timeout=1.0)
    assert failure.value.missing == ("w1",)


def test_a_barrier_waits_for_a_coordinator_that_is_away(own_crew: Crew, own_coordinator: CoordinatorProcess) -> None:
    first, second = own_crew.world(2)
    waiting = own_crew.start(first.blocking.wait_barrier, "epoch", 40.0)
    until(lambda: own_coordinator.get(f"/api/v1/barriers?job={own_job()}")["open"])
    own_coordinator.kill()
    own_coordinator.start()
    second.blocking.wait_barrier("epoch", 40.0)
    assert waiting.result(40).barrier_id == "epoch"


def test_a_barrier_gives_up_on_a_coordinator_that_stays_away(
    own_crew: Crew, own_coordinator: CoordinatorProcess
) -> None:
    (only,) = own_crew.world(1)
    own_coordinator.kill()
    with pytest.raises(BarrierFailed, match="the coordinator does not answer"):
        only.blocking.wait_barrier("epoch", timeout=0.5, expected_participants=2)
    own_coordinator.start()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"port": "8080"}, "port must be an integer, not str"),
        ({"port": 70_000}, "port must be between 0 and 65535"),
        ({"ip": 127}, "ip must be a string, not int"),
        ({"gpu_count": 1.0}, "gpu_count must be an integer"),
        ({"metadata": {"gpus": 8}}, r"metadata\['gpus'\] must be a string, not int"),
    ],
)
def test_what_cannot_be_said_of_it_is_refused_before_it_is_sent(
    running: CoordinatorProcess, wrong: dict[str, Any], why: str
) -> None:
    only = TrainingOrchestrator("w0", running.address, config=ALONE)
    with pytest.raises(InvalidInput, match=why):
        only.blocking.register_worker(**wrong)
    assert not only.is_registered


@pytest.mark.parametrize("wrong", [{"load": "high"}, {"load": None}, {7: 1.0}, dict.fromkeys(map(str, range(33)), 1.0)])
def test_resources_that_no_heartbeat_can_carry_are_refused_and_it_stays(
    crew: Crew, running: CoordinatorProcess, wrong: dict[str, Any]
) -> None:
    (only,) = crew.world(1)
    with pytest.raises(InvalidInput, match="resource"):
        only.report(resources=wrong)
    most = dict.fromkeys(map(str, range(32)), 0.5)
    only.report("training", resources=dict.fromkeys(most, np.float32(0.5)))  # type: ignore[arg-type]
    only.blocking.heartbeat()
    until(lambda: shown(running)["w0"]["resources"] == most)


def test_a_training_loop_is_heard_of_however_many_numbers_it_reports(
    crew: Crew, running: CoordinatorProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "SHOW_SECONDS", 0.0)
    (only,) = crew.world(1)
    loader = Loader(write_rows(tmp_path / "rows"), 20, format="parquet")
    state, manager = {"w": np.zeros(1)}, CheckpointManager(tmp_path / "checkpoints")
    with training.Training(state, loader, manager, orchestrator=only) as loop:
        for _ in loop:
            loop.report(**{f"loss_{each}": 0.5 if each else float("nan") for each in range(40)})
        only.blocking.heartbeat()
        told = shown(running)["w0"]["resources"]
        assert {"loss_1", "goodput_ratio", "recovery_seconds"} <= told.keys()
        assert "loss_0" not in told, "not every reader has a word for what is no number"
        assert len(manager.describe().metrics) == 40


def test_a_checkpoint_that_does_not_fit_is_said_at_once_and_takes_nobody_back(crew: Crew, tmp_path: Path) -> None:
    (only,) = crew.world(1)
    rows, checkpoints = write_rows(tmp_path / "rows"), tmp_path / "checkpoints"
    with CheckpointManager(checkpoints) as manager:
        manager.save({"w": np.zeros(3)}, 5)
    generation = only.blocking.recover(again=True).generation
    loader, manager = Loader(rows, 20, format="parquet"), CheckpointManager(checkpoints)
    loop = training.Training({"w": np.zeros(4)}, loader, manager, orchestrator=only)
    with loop, pytest.raises(CheckpointMismatch, match="w "):
        next(iter(loop))
    only.blocking.heartbeat()
    assert only.session.generation == generation


@pytest.mark.parametrize("is_of_a_job", [True, False])
def test_one_training_after_the_other_in_one_process_goes_on_where_the_one_before_ended(
    crew: Crew, running: CoordinatorProcess, tmp_path: Path, is_of_a_job: bool
) -> None:
    rows = write_rows(tmp_path / "rows")
    with DatasetRegistry(running.address) as registry:
        registry.register("rows", str(rows), "parquet", shard_size=16)
    source: dict[str, Any] = {"dataset_id": "rows"} if is_of_a_job else {"dataset": rows, "format": "parquet"}
    crew.join().blocking.recover()
    steps = ROWS // BATCH
    for epochs in (1, 2, 3):
        state = {"w": np.zeros(1)}
        loader, manager = Loader(global_batch_size=BATCH, **source), CheckpointManager(tmp_path / "checkpoints")
        plan: dict[str, Any] = {"orchestrator": crew.members[0], "epochs": epochs, "save_every": 3}
        with training.Training(state, loader, manager, **plan) as loop:
            for _ in loop:
                state["w"] += 1
            assert loop.goodput.steps == steps
        assert (loop.completed, state["w"].tolist(), loop.recoveries) == (epochs * steps, [epochs * steps], 0)


def test_who_recovers_is_not_behind_the_world_until_it_changes_again(crew: Crew) -> None:
    """The heartbeat that tells of the world comes later than the answer."""
    (only,) = crew.world(1)
    for _ in range(5):
        only.blocking.recover(again=True)
        assert not only.is_stale


def test_what_it_says_of_itself_is_shown(crew: Crew, running: CoordinatorProcess) -> None:
    (only,) = crew.world(1)
    only.blocking.heartbeat("training", step=7, epoch=1)
    until(lambda: shown(running)["w0"]["step"] == 7)
    about = shown(running)["w0"]
    assert (about["state"], about["epoch"]) == ("training", 1)
    only.report(step=8, resources={"goodput_ratio": 0.5})
    only.session.speak()
    until(lambda: "goodput_ratio" in shown(running)["w0"]["resources"])
    assert shown(running)["w0"]["step"] == 8
    told = shown(running)["w0"]["resources"]
    assert told["cpu_seconds"] > 0, "measured, whatever else is said"
    if sys.platform == "linux":
        assert 0 < told["resident_memory_bytes"] < about["memory_bytes"]
    with pytest.raises(InvalidInput, match="'asleep'"):
        only.report("asleep")


def step_until(members: list[TrainingOrchestrator], over: Callable[[int], bool], seconds: float) -> list[list[int]]:
    """Each in a thread of its own and at its own pace; the steps at which each was to save."""
    saved: list[list[int]] = [[] for _ in members]
    stop = threading.Event()

    def train(place: int, member: TrainingOrchestrator) -> None:
        step = 0
        while not stop.is_set() and not over(place):
            step += 1
            time.sleep(seconds * (1 + place))
            if member.should_save(step):
                saved[place].append(step)
                if member.stopping:
                    return

    with ThreadPoolExecutor(len(members)) as threads:
        done = [threads.submit(train, place, member) for place, member in enumerate(members)]
        try:
            for each in done:
                each.result(60)
        finally:
            stop.set()
    return saved


def test_who_stops_the_job_has_all_ranks_save_and_stop_at_one_step(
    own_crew: Crew, own_coordinator: CoordinatorProcess
) -> None:
    own_crew.world(3)
    operator = Client(own_coordinator.address)
    threading.Timer(0.1, lambda: operator.call("StopJob", reason="the night is over")).start()
    saved = step_until(own_crew.members, lambda place: False, 0.01)
    assert len(saved[0]) == 1
    assert saved == [saved[0]] * 3, "the same step on every rank, however fast each is"
    assert all("the night is over" in str(member.stopping) for member in own_crew.members)


def test_who_registers_anew_after_a_stop_is_not_to_stop_again(crew: Crew, running: CoordinatorProcess) -> None:
    (only,) = crew.world(1)
    only.blocking.recover()
    Client(running.address).call("StopJob", reason="the night is over")
    assert step_until([only], lambda place: False, 0.01)[0]
    assert only.stopping is not None
    only.blocking.deregister()
    assert only.stopping is not None, "whoever asks now wants to know why it stopped"
    only.blocking.register_worker()
    assert only.stopping is None
    with pytest.raises(InvalidInput, match="call recover first"):
        _ = only.world_id
    only.blocking.heartbeat()
    assert only.stopping is None


def test_who_is_told_to_stop_does_not_go_back_for_others(
    crew: Crew, running: CoordinatorProcess, tmp_path: Path
) -> None:
    """Those who stopped before it have left: its step fails, and in a world of a declared size nobody comes back."""
    only = crew.join()
    only.blocking.recover()
    loader = Loader(write_rows(tmp_path / "rows"), 20, format="parquet")
    loop = training.Training({"w": 0}, loader, CheckpointManager(tmp_path / "checkpoints"), orchestrator=only)
    batches = iter(loop)

    def fail() -> None:
        with loop.step():
            crew.join()  # the world is another one
            Client(running.address).call("StopJob", reason="the night is over", without_checkpoint=True)
            until(lambda: only.stopping and only.is_stale)
            raise ConnectionError("a peer is gone")

    with loop:
        next(batches)
        fail()
        with pytest.raises(Stopped):
            next(batches)
    assert loop.recoveries == 0


def test_a_hurry_is_served_soon(own_crew: Crew, own_coordinator: CoordinatorProcess) -> None:
    """At 100 and 50 steps a second; without a hurry the step lies four heartbeats ahead."""
    own_crew.world(2)
    operator = Client(own_coordinator.address)
    asked = threading.Timer(0.1, lambda: operator.call("StopJob", reason="preempted", within_seconds=3.0))
    asked.start()
    saved = step_until(own_crew.members, lambda place: False, 0.01)
    assert saved[0] == saved[1]


def test_saves_by_schedule(crew: Crew) -> None:
    (only,) = crew.world(1, config=OrchestratorConfig(save_every=5, helper=False))
    assert [step for step in range(1, 21) if only.should_save(step)] == [5, 10, 15, 20]


def test_all_recover_to_one_point_with_their_shards(crew: Crew, running: CoordinatorProcess, tmp_path: Path) -> None:
    crew.world(2)
    with DatasetRegistry(running.address) as registry:
        registry.register("rows", "/nowhere", "parquet", total_samples=100, shard_size=10)
    found = crew.each(lambda member: member.blocking.recover())
    assert {(each.step, each.generation, each.world_size) for each in found} == {(-1, found[0].generation, 2)}
    assert [each.rank for each in found] == [0, 1]
    mine = [{shard.shard_id for shard in each.shards["rows"]} for each in found]
    assert mine[0] | mine[1] == set(range(10))
    assert not mine[0] & mine[1]
    assert not any(member.is_stale for member in crew.members)


def test_those_who_are_left_of_an_open_world_save_and_load_together(
    crew: Crew, running: CoordinatorProcess, tmp_path: Path
) -> None:
    """Ranks 0, 1 and 3 number themselves anew, and one that joins takes the place that is free."""
    for _ in range(4):
        crew.join()
    crew.each(lambda member: member.blocking.recover())
    lost = crew.members.pop(2)
    lost.blocking.deregister("it goes")
    until(lambda: all(member.is_stale for member in crew.members))
    found = crew.each(lambda member: member.blocking.recover())
    assert [(each.rank, each.world_size) for each in found] == [(0, 3), (1, 3), (2, 3)]
    assert [member.rank for member in crew.members] == [0, 1, 3]


def test_the_contracts_own_way_of_using_it(running: CoordinatorProcess) -> None:
    async def main() -> None:
        orchestrator = TrainingOrchestrator(
            worker_id="worker-0", coordinator_url=f"http://{running.address}", world_size=1, rank=0
        )
        await orchestrator.register_worker(ip="192.168.1.10", port=8080)
        await orchestrator.wait_barrier("epoch_0")
        async with TrainingOrchestrator("worker-1", running.address, job_id="another") as other:
            assert (await other.recover()).step == -1
        await orchestrator.deregister()

    asyncio.run(main())


def test_a_manager_and_a_loader_take_part_as_their_orchestrator_does(
    running: CoordinatorProcess, tmp_path: Path
) -> None:
    folder = write_rows(tmp_path / "rows")
    with DatasetRegistry(running.address) as registry:
        registry.register("rows", str(folder), "parquet", shard_size=16)
    orchestrator = TrainingOrchestrator("w0", running.address)
    orchestrator.blocking.register_worker()
    with pytest.raises(InvalidInput, match=r"recover\(\) before"):
        CheckpointManager(tmp_path / "checkpoints")
    orchestrator.blocking.recover()
    with (
        CheckpointManager(tmp_path / "checkpoints") as manager,
        Loader(dataset_id="rows", global_batch_size=20) as loader,
    ):
        for step, batch in enumerate(loader, 1):
            assert len(batch["id"]) in (20, 10)
            if step == 3:
                manager.save({"w": np.arange(4.0)}, step)
                break
    assert list(shown(running)) == ["w0"], "one worker, whatever it does"
    orchestrator.blocking.deregister()
    assert shown(running)["w0"]["state"] == "left"
    operator = Client(running.address)
    latest = operator.call("LatestCheckpoint").checkpoint
    assert latest.step == 3
    assert operator.call("GetCheckpoint", attempt=latest.attempt).checkpoint.positions["rows"].consumed.edges == [0, 60]


def test_a_checkpoint_that_the_coordinator_knows_to_be_damaged_is_not_insisted_on(
    crew: Crew, running: CoordinatorProcess, tmp_path: Path
) -> None:
    member = crew.join()
    point = member.blocking.recover()
    with CheckpointManager(tmp_path / "checkpoints") as manager:
        manager.save({"x": np.zeros(8)}, step=10)
        assert manager.load()["x"].tolist() == [0] * 8
    for file in tmp_path.rglob("step_10/part-0-*.safetensors"):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    for error in (CheckpointDamaged, NotFound):
        point = member.blocking.recover(again=True)
        with CheckpointManager(tmp_path / "checkpoints") as manager, pytest.raises(error):
            manager.load()
    assert Client(running.address).call("GetWorld").generation == point.generation, "nobody goes back for it"
