"""A simulated job with collectives: every rank takes the same steps, and everybody goes back when the world changes."""

from __future__ import annotations

from typing import Any

from strata.core.effects import (
    Acknowledged,
    BarrierVerdict,
    Begun,
    EpochNow,
    Errand,
    FinishFirst,
    RecoveryPoint,
)
from strata.core.events import (
    CheckpointAck,
    CheckpointBeginRequested,
    DamageReported,
    EpochAdvanceRequested,
    Position,
    RecoverRequested,
)
from strata.testing.simulation.process import Process
from strata.testing.simulation.store import Claim, PartFile

JOB, DATASET = "lockstep", "tokens"
TOTAL, SHARD, BATCH, STREAMS, WINDOW = 900, 50, 32, 8, 2
BATCHES = -(-TOTAL // BATCH)


class LockstepTrainer(Process):
    """Trains in elastic order: recover, then a few batches, a barrier, a save, and so on."""

    job = JOB

    def __init__(self, sim: Any, worker: str, nonce: str, rank: int, world_size: int) -> None:
        super().__init__(sim, worker, nonce)
        self.rank_wanted, self.world_size = rank, world_size
        self.step = self.epoch = self.batch = self.base = self.lineage = 0
        self.ranks: tuple[int, ...] = ()
        self.claims: tuple[Claim, ...] = ()
        self.finds_damage = False
        self.point = 0

    def forget(self) -> None:
        self.generation = -1

    def begin(self) -> None:
        self.recover()

    def recover(self) -> None:
        self.turn("recovering")
        taken = self.generation if self.generation >= 0 else None
        self.call(RecoverRequested(self.job, self.worker, self.incarnation, taken), self._point)

    def world_changed(self, generation: int) -> None:
        if self.phase in ("training", "waiting"):
            self.recover()

    def _point(self, answer: Any) -> None:
        if isinstance(answer, FinishFirst):
            self.run_errand(answer.errand, then=self.recover)
        elif not isinstance(answer, RecoveryPoint):
            self.in_flow(0.5 + self.sim.rng.random(), self.recover)
        elif self.finds_damage and answer.attempt:
            self.finds_damage = False
            event = DamageReported(self.job, self.worker, self.incarnation, answer.attempt, "a digest differs")
            self.call(event, lambda _: self.recover())
        else:
            self._take_up(answer)

    def _take_up(self, point: RecoveryPoint) -> None:
        self.sim.checker.commits.took_up(self, point)
        self.generation, self.lineage, self.ranks = point.generation, point.lineage, point.ranks
        self.point = point.point
        self.step, self.epoch, self.batch = 0, 0, 0
        if point.attempt:
            saved = next(iter(self.sim.store.parts[(self.job, point.attempt)].values()))
            self.step, self.epoch, self.batch = saved.step, saved.epoch, saved.batch
        self.base, self.claims = point.attempt, ()
        self._train()

    def _train(self) -> None:
        self.phase = "training"
        count = min(BATCHES - self.batch, 3 + (self.step % 3))
        self.in_flow(count * (0.85 + 0.1 * self.sim.rng.random()), self._trained, count)

    def _trained(self, count: int) -> None:
        place = Claim(self.epoch, self.batch, self.batch + count, self.ranks.index(self.rank), len(self.ranks))
        self.claims += (place,)
        self.batch += count
        self.step += count
        self.phase = "waiting"
        self.wait_at(f"step_{self.step}", len(self.ranks), self.generation, self._met)

    def _met(self, verdict: Any) -> None:
        if not (isinstance(verdict, BarrierVerdict) and verdict.released):
            self.recover()
        elif self.batch == BATCHES:
            event = EpochAdvanceRequested(self.job, DATASET, self.epoch, self.worker, self.point)
            self.call(event, self._next_epoch)
        else:
            self._save()

    def _next_epoch(self, answer: Any) -> None:
        if not isinstance(answer, EpochNow):
            self.recover()
            return
        self.sim.checker.commits.entered_epoch(self, self.epoch + 1, answer.epoch)
        self.epoch, self.batch = self.epoch + 1, 0
        self._save()

    # -- saving ------------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        self.phase = "checkpointing"
        event = CheckpointBeginRequested(
            self.job, self.worker, self.incarnation, self.step, self.epoch, self.generation
        )
        self.call(event, self._begun)

    def _begun(self, answer: Any) -> None:
        if self.stale(answer):
            self.recover()
            return
        if isinstance(answer, Begun) and answer.status == "open":
            part = PartFile(
                f"{self.worker}/{self.incarnation}/{answer.attempt}",
                self.worker,
                self.incarnation,
                self.generation,
                self.lineage,
                self.step,
                self.epoch,
                self.batch,
                self.base,
                self.claims,
            )
            self.after(0.1 + 0.8 * self.sim.rng.random(), self._written, answer.attempt, self.incarnation, part)
        self._train()

    def _written(self, attempt: int, incarnation: int, part: PartFile) -> None:
        """Behind the training's back. A process that was fenced meanwhile does this too: a zombie."""
        self.sim.store.put_part(self.job, attempt, self.rank, part)
        through = min(part.batch * BATCH, TOTAL)
        positions = {DATASET: Position(1, part.epoch, [0, through] if through else [])}
        event = CheckpointAck(self.job, self.worker, incarnation, attempt, part.digest, 1, positions)
        self.call(event, self._acknowledged, flow=False)

    def _acknowledged(self, answer: Any) -> None:
        if isinstance(answer, Acknowledged) and answer.put_manifest:
            self.run_errand(Errand("put_manifest", answer.attempt, 0))
