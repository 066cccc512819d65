"""Appointments: a checkpoint that somebody asked for falls on one step, the same for every rank.

    wanted ──proposed──▶ all promised ──▶ agreed ──the save begins──▶ under way ──▶ committed: kept
      ▲          │                          │                            │
      └──not all answered, or all passed by, or the world went back, or the save came to nothing──┘

A rank that passed a step cannot save it any more, and ranks hear at different times. So a step ahead of everybody is
proposed; a rank that promises waits there until it knows the outcome; when all have promised, the step is agreed. The
step is chosen so far ahead that the outcome is known before anybody gets there; nearer, if somebody is in a hurry: who
hears on a stream hears at once. A rank that holds, and whose heartbeat
with the promise is answered with neither the proposal nor an agreement, is free to go on.

The law: a step is agreed only when every process that is there has promised it. What was asked for and what was agreed
is durable; proposals are not, and are made anew. A step that is agreed is not given up because one rank was seen
beyond it: its save may have begun, and the word of that be on its way.
"""

from math import ceil, inf

from strata.core.effects import Done, SaveAsked
from strata.core.events import HeartbeatReceived, SaveRequested, StopRequested, SweepDue
from strata.core.ids import MAX_COUNT
from strata.core.records import (
    CheckpointAbandoned,
    JobStopping,
    RecoveryPointSet,
    SaveAgreed,
    SaveDropped,
    SaveReopened,
    SaveWanted,
)
from strata.core.state import Appointment, Job, Member, State
from strata.core.turn import Rules, Turn
from strata.core.volatile import Proposal
from strata.errors import InvalidInput, Refused

LEAD_HEARTBEATS = 4
"""To hear of the proposal, to promise, and to hear of the agreement takes up to three."""
HURRIES = 10
"""Of the time that somebody has, so small a part is spent on coming to the step."""
PROPOSALS = 5
TRIES = 3
"""Where saving fails again and again, to ask once more is for the one who asked."""
STOPS = "the job stops: "
"""How the reason of a job's last save begins."""

rules = Rules()


@rules.handles(SaveRequested)
def on_requested(turn: Turn, event: SaveRequested) -> None:
    job = turn.state.job(event.job)
    _check_hurry(event.within)
    if not job.world.by_rank:
        raise Refused(f"job {event.job!r} has no workers, so there is nothing to save")
    if job.stopping and job.appointment is None:
        raise Refused(f"job {event.job!r} is stopping ({job.stopping}) and saves no more: its workers are told to end")
    _want(turn, job, event.reason or "an operator asked", event.within)
    wanted = job.appointment
    assert wanted is not None
    turn.reply(SaveAsked(wanted.request, wanted.step))


@rules.handles(StopRequested)
def on_stop(turn: Turn, event: StopRequested) -> None:
    """Those who are there are told to stop; with `save`, once the last checkpoint is committed."""
    job = turn.state.job(event.job)
    _check_hurry(event.within)
    if not job.world.by_rank:
        raise Refused(f"job {event.job!r} has no workers, so there is nobody to stop")
    is_news = not job.stopping
    if is_news or (not event.save and job.appointment is not None):
        turn.record(JobStopping(job.job, event.reason or job.stopping or "an operator asked", at_once=not event.save))
    if event.save and (is_news or job.appointment is not None):
        _want(turn, job, f"{STOPS}{job.stopping}", event.within, is_last=is_news)
    turn.reply(Done())


def _check_hurry(within: float) -> None:
    if not 0 <= within < inf:
        raise InvalidInput(f"within_seconds is {within}: say a number that is not negative; 0 where there is no hurry")


def _want(turn: Turn, job: Job, reason: str, within: float, *, is_last: bool = False) -> None:
    """`is_last`: one that is agreed or under way will not do, since some may have passed it, and not stopped there."""
    volatile, hurry = turn.volatile.job(job.job), within or inf
    wanted = job.appointment
    if wanted is None or (is_last and (wanted.step >= 0 or wanted.attempt)):
        volatile.hurry = hurry
        turn.record(SaveWanted(job.job, job.next_request, reason))
        _propose(turn, job)
    elif hurry < volatile.hurry:
        volatile.hurry = hurry
        if wanted.step < 0 and not wanted.attempt:
            _propose(turn, job)


def _propose(turn: Turn, job: Job) -> None:
    wanted, volatile = job.appointment, turn.volatile.job(job.job)
    assert wanted is not None
    former = volatile.proposal
    count = former.number + 1 if former is not None and former.request == wanted.request else 1
    volatile.proposal = Proposal(wanted.request, _step_ahead(turn, job), turn.now, count)


