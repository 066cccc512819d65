"""What the coordinator needs a worker to do, worked out from the state each time: a lost answer loses nothing.

A part is saved by whoever the attempt waits for. The lowest live participant puts the manifest of a decided attempt;
where that has not happened within a lease, anybody does. The lowest live rank cleans up. Each errand may be run twice,
by two workers even: the manifest's bytes follow from the decision, and what is removed is removed.
"""

from typing import Any

from strata.core.effects import Errand
from strata.core.state import Attempt, Job, Member
from strata.core.volatile import JobVolatile


def errands_for(job: Job, volatile: JobVolatile, member: Member, now: float) -> tuple[Errand, ...]:
    """What this worker should do now."""
    if not job.unsettled and job.appointment is None and not job.stopping and member.status == "live":
        return ()
    errands = [_errand(job, volatile, job.attempts[number], member, now) for number in job.unsettled]
    errands.append(_appointment(job, volatile))
    if member.status == "draining":
        errands.append(Errand("drain", reason=member.reason))
    if job.stopping and job.appointment is None:
        errands.append(Errand("stop", reason=job.stopping))
    return tuple(errand for errand in errands if errand is not None)


def _appointment(job: Job, volatile: JobVolatile) -> Errand | None:
    """Where to save, or where the others would."""
    wanted, proposal = job.appointment, volatile.proposal
    if wanted is None or wanted.attempt:
        return None
    about: dict[str, Any] = {"request": wanted.request, "reason": wanted.reason, "last": bool(job.stopping)}
    if wanted.step >= 0:
        return Errand("save_at", step=wanted.step, **about)
    if proposal is None or proposal.request != wanted.request:
        return None
    return Errand("propose_save", step=proposal.step, **about)


def is_delegate(job: Job, attempt: Attempt, member: Member) -> bool:
    """Whether this worker acts for the attempt: its lowest live participant, else the lowest rank there is."""
    there = job.world.by_rank
    if attempt.status == "decided":
        live = (rank for rank, (worker, _) in attempt.participants.items() if there.get(rank) == worker)
        if attempt.participants.get(member.rank, ("", 0))[0] == member.worker:
            return not any(rank < member.rank for rank in live)
        if any(True for _ in live):
            return False
    return not any(rank < member.rank for rank in there)


def _errand(job: Job, volatile: JobVolatile, attempt: Attempt, member: Member, now: float) -> Errand | None:
    number, step = attempt.attempt, attempt.step
    if attempt.status == "open":
        return Errand("save", number, step) if attempt.awaits(member) else None
    overdue = attempt.status == "decided" and now >= volatile.manifest_deadlines.get(number, 0.0)
    if not overdue and not is_delegate(job, attempt, member):
        return None
    if attempt.status == "decided":
        return Errand("put_manifest", number, step)
    if attempt.status == "doomed":
        return Errand("remove_manifest", number, step)
    return Errand("remove_files", number, step) if files_may_go(job, volatile, number, now) else None


def files_may_go(job: Job, volatile: JobVolatile, number: int, now: float) -> bool:
    """Whether those who read an unlinked attempt had their time, and nothing that stays refers to it."""
    return now >= volatile.unlinked_until[number] and not is_referred_to(job, number)


def is_referred_to(job: Job, number: int) -> bool:
    """Whether any attempt that is not being removed itself uses this one's files."""
    return any(
        number in attempt.references and attempt.status not in ("doomed", "unlinked")
        for attempt in job.attempts.values()
    )
