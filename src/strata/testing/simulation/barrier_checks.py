"""Barriers: never released early, never to some only, never to one who was not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from strata.core.effects import BarrierVerdict
from strata.core.events import BarrierArrived
from strata.core.machine import Machine
from strata.core.records import BarrierBroken, BarrierRecord, BarrierReleased, Record, WorkerLost
from strata.testing.simulation.violation import Violation

if TYPE_CHECKING:
    from strata.testing.simulation.process import Process


class BarrierChecks:
    """Knows who really came, and compares it with every verdict."""

    def __init__(self, standby: Machine, clock: Callable[[], float]) -> None:
        self.standby, self.clock = standby, clock
        self.checks: dict[type[Record], Callable[[Any], None]] = {
            BarrierReleased: self._barrier,
            BarrierBroken: self._barrier,
            WorkerLost: self._lost,
        }
        self._arrivals: dict[tuple[str, int], dict[int, tuple[str, int, float]]] = {}
        self._gave_up: set[tuple[str, int, int]] = set()
        self._rounds: dict[tuple[str, int], BarrierRecord] = {}
        self._losses: dict[str, list[float]] = {}

    def decided(self, machine: Machine, records: list[Record]) -> None:
        """The moment a participant is lost, nobody waits for it any more, and it waits for nobody."""
        for record in records:
            if type(record) is not WorkerLost or record.cause == "superseded":
                continue
            for waiting in machine.volatile.job(record.job).rounds.values():
                if record.worker in waiting.arrivals or record.rank in (waiting.ranks or ()):
                    raise Violation("barriers", f"{waiting.barrier} still waits, though {record.worker} is lost")

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

    def _lost(self, record: WorkerLost) -> None:
        self._losses.setdefault(record.job, []).append(self.clock())
