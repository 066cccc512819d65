"""Recovery: one point for all ranks to go on from.

The law: within a generation everybody is given the same point. Decided attempts are finished first, so a point is
always committed. Where the point is not the latest thing its lineage holds, going on starts a new lineage. The storage
is the truth of what is committed, and this journal its index: who asks may say what is found there, and then the point
is that; but who finds less than was committed has to look again first.

A job that rolls back waits here until every rank of the world is there, and was heard since the last of them came, so
that one point serves all of them. A job that carries on is rolled back only when nobody was left; a newcomer to it is
told the latest checkpoint, and the survivors' progress stands.

What was saved while the coordinator was away is taken on, oldest first, under the point that was gone on from: nobody
goes back for that.
"""

from itertools import islice

from strata.core.commits import abandon, check_place, open_attempts
from strata.core.datasets import MAX_DATASETS, check_point
from strata.core.effects import Errand, FinishFirst, LineageNow, RecoveryPoint
from strata.core.events import Found, RecoverRequested, RollBackRequested
from strata.core.ids import check_int
from strata.core.lineages import at_step, head, occupied_beyond, visible
from strata.core.membership import touch
from strata.core.progress import check_positions
from strata.core.records import (
    CheckpointAdopted,
    CheckpointDamaged,
    GenerationAdvanced,
    LineageStarted,
    RecoveryPointSet,
)
from strata.core.state import Attempt, Job, Lineage, Member, Point, State
from strata.core.turn import Rules, Turn
from strata.errors import Conflict, InvalidInput, NotFound, Refused, StaleGeneration

BEGINNING = -1
NO_REQUEST = -1
MAX_EARLIER = 100
"""Checkpoints that one request tells besides the latest."""

rules = Rules()


@rules.handles(RecoverRequested)
def on_recover(turn: Turn, event: RecoverRequested) -> None:
    job = turn.state.job(event.job)
    member = job.member(event.worker, event.incarnation)
    touch(turn, event.job, member)
    unfinished = next((a for _, a in sorted(job.attempts.items()) if a.status == "decided"), None)
    if unfinished is not None:
        turn.reply(FinishFirst(Errand("put_manifest", unfinished.attempt, unfinished.step)))
        return
    found = event.found
    _check_found(turn, job, member, event)
    carries_on = job.settings.recovery == "carry_on" and not job.restarted
    if event.since is not None:
        check_point(job, event.since)
        if job.point is None:
            raise Refused(f"job {job.job!r} has no recovery point yet that anything was saved since")
        for each in (*event.earlier, found):
            _take_on(turn, job, each)
        turn.reply(_latest(turn, job) if carries_on else _answer(turn, job))
        return
    if event.earlier:
        raise InvalidInput("`earlier` says what was saved without the coordinator, and since when: say `since`, too")
    if carries_on:
        _take_on(turn, job, found)
        turn.reply(_latest(turn, job))
        return
    if job.settings.recovery == "rollback":
        _check_complete(turn, job)
    point, generation = job.point, job.world.generation
    took_it_up = point is not None and member.incarnation < point.newcomers and not job.restarted
    if event.insist and found is not None and took_it_up and _goes_on_from(job, found):
        turn.reply(_answer(turn, job))  # and what was read since then stays read
        return
    if point is None or point.generation != generation or job.restarted:
        _check_recent(event, job)
        _set_point(turn, job, found, f"generation {generation}: {member.worker} was the first to ask")
    elif event.insist and found is not None:
        _check_recent(event, job)
        turn.record(GenerationAdvanced(job.job, generation + 1, f"{member.worker} goes on from step {found.step}"))
        _set_point(turn, job, found, f"{member.worker} goes on from step {found.step}")
    elif event.generation == generation and not event.insist:
        _check_recent(event, job)
        turn.record(GenerationAdvanced(job.job, generation + 1, f"{member.worker} went back to the recovery point"))
        _set_point(turn, job, found, f"{member.worker} asked again, so everybody goes back")
    turn.reply(_answer(turn, job))


def _take_on(turn: Turn, job: Job, found: Found | None) -> None:
    """What was saved without the coordinator. An attempt that is still open there came to nothing then: those who save
    went another way."""
    latest = head(job)
    if found is None or found.step <= (BEGINNING if latest is None else latest.step):
        return
    for attempt in open_attempts(job):
        if attempt.step <= found.step:
            abandon(turn, job, attempt, f"step {found.step} was saved without the coordinator")
    _target(turn, job, found)


