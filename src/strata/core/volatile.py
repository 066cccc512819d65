"""What a coordinator may forget when it dies: leases, open barrier rounds, deadlines, and caches.

Everything here is either granted anew after a restart (leases, deadlines) or sent again by its owner (arrivals).
Instants are on the coordinator's monotonic clock.
"""

from dataclasses import dataclass, field
from math import inf

import msgspec

from strata.core.ownership import Ownerships


@dataclass(slots=True)
class Vitals:
    """What a worker last said of itself."""

    heard: float
    state: str = ""
    step: int = -1
    step_since: float = 0.0
    pace: float = 0.0
    """Steps a second, as of its last two heartbeats that told of progress."""
    epoch: int = -1
    resources: dict[str, float] = field(default_factory=dict)


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A worker that waits at a barrier."""

    incarnation: int
    rank: int
    number: int
    settled: int
    at: float


@dataclass(slots=True)
class OpenRound:
    """A barrier that is being waited at by workers that all `said` how many they expect; fewer are `expected` once
    it shrank. `ranks` is None where any so many will do. With a `generation`, a change of the world voids the round."""

    barrier: str
    said: int
    expected: int
    generation: int | None
    ranks: set[int] | None
    began: float
    deadline: float
    arrivals: dict[str, Arrival] = field(default_factory=dict)


@dataclass(slots=True)
class Proposal:
    """A step that everybody is asked to save at, and the processes that promised to."""

    request: int
    step: int
    since: float
    number: int = 1
    """How many were made for this request."""
    promised: set[tuple[str, int]] = field(default_factory=set)


@dataclass(slots=True)
class JobVolatile:
    """The volatile side of one job."""

    leases: dict[str, float] = field(default_factory=dict)
    vitals: dict[str, Vitals] = field(default_factory=dict)
    rounds: dict[str, OpenRound] = field(default_factory=dict)
    settled: dict[str, int] = field(default_factory=dict)
    attempt_deadlines: dict[int, float] = field(default_factory=dict)
    manifest_deadlines: dict[int, float] = field(default_factory=dict)
    unlinked_until: dict[int, float] = field(default_factory=dict)
    roster: tuple[int, tuple[int, ...]] = (-1, ())
    joined: float = -inf
    """When the last newcomer came."""
    heard_since: int = 0
    """So many of the roster, from its first rank on, were heard after that."""
    proposal: Proposal | None = None
    attempt_began: dict[int, float] = field(default_factory=dict)
    situation_seen: str = ""
    situation_since: float = 0.0


class Volatile:
    """All jobs' volatile sides, made on first use."""

    __slots__ = ("jobs", "last_sweep", "ownerships")

    def __init__(self) -> None:
        self.jobs: dict[str, JobVolatile] = {}
        self.last_sweep: float | None = None
        self.ownerships = Ownerships()

    def job(self, name: str) -> JobVolatile:
        job = self.jobs.get(name)
        if job is None:
            job = self.jobs[name] = JobVolatile()
        return job

    def extend(self, seconds: float, latest: float) -> None:
        """Give back to everyone the time in which the coordinator itself did not run; leases end at the latest then."""
        for job in self.jobs.values():
            for worker, deadline in job.leases.items():
                job.leases[worker] = min(deadline + seconds, latest)
            _extend(job.attempt_deadlines, seconds)
            _extend(job.manifest_deadlines, seconds)
            _extend(job.unlinked_until, seconds)
            _extend(job.attempt_began, seconds)
            for waiting in job.rounds.values():
                waiting.deadline += seconds
                waiting.began += seconds
            for vitals in job.vitals.values():
                vitals.heard += seconds
                vitals.step_since += seconds


def _extend(deadlines: dict[int, float], seconds: float) -> None:
    for attempt in deadlines:
        deadlines[attempt] += seconds
