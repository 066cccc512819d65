"""Commits: no part missing, nothing torn, decided stays decided, one recovery point, every sample trained on once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.core.effects import RecoveryPoint
from strata.core.machine import Machine
from strata.core.records import (
    CheckpointAbandoned,
    CheckpointCommitted,
    CheckpointDamaged,
    CheckpointDecided,
    CheckpointDoomed,
    LineageStarted,
    PartAcknowledged,
    Record,
    RecoveryPointSet,
)
from strata.testing.simulation.store import PartFile, Store
from strata.testing.simulation.violation import Violation

if TYPE_CHECKING:
    from strata.testing.simulation.process import Process

LOCKSTEP = "lockstep"


class CommitChecks:
    """Knows what is in storage, and which checkpoints are on the line that leads to the present."""

    def __init__(self, standby: Machine, store: Store, batches: int) -> None:
        self.standby, self.store, self.batches = standby, store, batches
        self.checks: dict[type[Record], Callable[[Any], None]] = {
            PartAcknowledged: self._part,
            CheckpointDecided: self._decide,
            CheckpointCommitted: self._commit,
            CheckpointAbandoned: self._abandon,
            CheckpointDamaged: self._drop,
            CheckpointDoomed: self._drop,
            LineageStarted: self._branch,
            RecoveryPointSet: self._point,
        }
        self._decided: set[tuple[str, int]] = set()
        self._line: dict[str, list[tuple[int, int, int]]] = {}
        self._steps: set[tuple[str, int, int]] = set()
        self._points: dict[tuple[str, int], tuple[int, int, int]] = {}

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
