"""Commits: one step, saved by every rank or by none.

    begin ──▶ open ──all parts in──▶ decided ──manifest put──▶ committed ──▶ (see deletion.py)
               │                                                  └──damage found──▶ damaged
               └──a participant lost before its part, time ran out, or a rollback──▶ abandoned (gone)

The law: an attempt is decided only when every participant's part of that step is durable; decided is irrevocable, and
only decided attempts are committed. Participants are processes, frozen at the first begin: a part from any other
process, or a second and different part from the same one, is refused. The manifest in storage is the commit; this
journal is its index.
"""

import msgspec

from strata.core.effects import AbandonAttempt, Acknowledged, AnnounceCommit, Begun, Done, Skipped
from strata.core.errands import is_delegate, is_referred_to
from strata.core.events import (
    CheckpointAck,
    CheckpointBeginRequested,
    CoordinatorStarted,
    DamageReported,
    ManifestPut,
    PartFailed,
    Position,
    SweepDue,
)
from strata.core.ids import check_int, check_name, check_plain
from strata.core.progress import check_positions
from strata.core.ranges import RangeSet
from strata.core.records import (
    CheckpointAbandoned,
    CheckpointBegun,
    CheckpointCommitted,
    CheckpointDamaged,
    CheckpointDecided,
    CheckpointDoomed,
    CheckpointSkipped,
    GenerationAdvanced,
    PartAcknowledged,
    WorkerLost,
)
from strata.core.state import Attempt, Dataset, Job, Member, Part, State
from strata.core.turn import Rules, Turn
from strata.errors import Conflict, InvalidInput, NotFound, Refused, StaleGeneration

MAX_DIGEST_CHARS = 256
MAX_METRICS = 256
MAX_REFERENCES = 1024
MAX_PLACE_CHARS = 2048
ABANDONED = "attempt {} was abandoned: "
"""How the reason begins why nobody saves a step any more that was begun."""
COULD_NOT_SAVE = "could not save its part"
MAX_PART_BYTES = 2**46
"""64 TiB; so that the parts of 100,000 ranks together still fit 64 bits, and not a float's worth of one is lost."""

rules = Rules()


def find(job: Job, number: int) -> Attempt:
    """The attempt, or why it is not there."""
    attempt = job.attempts.get(number)
    if attempt is None:
        if 0 < number < job.next_attempt:
            raise Refused(f"attempt {number} of job {job.job!r} is over: it was abandoned or deleted")
        raise NotFound(f"job {job.job!r} has no attempt {number}")
    return attempt


# -- begin -----------------------------------------------------------------------------------------------------------


@rules.handles(CheckpointBeginRequested)
def on_begin(turn: Turn, event: CheckpointBeginRequested) -> None:
    job = turn.state.job(event.job)
    member = job.member(event.worker, event.incarnation)
    check_int(event.step, "step")
    check_int(event.epoch, "epoch")
    if event.generation is not None and event.generation != job.world.generation:
        raise StaleGeneration(
            f"worker {event.worker!r} begins a save in generation {event.generation}, but it is generation "
            f"{job.world.generation} now: recover first",
            generation=job.world.generation,
        )
    if job.rolled_back:
        raise StaleGeneration(
            f"job {job.job!r} was rolled back: worker {event.worker!r} must recover before it saves again",
            generation=job.world.generation,
        )
    if len(event.references) > MAX_REFERENCES:
        raise InvalidInput(f"at most {MAX_REFERENCES} checkpoints can be referred to, not {len(event.references)}")
    check_place(event.place)
    same = saving(job, event.step)
    if same is not None:
        if same.status == "open" or not event.skip:
            _check_participant(same, member)
        if event.place and event.place != same.place:
            raise Refused(
                f"step {event.step} goes somewhere else already (attempt {same.attempt} is {same.status}): its place "
                "cannot be changed"
            )
        turn.reply(Begun(same.attempt, same.lineage, same.step, same.status))
        return
    if event.step in job.skipped and not event.place:  # whoever says a place begins it anew, for all
        turn.reply(Skipped(event.step, job.skipped[event.step]))
        return
    if event.skip:
        turn.record(CheckpointSkipped(job.job, job.lineage, event.step, event.skip))
        turn.reply(Skipped(event.step, event.skip))
        return
    _check_ahead(job, event.step)
    for number in event.references:
        reference = find(job, number)
        if not reference.usable and not is_referred_to(job, number):
            raise Refused(f"attempt {number} cannot be referred to: it is {reference.status}")
    running = next((a for _, a in sorted(job.attempts.items()) if a.status == "open"), None)
    if running is None:
        _begin(turn, job, event)
        return
    busy = f"the save of step {running.step} (attempt {running.attempt}) is still under way"
    if job.settings.saves == "wait":
        raise Refused(f"step {event.step} cannot be saved yet: {busy}", retry=True)
    turn.record(CheckpointSkipped(job.job, job.lineage, event.step, busy))
    turn.reply(Skipped(event.step, busy))


