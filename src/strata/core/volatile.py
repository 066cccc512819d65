"""What a coordinator may forget when it dies: leases, open barrier rounds, deadlines, and caches.

Everything here is either granted anew after a restart (leases, deadlines) or sent again by its owner (arrivals, how far
ranks are in an epoch).
Instants are on the coordinator's monotonic clock.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

import msgspec

from strata.core.levels import Levels
from strata.core.ownership import Ownerships


@dataclass(slots=True)
class Vitals:
    """What a worker last said of itself."""

    heard: float
    state: str = ""
    step: int = -1
    step_since: float = 0.0
    pace: float = 0.0
    """Steps a second, between two heartbeats that told of progress and did not come together: a step between those
    says little of how long one takes."""
    paced_step: int = -1
    paced_since: float = 0.0
    """What the later of the two said, and when."""
    is_paced: bool = False
    """Whether there were two."""
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
class Reached:
    """Elastic order: how far `ranks` say that they are in an epoch, which is known by `about`: (through, whether it is
    over). All have reached the `least`; those `behind` no more than that. Who is `joining` is where the others are."""

    about: tuple[int, int, int]
    least: tuple[int, bool]
    reading: str
    """As the first of them reads it."""
    unsaid: set[int]
    """Ranks that have said nothing yet."""
    ranks: dict[int, tuple[int, bool]] = field(default_factory=dict)
    behind: set[int] = field(default_factory=set)
    joining: set[int] = field(default_factory=set)
    left_out: dict[int, dict[int, int]] = field(default_factory=dict)
    """By rank, and by the place at which the batch ends: how many damaged samples it left out of its share."""

    def left_out_between(self, start: int, end: int) -> int:
        """By all ranks, of the batches that end behind `start`, up to `end`."""
        return sum(count for each in self.left_out.values() for place, count in each.items() if start < place <= end)

    def note_left_out(self, rank: int, left_out: dict[int, int], start: int) -> None:
        """What ends at `start` or before is counted already."""
        known = {**self.left_out.get(rank, {}), **left_out}
        self.left_out[rank] = {place: count for place, count in known.items() if place > start}

    def say(self, rank: int, reached: tuple[int, bool] | None) -> bool:
        """None: it joins. Whether all have got further by that. Each is looked at once for each time that all do."""
        before = self.least
        if reached is not None:
            self.joining.discard(rank)
            self.ranks[rank] = max(reached, self.ranks.get(rank, before))
            if reached > before:
                self.behind.discard(rank)
        elif rank not in self.ranks:
            self.joining.add(rank)
        self.unsaid.discard(rank)
        if self.unsaid or self.behind:
            return False
        self.least = min(self.ranks.values(), default=before)
        self.ranks |= dict.fromkeys(self.joining, self.least)
        self.joining.clear()
        self.behind = {other for other, its in self.ranks.items() if its == self.least}
        return self.least > before

    def of(self, roster: Iterable[int]) -> "Reached":
        """What these of them have said."""
        there = set(roster)
        said = {rank: its for rank, its in self.ranks.items() if rank in there}
        unsaid = there - said.keys() - self.joining
        least = min(said.values()) if said and not unsaid else self.least
        behind = {rank for rank, its in said.items() if its <= least}
        left_out = {rank: its for rank, its in self.left_out.items() if rank in there}
        return Reached(self.about, least, self.reading, unsaid, said, behind, self.joining & there, left_out)


@dataclass(slots=True)
class Shared:
    """Affinity order: the shares of an epoch with their ends evened out, known by `about`, and by rank how much of each
    is read."""

    about: tuple[int, int, int]
    levels: Levels
    read: dict[int, int] = field(default_factory=dict)


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
    hurry: float = inf
    """The save that is wanted is of no use after so many seconds."""
    reached: dict[str, Reached] = field(default_factory=dict)
    """By dataset."""
    shared: dict[str, Shared] = field(default_factory=dict)
    read_as: dict[str, tuple[tuple[int, int, int], str]] = field(default_factory=dict)
    """Affinity order, by dataset: which epoch, and how it is read, as the first who asked said."""
    attempt_began: dict[int, float] = field(default_factory=dict)
    situation_seen: str = ""
    situation_since: float = 0.0


class Volatile:
    """All jobs' volatile sides, made on first use. Those `astir` are swept: whatever is recorded about a job stirs it,
    and it rests again once time alone changes nothing about it. Jobs are kept for good, and most of them are over."""

    __slots__ = ("astir", "jobs", "last_sweep", "ownerships")

    def __init__(self) -> None:
        self.jobs: dict[str, JobVolatile] = {}
        self.astir: set[str] = set()
        self.last_sweep: float | None = None
        self.ownerships = Ownerships()

    def job(self, name: str) -> JobVolatile:
        job = self.jobs.get(name)
        if job is None:
            job = self.jobs[name] = JobVolatile()
        return job

    def extend(self, seconds: float, now: float, latest: float) -> None:
        """Give back to everyone the time in which the coordinator itself did not run; leases end at the latest then.

        What came as soon as it ran again came now, and no later.
        """
        for job in self.jobs.values():
            for worker, deadline in job.leases.items():
                job.leases[worker] = min(deadline + seconds, latest)
            _extend(job.attempt_deadlines, seconds)
            _extend(job.manifest_deadlines, seconds)
            _extend(job.unlinked_until, seconds)
            for attempt, began in job.attempt_began.items():
                job.attempt_began[attempt] = min(began + seconds, now)
            for waiting in job.rounds.values():
                waiting.deadline += seconds
                waiting.began = min(waiting.began + seconds, now)
            for vitals in job.vitals.values():
                vitals.heard = min(vitals.heard + seconds, now)
                vitals.step_since = min(vitals.step_since + seconds, now)


def _extend(deadlines: dict[int, float], seconds: float) -> None:
    for attempt in deadlines:
        deadlines[attempt] += seconds
