"""Workers as processes: one is killed, one paused, one comes late, and the coordinator dies. The ledger proves every
epoch, and what was read twice is what a lost worker had not reported."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from strata import DatasetRegistry, background
from strata.config import Config
from strata.data.ledger import Ledger, Verdict, judge, read_ledger
from strata.wire.asking import Asker
from tests.coordinators import PATIENT as PATIENT_FLAGS
from tests.integration.data import affinity_worker
from tests.servers.coordinator import CoordinatorProcess, coordinator
from tests.until import until

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS, SHARD = 1203, 20
SECONDS = 60.0
PATIENT = pytest.mark.parametrize("scene", ["running"], indirect=True)
"""With the coordinator that is shared: nobody is given up, however busy the machine is."""


class Scene:
    """A coordinator, a dataset, and workers that read it."""

    def __init__(self, folder: Path, job: str, running: CoordinatorProcess, stack: ExitStack) -> None:
        self.folder, self.job, self.running, self._stack = folder, job, running, stack
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        table = pa.table({"id": range(ROWS)})
        (folder / "data").mkdir()
        pq.write_table(table, folder / "data" / "all.parquet", row_group_size=50)
        with DatasetRegistry(running.address, job_id=job) as registry:
            registry.register("d", folder / "data", "parquet", shard_size=SHARD, shuffle=True, seed=3, order="affinity")

    def start(self, *workers: str, epochs: int = 1, pause: float = 0.02) -> None:
        for worker in workers:
            arguments = [self.running.address, worker, str(self._out(worker)), str(epochs), str(pause)]
            log = self._stack.enter_context((self.folder / f"{worker}.log").open("wb"))
            process = subprocess.Popen([sys.executable, affinity_worker.__file__, *arguments], stdout=log, stderr=log)
            self._stack.callback(_end, process)
            self.processes[worker] = process

    def _out(self, worker: str) -> Path:
        return self.folder / f"{worker}.read"

    def read(self, worker: str, epoch: int = 0) -> list[int]:
        """What it trained on. The last line may be cut by a kill."""
        if not self._out(worker).exists():
            return []
        lines = self._out(worker).read_text("utf-8").split("\n")[:-1]
        return [int(each) for line in lines if line.startswith(f"{epoch} ") for each in line.split()[1:]]

    def until(self, holds: Callable[[], bool]) -> None:
        try:
            until(holds, SECONDS)
        except AssertionError as error:
            error.add_note(self.logs())
            raise

    def finish(self, *workers: str) -> None:
        for worker in workers:
            assert self.processes[worker].wait(SECONDS) == 0, self.logs()

    def logs(self) -> str:
        return "\n".join(f"{name}: {(self.folder / f'{name}.log').read_text('utf-8')}" for name in self.processes)

    def states(self) -> dict[str, str]:
        found = self.running.get("/api/v1/workers")["items"]
        return {each["worker_id"]: each["state"] for each in found if each["job_id"] == self.job}

    def ledger(self) -> Ledger:
        asker = Asker(Config({"coordinator_url": self.running.address, "job_id": self.job}, {}), 20.0)
        try:
            return background.run(read_ledger(asker, "d"))
        finally:
            background.run(asker.close())

    def verdict(self, epoch: int = 0) -> Verdict:
        return judge(self.ledger(), epoch)

    def counts(self, *workers: str, epoch: int = 0) -> Counter[int]:
        return Counter(each for worker in workers for each in self.read(worker, epoch))


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


@pytest.fixture
def long_lease(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    """One that the test may kill, and that gives nobody up."""
    with coordinator(tmp_path, *PATIENT_FLAGS) as made:
        yield made


@pytest.fixture
def scene(request: pytest.FixtureRequest, tmp_path: Path, job: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(each for each in sys.path if each))
    with ExitStack() as stack:
        yield Scene(tmp_path, job, request.getfixturevalue(getattr(request, "param", "own_coordinator")), stack)


def check_whole(verdict: Verdict) -> None:
    assert verdict.state == "over"
    assert verdict.whole


@PATIENT
def test_two_epochs_of_three_workers_have_each_sample_once(scene: Scene) -> None:
    names = ("a", "b", "c")
    scene.start(*names, epochs=2, pause=0.0)
    scene.finish(*names)
    for epoch in range(2):
        check_whole(scene.verdict(epoch))
        assert scene.counts(*names, epoch=epoch) == Counter(range(ROWS))


def test_a_killed_workers_rest_goes_to_the_others_in_the_middle_of_the_epoch(scene: Scene) -> None:
    names = ("a", "b", "c")
    scene.start(*names, pause=0.05)
    scene.until(lambda: all(len(scene.read(name)) > 40 for name in names))
    scene.processes["b"].kill()
    scene.finish("a", "c")
    verdict = scene.verdict()
    check_whole(verdict)
    counts, lost = scene.counts(*names), set(scene.read("b"))
    assert set(counts) == set(range(ROWS))
    twice = {each for each, count in counts.items() if count > 1}
    assert max(counts.values()) <= 2
    assert twice <= lost, "only what the lost worker had trained on, and not reported, is read again"
    assert len(twice) <= verdict.reissued


@PATIENT
def test_one_that_comes_late_gets_its_share_and_nothing_is_read_twice(scene: Scene) -> None:
    scene.start("a", pause=0.08)
    scene.until(lambda: len(scene.read("a")) > 40)
    scene.start("b", pause=0.0)
    scene.finish("a", "b")
    check_whole(scene.verdict())
    assert scene.counts("a", "b") == Counter(range(ROWS))
    assert scene.read("b")


@pytest.mark.parametrize("scene", ["long_lease"], indirect=True)
def test_while_the_coordinator_is_down_reading_goes_on_and_reports_are_made_up_for(scene: Scene) -> None:
    scene.start("a", "b", pause=0.03)
    scene.until(lambda: all(len(scene.read(name)) > 40 for name in "ab"))
    scene.running.kill()
    before = len(scene.read("a"))
    scene.until(lambda: len(scene.read("a")) > before + 80)
    scene.running.start()
    scene.finish("a", "b")
    check_whole(scene.verdict())
    assert scene.counts("a", "b") == Counter(range(ROWS)), scene.logs()


def test_one_that_was_paused_for_too_long_comes_back_as_another(scene: Scene) -> None:
    scene.start("a", "b", pause=0.05)
    scene.until(lambda: all(len(scene.read(name)) > 40 for name in "ab"))
    scene.processes["b"].send_signal(signal.SIGSTOP)
    scene.until(lambda: scene.states()["b"] == "failed")
    scene.processes["b"].send_signal(signal.SIGCONT)
    scene.finish("a", "b")
    check_whole(scene.verdict())
    counts = scene.counts("a", "b")
    assert set(counts) == set(range(ROWS))
    twice = {each for each, count in counts.items() if count > 1}
    assert twice <= set(scene.read("b"))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_whoever_dies_and_whenever_each_epoch_is_whole(scene: Scene, seed: int) -> None:
    """Workers are killed, paused and started, and the coordinator killed, at random, through several epochs. One stays:
    where nobody is left the job goes back to its last checkpoint, and this one has none."""
    rng, epochs, lost, started = random.Random(seed), 4, set[str](), 0

    def start() -> None:
        nonlocal started
        started += 1
        scene.start(f"w{started}", epochs=epochs, pause=0.03)

    def running() -> list[str]:
        return [name for name, process in scene.processes.items() if process.poll() is None and name != "steady"]

    scene.start("steady", epochs=epochs, pause=0.03)
    scene.until(lambda: bool(scene.read("steady")))
    for _ in range(3):
        start()
    while scene.ledger().dataset.epoch < epochs:
        time.sleep(rng.uniform(0.5, 2.5))
        names = running()
        match rng.choice(["kill", "pause", "start", "start", "coordinator", "nothing"]):
            case "kill" if names:
                lost.add(name := rng.choice(names))
                scene.processes[name].kill()
            case "pause" if names:
                lost.add(name := rng.choice(names))  # perhaps: it may be given up
                scene.processes[name].send_signal(signal.SIGSTOP)
                time.sleep(rng.uniform(0.1, 6.0))
                scene.processes[name].send_signal(signal.SIGCONT)
            case "start" if len(names) < 5:
                start()
            case "coordinator":
                scene.running.kill()
                scene.running.start()
                lost.update(scene.processes)  # whoever does not reach the new one within its lease is given up
            case _:
                pass
    everybody = list(scene.processes)
    for epoch in range(epochs):
        check_whole(scene.verdict(epoch))
        counts = scene.counts(*everybody, epoch=epoch)
        assert set(counts) == set(range(ROWS))
        twice = {each for each, count in counts.items() if count > 1}
        assert twice <= {each for name in lost for each in scene.read(name, epoch)}, scene.logs()
    scene.finish("steady")  # one that was paused at the end may find nobody there, and that all begins anew
