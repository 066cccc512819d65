"""Samples of the job that carries on: each read once by a live worker, the ledger never ahead of the truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.core.machine import Machine
from strata.core.ranges import RangeSet
from strata.core.records import (
    CheckpointBegun,
    CheckpointDecided,
    DatasetRegistered,
    EpochAdvanced,
    PartAcknowledged,
    ProgressMade,
    Record,
    RecoveryPointSet,
    WorkerLost,
    WorldDeclared,
)
from strata.testing.simulation.violation import Violation

if TYPE_CHECKING:
    from strata.testing.simulation.process import Process

FREERUN = "freerun"


class ReadChecks:
    """Counts how often every place of an epoch was really read."""

    def __init__(self, standby: Machine) -> None:
        self.standby = standby
        self.proven = 0
        self.checks: dict[type[Record], Callable[[Any], None]] = {
            DatasetRegistered: self._dataset,
            ProgressMade: self._progress,
            EpochAdvanced: self._epoch,
            RecoveryPointSet: self._rewind,
            WorldDeclared: self._begin_anew,
            WorkerLost: self._lost,
            CheckpointBegun: self._begin_save,
            PartAcknowledged: self._part,
            CheckpointDecided: self._decide,
        }
        self._anew = False
        self._reported: dict[str, RangeSet] = {}
        self._departed = RangeSet()
        self._former: RangeSet | None = None
        """The same at the end of the epoch before, if that ended since everybody went on."""
        self._at = 0
        """The epoch."""
        self._saves: dict[int, dict[int, RangeSet]] = {}
        """By epoch: a save may be begun when the next has begun."""
        self._reads: dict[tuple[int, int], Any] = {}
        self._read_by: dict[tuple[str, int], list[tuple[int, int, int, int]]] = {}

    # -- what a checkpoint says of the data --------------------------------------------------------------------------

    def _begin_save(self, record: CheckpointBegun) -> None:
        if record.job == FREERUN:
            self._saves[record.attempt] = {self._at: self._departed.copy()}
            if self._former is not None:
                self._saves[record.attempt][self._at - 1] = self._former.copy()

    def _part(self, record: PartAcknowledged) -> None:
        if record.job == FREERUN:
            for position in record.positions.values():
                saved = self._saves[record.attempt]
                if position.epoch not in saved:
                    raise Violation("positions", f"attempt {record.attempt} was not begun in epoch {position.epoch}")
                saved[position.epoch] = saved[position.epoch].union(RangeSet.from_flat(position.consumed))

    def _decide(self, record: CheckpointDecided) -> None:
        """It holds what every participant had read, and what was reported by those who were gone when it began."""
        if record.job != FREERUN:
            return
        attempt = self.standby.state.jobs[FREERUN].attempts[record.attempt]
        saved = self._saves.pop(record.attempt)
        for position in attempt.positions.values():
            expected = saved[position.epoch].to_flat()
            if position.consumed != expected:
                raise Violation("positions", f"attempt {record.attempt} says {position.consumed}, not {expected}")

    def _lost(self, record: WorkerLost) -> None:
        if record.job == FREERUN:
            self._departed = self._departed.union(self._reported.pop(record.worker, RangeSet()))

    def _begin_anew(self, record: WorldDeclared) -> None:
        self._anew = self._anew or record.job == FREERUN

    def took_up(self, process: Process) -> None:
        """Where nobody was left, nobody goes on before the data went back to where the model is."""
        if self._anew and self._is_live(process):
            raise Violation("recovery", f"{process.worker} goes on in a new world whose data was not taken back")

    def _is_live(self, process: Process) -> bool:
        member = self.standby.state.jobs[process.job].world.members.get(process.worker)
        return member is not None and member.incarnation == process.incarnation and not member.gone

    # -- what was read --------------------------------------------------------------------------

    def before(self, record: Record) -> None:
        """Called when the record is durable and not yet applied."""
        if type(record) is WorkerLost and record.job == FREERUN:
            self._forget_unreported(record)

    def _dataset(self, record: DatasetRegistered) -> None:
        if record.job == FREERUN:
            self._reported, self._departed, self._former, self._at = {}, RangeSet(), None, 0
            self._reads[(record.version, 0)] = np.zeros(record.total_samples, np.int16)

    def read(self, process: Process, version: int, epoch: int, start: int, end: int) -> None:
        """A worker read these places. What a fenced process reads does not count; what a live one reads, does once."""
        seen = self._reads.get((version, epoch))
        if seen is None or not self._is_live(process):
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
        if record.job != FREERUN:
            return
        dataset = self.standby.state.jobs[record.job].datasets[record.dataset]
        seen = self._reads[(dataset.version, record.epoch)]
        reported = self._reported.setdefault(record.worker, RangeSet())
        for start, end in zip(record.consumed[::2], record.consumed[1::2], strict=True):
            if not (seen[start:end] == 1).all():
                raise Violation("ledger", f"places {start} to {end} are in the ledger, but were not read once")
            reported.add(start, end)

    def _epoch(self, record: EpochAdvanced) -> None:
        if record.job != FREERUN:
            return
        self._reported, self._departed, self._former, self._at = {}, RangeSet(), self._departed, record.epoch
        seen = self._reads.pop((record.version, record.epoch - 1))
        if record.consumed != len(seen) and "are consumed" in record.reason:
            raise Violation("samples", f"epoch {record.epoch - 1} ended after {record.consumed} of {len(seen)} samples")
        if record.consumed == len(seen):
            self.proven += 1
            if not (seen == 1).all():
                raise Violation(
                    "samples", f"epoch {record.epoch - 1} ended with {int((seen != 1).sum())} places not read once"
                )
        self._reads[(record.version, record.epoch)] = np.zeros(len(seen), np.int16)

    def _rewind(self, record: RecoveryPointSet) -> None:
        """Nobody was left: what counts is what the checkpoint says."""
        if record.job != FREERUN:
            return
        self._read_by.clear()
        self._anew, self._reported = False, {}
        for dataset in self.standby.state.jobs[record.job].datasets.values():
            self._reads = {key: seen for key, seen in self._reads.items() if key[0] != dataset.version}
            seen = np.zeros(dataset.total_samples, np.int16)
            for start, end in dataset.consumed:
                seen[start:end] = 1
            self._departed, self._former, self._at = dataset.consumed.copy(), None, dataset.epoch
            self._reads[(dataset.version, dataset.epoch)] = seen
