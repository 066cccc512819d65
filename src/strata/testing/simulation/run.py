"""A whole cluster on virtual time, from a seed: workers, network, disk, faults, and the real machine in the middle."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import lru_cache
from random import Random
from time import perf_counter
from typing import Any

import msgspec

from strata.core.effects import Effect
from strata.core.events import (
    DatasetRegisterRequested,
    Event,
    JobConfigureRequested,
)
from strata.core.machine import Machine
from strata.core.orders import ElasticOrder, ShardLayout
from strata.core.records import Record
from strata.core.settings import JobSettings, Retention
from strata.testing.simulation import freerun, lockstep
from strata.testing.simulation.checker import Checker
from strata.testing.simulation.faults import STRIKES
from strata.testing.simulation.freerun import FreerunTrainer
from strata.testing.simulation.host import Host
from strata.testing.simulation.lockstep import LockstepTrainer
from strata.testing.simulation.loop import VirtualLoop
from strata.testing.simulation.network import Network
from strata.testing.simulation.plan import HEAL_SHARE, WORKER_FAULTS, Fault, Plan
from strata.testing.simulation.process import Process
from strata.testing.simulation.store import Store
from strata.testing.simulation.story import tell
from strata.testing.simulation.violation import Violation

HISTORY_KEPT = 4000
FULL_CHECK_SECONDS = 15.0
UNDISTURBED_SECONDS, CALM_SECONDS = 20.0, 60.0
"""A job gets somewhere if its world stays the same for so long; if it does not, then in so long of good weather."""
OPERATOR = "operator"


class Failure(msgspec.Struct, frozen=True):
    """What went wrong, and what led to it."""

    rule: str
    message: str
    at: float
    history: list[str]


class Result(msgspec.Struct, frozen=True):
    """How a run went."""

    plan: Plan
    failure: Failure | None
    virtual_seconds: float
    wall_seconds: float
    events: int
    messages: dict[str, int]
    records: dict[str, int]
    faults: dict[str, int]
    coordinator_restarts: int
    epochs_proven: int
    epochs_followed: int
    digest: str

    @property
    def events_per_second(self) -> float:
        return self.events / self.wall_seconds if self.wall_seconds else 0.0


class Simulation:
    """One run of one plan. `run` returns the result; `advance` goes on by some virtual seconds, for a live view."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.seed = plan.seed % 2**32  # what datasets are shuffled with; a run's own seed may be any number
        self.rng = Random(f"run {plan.seed}")
        self.loop = VirtualLoop()
        self.network = Network(self.loop, Random(f"net {plan.seed}"), plan.chaos)
        self.store = Store()
        self.history: deque[tuple[float, str, str | Record]] = deque(maxlen=HISTORY_KEPT)
        self.struck: Counter[str] = Counter()
        self.processes: dict[str, list[Process]] = {}
        self.versions: list[int] = []
        self.checker = Checker(Machine(plan.policy), self.store, lockstep.BATCHES, lambda: self.loop.now, self.note)
        self.host = Host(self.loop, Random(f"host {plan.seed}"), plan.policy, self.checker, self._push)
        self._nonces = 0
        self._order = lru_cache(maxsize=4)(self._elastic)
        self._set_up()

    def _set_up(self) -> None:
        half = max(1, self.plan.workers // 2)
        self.lockstep = [f"rank-{number}" for number in range(half)]
        self.freerun = [f"node-{number}" for number in range(self.plan.workers - half)]
        self.rank_of = {worker: rank for rank, worker in enumerate(self.lockstep)}
        self.versions = [freerun.SHARDS_PER_WORKER * freerun.SHARD * len(self.freerun) + 7]
        keep = JobSettings(retention=Retention(keep_count=3))
        carry = JobSettings(barriers="shrink", recovery="carry_on", retention=Retention(keep_count=2))
        tokens = DatasetRegisterRequested(
            lockstep.JOB, lockstep.DATASET, lockstep.TOTAL, lockstep.SHARD, shuffle=True, seed=self.seed
        )
        for event in (
            JobConfigureRequested(lockstep.JOB, keep),
            JobConfigureRequested(freerun.JOB, carry),
            tokens,
            self.pages(),
        ):
            self.host.receive(self.host.boot, event, None)
        for worker in [*self.lockstep, *self.freerun]:
            self.loop.after(self.rng.random(), self.spawn, worker)
        for fault in self.plan.faults:
            self.loop.after(fault.at, self._strike, fault)
        self.loop.after(FULL_CHECK_SECONDS, self._check_in_full)
        self.loop.after(self.plan.seconds * HEAL_SHARE, self._staff)

    def freerun_total(self, version: int) -> int:
        return self.versions[version - 1]

    def pages(self) -> DatasetRegisterRequested:
        """The newest version of the dataset that the free-running job reads."""
        return DatasetRegisterRequested(
            freerun.JOB,
            freerun.DATASET,
            self.versions[-1],
            freerun.SHARD,
            shuffle=True,
            seed=self.seed,
            order="affinity",
            replaces=len(self.versions) - 1 or None,
        )

    def _elastic(self, epoch: int) -> ElasticOrder:
        layout = ShardLayout(lockstep.TOTAL, lockstep.SHARD)
        return ElasticOrder(
            layout,
            self.seed,
            epoch,
            True,
            lockstep.BATCH,
            streams=lockstep.STREAMS,
            window_shards=lockstep.WINDOW,
            tail="short",
        )

    # -- processes ---------------------------------------------------------------------------------------------------

    def spawn(self, worker: str) -> None:
        """Start a process under this name, as a scheduler would."""
        self._nonces += 1
        nonce = f"p{self._nonces}"
        if worker in self.rank_of:
            process: Process = LockstepTrainer(self, worker, nonce, self.rank_of[worker], len(self.lockstep))
        else:
            process = FreerunTrainer(self, worker, nonce)
        self.processes.setdefault(worker, []).append(process)
        self.note(worker, f"process {nonce} starts")
        process.start()

    def current(self, worker: str) -> Process | None:
        """The newest process under this name, if it is alive."""
        mine = self.processes.get(worker)
        return mine[-1] if mine and mine[-1].alive else None

    def _push(self, worker: str, effect: Effect) -> None:
        for process in self.processes.get(worker, ()):
            if process.alive:
                self.network.send(worker, process.run, process.pushed, (effect,))

    def note(self, who: str, what: str | Record) -> None:
        """One line of the history; records are put into words only when somebody reads it."""
        self.history.append((self.loop.now, who, what))

    # -- operators and faults ----------------------------------------------------------------------------------------

    def operate(self, event: Event, tries: int = 20) -> None:
        """An operator's request: sent until it is answered."""
        answered: list[Any] = []
        self.network.send(OPERATOR, self.host.receive, self.host.boot, event, answered.append)
        self.loop.after(1.0, self._operate_again, event, answered, tries - 1)

    def _operate_again(self, event: Event, answered: list[Any], tries: int) -> None:
        if not answered and tries:
            self.operate(event, tries)

    def _strike(self, fault: Fault) -> None:
        workers = [*self.lockstep, *self.freerun]
        worker = workers[fault.target % len(workers)]
        self.struck[fault.kind] += 1
        whom = worker if fault.kind in WORKER_FAULTS else "the cluster"
        self.note("fault", f"{fault.kind.replace('_', ' ')} of {whom}, {fault.seconds:.1f} s")
        STRIKES[fault.kind](self, worker, fault)

    def _staff(self) -> None:
        """When the faults are over, the scheduler sees to it that everybody is there again."""
        for worker in [*self.lockstep, *self.freerun]:
            if self.current(worker) is None:
                self.spawn(worker)
        self.loop.after(3.0, self._staff)

    def respawn(self, worker: str) -> None:
        """Start a process under this name unless one is alive; one that is about to leave is waited for."""
        there = self.current(worker)
        if there is None:
            self.spawn(worker)
        elif there.leaving:
            self.loop.after(2.0, self.respawn, worker)

    # -- running -----------------------------------------------------------------------------------------------------

    def _check_in_full(self) -> None:
        self.loop.after(FULL_CHECK_SECONDS, self._check_in_full)
        self.host.check_in_full()
        free = (p for worker in self.freerun for p in self.processes.get(worker, ()) if isinstance(p, FreerunTrainer))
        self.checker.shards.check_owners(self.checker.standby)
        self.checker.shards.check_holders(self.checker.standby, free)

    def advance(self, seconds: float) -> None:
        """Go on by so many virtual seconds, or to the end of the plan."""
        self.loop.run(min(self.loop.now + seconds, self.plan.seconds))

    @property
    def over(self) -> bool:
        return self.loop.now >= self.plan.seconds

    def run(self, watch: Callable[[Simulation], None] | None = None, every: float = 1.0) -> Result:
        """To the end, or to the first broken promise. `watch` is called as virtual time goes on."""
        began = perf_counter()
        failure: Failure | None = None
        followed = 0
        try:
            while not self.over:
                self.advance(every)
                if watch is not None:
                    watch(self)
            followed = self._check_at_the_end()
        except Violation as violation:
            failure = self._failure(violation.rule, str(violation))
        except Exception as error:  # noqa: BLE001  whatever else escapes the core is a broken promise too
            failure = self._failure("crash", f"{type(error).__name__}: {error}")
            failure = msgspec.structs.replace(failure, history=[*failure.history, *_where(error)])
        return Result(
            plan=self.plan,
            failure=failure,
            virtual_seconds=self.loop.now,
            wall_seconds=perf_counter() - began,
            events=self.host.handled,
            messages={
                "sent": self.network.sent,
                "lost": self.network.lost,
                "late": self.network.late,
                "doubled": self.network.doubled,
            },
            records=dict(sorted(self.checker.counts.items())),
            epochs_proven=self.checker.reads.proven,
            faults=dict(sorted(self.struck.items())),
            coordinator_restarts=self.host.restarts,
            epochs_followed=followed,
            digest=self.host.digest(),
        )

    def _check_at_the_end(self) -> int:
        """Once the faults are over, both jobs must get somewhere; and the samples must add up.

        A network that loses messages takes the lease of one worker in so many per second, so a job in lockstep that is
        large enough loses somebody before each commit. Such a job is stuck if it gets nowhere in good weather either.
        """
        quiet = max((fault.at + fault.seconds for fault in self.plan.faults), default=0.0)
        behind = self._behind(quiet)
        if behind and all(self._is_disturbed(job) for job, _ in behind):
            self.note("network", "loses nothing any more")
            self.network.clear_up()
            while (behind := self._behind(quiet)) and self.loop.now < self.plan.seconds + CALM_SECONDS:
                self.loop.run(self.loop.now + 1.0)
        for job, record in behind:
            last = self.checker.last.get((job, record), 0.0)
            raise Violation("stuck", f"{job}: no {record} since {last:.1f} s; the faults ended at {quiet:.1f} s")
        self._check_in_full()
        return self.checker.commits.check_samples(self._order, lockstep.TOTAL)

    def _behind(self, since: float) -> list[tuple[str, str]]:
        """Each job and the progress that it has not made since then."""
        return [progress for progress in _PROGRESS if self.checker.last.get(progress, 0.0) < since]

    def _is_disturbed(self, job: str) -> bool:
        """Whether somebody has left it or joined it not long ago."""
        changed = max(self.checker.last.get((job, kind), 0.0) for kind in ("WorkerLost", "WorkerJoined"))
        return self.loop.now - changed < UNDISTURBED_SECONDS

    def _failure(self, rule: str, message: str) -> Failure:
        return Failure(rule, message, self.loop.now, [line(*entry) for entry in self.history])


def line(at: float, who: str, what: str | Record) -> str:
    """An entry of the history for a person."""
    return f"{at:9.3f} s  {who:<12} {what if isinstance(what, str) else tell(what)}"


def _where(error: BaseException) -> list[str]:
    import traceback

    return traceback.format_exception(error)[-6:]


_PROGRESS = (
    (lockstep.JOB, "BarrierReleased"),
    (lockstep.JOB, "CheckpointCommitted"),
    (freerun.JOB, "ProgressMade"),
    (freerun.JOB, "CheckpointDecided"),
)


def simulate(seed: int, workers: int = 50, seconds: float = 50.0, faults: int | None = None) -> Result:
    """Run the simulation that belongs to this seed."""
    return Simulation(Plan.of(seed, workers, seconds, faults)).run()
