"""Lineages: the branches of a job's history, and which checkpoint is the latest on the one in force.

Going back to an older step and training on starts a new branch, so a step's number may occur once in each. The law:
the latest checkpoint is the latest on the branch in force, never the one with the largest step; what a branch left
behind beyond its base is invisible to it.
"""

from collections.abc import Iterator

from strata.core.ids import MAX_COUNT
from strata.core.state import Attempt, Job

NOWHERE = -2


def head(job: Job) -> Attempt | None:
    """The latest checkpoint that the lineage in force can go on from."""
    return max(visible(job), key=lambda attempt: attempt.step, default=None)


def at_step(job: Job, step: int) -> Attempt | None:
    """The usable checkpoint of exactly this step that is visible from the lineage in force."""
    return next((attempt for attempt in visible(job) if attempt.step == step), None)


def visible(job: Job) -> Iterator[Attempt]:
    """The usable checkpoints on the way from the lineage in force back to the beginning."""
    reach = _reach(job)
    for attempt in job.attempts.values():
        if attempt.usable and attempt.step <= reach.get(attempt.lineage, NOWHERE):
            yield attempt


def _reach(job: Job) -> dict[int, int]:
    """Up to which step each lineage can be seen from the one in force."""
    reach: dict[int, int] = {}
    lineage, limit = job.lineage, MAX_COUNT
    while lineage >= 0:
        reach[lineage] = limit
        branch = job.lineages[lineage]
        lineage, limit = branch.parent, min(limit, branch.base_step)
    return reach


def occupied_beyond(job: Job, step: int) -> bool:
    """Whether the lineage in force saved anything later than `step`, usable or not: going on would collide with it."""
    return job.lineages[job.lineage].tip > step
