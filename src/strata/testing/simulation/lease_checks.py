"""Leases: nobody is given up before a full lease of silence, and nobody is kept long after it.

Silence is counted in the time the coordinator was awake: while it is paused it hears nobody, and after a restart it
starts to listen anew. It notices time only when it sweeps, so all this holds give or take two rounds of that.
"""

from collections.abc import Callable

from strata.core.machine import Machine
from strata.core.records import Record, WorkerLost
from strata.core.settings import Policy
from strata.testing.simulation.violation import Violation


class LeaseChecks:
    """Knows when the coordinator last heard of each process."""

    def __init__(self, standby: Machine, policy: Policy, clock: Callable[[], float]) -> None:
        self.standby, self.policy, self._clock = standby, policy, clock
        self._slack = 2 * policy.sweep_seconds
        self._heard: dict[tuple[str, str], float] = {}
        self._booted = 0.0
        self._asleep = 0.0

    def booted(self) -> None:
        """A coordinator process began to serve: everybody has a full lease."""
        self._booted = self._awake()

    def slept(self, seconds: float) -> None:
        """The coordinator did not run for so long."""
        self._asleep += seconds

    def heard(self, job: str, worker: str) -> None:
        """A heartbeat or a registration was accepted, or a process that is there asked where to go on."""
        self._heard[(job, worker)] = self._awake()

    def _awake(self) -> float:
        return self._clock() - self._asleep

    def _silent(self, job: str, worker: str) -> float:
        return self._awake() - max(self._booted, self._heard.get((job, worker), 0.0))

    def decided(self, records: list[Record]) -> None:
        """Whoever is given up now was silent for a lease."""
        for record in records:
            if type(record) is WorkerLost and record.cause == "expired":
                silent = self._silent(record.job, record.worker)
                if silent < self.policy.lease_seconds - self._slack:
                    raise Violation("leases", f"{record.worker} was given up after {silent:.2f} s of silence")

    def check_in_full(self) -> None:
        """Whoever is still a member was heard of within a lease, give or take the rounds of the sweep."""
        longest = self.policy.lease_seconds + self._slack
        for job in self.standby.state.jobs.values():
            for worker in job.world.by_rank.values():
                if self._silent(job.job, worker) > longest:
                    raise Violation(
                        "leases", f"{worker} is kept after {self._silent(job.job, worker):.2f} s of silence"
                    )