def hear(turn: Turn, job: Job, member: Member, event: HeartbeatReceived) -> None:
    """A heartbeat while a checkpoint is wanted: it may bring a promise, or show that the step was passed."""
    wanted = job.appointment
    assert wanted is not None
    if wanted.step >= 0 or wanted.attempt:
        return
    proposal = turn.volatile.job(job.job).proposal
    if proposal is None or proposal.request != wanted.request:
        _propose(turn, job)
        return
    if (event.promised_request, event.promised_step) != (wanted.request, proposal.step):
        if event.step >= proposal.step:
            _propose(turn, job)
        return
    proposal.promised.add((member.worker, member.incarnation))
    _agree_if_all(turn, job)


def _agree_if_all(turn: Turn, job: Job) -> None:
    wanted, proposal = job.appointment, turn.volatile.job(job.job).proposal
    there = job.world.by_rank.values()
    if wanted is None or proposal is None or not there or len(proposal.promised) < len(there):
        return
    if all((worker, job.world.members[worker].incarnation) in proposal.promised for worker in there):
        reason = f"all {len(there)} workers save at step {proposal.step}: {wanted.reason}"
        turn.record(SaveAgreed(job.job, wanted.request, proposal.step, reason))
        turn.volatile.job(job.job).proposal = None


def _step_ahead(turn: Turn, job: Job) -> int:
    """A step that nobody will have reached before everybody knows of it."""
    lead = _lead(turn, job)
    vitals = turn.volatile.job(job.job).vitals
    furthest = -1
    for worker in job.world.by_rank.values():
        last = vitals.get(worker)
        if last is not None:
            ahead = min(ceil(last.pace * (turn.now - last.heard + lead)), MAX_COUNT // 4)
            furthest = max(furthest, min(last.step, MAX_COUNT // 2) + ahead)
    return furthest + 1


def _lead(turn: Turn, job: Job) -> float:
    return min(LEAD_HEARTBEATS * turn.policy.heartbeat_seconds, turn.volatile.job(job.job).hurry / HURRIES)


@rules.reacts(RecoveryPointSet)
def on_point(turn: Turn, record: RecoveryPointSet) -> None:
    """Everybody is at another step now: what was promised holds no more, and no pace that was seen."""
    volatile = turn.volatile.job(record.job)
    volatile.proposal = None
    for vitals in volatile.vitals.values():
        vitals.step, vitals.pace, vitals.step_since = -1, 0.0, turn.now


@rules.reacts(CheckpointAbandoned)
def on_abandoned(turn: Turn, record: CheckpointAbandoned) -> None:
    wanted = turn.state.jobs[record.job].appointment
    if wanted is not None and wanted.tries >= TRIES:
        turn.record(SaveDropped(record.job, wanted.request, f"{TRIES} saves came to nothing: {record.reason}"))


@rules.handles(SweepDue)
def on_sweep(turn: Turn, event: SweepDue) -> None:
    """Nobody holds for ever: a proposal that not all answer is replaced, and in the end dropped."""
    for name in sorted(turn.volatile.astir):
        job = turn.state.jobs[name]
        if job.appointment is not None:
            _look_again(turn, job, job.appointment)


def _look_again(turn: Turn, job: Job, wanted: Appointment) -> None:
    volatile = turn.volatile.job(job.job)
    if not job.world.by_rank:
        turn.record(SaveDropped(job.job, wanted.request, "nobody is left to save"))
        return
    if wanted.attempt:
        return
    if wanted.step >= 0:
        steps = [volatile.vitals[worker].step for worker in job.world.by_rank.values() if worker in volatile.vitals]
        if steps and min(steps) > wanted.step:
            turn.record(SaveReopened(job.job, wanted.request, f"everybody is beyond step {wanted.step}"))
        return
    proposal = volatile.proposal
    if proposal is None:
        return
    _agree_if_all(turn, job)
    if volatile.proposal is not proposal or turn.now - proposal.since < 2 * _lead(turn, job):
        return
    if proposal.number < PROPOSALS:
        _propose(turn, job)
        return
    silent = [
        worker
        for _, worker in sorted(job.world.by_rank.items())
        if (worker, job.world.members[worker].incarnation) not in proposal.promised
    ]
    reason = f"{', '.join(silent[:3])} did not answer {PROPOSALS} proposals"
    turn.record(SaveDropped(job.job, wanted.request, reason))
    volatile.proposal = None


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


@rules.applies(SaveDropped)
def apply_dropped(state: State, record: SaveDropped) -> None:
    state.jobs[record.job].appointment = None


@rules.applies(JobStopping)
def apply_stopping(state: State, record: JobStopping) -> None:
    job = state.jobs[record.job]
    job.stopping = record.reason
    if record.at_once:
        job.appointment = None
