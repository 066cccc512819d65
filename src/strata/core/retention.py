"""Retention: which committed checkpoints a job's rules no longer keep. A pure question; deletion.py acts on the answer.

The law: never the last good one of the lineage in force, never the recovery point, never one that is pinned.
Files that an incremental checkpoint refers to outlive their manifest; errands.py sees to that.
"""

import math

from strata.core.lineages import head
from strata.core.state import Attempt, Job


def doomed(job: Job) -> list[tuple[int, str]]:
    """The attempts to delete, each with the reason, oldest first."""
    rule = job.settings.retention
    if not (rule.keep_count or rule.keep_every or rule.best_metric):
        return []
    usable = sorted((a for a in job.attempts.values() if a.usable), key=lambda attempt: attempt.attempt)
    keep = _protected(job)
    keep.update(attempt.attempt for attempt in usable[-rule.keep_count or len(usable) :])
    if rule.keep_every:
        keep.update(attempt.attempt for attempt in usable if attempt.step % rule.keep_every == 0)
    if rule.best_metric:
        keep.update(attempt.attempt for attempt in _best(usable, job))
    damaged = [a for _, a in sorted(job.attempts.items()) if a.status == "damaged"]
    return [
        (a.attempt, f"step {a.step} is {'damaged' if a.status == 'damaged' else 'beyond what retention keeps'}")
        for a in sorted([*usable, *damaged], key=lambda attempt: attempt.attempt)
        if a.attempt not in keep
    ]


def _protected(job: Job) -> set[int]:
    last = head(job)
    keep = {a.attempt for a in job.attempts.values() if a.pins}
    if last is not None:
        keep.add(last.attempt)
    if job.point is not None:
        keep.add(job.point.attempt)
    for attempt in job.attempts.values():
        if attempt.status in ("open", "decided"):
            keep.update(attempt.references)
    return keep


def _best(usable: list[Attempt], job: Job) -> list[Attempt]:
    rule = job.settings.retention
    scored = [(score, a) for a in usable if not math.isnan(score := metric(a, rule.best_metric))]
    scored.sort(key=lambda pair: pair[0], reverse=rule.best_mode == "max")
    return [attempt for _, attempt in scored[: rule.best_count]]


def metric(attempt: Attempt, name: str) -> float:
    """The metric as the lowest rank that gave it said; not a number where none did."""
    for rank in sorted(attempt.parts):
        value = attempt.parts[rank].metrics.get(name)
        if value is not None:
            return float(value)
    return math.nan
