"""The promises a simulated cluster is held to, checked as it goes.

The checker has a model of its own, made of what workers really did and of records once they are durable; it never asks
the machine whether the machine is right. Cheap rules are checked with each record, the rest every so often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.core.effects import BarrierVerdict, RecoveryPoint
from strata.core.events import BarrierArrived, CoordinatorStarted, Event
from strata.core.machine import Machine
from strata.core.records import (
    BarrierBroken,
    BarrierRecord,
    BarrierReleased,
    CheckpointAbandoned,
    CheckpointCommitted,
    CheckpointDamaged,
    CheckpointDecided,
    CheckpointDoomed,
    DatasetRegistered,
    EpochAdvanced,
    JobRecord,
    LineageStarted,
    PartAcknowledged,
    ProgressMade,
    Record,
    RecoveryPointSet,
    ViewChanged,
    WorkerJoined,
    WorkerLost,
    WorldDeclared,
)
from strata.core.state import Job
from strata.testing.simulation.store import Claim, PartFile, Store
from strata.testing.simulation.violation import Violation

if TYPE_CHECKING:
    from strata.testing.simulation.process import Process

LOCKSTEP = "lockstep"


class Checker:
    """Raises a Violation as soon as a promise is broken."""

    def __init__(
        self, store: Store, batches: int, clock: Callable[[], float], note: Callable[[str, Record], None]
    ) -> None:
        self.store, self.batches, self.clock, self.note = store, batches, clock, note
        self.counts: Counter[str] = Counter()
        self.by_job: Counter[tuple[str, str]] = Counter()
        self.last: dict[tuple[str, str], float] = {}
        self._machine: Machine | None = None
        self._owners: dict[tuple[str, str, int], np.ndarray[Any, np.dtype[np.int64]]] = {}
        self._generations: dict[str, int] = {}
        self._arrivals: dict[tuple[str, int], dict[int, tuple[str, int, float]]] = {}
        self._gave_up: set[tuple[str, int, int]] = set()
        self._rounds: dict[tuple[str, int], BarrierRecord] = {}
        self._losses: dict[str, list[float]] = {}
        self._decided: set[tuple[str, int]] = set()
        self._line: dict[str, list[tuple[int, int, int]]] = {}
        self._steps: set[tuple[str, int, int]] = set()
        self._points: dict[tuple[str, int], tuple[int, int, int]] = {}
        self._reads: dict[tuple[int, int], Any] = {}
        self._read_by: dict[tuple[str, int], list[tuple[int, int, int, int]]] = {}

    def watch(self, standby: Machine) -> None:
        """The machine that is fed the durable records; its state is what the outside may know."""
        self.standby = standby

    def of(self, job: str, record: str) -> int:
        """How many durable records of this kind the job has."""
        return self.by_job[(job, record)]

    # -- as decided --------------------------------------------------------------------------------------------------

    def decided(self, machine: Machine, event: Event, records: list[Record]) -> None:
        """Loads stay within one shard, and only what must move moves."""
        if machine is not self._machine or isinstance(event, CoordinatorStarted):
            self._machine, self._owners = machine, {}
        changes: dict[str, list[ViewChanged]] = {}
        for record in records:
            if type(record) is WorldDeclared:
                self._owners = {key: owners for key, owners in self._owners.items() if key[0] != record.job}
            elif type(record) is ViewChanged:
                changes.setdefault(record.job, []).append(record)
        for name, views in changes.items():
            self._check_view(machine, machine.state.jobs[name], views)

    def _check_view(self, machine: Machine, job: Job, views: list[ViewChanged]) -> None:
        for name in sorted(job.datasets):
            dataset = job.datasets[name]
            key = (job.job, name, dataset.version)
            owners = machine.volatile.ownerships.of(job.job, dataset, job.world.view).owners()
            before, self._owners[key] = self._owners.get(key), owners
            self._check_loads(job.world.view.ranks, owners)
            if before is not None and len(views) == 1:
                self._check_moves(views[0], before, owners)

    def _check_loads(self, ranks: tuple[int, ...], owners: Any) -> None:
        if ranks:
            loads = np.bincount(owners, minlength=max(ranks) + 1)[list(ranks)]
            if loads.sum() != len(owners) or loads.max() - loads.min() > 1:
                raise Violation("loads", f"shards by rank: {loads.tolist()}")

    def _check_moves(self, view: ViewChanged, before: Any, after: Any) -> None:
        moved = before != after
        fine = (after[moved] == view.rank).all() if view.joined else ((before == view.rank) == moved).all()
        if not fine:
            what = "joined" if view.joined else "left"
            raise Violation("moves", f"rank {view.rank} {what}, and shards moved that did not have to")

    # -- as durable --------------------------------------------------------------------------------------------------

    def before(self, record: Record) -> None:
        """Called when the record is durable and not yet applied to the standby."""
        if type(record) is WorkerLost and record.job != LOCKSTEP:
            self._forget_unreported(record)

    def durable(self, record: Record) -> None:
        """Called when the record is durable and applied to the standby."""
        kind = type(record)
        self.counts[kind.__name__] += 1
        if not isinstance(record, JobRecord):
            self.note("coordinator", record)
            return
        job = record.job
        self.note(job, record)
        self.by_job[(job, kind.__name__)] += 1
        self.last[(job, kind.__name__)] = self.clock()
        generation = self.standby.state.jobs[job].world.generation
        known = self._generations.get(job, 0)
        if generation < known or (generation == known and kind in (WorkerJoined, WorkerLost)):
            raise Violation("generations", f"{job} went from generation {known} to {generation}")
        self._generations[job] = generation
        check = _CHECKS.get(kind)
        if check is not None:
            check(self, record)

    # -- barriers ----------------------------------------------------------------------------------------------------

    def arrived(self, process: Process, event: BarrierArrived) -> None:
        waits = self._arrivals.setdefault((event.worker, event.incarnation), {})
        waits[event.arrival] = (event.barrier, event.expected, self.clock())

    def gave_up(self, process: Process, arrival: int) -> None:
        """It waits no more. One that leaves may still be counted until the coordinator hears of it."""
        if not process.leaving:
            self._gave_up.add((process.worker, process.incarnation, arrival))

    def told(self, process: Process, barrier: str, arrival: int, verdict: BarrierVerdict) -> None:
        record = self._rounds.get((process.job, verdict.round))
        if record is None:
            raise Violation("barriers", f"{process.worker} was told of round {verdict.round}, which is not durable")
        released = isinstance(record, BarrierReleased)
        if released != verdict.released or record.arrivals[process.worker][0] != arrival or record.barrier != barrier:
            raise Violation("barriers", f"{process.worker} was told otherwise than the others in round {verdict.round}")

    def _barrier(self, record: BarrierRecord) -> None:
        self._rounds[(record.job, record.round)] = record
        if not isinstance(record, BarrierReleased):
            return
        job = self.standby.state.jobs[record.job]
        began = self.clock()
        expected = 0
        for worker, (number, _) in record.arrivals.items():
            incarnation = job.world.members[worker].incarnation
            arrival = self._arrivals.get((worker, incarnation), {}).get(number)
            if arrival is None or arrival[0] != record.barrier:
                raise Violation("barriers", f"{worker} never came to {record.barrier}, yet counts in {record.round}")
            if (worker, incarnation, number) in self._gave_up:
                raise Violation("barriers", f"{worker} had given up on {record.barrier}, yet counts in {record.round}")
            expected, began = arrival[1], min(began, arrival[2])
        lost = sum(at >= began for at in self._losses.get(record.job, ()))
        allowed = lost if job.settings.barriers == "shrink" else 0
        if len(record.arrivals) < expected - allowed:
            raise Violation(
                "barriers", f"{record.barrier} was released with {len(record.arrivals)} of {expected}: {record.reason}"
            )

    # -- commits -----------------------------------------------------------------------------------------------------

    def _part(self, record: PartAcknowledged) -> None:
        file = self.store.parts.get((record.job, record.attempt), {}).get(record.rank)
        if file is None or file.digest != record.digest:
            raise Violation("parts", f"rank {record.rank} of attempt {record.attempt} counts, but is not in storage")

    def _decide(self, record: CheckpointDecided) -> None:
        attempt = self.standby.state.jobs[record.job].attempts[record.attempt]
        files = self.store.parts.get((record.job, record.attempt), {})
        missing = [rank for rank in attempt.participants if rank not in attempt.parts or rank not in files]
        if missing or not attempt.participants:
            raise Violation("commits", f"attempt {record.attempt} was decided without the parts of ranks {missing}")
        world = self.standby.state.jobs[record.job].world
        if (
            record.job == LOCKSTEP
            and sorted(attempt.participants) != sorted(world.roster())
            and attempt.generation == world.generation
        ):
            raise Violation("commits", f"attempt {record.attempt} left out ranks of its world")
        self._decided.add((record.job, record.attempt))
        if record.job == LOCKSTEP:
            self._check_step([files[rank] for rank in sorted(attempt.participants)], record.attempt)

    def _check_step(self, files: list[PartFile], attempt: int) -> None:
        """All ranks of one world, at one step, after the same batches since the same base."""
        first = files[0]
        spans = [(claim.epoch, claim.first, claim.last) for claim in first.claims]
        for file in files:
            same = (file.generation, file.lineage, file.step, file.epoch, file.batch, file.base) == (
                first.generation,
                first.lineage,
                first.step,
                first.epoch,
                first.batch,
                first.base,
            )
            if not same or [(claim.epoch, claim.first, claim.last) for claim in file.claims] != spans:
                raise Violation("torn", f"attempt {attempt} mixes {first.worker} and {file.worker}: {first} / {file}")
        for index in range(len(spans)):
            worlds = {file.claims[index].world for file in files}
            positions = sorted(file.claims[index].position for file in files)
            if worlds != {len(files)} or positions != list(range(len(files))):
                raise Violation("samples", f"attempt {attempt}: positions {positions} of worlds {sorted(worlds)}")
        self._check_contiguous(first, attempt)

    def _check_contiguous(self, file: PartFile, attempt: int) -> None:
        base = next(iter(self.store.parts[(LOCKSTEP, file.base)].values())) if file.base else None
        epoch, batch = (base.epoch, base.batch) if base is not None else (0, 0)
        for claim in file.claims:
            if (claim.epoch, claim.first) != (epoch, batch):
                raise Violation("samples", f"attempt {attempt} reads on at {claim}, not at batch {batch} of {epoch}")
            epoch, batch = (epoch + 1, 0) if claim.last == self.batches else (epoch, claim.last)
        if (file.epoch, file.batch) != (epoch, batch):
            raise Violation(
                "samples", f"attempt {attempt} says it is at {file.epoch, file.batch}, read to {epoch, batch}"
            )

    def _commit(self, record: CheckpointCommitted) -> None:
        key = (record.job, record.attempt)
        if key not in self._decided or key not in self.store.manifests:
            raise Violation("commits", f"attempt {record.attempt} of {record.job} was committed without a manifest")
        attempt = self.standby.state.jobs[record.job].attempts[record.attempt]
        step = (record.job, attempt.lineage, attempt.step)
        if step in self._steps:
            raise Violation("lineages", f"step {attempt.step} was committed twice in lineage {attempt.lineage}")
        self._steps.add(step)
        line = self._line.setdefault(record.job, [])
        line.append((record.attempt, attempt.step, attempt.lineage))
        line.sort(key=lambda entry: entry[1])

    def _abandon(self, record: CheckpointAbandoned) -> None:
        if (record.job, record.attempt) in self._decided:
            raise Violation("commits", f"attempt {record.attempt} was decided, and then abandoned: {record.reason}")

    def _drop(self, record: CheckpointDamaged | CheckpointDoomed) -> None:
        line = self._line.setdefault(record.job, [])
        if isinstance(record, CheckpointDoomed):
            point = self.standby.state.jobs[record.job].point
            if (line and line[-1][0] == record.attempt) or (point is not None and point.attempt == record.attempt):
                raise Violation("retention", f"the last good checkpoint, attempt {record.attempt}, was doomed")
        self._line[record.job] = [entry for entry in line if entry[0] != record.attempt]

    def manifest_removed(self, job: str, attempt: int) -> None:
        there = self.standby.state.jobs[job].attempts.get(attempt)
        if there is not None and there.status not in ("doomed", "unlinked"):
            raise Violation("retention", f"the manifest of attempt {attempt} was removed, which is {there.status}")

    def _branch(self, record: LineageStarted) -> None:
        line = self._line.setdefault(record.job, [])
        self._line[record.job] = [entry for entry in line if entry[1] <= record.base_step]

    def _point(self, record: RecoveryPointSet) -> None:
        line = self._line.get(record.job, [])
        latest = line[-1][0] if line else 0
        if record.attempt != latest:
            raise Violation("recovery", f"the point is attempt {record.attempt}, the latest is {latest}")
        if record.job != LOCKSTEP:
            self._rewind(record)

    def took_up(self, process: Process, point: RecoveryPoint) -> None:
        if process.job != LOCKSTEP:
            return
        told = (point.lineage, point.attempt, point.step)
        agreed = self._points.setdefault((process.job, point.generation), told)
        if told != agreed:
            raise Violation("recovery", f"in generation {point.generation} some were told {agreed}, some {told}")

    def entered_epoch(self, process: Process, wanted: int, given: int) -> None:
        if wanted != given:
            raise Violation("epochs", f"{process.worker} finished epoch {wanted - 1} and was put into {given}")

    # -- samples of the job that carries on --------------------------------------------------------------------------

    def _dataset(self, record: DatasetRegistered) -> None:
        if record.job != LOCKSTEP:
            self._reads[(record.version, 0)] = np.zeros(record.total_samples, np.int16)

    def read(self, process: Process, version: int, epoch: int, start: int, end: int) -> None:
        """A worker read these places. What a fenced process reads does not count; what a live one reads, does once."""
        member = self.standby.state.jobs[process.job].world.members.get(process.worker)
        seen = self._reads.get((version, epoch))
        if seen is None or member is None or member.incarnation != process.incarnation or member.gone:
            return
        seen[start:end] += 1
        self._read_by.setdefault((process.worker, process.incarnation), []).append((version, epoch, start, end))
        if (seen[start:end] > 1).any():
            raise Violation("samples", f"{process.worker} read places {start} to {end} of epoch {epoch} a second time")

    def _forget_unreported(self, record: WorkerLost) -> None:
        """What a lost worker had not reported will be read again, and that is right."""
        for version, epoch, start, end in self._read_by.pop((record.worker, record.incarnation), ()):
            for dataset in self.standby.state.jobs[record.job].datasets.values():
                if (dataset.version, dataset.epoch) == (version, epoch):
                    for left, right in dataset.consumed.missing(start, end):
                        self._reads[(version, epoch)][left:right] -= 1

    def _progress(self, record: ProgressMade) -> None:
        if record.job == LOCKSTEP:
            return
        dataset = self.standby.state.jobs[record.job].datasets[record.dataset]
        seen = self._reads[(dataset.version, record.epoch)]
        for start, end in zip(record.consumed[::2], record.consumed[1::2], strict=True):
            if not (seen[start:end] == 1).all():
                raise Violation("ledger", f"places {start} to {end} are in the ledger, but were not read once")

    def _epoch(self, record: EpochAdvanced) -> None:
        if record.job == LOCKSTEP:
            return
        seen = self._reads.pop((record.version, record.epoch - 1))
        if record.consumed == len(seen):
            self.counts["epochs proven"] += 1
            if not (seen == 1).all():
                raise Violation(
                    "samples", f"epoch {record.epoch - 1} ended with {int((seen != 1).sum())} places not read once"
                )
        self._reads[(record.version, record.epoch)] = np.zeros(len(seen), np.int16)

    def _rewind(self, record: RecoveryPointSet) -> None:
        """Nobody was left: what counts is what the checkpoint says."""
        self._read_by.clear()
        for dataset in self.standby.state.jobs[record.job].datasets.values():
            self._reads = {key: seen for key, seen in self._reads.items() if key[0] != dataset.version}
            seen = np.zeros(dataset.total_samples, np.int16)
            for start, end in dataset.consumed:
                seen[start:end] = 1
            self._reads[(dataset.version, dataset.epoch)] = seen

    def granted(self, process: Process, shards: set[int]) -> None:
        """Nothing to check at once: `check_holders` compares everybody's."""

    def _lost(self, record: WorkerLost) -> None:
        self._losses.setdefault(record.job, []).append(self.clock())

    # -- every so often ------------------------------------------------------------------------------------------------

    def check_holders(self, processes: list[Any]) -> None:
        """At any time a shard of an epoch is in the hands of at most one live worker."""
        holders: dict[tuple[int, int, int], str] = {}
        for process in processes:
            member = self.standby.state.jobs[process.job].world.members.get(process.worker)
            live = member is not None and member.incarnation == process.incarnation and not member.gone
            if not (live and process.alive and process.has_lease and process.phase == "training"):
                continue
            for shard in process.unfinished():
                other = holders.setdefault((process.version, process.epoch, shard), process.worker)
                if other != process.worker:
                    raise Violation("one owner", f"shard {shard} is held by {other} and by {process.worker}")

    def check_samples(self, order: Callable[[int], Any], total: int) -> int:
        """Follow the latest committed state back to the beginning and count every sample it was trained on."""
        line = self._line.get(LOCKSTEP)
        if not line:
            return 0
        seen: dict[int, np.ndarray[Any, np.dtype[np.int64]]] = {}
        number = line[-1][0]
        while number:
            files = self.store.parts[(LOCKSTEP, number)]
            file = next(iter(files.values()))
            for claim in file.claims:
                counts = seen.setdefault(claim.epoch, np.zeros(total, np.int64))
                for batch in range(claim.first, claim.last):
                    np.add.at(counts, order(claim.epoch).batch(batch), 1)
            number = file.base
        newest = max(seen, default=0)
        for epoch, counts in seen.items():
            wrong = counts > 1 if epoch == newest else counts != 1
            if wrong.any():
                raise Violation("samples", f"epoch {epoch}: {int(wrong.sum())} samples were not trained on once")
        return len(seen)


_CHECKS: dict[type[Record], Callable[[Checker, Any], None]] = {
    BarrierReleased: Checker._barrier,
    BarrierBroken: Checker._barrier,
    PartAcknowledged: Checker._part,
    CheckpointDecided: Checker._decide,
    CheckpointCommitted: Checker._commit,
    CheckpointAbandoned: Checker._abandon,
    CheckpointDamaged: Checker._drop,
    CheckpointDoomed: Checker._drop,
    LineageStarted: Checker._branch,
    RecoveryPointSet: Checker._point,
    DatasetRegistered: Checker._dataset,
    ProgressMade: Checker._progress,
    EpochAdvanced: Checker._epoch,
    WorkerLost: Checker._lost,
}

__all__ = ["Checker", "Claim"]
