"""What is shown of the state, as plain values: the answers of the HTTP API, and what the command line prints.

Everything is worked out when somebody looks. Instants are told as seconds ago, since only this process knows its clock.
"""

from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

from strata.coordinator.events import EventView, event_of
from strata.coordinator.hub import Hub
from strata.coordinator.paging import Key
from strata.coordinator.stats import BarrierStats, JournalStats, PastBarrier, RequestStats, Save
from strata.core.barriers import missing_from
from strata.core.explanations import explain
from strata.core.lineages import head
from strata.core.paths import shown
from strata.core.state import Attempt, Dataset, Job, Member
from strata.core.volatile import OpenRound, Vitals
from strata.texts import printable

T = TypeVar("T")

MISSING_SHOWN = 16
EVENTS_SHOWN = 100
PULSE_SECONDS = 1.0
PULSES_KEPT = 256
JOBS_IN_PULSE = 200


@dataclass(frozen=True, slots=True)
class CoordinatorView:
    version: str
    term: int
    index: int
    uptime_seconds: float
    jobs: int
    connections: int
    journal_bytes: int


@dataclass(frozen=True, slots=True)
class JobView:
    """`explanation` is one sentence about the job; `culprits` whom to look at where it is held back."""

    job_id: str
    situation: str
    explanation: str
    held_back: bool
    culprits: list[str]
    generation: int
    world_size: int
    workers: int
    step: int
    epoch: int
    recovery: str
    lineage: int
    latest_step: int | None
    latest_bytes: int
    latest_unix_seconds: float | None


@dataclass(frozen=True, slots=True)
class WorkerView:
    """`state` is what it does; `stalled`: it is alive, but has made no step for long."""

    job_id: str
    worker_id: str
    rank: int
    incarnation: int
    state: str
    stalled: bool
    draining: bool
    step: int
    epoch: int
    steps_per_s: float
    heard_seconds_ago: float | None
    step_seconds_ago: float | None
    address: str
    gpu_count: int
    memory_bytes: int
    shards: dict[str, int]
    resources: dict[str, float]
    metadata: dict[str, str]
    reason: str


@dataclass(frozen=True, slots=True)
class DatasetView:
    job_id: str
    dataset_id: str
    version: int
    epoch: int
    total_samples: int
    consumed_samples: int
    left_out_samples: int
    shard_size: int
    shard_count: int
    shards_pending: int
    shuffle: bool
    seed: int
    order: str
    strategy: str
    format: str
    path: str


@dataclass(frozen=True, slots=True)
class CheckpointView:
    job_id: str
    attempt: int
    step: int
    epoch: int
    lineage: int
    status: str
    parts: int
    participants: int
    total_bytes: int
    seconds: float | None
    unix_seconds: float | None
    pins: list[str]
    missing: list[str]


@dataclass(frozen=True, slots=True)
class BarrierView:
    """A barrier that is being waited at."""

    job_id: str
    barrier_id: str
    arrived: int
    expected: int
    missing: list[str]
    waiting_seconds: float


@dataclass(frozen=True, slots=True)
class BarriersView:
    open: list[BarrierView]
    past: list[PastBarrier]


@dataclass(frozen=True, slots=True)
class MetricsView:
    checkpoint_mb_per_s: float
    requests_per_s: float
    barrier_p50_ms: float
    barrier_p99_ms: float
    workers_by_state: dict[str, int]
    workers_stalled: int
    shards_pending: int
    journal_lag_records: int


@dataclass(frozen=True, slots=True)
class DashboardView:
    """The whole state in one answer. Lists are cut at the limit that was asked for; `cut` names those that were."""

    coordinator: CoordinatorView
    jobs: list[JobView]
    workers: list[WorkerView]
    datasets: list[DatasetView]
    checkpoints: list[CheckpointView]
    barriers: BarriersView
    metrics: MetricsView
    events: list[EventView]
    cut: list[str]


@dataclass(frozen=True, slots=True)
class PulseView:
    """`jobs` are those that have workers, what is held back first, and not more than a few hundred."""

    metrics: MetricsView
    jobs: list[JobView]