def check_place(place: str) -> None:
    if len(place) > MAX_PLACE_CHARS:
        raise InvalidInput(f"a place in the storage has at most {MAX_PLACE_CHARS} characters, not {len(place)}")


def saving(job: Job, step: int) -> Attempt | None:
    """The attempt that saves this step, or has. The newest are looked at first."""
    for attempt in reversed(job.attempts.values()):
        if (
            attempt.step == step
            and attempt.lineage == job.lineage
            and attempt.status in ("open", "decided", "committed")
        ):
            return attempt
    return None


def _check_ahead(job: Job, step: int) -> None:
    branch = job.lineages[job.lineage]
    if step <= max(branch.tip, branch.base_step):
        raise Refused(
            f"step {step} lies behind step {max(branch.tip, branch.base_step)}, which lineage {job.lineage} has "
            "already: roll back to an older step first to save it anew in a lineage of its own"
        )


def _begin(turn: Turn, job: Job, event: CheckpointBeginRequested) -> None:
    participants: dict[int, tuple[str, int]] = {}
    # A job that carries on saves what is there; one with collectives waits for every rank of its world.
    for rank in sorted(job.world.by_rank) if job.settings.recovery == "carry_on" else job.world.roster():
        member = job.world.at_rank(rank)
        participants[rank] = ("", 0) if member is None else (member.worker, member.incarnation)
    number = job.next_attempt
    turn.record(
        CheckpointBegun(
            job.job,
            number,
            job.lineage,
            event.step,
            event.epoch,
            turn.state.term,
            job.world.generation,
            participants,
            list(event.references),
            f"{event.worker} began to save step {event.step}",
            event.place,
        )
    )
    volatile = turn.volatile.job(job.job)
    volatile.attempt_deadlines[number] = turn.now + turn.policy.attempt_seconds
    volatile.attempt_began[number] = turn.now
    turn.reply(Begun(number, job.lineage, event.step, "open"))


# -- parts -----------------------------------------------------------------------------------------------------------


@rules.handles(CheckpointAck)
def on_ack(turn: Turn, event: CheckpointAck) -> None:
    job = turn.state.job(event.job)
    member = job.member(event.worker, event.incarnation)
    attempt = find(job, event.attempt)
    _check_participant(attempt, member)
    part = attempt.parts.get(member.rank)
    if part is not None:
        _check_same(attempt, member, part, event)
    elif attempt.status == "open":
        _check_part(job, attempt, event)
        turn.record(
            PartAcknowledged(
                job.job,
                event.attempt,
                member.rank,
                member.worker,
                member.incarnation,
                event.digest,
                event.part_bytes,
                {name: _told(job, attempt, name, event.positions[name]) for name in sorted(event.positions)},
                dict(event.metrics),
                event.place,
            )
        )
        if len(attempt.parts) == len(attempt.participants):
            turn.record(
                CheckpointDecided(job.job, attempt.attempt, f"all {len(attempt.participants)} parts are durable")
            )
    mine = attempt.status == "decided" and is_delegate(job, attempt, member)
    turn.reply(Acknowledged(attempt.attempt, attempt.status, mine))


def _check_participant(attempt: Attempt, member: Member) -> None:
    frozen = attempt.participants.get(member.rank)
    if frozen is None or frozen not in (("", 0), (member.worker, member.incarnation)):
        raise Refused(
            f"worker {member.worker!r} (rank {member.rank}, incarnation {member.incarnation}) takes no part in attempt "
            f"{attempt.attempt} at step {attempt.step}: its participants were fixed before this process joined"
        )


