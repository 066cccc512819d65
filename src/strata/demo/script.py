"""What the demo does, and when: each act waits for what is seen of the one before, and fails loudly if that never is.

The law: times are those at which things happened, by the clock of this machine that all of its processes share. No act
waits for a time to pass.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from strata.config import Config
from strata.data.registry import DatasetRegistry
from strata.demo import task
from strata.demo.cluster import JOB, Child, Cluster, DemoFailed
from strata.demo.watching import Watching
from strata.demo.worker import DATASET, SAVE_EVERY
from strata.texts import counted
from strata.wire.asking import ask

T = TypeVar("T")

WORKERS = 4
ACT_SECONDS = 45.0
"""An act that is not over by then has failed."""
LOOK_SECONDS = 0.1
ANSWER_SECONDS = 10.0
STOP_SECONDS = 2.0
"""The job is to stop so soon."""
UNHEARD = "initializing"
"""What the coordinator says of a worker that has not told it anything since it began."""
BETWEEN = SAVE_EVERY // 2
"""Steps behind a checkpoint: a worker is killed there, so that steps are lost."""
ALONE = 3
"""Steps that the workers are to make while there is no coordinator."""
EPOCHS = 5
"""To be over before the end."""


class Shows(Protocol):
    """Whoever shows it all as it happens."""

    def tell(self, words: str) -> None:
        """What the demo does now."""

    def show(self, watching: Watching) -> None:
        """What is seen now."""


@dataclass
class Times:
    """When things happened, and which."""

    began: float = 0.0
    trained: float = 0.0
    killed: float = 0.0
    killed_at_step: int = 0
    detected: float = 0.0
    rebalanced: float = 0.0
    recovered: float = 0.0
    recovered_at_step: int = 0
    added: float = 0.0
    joined: float = 0.0
    grown: float = 0.0
    coordinator_killed: float = 0.0
    steps_alone: int = 0
    coordinator_serves: float = 0.0
    coordinator_heard_all: float = 0.0
    ended: float = 0.0
    victim: str = ""
    workers: list[str] = field(default_factory=list)


class Script:
    """`play` goes through all acts; what it came to is in `times` and in what was seen."""

    def __init__(self, cluster: Cluster, shows: Shows) -> None:
        self.cluster, self._shows = cluster, shows
        self.watching = Watching(cluster.folder)
        self.times = Times()

    def play(self) -> None:
        self.times.began = time.time()
        self._begin()
        self._lose_one()
        self._add_one()
        self._restart_coordinator()
        self._train_on()
        self.times.ended = time.time()

    # -- acts --------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        rows = self.cluster.folder / "rows"
        self._shows.tell(f"making a dataset: {task.ROWS:,} rows in {task.FILES} Parquet files")
        task.write_rows(rows)
        self._shows.tell("starting a coordinator")
        self.cluster.start_coordinator()
        self._until(self.cluster.serves, "the coordinator to serve")
        self._look()
        self._shows.tell(f"it shows its state at {self.cluster.dashboard}")
        with DatasetRegistry(self.cluster.address, job_id=JOB) as registry:
            registry.register(DATASET, str(rows), "parquet", shard_size=task.SHARD_SIZE, shuffle=True)
        self._look()
        self._shows.tell(f"starting {WORKERS} workers, each a process that trains")
        for number in range(WORKERS):
            self._start(f"worker-{number}", WORKERS)
        first = self._until(lambda: self.watching.stepped(WORKERS, 0.0), "a step of all workers")
        self.times.trained = first.at
        self._shows.tell("all of them train; waiting for a checkpoint to be committed")
        self._until(lambda: self.watching.committed >= SAVE_EVERY, "a checkpoint")

    def _lose_one(self) -> None:
        victim = self.times.victim = "worker-2"
        self._pass_checkpoint()
        self.times.killed, self.times.killed_at_step = time.time(), self._step()
        self._shows.tell(f"killing {victim} with -9, at step {self.times.killed_at_step}")
        self.cluster.kill_worker(victim)
        seen = self._until(
            lambda: self.watching.happened("worker_lost", victim, self.times.killed), "the coordinator to notice"
        )
        self.times.detected = seen.at
        self._until(lambda: self._is_shared_by(WORKERS - 1), "its shards to go to the others")
        self.times.rebalanced = time.time()
        first = self._until(lambda: self.watching.stepped(WORKERS - 1, self.times.killed), "the others to go on")
        self.times.recovered, self.times.recovered_at_step = first.at, first.step
        self._shows.tell(f"{WORKERS - 1} workers go on from step {first.step - 1}")
        self._wait_for_checkpoint()

    def _add_one(self) -> None:
        name = f"worker-{WORKERS}"
        self.times.added = time.time()
        self._shows.tell(f"adding {name}")
        self._start(name)
        joined = self._until(lambda: self.watching.happened("worker_joined", name, self.times.added), "it to join")
        self.times.joined = joined.at
        first = self._until(lambda: self.watching.stepped(WORKERS, self.times.joined), "all to train with it")
        self.times.grown = first.at
        self._shows.tell(f"{WORKERS} workers go on from step {first.step - 1}")
        self._wait_for_checkpoint()

    def _restart_coordinator(self) -> None:
        times = self.times
        times.coordinator_killed = time.time()
        before, generation = self.watching.reached(times.coordinator_killed), self.watching.generation
        self._shows.tell("killing the coordinator with -9; the workers train on")
        self.cluster.kill_coordinator()
        self._until(lambda: self._step() >= before + ALONE, "steps without a coordinator")
        self._shows.tell("starting it again")
        self.cluster.start_coordinator()
        self._until(self.cluster.serves, "the coordinator to serve again")
        times.coordinator_serves = time.time()
        self._until(self._is_heard_of, "all workers to be heard by it")
        times.coordinator_heard_all = time.time()
        times.steps_alone = self.watching.reached(times.coordinator_serves) - before
        is_same = self.watching.generation == generation
        world = "the world is the same" if is_same else f"generation {generation} became {self.watching.generation}"
        self._shows.tell(f"it knows them all, and {world}")
        self._wait_for_checkpoint()

    def _train_on(self) -> None:
        self._shows.tell("training on")
        self._until(lambda: self.watching.epoch >= EPOCHS, f"{EPOCHS} epochs to be over")

    def finish(self) -> None:
        """Stop the job, at a step that all save."""
        before = self.watching.committed
        self._until(lambda: self.watching.committed > before, "another checkpoint")
        self._shows.tell("stopping the job: all save at one step, and leave")
        config = Config({"coordinator_url": self.cluster.address, "job_id": JOB}, {})
        said = {"reason": "the demo has seen enough", "within_seconds": STOP_SECONDS}
        ask(config, ANSWER_SECONDS, lambda asker: asker.call("StopJob", **said))
        for name in list(self.cluster.workers):
            child = self.cluster.workers[name]
            self._until(partial(_has_ended, child), f"{name} to end", may_end=True)
        for name in list(self.cluster.workers):
            self.cluster.release(name)
        self._look()
        self.times.ended = time.time()

    def wait(self, tell: Callable[[str], None]) -> None:
        """Until somebody interrupts, or ends the coordinator or the last worker: the others do without one."""
        while True:
            ended = [name for name, child in self.cluster.workers.items() if child.has_ended]
            for name in ended[: len(self.cluster.workers) - 1]:
                self.cluster.kill_worker(name)  # what is left of it
                tell(f"{name} has ended: {counted(len(self.cluster.workers), 'worker')} left")
            self.cluster.check()
            time.sleep(LOOK_SECONDS)

    # -- what they wait for ------------------------------------------------------------------------------------------

    def _start(self, name: str, least: int = 1) -> None:
        self.times.workers.append(name)
        self.cluster.start_worker(name, least)

    def _look(self) -> None:
        self.watching.look(self.cluster.http, self.times.workers)
        self._shows.show(self.watching)

    def _until(self, seen: Callable[[], T | None], what: str, *, may_end: bool = False) -> T:
        """Look until this is seen; what it gave then. DemoFailed if it is not in time, or a process ends."""
        ends = time.monotonic() + ACT_SECONDS
        while True:
            self._look()
            found = seen()
            if found:
                return found
            if not may_end:
                self.cluster.check()
            if time.monotonic() > ends:
                logs = "\n".join(f"{child.name}:\n{child.tail()}" for child in self.cluster.workers.values())
                raise DemoFailed(f"waited {ACT_SECONDS:g} s in vain for {what}\n{logs}")
            time.sleep(LOOK_SECONDS)

    def _step(self) -> int:
        """The last that all workers have made."""
        made = [self.watching.last(name) for name in self.cluster.workers]
        return min((each.step if each else 0 for each in made), default=0)

    def _wait_for_checkpoint(self) -> None:
        """One that is committed from now on, and some steps behind it."""
        before = self.watching.committed
        self._until(lambda: self.watching.committed > before, "another checkpoint")
        self._pass_checkpoint()

    def _pass_checkpoint(self) -> None:
        behind = "some steps behind the checkpoint"
        self._until(lambda: BETWEEN <= self._step() - self.watching.committed < SAVE_EVERY, behind)

    def _is_shared_by(self, count: int) -> bool:
        """Whether so many own all shards."""
        (dataset,), live = self.watching.board["datasets"], self.watching.live
        owned = [each["shards"].get(DATASET, 0) for each in live]
        return len(owned) == count and all(owned) and sum(owned) == dataset["shard_count"]

    def _is_heard_of(self) -> bool:
        """Whether the coordinator has heard all workers since it began."""
        if not self.watching.is_serving or self.watching.term != self.cluster.starts:
            return False
        heard = {each["worker_id"] for each in self.watching.live if each["state"] != UNHEARD}
        return heard == set(self.cluster.workers)


def _has_ended(child: Child) -> bool:
    return child.has_ended
