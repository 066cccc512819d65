"""Deleting checkpoints: in steps that a crash, a late reader or a repeated message cannot turn into damage.

    committed ──retention──▶ doomed ──manifest removed──▶ unlinked ──two leases, and no references──▶ (gone)

The law: the manifest goes first, so nobody new reads it; files go only when those who read it had two leases to finish
and nothing that stays refers to them. What is pinned stays. Which checkpoints may go is for retention.py to say, and
the removing itself is an errand for a worker.
"""

from strata.core.commits import find
from strata.core.effects import Done
from strata.core.errands import files_may_go
from strata.core.events import CheckpointRemoved, CoordinatorStarted, FilesRemoved, ManifestRemoved, PinRequested
from strata.core.ids import check_id
from strata.core.records import (
    CheckpointCommitted,
    CheckpointDeleted,
    CheckpointDoomed,
    CheckpointPinned,
    CheckpointUnlinked,
)
from strata.core.retention import doomed
from strata.core.state import Job, State
from strata.core.turn import Rules, Turn
from strata.errors import Refused

UNLINKED_LEASES = 2
MAX_PINS = 256

rules = Rules()


@rules.handles(CoordinatorStarted)
def on_started(turn: Turn, event: CoordinatorStarted) -> None:
    """Readers get their two leases again."""
    for job in turn.state.jobs.values():
        for number in job.unsettled:
            _wait_for_readers(turn, job, number)


def _wait_for_readers(turn: Turn, job: Job, number: int) -> None:
    until = turn.now + UNLINKED_LEASES * turn.policy.lease_seconds
    turn.volatile.job(job.job).unlinked_until[number] = until


@rules.handles(PinRequested)
def on_pin(turn: Turn, event: PinRequested) -> None:
    job = turn.state.job(event.job)
    check_id(event.name, "the name of a pin")
    attempt = find(job, event.attempt)
    if attempt.status not in ("committed", "damaged"):
        raise Refused(f"attempt {event.attempt} is {attempt.status}; only a committed checkpoint can be pinned")
    if event.pinned and event.name not in attempt.pins and len(attempt.pins) >= MAX_PINS:
        raise Refused(f"attempt {event.attempt} has {MAX_PINS} pins already, which is the limit")
    if (event.name in attempt.pins) != event.pinned:
        turn.record(CheckpointPinned(job.job, event.attempt, event.name, event.pinned))
        if not event.pinned:
            retain(turn, job)
    turn.reply(Done())


@rules.reacts(CheckpointCommitted)
def on_committed(turn: Turn, record: CheckpointCommitted) -> None:
    retain(turn, turn.state.jobs[record.job])


def retain(turn: Turn, job: Job) -> None:
    """Doom what the job's retention rules no longer keep."""
    for number, reason in doomed(job):
        turn.record(CheckpointDoomed(job.job, number, reason))


@rules.handles(ManifestRemoved)
def on_unlinked(turn: Turn, event: ManifestRemoved) -> None:
    """The manifest is gone, so nobody new will read it; those who do are given two leases to finish."""
    job = turn.state.job(event.job)
    job.member(event.worker, event.incarnation)
    attempt = find(job, event.attempt)
    if attempt.status == "doomed":
        turn.record(CheckpointUnlinked(job.job, attempt.attempt, f"{event.worker} removed the manifest"))
        _wait_for_readers(turn, job, attempt.attempt)
    elif attempt.status != "unlinked":
        raise Refused(f"attempt {attempt.attempt} is {attempt.status}: its manifest must not be removed")
    turn.reply(Done())


@rules.handles(FilesRemoved)
def on_removed(turn: Turn, event: FilesRemoved) -> None:
    job = turn.state.job(event.job)
    job.member(event.worker, event.incarnation)
    if 0 < event.attempt < job.next_attempt and event.attempt not in job.attempts:
        turn.reply(Done())
        return
    attempt = find(job, event.attempt)
    if attempt.status != "unlinked":
        raise Refused(f"attempt {attempt.attempt} is {attempt.status}: its files must not be removed")
    if not files_may_go(job, turn.volatile.job(job.job), attempt.attempt, turn.now):
        raise Refused(f"the files of attempt {attempt.attempt} may still be read or referred to", retry=True)
    turn.record(CheckpointDeleted(job.job, attempt.attempt, f"{event.worker} removed the files"))
    turn.volatile.job(job.job).unlinked_until.pop(attempt.attempt, None)
    turn.reply(Done())


@rules.handles(CheckpointRemoved)
def on_gone(turn: Turn, event: CheckpointRemoved) -> None:
    """A job that deletes what it does not keep says so afterwards: there is nothing left to wait for."""
    job = turn.state.job(event.job)
    job.member(event.worker, event.incarnation)
    if not 0 < event.attempt < job.next_attempt or event.attempt in job.attempts:
        attempt = find(job, event.attempt)
        if attempt.status in ("open", "decided"):
            raise Refused(f"attempt {attempt.attempt} is {attempt.status}: it is still being saved")
        turn.record(CheckpointDeleted(job.job, attempt.attempt, f"{event.worker} removed it"))
        turn.volatile.job(job.job).unlinked_until.pop(attempt.attempt, None)
    turn.reply(Done())


# -- apply -------------------------------------------------------------------------------------------------------------


@rules.applies(CheckpointDoomed)
def apply_doomed(state: State, record: CheckpointDoomed) -> None:
    job = state.jobs[record.job]
    job.set_status(job.attempts[record.attempt], "doomed")


@rules.applies(CheckpointUnlinked)
def apply_unlinked(state: State, record: CheckpointUnlinked) -> None:
    job = state.jobs[record.job]
    job.set_status(job.attempts[record.attempt], "unlinked")


@rules.applies(CheckpointDeleted)
def apply_deleted(state: State, record: CheckpointDeleted) -> None:
    job = state.jobs[record.job]
    job.set_status(job.attempts.pop(record.attempt), "over")


@rules.applies(CheckpointPinned)
def apply_pinned(state: State, record: CheckpointPinned) -> None:
    attempt = state.jobs[record.job].attempts[record.attempt]
    others = [name for name in attempt.pins if name != record.name]
    attempt.pins = sorted([*others, record.name]) if record.pinned else others
