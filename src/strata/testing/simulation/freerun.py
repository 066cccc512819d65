"""A simulated job without collectives: every worker reads the shards it owns, and the survivors carry on."""

from __future__ import annotations

from typing import Any

from strata.core.effects import (
    Acknowledged,
    Assignments,
    Begun,
    Errand,
    FinishFirst,
    RecoveryPoint,
)
from strata.core.events import (
    AssignmentsRequested,
    CheckpointAck,
    CheckpointBeginRequested,
    PartFailed,
    Position,
    ProgressReported,
    RecoverRequested,
    RevocationAcknowledged,
)
from strata.core.ranges import RangeSet
from strata.errors import StrataError
from strata.testing.simulation.process import Process
from strata.testing.simulation.store import PartFile

JOB, DATASET = "freerun", "pages"
SHARDS_PER_WORKER, SHARD = 4, 20
READ_SECONDS, REPORT_SECONDS, SAVE_SECONDS, MEET_SECONDS = 2.0, 4.0, 6.5, 11.0
SAMPLES_A_READ = 14
NOTHING = RangeSet()


class FreerunTrainer(Process):
    """Reads what it holds in affinity order, reports how far it is, gives up what was taken from it."""

    job = JOB

    def __init__(self, sim: Any, worker: str, nonce: str) -> None:
        super().__init__(sim, worker, nonce)
        self.version, self.epoch, self.point = 0, -1, 0
        self.cursors: dict[int, int] = {}
        self.reported: dict[int, int] = {}
        self._given_up: dict[int, int] = {}
        self._beyond: dict[int, RangeSet] = {}
        self.own = RangeSet()
        self._asking = False
        self._saving: set[int] = set()

    def forget(self) -> None:
        self.version, self.epoch = 0, -1
        self._clear()

    def _clear(self) -> None:
        """Nothing of this epoch is read yet. What it gave up it tells the same of in every acknowledgement."""
        self.cursors, self.reported, self._given_up = {}, {}, {}
        self.own = RangeSet()

    def begin(self) -> None:
        self.turn("recovering")
        self.call(RecoverRequested(self.job, self.worker, self.incarnation, None), self._point)

    def _point(self, answer: Any) -> None:
        if isinstance(answer, FinishFirst):
            self.run_errand(answer.errand, then=self.begin)
        elif not isinstance(answer, RecoveryPoint):
            self.in_flow(1.0, self.begin)
        else:
            self.sim.checker.reads.took_up(self)
            self.phase = "training"
            self._asking = False
            self._ask()
            self.in_flow(READ_SECONDS * self.sim.rng.random(), self._read)
            self.in_flow(REPORT_SECONDS * self.sim.rng.random(), self._report)
            self.in_flow(SAVE_SECONDS - self.sim.loop.now % SAVE_SECONDS, self._save)
            self.in_flow(MEET_SECONDS * self.sim.rng.random(), self._meet)

    def world_changed(self, generation: int) -> None:
        if self.phase == "training":
            self._ask()

    # -- assignments -------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        if not self._asking:
            self._asking = True
            event = AssignmentsRequested(self.job, self.worker, self.incarnation, DATASET)
            self.call(event, self._assigned)

    def _assigned(self, answer: Any) -> None:
        self._asking = False
        if not isinstance(answer, Assignments):
            return
        self.generation = answer.generation
        if (answer.version, answer.epoch, answer.point) != (self.version, self.epoch, self.point):
            self.version, self.epoch, self.point = answer.version, answer.epoch, answer.point
            self._clear()
        for shard in answer.revoked:
            if shard in self.cursors:
                self._given_up[shard] = self.cursors[shard]
        held = {shard: self._given_up[shard] for shard in answer.revoked if shard in self._given_up}
        # A shard may come back before anybody heard how far this worker had read it.
        began = {s: max(answer.cursors.get(s, 0), self._given_up.get(s, 0)) for s in answer.granted}
        self.cursors = {s: self.cursors.get(s, cursor) for s, cursor in began.items()}
        self._given_up = {s: cursor for s, cursor in self._given_up.items() if s not in self.cursors}
        self.reported = {s: answer.cursors.get(s, 0) for s in answer.granted}
        self._beyond = {s: RangeSet.from_flat(ranges) for s, ranges in answer.beyond.items()}
        if answer.revoked:
            event = RevocationAcknowledged(
                self.job,
                self.worker,
                self.incarnation,
                DATASET,
                answer.version,
                answer.epoch,
                answer.point,
                answer.generation,
                answer.revoked,
                held,
            )
            self.call(event, lambda _: None)
        if answer.awaited:
            self.in_flow(1.0, self._ask)

    # -- reading -----------------------------------------------------------------------------------------------------

    def _size(self, shard: int) -> int:
        start = shard * SHARD
        return min(SHARD, self.sim.freerun_total(self.version) - start)

    def unfinished(self) -> list[int]:
        """The shards it holds and has something left to read of."""
        return [shard for shard, cursor in self.cursors.items() if cursor < self._size(shard)]

    def _read(self) -> None:
        self.in_flow(READ_SECONDS, self._read)
        if not self.has_lease or self.version == 0:
            return
        unfinished = sorted(self.unfinished())
        if not unfinished:
            self._ask()
        wanted = SAMPLES_A_READ
        for shard in unfinished:
            cursor, first = self.cursors[shard], shard * SHARD
            end = min(cursor + wanted, self._size(shard))
            self.cursors[shard] = end
            # What was read beyond the cursor before a rollback is part of the model already.
            for left, right in self._beyond.get(shard, NOTHING).missing(cursor, end):
                self.own.add(first + left, first + right)
                self.sim.checker.reads.read(self, self.version, self.epoch, first + left, first + right)
            wanted -= end - cursor
            if not wanted:
                return

    def _report(self) -> None:
        self.in_flow(REPORT_SECONDS, self._report)
        news = {s: cursor for s, cursor in self.cursors.items() if cursor > self.reported.get(s, 0)}
        if news:
            event = ProgressReported(
                self.job, self.worker, self.incarnation, DATASET, self.version, self.epoch, self.point, news
            )
            self.call(event, lambda answer: self._counted(news, answer))

    def _counted(self, news: dict[int, int], answer: Any) -> None:
        if isinstance(answer, StrataError):
            self._ask()
            return
        for shard, cursor in news.items():
            if shard in self.reported:
                self.reported[shard] = max(cursor, self.reported[shard])

    def leave(self) -> None:
        """Say how far it got, so that whoever takes over reads on from there."""
        self.leaving = True
        self.turn("left")
        news = {s: cursor for s, cursor in self.cursors.items() if cursor > self.reported.get(s, 0)}
        event = ProgressReported(
            self.job, self.worker, self.incarnation, DATASET, self.version, self.epoch, self.point, news
        )
        self.call(event, lambda _: super(FreerunTrainer, self).leave())

    # -- saving ------------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        self.in_flow(SAVE_SECONDS, self._save)
        self.save(round(self.sim.loop.now / SAVE_SECONDS))

    def save(self, step: int) -> None:
        event = CheckpointBeginRequested(self.job, self.worker, self.incarnation, step, max(self.epoch, 0))
        self.call(event, self._begun)

    def _begun(self, answer: Any) -> None:
        if isinstance(answer, Begun) and answer.status == "open" and answer.attempt not in self._saving:
            self._saving.add(answer.attempt)
            part = PartFile(
                f"{self.worker}/{self.incarnation}/{answer.attempt}",
                self.worker,
                self.incarnation,
                self.generation,
                answer.lineage,
                answer.step,
                self.epoch,
                0,
                0,
            )
            position = Position(self.version, max(self.epoch, 0), self.own.to_flat())
            self.after(
                0.1 + 0.5 * self.sim.rng.random(), self._written, answer.attempt, self.incarnation, part, position
            )

    def _written(self, attempt: int, incarnation: int, part: PartFile, position: Position) -> None:
        self.sim.store.put_part(self.job, attempt, self.rank, part)
        positions = {DATASET: position} if position.version else {}
        event = CheckpointAck(self.job, self.worker, incarnation, attempt, part.digest, 1, positions)
        self.call(event, lambda answer: self._acknowledged(attempt, incarnation, answer), flow=False)

    def _acknowledged(self, attempt: int, incarnation: int, answer: Any) -> None:
        if isinstance(answer, Acknowledged):
            if answer.put_manifest:
                self.run_errand(Errand("put_manifest", attempt, 0))
        else:
            failed = PartFailed(self.job, self.worker, incarnation, attempt, str(answer))
            self.call(failed, lambda _: None, flow=False)

    # -- meeting -----------------------------------------------------------------------------------------------------

    def _meet(self) -> None:
        """Any two workers meet, again and again, under one name."""
        self.wait_at("pair", 2, None, lambda _: self.in_flow(MEET_SECONDS, self._meet))
