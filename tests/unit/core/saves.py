"""Short ways to say what the tests of checkpoints do and look at."""

from typing import Any

from strata.core.effects import Registered
from strata.core.events import DamageReported, PinRequested, RollBackRequested
from strata.core.settings import Policy
from tests.unit.core.cluster import JOB, Cluster

LEASE = Policy().lease_seconds
ATTEMPT = Policy().attempt_seconds


def statuses(cluster: Cluster) -> dict[int, str]:
    return {number: attempt.status for number, attempt in sorted(cluster.job.attempts.items())}


def committed_steps(cluster: Cluster) -> list[int]:
    return [attempt.step for _, attempt in sorted(cluster.job.attempts.items()) if attempt.usable]


def damage(cluster: Cluster, who: Registered, attempt: int) -> Any:
    return cluster.from_worker(DamageReported, who, attempt=attempt, reason="digest of layer.0.weight differs")


def roll_back(cluster: Cluster, step: int, generation: int | None = None) -> Any:
    return cluster.send(RollBackRequested(JOB, step, cluster.generation if generation is None else generation))


def pin(cluster: Cluster, attempt: int, name: str = "paper", pinned: bool = True) -> Any:
    return cluster.send(PinRequested(JOB, attempt, name, pinned))


def errands(cluster: Cluster, who: Registered) -> list[tuple[str, int]]:
    """What the next heartbeat asks this worker to do, and for which attempt."""
    return [(errand.kind, errand.attempt) for errand in cluster.heartbeat(who).errands]