def _check_same(attempt: Attempt, member: Member, part: Part, event: CheckpointAck) -> None:
    if (part.digest, part.part_bytes) != (event.digest, event.part_bytes):
        raise Conflict(
            f"worker {member.worker!r} acknowledged its part of attempt {attempt.attempt} with digest {part.digest} "
            f"and {part.part_bytes} bytes, and now says {event.digest} and {event.part_bytes}: a part is written once"
        )


def _check_part(job: Job, attempt: Attempt, event: CheckpointAck) -> None:
    if not event.digest or len(event.digest) > MAX_DIGEST_CHARS:
        raise InvalidInput(f"a part's digest has 1 to {MAX_DIGEST_CHARS} characters, not {len(event.digest)}")
    check_plain(event.digest, "digest")
    check_int(event.part_bytes, "part_bytes", most=MAX_PART_BYTES)
    check_place(event.place)
    if len(event.metrics) > MAX_METRICS:
        raise InvalidInput(f"at most {MAX_METRICS} metrics can go with a checkpoint, not {len(event.metrics)}")
    for name, value in event.metrics.items():
        check_name(name, "the name of a metric")
        try:
            float(value)
        except ValueError:
            raise InvalidInput(f"metric {name!r} must be a number, not {value!r}") from None
    check_positions(job, event.positions)
    for name in event.positions:
        base, position = attempt.base.get(name), _told(job, attempt, name, event.positions[name])
        if base is None:
            raise Refused(f"dataset {name!r} was not there when the save of step {attempt.step} began")
        _check_agrees(job, attempt, name, position)
        # In the elastic order a position is the whole job's, and says it all; it may be of the epoch before the one
        # that has begun since, or of one that nobody has told of yet.
        of_any = job.dataset(name).order == "elastic" or attempt.is_late(name, position)
        epoch = position.epoch if of_any else base.epoch
        if (base.version, epoch) != (position.version, position.epoch):
            raise Refused(
                f"worker {event.worker!r} saves step {attempt.step} in version {position.version}, epoch "
                f"{position.epoch} of dataset {name!r}; the save began in version {base.version}, epoch {base.epoch}"
            )


def _check_agrees(job: Job, attempt: Attempt, name: str, position: Position) -> None:
    """Every rank is in the same epoch when it saves the same step, and in the elastic order at the same place of it."""
    is_elastic = job.dataset(name).order == "elastic"
    for rank in sorted(attempt.parts):
        other = attempt.parts[rank].positions.get(name)
        if other is not None and other.epoch != position.epoch and not is_elastic:
            raise Refused(
                f"at step {attempt.step}, rank {rank} is in epoch {other.epoch} of dataset {name!r} and another in "
                f"epoch {position.epoch}: they are not at the same step"
            )
        if other is not None and not _at_same_place(other, position) and is_elastic:
            raise Refused(
                f"at step {attempt.step}, rank {rank} has consumed {other.consumed} of dataset {name!r} and another "
                f"{position.consumed}: they are not at the same step"
            )


def _at_same_place(one: Position, other: Position) -> bool:
    """What each rank left out is its own."""
    return msgspec.structs.replace(one, left_out=0) == msgspec.structs.replace(other, left_out=0)


def _told(job: Job, attempt: Attempt, name: str, position: Position) -> Position:
    """The position as the attempt counts epochs: the end of one is the beginning of the next."""
    base = attempt.base.get(name)
    over = position.consumed == [0, job.dataset(name).total_samples]
    if base is not None and over and position.epoch + 1 == base.epoch:
        return Position(position.version, base.epoch, [])
    return position


@rules.handles(PartFailed)
def on_part_failed(turn: Turn, event: PartFailed) -> None:
    job = turn.state.job(event.job)
    member = job.member(event.worker, event.incarnation)
    attempt = find(job, event.attempt)
    _check_participant(attempt, member)
    if attempt.status == "open" and member.rank not in attempt.parts:
        abandon(turn, job, attempt, f"{event.worker} {COULD_NOT_SAVE}: {event.reason}")
    turn.reply(Done())


# -- the end of an attempt -------------------------------------------------------------------------------------------


