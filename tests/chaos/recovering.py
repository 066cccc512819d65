"""A job whose ranks, or whose coordinator, are ended in the middle; and whether it goes on as it should.

    first run     saves steps 1 and 2
    second run    loads, saves step 3, and meets its doom
    third run     fresh processes: all load one and the same step, and save step 4

Each try is made on a copy of what the first run left, the coordinator's journal included.
"""

import json
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from strata import background
from strata.checkpoint import CheckpointReader
from strata.checkpoint.checkpoints import Checkpoints
from strata.checkpoint.finishing import place_of
from strata.checkpoint.store import Store
from strata.storage import LocalStorage
from strata.v1 import coordinator_pb2 as pb
from tests.chaos.ranks import Answer, Berth, Rank, Run, started
from tests.chaos.steps import Doom
from tests.chaos.swift import SwiftCoordinator
from tests.servers.coordinator import Client
from tests.unit.checkpoint.crews import bare

JOB = "default"
SILENCE_SECONDS = 0.3
"""How long a coordinator that was killed stays away at least."""
Orders: TypeAlias = Sequence[tuple[str, dict[str, Any]]]
SECOND_RUN: Orders = (("load", {}), ("save", {"step": 3, "by": "second"}), ("close", {}))


class Job(NamedTuple):
    """Its storage, and its coordinator if it has one."""

    folder: Path
    size: int
    coordinator: SwiftCoordinator | None

    @property
    def root(self) -> Path:
        return self.folder / "storage"

    @property
    def checkpoints(self) -> Path:
        return self.root / JOB / "checkpoints"

    def berth(self, run: str) -> Berth:
        return Berth(self.root, 0, self.size, run, self.coordinator.address if self.coordinator else "")

    def store(self) -> Store:
        return Store(LocalStorage(self.root), JOB)


@contextmanager
def job_in(folder: Path, size: int, lease_seconds: float) -> Iterator[Job]:
    """With what is in that folder, or from the start. No lease: no coordinator."""
    (folder / "storage").mkdir(parents=True, exist_ok=True)
    if not lease_seconds:
        yield Job(folder, size, None)
        return
    coordinator = SwiftCoordinator(folder, lease_seconds).start()
    try:
        yield Job(folder, size, coordinator)
    finally:
        if coordinator.process.poll() is None:
            coordinator.kill()


