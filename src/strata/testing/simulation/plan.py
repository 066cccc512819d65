"""What a simulated run is made of: its size, its weather, and the faults that will strike. All follows from a seed.

A plan is data: it can be printed, stored, shortened, and run again to the same end.
"""

import math
from random import Random

import msgspec

from strata.core.ids import check_int
from strata.core.settings import Policy
from strata.errors import InvalidInput

WORKER_FAULTS = ("crash", "rack", "hang", "partition", "leave", "drain", "replace")
COORDINATOR_FAULTS = ("coordinator_crash", "coordinator_pause")
JOB_FAULTS = ("blackout", "rollback", "damage", "resize", "advance", "join")

_WEIGHTS = {
    "crash": 30,
    "rack": 4,
    "hang": 12,
    "partition": 12,
    "leave": 8,
    "drain": 4,
    "replace": 6,
    "coordinator_crash": 8,
    "coordinator_pause": 5,
    "blackout": 2,
    "rollback": 3,
    "damage": 3,
    "resize": 1,
    "advance": 1,
    "join": 4,
}
LEAST_SECONDS, MOST_SECONDS, MAX_WORKERS = 45.0, 1e7, 100_000
"""Shorter than that, a cluster has no time to get up again."""

STRIKE_SHARE, HEAL_SHARE = 0.4, 0.5
"""Faults begin in the first half of a run and are over some time later; in the rest, whoever is stuck shows."""


class Chaos(msgspec.Struct, frozen=True):
    """What happens to messages: probabilities per message, and how late a late one is at most."""

    lost: float = 0.01
    doubled: float = 0.01
    late: float = 0.01
    late_seconds: float = 4.0


class Fault(msgspec.Struct, frozen=True):
    """Something that goes wrong at an instant: to which worker or job, and for how long."""

    at: float
    kind: str
    target: int
    seconds: float


class Plan(msgspec.Struct, frozen=True):
    """One run. Half of the workers are in a job that rolls back, the other half in one that carries on."""

    seed: int
    workers: int = 50
    seconds: float = 50.0
    chaos: Chaos = Chaos()
    policy: Policy = Policy(lease_seconds=5.0, heartbeat_seconds=1.7, sweep_seconds=0.5, attempt_seconds=15.0)
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        check_int(self.workers, "workers", least=2, most=MAX_WORKERS)
        if not LEAST_SECONDS <= self.seconds <= MOST_SECONDS:
            raise InvalidInput(f"seconds must be between {LEAST_SECONDS:g} and {MOST_SECONDS:g}, not {self.seconds}")
        for fault in self.faults:
            if fault.kind not in _WEIGHTS or not 0 <= fault.at <= self.seconds or not fault.seconds >= 0:
                raise InvalidInput(f"{fault} is not a fault that can strike within {self.seconds:g} seconds")

    @classmethod
    def of(cls, seed: int, workers: int = 50, seconds: float = 50.0, faults: int | None = None) -> "Plan":
        """The run that belongs to this seed. By default about every second worker is struck by a fault."""
        count = workers // 2 if faults is None else faults
        plan = cls(seed, workers, seconds)
        return msgspec.structs.replace(plan, faults=_draw(Random(f"plan {seed}"), plan, count))


def _draw(rng: Random, plan: Plan, count: int) -> tuple[Fault, ...]:
    """Faults until `count` workers were struck; one that hits a rack counts for as many as it hits."""
    faults: list[Fault] = []
    healed = plan.seconds * HEAL_SHARE
    # What strikes the whole cluster does not strike more often because the cluster is larger, or not by as much.
    rarer = min(1.0, 10 / math.sqrt(plan.workers))
    kinds = list(_WEIGHTS)
    weights = [weight if kind in WORKER_FAULTS else weight * rarer for kind, weight in _WEIGHTS.items()]
    struck = 0
    while struck < count:
        kind = rng.choices(kinds, weights)[0]
        at = rng.uniform(2.0, plan.seconds * STRIKE_SHARE)
        lasts = min(rng.uniform(0.5, 2.5 * plan.policy.lease_seconds), healed - at)
        faults.append(Fault(round(at, 3), kind, rng.randrange(plan.workers), round(lasts, 3)))
        struck += rack_size(plan.workers) if kind == "rack" else 1
    return tuple(sorted(faults, key=lambda fault: fault.at))


def rack_size(workers: int) -> int:
    """How many neighbours a rack's failure takes down together."""
    return max(2, min(workers // 10, 50))