@rules.handles(ManifestPut)
def on_manifest(turn: Turn, event: ManifestPut) -> None:
    job = turn.state.job(event.job)
    job.member(event.worker, event.incarnation)
    attempt = find(job, event.attempt)
    if attempt.status == "open":
        raise Refused(
            f"attempt {attempt.attempt} at step {attempt.step} is not decided: the parts of ranks "
            f"{attempt.absent()[:8]} are not durable, so its manifest must not be written"
        )
    if attempt.status == "unlinked":
        turn.record(CheckpointDoomed(job.job, attempt.attempt, f"{event.worker} put a manifest that was removed"))
    if attempt.status == "decided":
        turn.record(CheckpointCommitted(job.job, attempt.attempt, f"{event.worker} put the manifest"))
        turn.effect(AnnounceCommit(job.job, attempt.attempt, attempt.workers()))
    turn.reply(Done())


def abandon(turn: Turn, job: Job, attempt: Attempt, reason: str) -> None:
    """Nothing of this attempt will ever count."""
    turn.record(CheckpointAbandoned(job.job, attempt.attempt, reason))
    turn.effect(AbandonAttempt(job.job, attempt.attempt, attempt.workers(), reason))


def open_attempts(job: Job) -> list[Attempt]:
    return [attempt for _, attempt in sorted(job.attempts.items()) if attempt.status == "open"]


@rules.reacts(WorkerLost)
def on_lost(turn: Turn, record: WorkerLost) -> None:
    """A process that dies before its acknowledgement takes the attempt with it; after, it does not."""
    job = turn.state.jobs[record.job]
    for attempt in open_attempts(job):
        frozen = attempt.participants.get(record.rank)
        lost = frozen in (("", 0), (record.worker, record.incarnation))
        if lost and record.rank not in attempt.parts:
            abandon(turn, job, attempt, f"{record.worker} was lost before its part was durable: {record.reason}")


@rules.reacts(CheckpointDecided)
def on_decided(turn: Turn, record: CheckpointDecided) -> None:
    """If the one who should put the manifest does not within a lease, the others are asked too."""
    patience = turn.now + turn.policy.lease_seconds
    turn.volatile.job(record.job).manifest_deadlines[record.attempt] = patience


@rules.handles(CoordinatorStarted)
def on_started(turn: Turn, event: CoordinatorStarted) -> None:
    """What is being saved gets its full time again."""
    for job in turn.state.jobs.values():
        for attempt in open_attempts(job):
            volatile = turn.volatile.job(job.job)
            volatile.attempt_deadlines[attempt.attempt] = turn.now + turn.policy.attempt_seconds
            volatile.attempt_began[attempt.attempt] = turn.now


@rules.handles(SweepDue)
def on_sweep(turn: Turn, event: SweepDue) -> None:
    """Give up on attempts that take too long, naming who is missing."""
    for name in sorted(turn.volatile.astir):
        job, deadlines = turn.state.jobs[name], turn.volatile.job(name).attempt_deadlines
        for attempt in open_attempts(job):
            if deadlines[attempt.attempt] <= turn.now:
                absent = [attempt.participants[rank][0] or f"rank {rank}" for rank in attempt.absent()]
                abandon(turn, job, attempt, f"timed out waiting for the parts of {', '.join(absent[:8])}")
        volatile = turn.volatile.job(name)
        for table in (deadlines, volatile.manifest_deadlines, volatile.attempt_began):
            for number in [number for number in table if number not in job.attempts]:
                del table[number]


@rules.handles(DamageReported)
def on_damage(turn: Turn, event: DamageReported) -> None:
    job = turn.state.job(event.job)
    job.member(event.worker, event.incarnation)
    attempt = find(job, event.attempt)
    if attempt.status == "open":
        raise Refused(f"attempt {attempt.attempt} is still being written; it cannot be damaged yet")
    if attempt.status in ("decided", "committed"):
        turn.record(CheckpointDamaged(job.job, attempt.attempt, f"{event.worker} found damage: {event.reason}"))
        if job.point is not None and job.point.attempt == attempt.attempt:
            why = f"the recovery point, step {attempt.step}, is damaged"
            turn.record(GenerationAdvanced(job.job, job.world.generation + 1, why))
    turn.reply(Done())


# -- apply -----------------------------------------------------------------------------------------------------------


