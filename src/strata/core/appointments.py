"""Appointments: a checkpoint that somebody asked for falls on one step, the same for every rank.

    wanted ──proposed──▶ all promised ──▶ agreed ──the save begins──▶ (kept)
      ▲          │                          │
      └──passed by, or the world changed────┘

A rank that passed a step cannot save it any more, and ranks hear at different times. So a step ahead of everybody is
proposed; a rank that promises will wait there until it knows the outcome; when all have promised, the step is agreed.
The step is chosen so far ahead that the outcome is known long before anybody gets there, and nobody waits.

The law: nobody is told to save at a step before every process that is there promised it. What was asked for and what
was agreed is durable; proposals are not, and are made anew.
"""

import math

from strata.core.effects import Done, SaveAsked
from strata.core.events import HeartbeatReceived, SaveRequested, StopRequested
from strata.core.ids import MAX_COUNT
from strata.core.records import JobStopping, SaveAgreed, SaveReopened, SaveWanted
from strata.core.state import Appointment, Job, Member, State
from strata.core.turn import Rules, Turn
from strata.core.volatile import Proposal
from strata.errors import Refused

LEAD_HEARTBEATS = 2

rules = Rules()


@rules.handles(SaveRequested)
def on_requested(turn: Turn, event: SaveRequested) -> None:
    job = turn.state.job(event.job)
    if not job.world.by_rank:
        raise Refused(f"job {event.job!r} has no workers, so there is nothing to save")
    _want(turn, job, event.reason or "an operator asked")
    wanted = job.appointment
    assert wanted is not None
    turn.reply(SaveAsked(wanted.request, wanted.step))


@rules.handles(StopRequested)
def on_stop(turn: Turn, event: StopRequested) -> None:
    """Those who are there are told to stop; with `save`, once the last checkpoint has begun."""
    job = turn.state.job(event.job)
    if not job.world.by_rank:
        raise Refused(f"job {event.job!r} has no workers, so there is nobody to stop")
    if not job.stopping:
        turn.record(JobStopping(job.job, event.reason or "an operator asked"))
        if event.save:
            _want(turn, job, f"the job stops: {job.stopping}")
    elif not event.save and job.appointment is not None and job.appointment.step < 0:
        turn.record(JobStopping(job.job, event.reason or job.stopping))
    turn.reply(Done())


def _want(turn: Turn, job: Job, reason: str) -> None:
    if job.appointment is None:
        turn.record(SaveWanted(job.job, job.next_request, reason))


def hear(turn: Turn, job: Job, member: Member, event: HeartbeatReceived) -> None:
    """A heartbeat while a checkpoint is wanted: it may bring a promise, or show that the step was passed."""
    wanted = job.appointment
    assert wanted is not None
    if wanted.step >= 0:
        if event.step > wanted.step:
            turn.record(SaveReopened(job.job, wanted.request, f"{event.worker} went past step {wanted.step}"))
        else:
            return
    volatile = turn.volatile.job(job.job)
    proposal = volatile.proposal
    promises = proposal is not None and (event.promised_request, event.promised_step) == (
        wanted.request,
        proposal.step,
    )
    if proposal is None or proposal.request != wanted.request or (event.step >= proposal.step and not promises):
        volatile.proposal = Proposal(wanted.request, _step_ahead(turn, job))
        return
    if promises:
        proposal.promised.add((member.worker, member.incarnation))
    if all(_of(job, worker) in proposal.promised for worker in job.world.by_rank.values()):
        reason = f"all {len(job.world.by_rank)} workers save at step {proposal.step}: {wanted.reason}"
        turn.record(SaveAgreed(job.job, wanted.request, proposal.step, reason))
        volatile.proposal = None


def _of(job: Job, worker: str) -> tuple[str, int]:
    return worker, job.world.members[worker].incarnation


def _step_ahead(turn: Turn, job: Job) -> int:
    """A step that nobody will have reached before everybody has heard of it."""
    lead = LEAD_HEARTBEATS * turn.policy.heartbeat_seconds
    vitals = turn.volatile.job(job.job).vitals
    furthest = -1
    for worker in job.world.by_rank.values():
        last = vitals.get(worker)
        if last is not None:
            ahead = min(math.ceil(last.pace * (turn.now - last.heard + lead)), MAX_COUNT // 4)
            furthest = max(furthest, min(last.step, MAX_COUNT // 2) + ahead)
    return furthest + 1


# -- apply -----------------------------------------------------------------------------------------------------------


@rules.applies(SaveWanted)
def apply_wanted(state: State, record: SaveWanted) -> None:
    job = state.jobs[record.job]
    job.appointment = Appointment(record.request, record.reason)
    job.next_request = record.request + 1


@rules.applies(SaveAgreed)
def apply_agreed(state: State, record: SaveAgreed) -> None:
    state.jobs[record.job].agree(record.step)


@rules.applies(SaveReopened)
def apply_reopened(state: State, record: SaveReopened) -> None:
    state.jobs[record.job].agree(-1)


@rules.applies(JobStopping)
def apply_stopping(state: State, record: JobStopping) -> None:
    """Asked for a second time before a step was agreed, the last checkpoint is not waited for."""
    job = state.jobs[record.job]
    if job.stopping:
        job.appointment = None
    job.stopping = record.reason