class Ground:
    """What the first run of each kind of job left, to be copied."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._copies = 0

    @contextmanager
    def job(self, size: int, lease_seconds: float) -> Iterator[Job]:
        kind = f"{size}{'c' if lease_seconds else ''}"
        with self._lock:
            if not (self._folder / kind).exists():
                self._prepare(self._folder / kind, size, lease_seconds)
            self._copies += 1
            folder = self._folder / f"{kind}-{self._copies}"
        shutil.copytree(self._folder / kind, folder, ignore=shutil.ignore_patterns("socket", "*.txt", "*.log"))
        with job_in(folder, size, lease_seconds) as job:
            yield job
        shutil.rmtree(folder)  # where all was well: else it may be looked at

    def _prepare(self, folder: Path, size: int, lease_seconds: float) -> None:
        with job_in(folder, size, lease_seconds) as job, started(job.berth("first")) as run:
            for step in (1, 2):
                run.each("save", step=step, by="first")
            run.each("close")
            if job.coordinator is not None:
                job.coordinator.stop()


class Trial(NamedTuple):
    """Who is killed, and in which circumstances. Ranks wait `patience` seconds for each other, and `reach` seconds for
    the coordinator, which comes back at once, or only for the third run."""

    rank: bool = False
    coordinator: bool = False
    lease: float = 0.0
    patience: float = 1.0
    reach: float = 20.0
    comes_back: bool = True
    keep: int = 2

    def doom(self, at: int, when: Any, job: Job) -> Doom:
        pid = job.coordinator.pid if self.coordinator and job.coordinator is not None else 0
        return Doom(at, when, pid, self.rank)


class Met(NamedTuple):
    """What became of the second run."""

    struck: str
    """The step at which its doom came; empty if it never did."""
    steps: int
    """How many the victim took."""
    answers: list[list[Answer]]
    """What each rank said to each order."""

    @property
    def told(self) -> list[bool]:
        """Of each rank, whether it was told that the step is committed."""
        return [len(rank) > 1 and rank[1].well for rank in self.answers]

    @property
    def errors(self) -> list[str]:
        return [answer.error for rank in self.answers for answer in rank if answer.error]


def meet(job: Job, trial: Trial, victim: int, doom: Doom, orders: Orders = SECOND_RUN) -> Met:
    """The second run, or one that is told something else, but to save second."""
    berth = job.berth("second")._replace(patience=trial.patience, reach=trial.reach, keep=trial.keep)
    with reviving(job.coordinator, soon=trial.comes_back), started(berth, victim, doom) as run:
        for what, given in orders:
            run.tell(what, **given)
        answers = [list(_all(rank, len(orders))) for rank in run.ranks]
        return Met(run.ranks[victim].struck, len(run.ranks[victim].steps()), answers)


def _all(rank: Rank, count: int) -> Iterator[Answer]:
    for _ in range(count):
        answer = rank.hear()
        yield answer
        if answer.gone:
            return


def meet_and_stay(job: Job, trial: Trial, victim: int, doom: Doom) -> int | None:
    """As the second and the third run in one: those who are left stay, and only the victim is started anew. Gives the
    step that all of them went on from; None if there was no victim."""
    berth = job.berth("second")._replace(patience=trial.patience, reach=trial.reach)
    with started(berth, victim, doom) as run:
        for what, given in SECOND_RUN[:2]:
            run.tell(what, **given)
        met = Met("", 0, [list(_all(rank, 2)) for rank in run.ranks])
        dead = run.ranks[victim]
        if not dead.struck:
            return None
        dead.process.join()
        let_marks_run_out(job)
        run.ranks[victim] = Rank(job.berth("second")._replace(rank=victim))
        return _go_on_from_one_step(job, run, met)


@contextmanager
def reviving(coordinator: SwiftCoordinator | None, *, soon: bool) -> Iterator[None]:
    """A coordinator that is killed comes back: soon, or when this is over."""
    if coordinator is None:
        yield
        return
    over = threading.Event()

    def revive() -> None:
        while not over.wait(0.02):
            if soon and coordinator.process.poll() is not None:
                time.sleep(SILENCE_SECONDS)
                coordinator.start()

    keeper = threading.Thread(target=revive)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join()
        if coordinator.process.poll() is not None:
            coordinator.start()


def check_recovery(job: Job, met: Met) -> int:
    """The third run. Gives the step that it went on from."""
    let_marks_run_out(job)
    with started(job.berth("third")) as run:
        return _go_on_from_one_step(job, run, met)


def _go_on_from_one_step(job: Job, run: Run, met: Met) -> int:
    found = run.each("load")
    latest = found[0]["step"]
    assert latest in ((3,) if any(met.told) else (2, 3)), f"step {latest} was loaded"
    for rank, state in enumerate(found):
        assert_same(state, rank, latest, "second" if latest == 3 else "first")
    run.each("save", step=4, by="third")
    run.each("wait")
    listed = run.each("list")
    assert listed == [[latest, 4]] * job.size, f"listed: {listed}"
    run.each("close")
    check_whole(job, [latest, 4])
    return int(latest)


def assert_same(state: Any, rank: int, step: int, by: str) -> None:
    """To the last bit what this rank gave."""
    wanted = {**bare(rank, step), "by": by}
    assert _plain(state) == _plain(wanted), f"rank {rank} has {state}, and not that of step {step} by the {by} run"


def _plain(tree: Any) -> Any:
    if isinstance(tree, dict):
        return [(key, _plain(value)) for key, value in tree.items()]
    if isinstance(tree, np.ndarray):
        return (tree.dtype.str, tree.shape, tree.tobytes())
    return (type(tree), tree)


def let_marks_run_out(job: Job) -> None:
    """Those of the dead."""
    for mark in (job.checkpoints / "readers").glob("*"):
        mark.write_text(json.dumps({**json.loads(mark.read_text("utf-8")), "until_unix_seconds": 0.0}))


def _is_failure(job: Job, path: str) -> bool:
    """Whether rank 0 says there that a save is not made."""
    said = json.loads((job.checkpoints / path).read_bytes())
    return isinstance(said, dict) and bool(said.get("failed"))


def check_whole(job: Job, steps: list[int]) -> None:
    """These checkpoints are there, and verify; nothing else is, but who they follow and what the last run said; and the
    coordinator knows of the same ones."""
    with CheckpointReader(job.root) as reader:
        found = reader.list_checkpoints()
        assert found == steps, f"steps {found} are there, and not {steps}"
        for step in steps:
            reader.verify(step)
    checkpoints = Checkpoints(job.store())
    needed = background.run(checkpoints.files_needed())
    files = {str(path.relative_to(job.checkpoints)) for path in job.checkpoints.rglob("*") if path.is_file()}
    words = {path for path in files if path.startswith("runs/")}
    kept = files - words - {"lineage.json"}
    assert kept == needed, f"left over: {sorted(kept - needed)}, missing: {sorted(needed - kept)}"
    # What a zombie says of a save that failed, where nothing else is left of its run, stays until the next start, or
    # for a day: see `words`.
    spoken = [path for path in words if "-" not in path.rpartition("/")[2] and not _is_failure(job, path)]
    telling = {path.split("/")[1] for path in spoken}
    assert len(telling) == 1, f"words of several runs are left: {sorted(words)}"
    staged = list(job.root.glob(".strata-tmp/*.part"))
    assert not staged, f"left over: {staged}"
    if job.coordinator is not None:
        there = background.run(checkpoints.all())
        with Client(job.coordinator.address, JOB, patient=True) as client:
            listed = client.call("ListCheckpoints").checkpoints
        known = {(each.place, each.status) for each in listed}
        wanted = {(place_of(*each), pb.ATTEMPT_STATUS_COMMITTED) for each in there}
        assert known == wanted, f"the coordinator knows {sorted(known)}, and not {sorted(wanted)}"