def _check_found(turn: Turn, job: Job, member: Member, event: RecoverRequested) -> None:
    """What is new in it is for the first rank to say: another may look into a folder that is not the job's."""
    if len(event.earlier) > MAX_EARLIER:
        raise InvalidInput(f"at most {MAX_EARLIER} earlier checkpoints can be told at once, not {len(event.earlier)}")
    for each in event.earlier:
        _check_sound(job, each)
    found = event.found
    if found is None:
        return
    _check_sound(job, found)
    latest, point = head(job), job.point
    known = (BEGINNING, "") if latest is None else (latest.step, latest.place)
    is_set = point is not None and point.generation == job.world.generation and not job.restarted
    if member.rank != min(_ranks(turn, job)) and not is_set and known != (found.step, found.place):
        raise Refused(
            f"worker {member.worker!r} finds step {found.step} in the storage, and the latest that is known is step "
            f"{known[0]}: rank {min(_ranks(turn, job))} has to say what there is",
            retry=True,
        )


def _check_sound(job: Job, found: Found) -> None:
    check_int(found.step, "step", least=BEGINNING)
    check_int(found.epoch, "epoch")
    check_place(found.place)
    check_positions(job, found.positions)
    if len(found.positions) > MAX_DATASETS:
        raise InvalidInput(f"a checkpoint says of at most {MAX_DATASETS:,} datasets where it is, not of more")


def _check_recent(event: RecoverRequested, job: Job) -> None:
    """Conflict if a checkpoint was committed since the worker looked. A worker that looks again, and still finds no
    more, insists. A copy of its request that arrives late, after the next commit, insists on nothing."""
    latest = head(job)
    if event.found is None or latest is None or event.found.step >= latest.step:
        return
    if event.insist and (event.known_attempt is None or latest.attempt <= event.known_attempt):
        return
    raise Conflict(
        f"worker {event.worker!r} found step {event.found.step} to be the latest in the storage, but step "
        f"{latest.step} was committed: look again, and insist if it is not there"
    )


def _goes_on_from(job: Job, found: Found) -> bool:
    """Whether that is what everybody does, and has saved nothing since."""
    point = job.point
    known = None if point is None else job.attempts.get(point.attempt)
    same = point is not None and point.step == found.step and (known is None or known.place == found.place)
    return same and not occupied_beyond(job, found.step)


def _target(turn: Turn, job: Job, found: Found | None) -> Attempt | None:
    """The checkpoint to go on from. One that was found and is known to be of no use is not it."""
    if found is None:
        return head(job)
    if found.step == BEGINNING:
        return None
    known = next((a for a in job.attempts.values() if (a.step, a.place) == (found.step, found.place)), None)
    if known is not None:
        left = job.rolled_back and known not in visible(job)
        return known if known.usable and not left else head(job)
    namesake = at_step(job, found.step)
    if namesake is not None:
        why = f"another checkpoint of step {found.step} is in the storage"
        turn.record(CheckpointDamaged(job.job, namesake.attempt, why))
    number = job.next_attempt
    turn.record(
        CheckpointAdopted(
            job.job,
            number,
            job.lineage,
            found.step,
            found.epoch,
            turn.state.term,
            job.world.generation,
            found.place,
            f"step {found.step} was found in the storage",
            dict(found.positions),
        )
    )
    return job.attempts[number]


def _check_complete(turn: Turn, job: Job) -> None:
    ranks = _ranks(turn, job)
    if len(ranks) > len(job.world.by_rank):
        absent = list(islice((rank for rank in ranks if rank not in job.world.by_rank), 9))
        raise Refused(
            f"the world is not complete: nobody is registered for rank{'s' * (len(absent) > 1)} "
            f"{', '.join(map(str, absent[:8]))}{' …' * (len(absent) > 8)}",
            retry=True,
        )
    _check_alive(turn, job, ranks)


def _check_alive(turn: Turn, job: Job, ranks: tuple[int, ...]) -> None:
    """When all ranks are started anew, those of the start before seem to be there for a while yet: none of them is
    waited for in vain, or counted as one that saves."""
    volatile = turn.volatile.job(job.job)
    while volatile.heard_since < len(ranks):
        worker = job.world.by_rank[ranks[volatile.heard_since]]
        if volatile.vitals[worker].heard < volatile.joined:
            raise Refused(
                f"worker {worker!r} (rank {ranks[volatile.heard_since]}) was not heard since others joined: it may be "
                "gone, or be started again",
                retry=True,
            )
        volatile.heard_since += 1


def _set_point(turn: Turn, job: Job, found: Found | None, reason: str) -> None:
    for attempt in open_attempts(job):
        abandon(turn, job, attempt, "everybody goes back to the recovery point")
    target = _target(turn, job, found)
    step = BEGINNING if target is None else target.step
    if occupied_beyond(job, step) or job.lineages[job.lineage].base_step > step:
        what = "damaged" if found is None else "left behind"
        _branch(turn, job, target, NO_REQUEST, f"what lineage {job.lineage} holds beyond step {step} is {what}")
    turn.record(
        RecoveryPointSet(
            job.job,
            job.world.generation,
            job.lineage,
            0 if target is None else target.attempt,
            step,
            0 if target is None else target.epoch,
            reason,
        )
    )


