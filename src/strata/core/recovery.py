"""Recovery: one point for all ranks to go on from.

The law: within a generation everybody is given the same point. Decided attempts are finished first, so a point is
always committed. Where the point is not the latest thing its lineage holds, going on starts a new lineage.

A job that rolls back waits here until every rank of the world is there, so that one point serves all of them. A job
that carries on is rolled back only when nobody was left; a newcomer to it is told the latest checkpoint, and the
survivors' progress stands.
"""

from itertools import islice

from strata.core.commits import abandon, open_attempts
from strata.core.effects import Errand, FinishFirst, LineageNow, RecoveryPoint
from strata.core.events import RecoverRequested, RollBackRequested
from strata.core.ids import check_int
from strata.core.lineages import at_step, head, occupied_beyond
from strata.core.records import GenerationAdvanced, LineageStarted, RecoveryPointSet
from strata.core.state import Attempt, Job, Lineage, Point, State
from strata.core.turn import Rules, Turn
from strata.errors import NotFound, Refused, StaleGeneration

BEGINNING = -1
NO_REQUEST = -1

rules = Rules()


@rules.handles(RecoverRequested)
def on_recover(turn: Turn, event: RecoverRequested) -> None:
    job = turn.state.job(event.job)
    member = job.member(event.worker, event.incarnation)
    unfinished = next((a for _, a in sorted(job.attempts.items()) if a.status == "decided"), None)
    if unfinished is not None:
        turn.reply(FinishFirst(Errand("put_manifest", unfinished.attempt, unfinished.step)))
        return
    if job.settings.recovery == "carry_on" and not job.restarted:
        turn.reply(_latest(turn, job))
        return
    if job.settings.recovery == "rollback":
        _check_complete(turn, job)
    point, generation = job.point, job.world.generation
    if point is None or point.generation != generation or job.restarted:
        _set_point(turn, job, f"generation {generation}: {member.worker} was the first to ask")
    elif event.generation == generation:
        turn.record(GenerationAdvanced(job.job, generation + 1, f"{member.worker} went back to the recovery point"))
        _set_point(turn, job, f"{member.worker} asked again, so everybody goes back")
    turn.reply(_answer(turn, job))


def _check_complete(turn: Turn, job: Job) -> None:
    ranks = _ranks(turn, job)
    if len(ranks) > len(job.world.by_rank):
        absent = list(islice((rank for rank in ranks if rank not in job.world.by_rank), 9))
        raise Refused(
            f"the world is not complete: nobody is registered for rank{'s' * (len(absent) > 1)} "
            f"{', '.join(map(str, absent[:8]))}{' …' * (len(absent) > 8)}",
            retry=True,
        )


def _set_point(turn: Turn, job: Job, reason: str) -> None:
    for attempt in open_attempts(job):
        abandon(turn, job, attempt, "everybody goes back to the recovery point")
    target = head(job)
    step = BEGINNING if target is None else target.step
    if occupied_beyond(job, step):
        _branch(turn, job, target, NO_REQUEST, f"what lineage {job.lineage} holds beyond step {step} is damaged")
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
    return RecoveryPoint(
        point.generation, point.lineage, point.attempt, point.step, point.epoch, point.reason, ranks, job.points
    )


def _latest(turn: Turn, job: Job) -> RecoveryPoint:
    target, generation, ranks = head(job), job.world.generation, _ranks(turn, job)
    why = "the others carry on; this is the latest checkpoint"
    if target is None:
        return RecoveryPoint(generation, job.lineage, 0, BEGINNING, 0, why, ranks, job.points)
    return RecoveryPoint(generation, job.lineage, target.attempt, target.step, target.epoch, why, ranks, job.points)


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
    job.point = Point(record.generation, record.lineage, record.attempt, record.step, record.epoch, record.reason)
    job.points += 1
    job.restarted = False
    job.agree(-1)
    job.skipped = {}
    positions = job.attempts[record.attempt].positions if record.attempt else {}
    for name, dataset in job.datasets.items():
        dataset.rewind(positions.get(name))