class Views:
    """Reads the hub. What it gives may rest on what is not durable yet: see `Hub.settled`."""

    def __init__(
        self,
        hub: Hub,
        requests: RequestStats,
        barriers: BarrierStats,
        journal: JournalStats,
        *,
        version: str,
        connections: Callable[[], int] = lambda: 0,
    ) -> None:
        self.hub = hub
        self.requests, self.barrier_stats, self.journal_stats = requests, barriers, journal
        self._version = version
        self._began = hub.clock()
        self.connections = connections
        self._pulses: dict[str | None, tuple[float, PulseView]] = {}

    def dashboard(self, job: str | None, limit: int) -> DashboardView:
        jobs, workers = self.jobs(job), _first(self.workers(job), limit + 1)
        datasets, checkpoints = _first(self.datasets(job), limit + 1), _first(self.checkpoints(job), limit + 1)
        lists: dict[str, Sized] = {"jobs": jobs, "workers": workers, "datasets": datasets, "checkpoints": checkpoints}
        return DashboardView(
            self.coordinator(),
            jobs[:limit],
            workers[:limit],
            datasets[:limit],
            checkpoints[:limit],
            self.barriers(job),
            self.metrics(job),
            self.events(job, min(limit, EVENTS_SHOWN)),
            [name for name, found in lists.items() if len(found) > limit],
        )

    def pulse(self, job: str | None) -> PulseView:
        """What changes all the time; worked out once for all who watch."""
        now = self.hub.clock()
        known = self._pulses.get(job)
        if known is None or now - known[0] >= PULSE_SECONDS / 2:
            if len(self._pulses) > PULSES_KEPT:
                self._pulses.clear()
            jobs = [each for each in self.jobs(job) if each.workers or job is not None]
            jobs.sort(key=lambda each: (not each.held_back, each.job_id))
            known = self._pulses[job] = (now, PulseView(self.metrics(job), jobs[:JOBS_IN_PULSE]))
        return known[1]

    def coordinator(self) -> CoordinatorView:
        state = self.hub.machine.state
        return CoordinatorView(
            self._version,
            state.term,
            state.index,
            round(self.hub.clock() - self._began, 3),
            len(state.jobs),
            self.connections(),
            self.hub.journal.size_bytes(),
        )

    def jobs(self, job: str | None = None) -> list[JobView]:
        return [self._job(each) for each in self._chosen(job)]

    def _job(self, job: Job) -> JobView:
        volatile = self.hub.machine.volatile.job(job.job)
        told = explain(job, volatile, self.hub.machine.policy, self.hub.clock())
        vitals = volatile.vitals.values()
        latest = head(job)
        return JobView(
            job.job,
            told.situation,
            printable(f"job {job.job} {told.sentence}"),
            told.held_back,
            list(told.culprits),
            job.world.generation,
            job.world.declared or job.world.size,
            len(job.world.by_rank),
            max((each.step for each in vitals), default=-1),
            max((each.epoch for each in vitals), default=-1),
            job.settings.recovery,
            job.lineage,
            None if latest is None else latest.step,
            0 if latest is None else latest.total_bytes,
            None if latest is None else self._committed_at(job.job, latest.attempt),
        )

    def _committed_at(self, job: str, attempt: int) -> float | None:
        past = self._save(job, attempt)
        return None if past is None else past.ended

    def _save(self, job: str, attempt: int) -> Save | None:
        known = self.journal_stats.committed
        return next((save for save in known if (save.job_id, save.attempt) == (job, attempt)), None)

    def workers(self, job: str | None = None) -> Iterator[WorkerView]:
        """By job and rank; those that are out come last."""
        return (make() for _, make in self.workers_by_key(job))

    def workers_by_key(self, job: str | None = None) -> Iterator[tuple[Key, Callable[[], WorkerView]]]:
        """The same, each made only when it is wanted."""
        for each in self._chosen(job):
            members = each.world.members.values()
            for member in sorted(members, key=lambda member: (member.gone, member.rank, member.worker)):
                yield (each.job, member.gone, member.rank, member.worker), partial(self._worker, each, member)

    def _worker(self, job: Job, member: Member) -> WorkerView:
        machine, now = self.hub.machine, self.hub.clock()
        vitals = machine.volatile.job(job.job).vitals.get(member.worker)
        known = vitals or Vitals(now)
        shards = {
            name: machine.volatile.ownerships.of(job.job, dataset, job.world.view).load(member.rank)
            for name, dataset in sorted(job.datasets.items())
            if not member.gone
        }
        state = "left" if member.status == "left" else "failed" if member.gone else known.state or "initializing"
        stalled = state == "training" and now - known.step_since >= machine.policy.stalled_seconds
        return WorkerView(
            job.job,
            member.worker,
            member.rank,
            member.incarnation,
            state,
            stalled,
            member.status == "draining",
            known.step,
            known.epoch,
            round(known.pace, 3),
            None if vitals is None else round(now - vitals.heard, 3),
            None if vitals is None or vitals.step < 0 else round(now - vitals.step_since, 3),
            f"{member.ip}:{member.port}" if member.ip else "",
            member.gpu_count,
            member.memory_bytes,
            shards,
            known.resources,
            member.metadata,
            member.reason,
        )

    def datasets(self, job: str | None = None) -> Iterator[DatasetView]:
        for each in self._chosen(job):
            for name in sorted(each.datasets):
                yield dataset_view(each, each.datasets[name])

    def checkpoints(self, job: str | None = None) -> Iterator[CheckpointView]:
        """The newest first."""
        for each in self._chosen(job):
            for number in sorted(each.attempts, reverse=True):
                yield self._checkpoint(each, each.attempts[number])

    def _checkpoint(self, job: Job, attempt: Attempt) -> CheckpointView:
        past = self._save(job.job, attempt.attempt)
        absent = [attempt.participants[rank][0] or f"rank {rank}" for rank in attempt.absent()[:MISSING_SHOWN]]
        return CheckpointView(
            job.job,
            attempt.attempt,
            attempt.step,
            attempt.epoch,
            attempt.lineage,
            attempt.status,
            len(attempt.parts),
            len(attempt.participants),
            attempt.total_bytes,
            None if past is None else past.seconds,
            None if past is None else past.ended,
            list(attempt.pins),
            absent if attempt.status == "open" else [],
        )

    def barriers(self, job: str | None = None) -> BarriersView:
        past = [each for each in reversed(self.barrier_stats.past) if job in (None, each.job_id)]
        opened = [
            self._barrier(each, waiting)
            for each in self._chosen(job)
            for waiting in self.hub.machine.volatile.job(each.job).rounds.values()
        ]
        return BarriersView(sorted(opened, key=lambda each: -each.waiting_seconds), past[:EVENTS_SHOWN])

    def _barrier(self, job: Job, waiting: OpenRound) -> BarrierView:
        return BarrierView(
            job.job,
            waiting.barrier,
            len(waiting.arrivals),
            waiting.expected,
            missing_from(job, waiting)[:MISSING_SHOWN],
            round(self.hub.clock() - waiting.began, 3),
        )

    def metrics(self, job: str | None = None) -> MetricsView:
        states, stalled = self.workers_by_state(job)
        return MetricsView(
            round(self.journal_stats.mb_per_s(), 3),
            round(self.requests.per_second(), 3),
            round(self.barrier_stats.release_ms(0.5), 3),
            round(self.barrier_stats.release_ms(0.99), 3),
            states,
            stalled,
            sum(dataset.shards_pending for dataset in self.datasets(job)),
            self.hub.machine.index - self.hub.durable,
        )

    def workers_by_state(self, job: str | None = None) -> tuple[dict[str, int], int]:
        """How many there are of each, and how many of them are stalled; without making a view of everyone."""
        states: dict[str, int] = {}
        stalled, now = 0, self.hub.clock()
        for each in self._chosen(job):
            vitals = self.hub.machine.volatile.job(each.job).vitals
            for member in each.world.members.values():
                known = vitals.get(member.worker)
                said = (known.state if known else "") or "initializing"
                state = "left" if member.status == "left" else "failed" if member.gone else said
                states[state] = states.get(state, 0) + 1
                if state == "training" and known and now - known.step_since >= self.hub.machine.policy.stalled_seconds:
                    stalled += 1
        return dict(sorted(states.items())), stalled

    def events(self, job: str | None = None, limit: int = EVENTS_SHOWN) -> list[EventView]:
        return _first(self.all_events(job), limit)

    def all_events(self, job: str | None = None) -> Iterator[EventView]:
        """The newest first."""
        self._chosen(job)
        for entry in reversed(self.hub.history):
            event = event_of(entry)
            if event is not None and job in (None, event.job_id):
                yield event

    def _chosen(self, job: str | None) -> list[Job]:
        jobs = self.hub.machine.state.jobs
        return [jobs[name] for name in sorted(jobs)] if job is None else [self.hub.machine.state.job(job)]


def dataset_view(job: Job, dataset: Dataset) -> DatasetView:
    left = dataset.total_samples - dataset.consumed.count
    return DatasetView(
        job.job,
        dataset.dataset,
        dataset.version,
        dataset.epoch,
        dataset.total_samples,
        dataset.consumed.count,
        dataset.left_out,
        dataset.shard_size,
        dataset.shard_count,
        -(-left // dataset.shard_size),
        dataset.shuffle,
        dataset.seed,
        dataset.order,
        dataset.strategy,
        dataset.format,
        shown(dataset.path),
    )


def _first(items: Iterator[T], limit: int) -> list[T]:
    return list(islice(items, limit))