def _branch(turn: Turn, job: Job, base: Attempt | None, asked_in: int, reason: str) -> None:
    number = max(job.lineages) + 1
    step, attempt = (BEGINNING, 0) if base is None else (base.step, base.attempt)
    turn.record(LineageStarted(job.job, number, job.lineage, step, attempt, asked_in, reason))


def _answer(turn: Turn, job: Job) -> RecoveryPoint:
    point = job.point
    assert point is not None
    ranks = _ranks(turn, job)
    attempt = job.attempts.get(point.attempt)
    return RecoveryPoint(
        point.generation,
        point.lineage,
        point.attempt,
        point.step,
        point.epoch,
        point.reason,
        ranks,
        job.points,
        "" if attempt is None else attempt.place,
        job.settings.recovery == "carry_on",
    )


def _latest(turn: Turn, job: Job) -> RecoveryPoint:
    target, generation, ranks = head(job), job.world.generation, _ranks(turn, job)
    why = "the others carry on; this is the latest checkpoint"
    about = (0, BEGINNING, 0) if target is None else (target.attempt, target.step, target.epoch)
    place = "" if target is None else target.place
    return RecoveryPoint(generation, job.lineage, *about, why, ranks, job.points, place, carries_on=True)


def _ranks(turn: Turn, job: Job) -> tuple[int, ...]:
    """The world of this generation, worked out once for all who ask."""
    volatile = turn.volatile.job(job.job)
    if volatile.roster[0] != job.world.generation:
        volatile.roster = (job.world.generation, tuple(job.world.roster()))
    return volatile.roster[1]


@rules.handles(RollBackRequested)
def on_roll_back(turn: Turn, event: RollBackRequested) -> None:
    job = turn.state.job(event.job)
    check_int(event.step, "step")
    check_int(event.generation, "generation")
    branch = job.lineages[job.lineage]
    if branch.from_generation == event.generation and branch.base_step == event.step and job.lineage > 0:
        turn.reply(LineageNow(job.lineage, job.world.generation, event.step))
        return
    if event.generation != job.world.generation:
        raise StaleGeneration(
            f"job {job.job!r} is in generation {job.world.generation}, not {event.generation}: look again, then decide",
            generation=job.world.generation,
        )
    target = at_step(job, event.step)
    if target is None:
        steps = sorted(a.step for a in job.attempts.values() if a.usable)
        raise NotFound(f"no committed checkpoint of step {event.step} to roll back to; there are {steps[-10:]}")
    if any(attempt.status == "decided" for attempt in job.attempts.values()):
        raise Refused("a decided checkpoint is being finished; roll back once it is committed", retry=True)
    for attempt in open_attempts(job):
        abandon(turn, job, attempt, f"rolled back to step {event.step}")
    _branch(turn, job, target, event.generation, f"rolled back to step {event.step}")
    turn.record(GenerationAdvanced(job.job, job.world.generation + 1, f"rolled back to step {event.step}"))
    turn.reply(LineageNow(job.lineage, job.world.generation, event.step))


# -- apply -----------------------------------------------------------------------------------------------------------


@rules.applies(CheckpointAdopted)
def apply_adopted(state: State, record: CheckpointAdopted) -> None:
    job = state.jobs[record.job]
    attempt = job.attempts[record.attempt] = Attempt(
        record.attempt,
        record.lineage,
        record.step,
        record.epoch,
        record.term,
        record.generation,
        {},
        [],
        base={},
        positions=record.positions,
        place=record.place,
    )
    job.set_status(attempt, "committed")
    job.next_attempt = record.attempt + 1
    branch = job.lineages[record.lineage]
    branch.tip = max(branch.tip, record.step)


@rules.applies(LineageStarted)
def apply_lineage(state: State, record: LineageStarted) -> None:
    job = state.jobs[record.job]
    job.lineages[record.lineage] = Lineage(record.parent, record.base_step, record.from_generation)
    job.lineage = record.lineage
    job.restarted = True
    job.skipped = {}


@rules.applies(RecoveryPointSet)
def apply_point(state: State, record: RecoveryPointSet) -> None:
    job = state.jobs[record.job]
    about = (record.lineage, record.attempt, record.step, record.epoch, record.reason)
    world = job.world
    job.point = Point(record.generation, *about, world.next_incarnation, world.roster(), world.view)
    job.points += 1
    job.restarted = False
    job.agree(-1)
    job.skipped = {}
    positions = job.attempts[record.attempt].positions if record.attempt else {}
    for name, dataset in job.datasets.items():
        dataset.rewind(positions.get(name))