@rules.applies(CheckpointBegun)
def apply_begun(state: State, record: CheckpointBegun) -> None:
    job = state.jobs[record.job]
    attempt = job.attempts[record.attempt] = Attempt(
        record.attempt,
        record.lineage,
        record.step,
        record.epoch,
        record.term,
        record.generation,
        dict(record.participants),
        list(record.references),
        base={
            name: Position(
                dataset.version, dataset.epoch, dataset.departed.to_flat(), dataset.reading, dataset.left_out
            )
            for name, dataset in job.datasets.items()
        },
        place=record.place,
        former={name: dataset.former for name, dataset in job.datasets.items() if dataset.former is not None},
    )
    job.set_status(attempt, "open")
    job.skipped.pop(record.step, None)
    job.next_attempt = record.attempt + 1
    if job.appointment is not None and job.is_kept_by(record.step):
        job.appointment.attempt = record.attempt


@rules.applies(CheckpointSkipped)
def apply_skipped(state: State, record: CheckpointSkipped) -> None:
    job = state.jobs[record.job]
    job.skip(record.step, record.reason)
    if job.appointment is not None and job.appointment.step == record.step:
        job.agree(-1)


@rules.applies(PartAcknowledged)
def apply_part(state: State, record: PartAcknowledged) -> None:
    attempt = state.jobs[record.job].attempts[record.attempt]
    attempt.participants[record.rank] = (record.worker, record.incarnation)
    attempt.parts[record.rank] = Part(
        record.worker,
        record.incarnation,
        record.digest,
        record.part_bytes,
        record.positions,
        record.metrics,
        record.place,
    )


@rules.applies(CheckpointDecided)
def apply_decided(state: State, record: CheckpointDecided) -> None:
    """The data position of the step: what departed workers consumed, and what each participant says it has."""
    job = state.jobs[record.job]
    attempt = job.attempts[record.attempt]
    job.set_status(attempt, "decided")
    branch = job.lineages[attempt.lineage]
    branch.tip = max(branch.tip, attempt.step)
    for name, base in attempt.base.items():
        said = [attempt.parts[rank].positions.get(name) for rank in sorted(attempt.parts)]
        parts = [part for part in said if part is not None]
        begun = attempt.former[name] if parts and attempt.is_late(name, parts[0]) else base
        attempt.positions[name] = _position(job.datasets.get(name), begun, parts)
    attempt.base, attempt.former = {}, {}
    job.skipped = {step: reason for step, reason in job.skipped.items() if step > attempt.step}


def _position(dataset: Dataset | None, base: Position, parts: list[Position]) -> Position:
    """Where the step is in a dataset. In the elastic order each part says it all, departed workers' share included, but
    for what was left out: that adds up. A ledger at the same place also has what departed workers left out."""
    if dataset is not None and dataset.order == "elastic" and parts:
        left_out = sum(part.left_out for part in parts)
        if (base.epoch, base.consumed) == (parts[0].epoch, parts[0].consumed):
            left_out = max(left_out, base.left_out)
        return msgspec.structs.replace(parts[0], left_out=left_out)
    consumed = RangeSet.from_flat(base.consumed)
    for part in parts:
        consumed = consumed.union(RangeSet.from_flat(part.consumed))
    return Position(base.version, base.epoch, consumed.to_flat(), base.reading, base.left_out)


@rules.applies(CheckpointCommitted)
def apply_committed(state: State, record: CheckpointCommitted) -> None:
    job = state.jobs[record.job]
    if job.appointment is not None and job.appointment.attempt == record.attempt:
        job.appointment = None
    job.set_status(job.attempts[record.attempt], "committed")


@rules.applies(CheckpointDamaged)
def apply_damaged(state: State, record: CheckpointDamaged) -> None:
    job = state.jobs[record.job]
    job.set_status(job.attempts[record.attempt], "damaged")


@rules.applies(CheckpointAbandoned)
def apply_abandoned(state: State, record: CheckpointAbandoned) -> None:
    """Some ranks have moved on by now, so nobody may begin to save that step again before a recovery."""
    job = state.jobs[record.job]
    attempt = job.attempts.pop(record.attempt)
    job.set_status(attempt, "over")
    wanted = job.appointment
    if wanted is not None and wanted.attempt == record.attempt:
        wanted.tries += 1
        job.agree(-1)
    job.skip(attempt.step, ABANDONED.format(record.attempt) + record.reason)


@rules.applies(GenerationAdvanced)
def apply_generation(state: State, record: GenerationAdvanced) -> None:
    state.jobs[record.job].world.generation = record.generation
