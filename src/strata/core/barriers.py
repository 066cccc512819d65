"""Barriers: everybody waits until everybody has come.

    round:   (first arrival) ──▶ open ──all came──▶ released
                                  │
                                  └──one was lost, or time ran out──▶ broken

The law: a round has one verdict, journaled before anyone hears it, and the same for everyone in it. Who takes part is
frozen at the first arrival. A worker numbers its arrivals; the number stays the same over retries, so a retry gets the
verdict that was missed and never counts as an arrival at the next round. A verdict is kept until all have moved on.

Open rounds are volatile: after a restart of the coordinator the waiters arrive again with the numbers they had.
"""

import math
from collections.abc import Sequence

from strata.core.effects import BarrierVerdict, BreakBarrier, DismissArrival, ReleaseBarrier, Waiting
from strata.core.events import BarrierArrived, SweepDue
from strata.core.ids import check_id, check_int
from strata.core.records import (
    BarrierBroken,
    BarrierReleased,
    GenerationAdvanced,
    ViewChanged,
    WorkerDraining,
    WorkerJoined,
    WorkerLost,
)
from strata.core.state import Job, Member, Round, State
from strata.core.turn import Rules, Turn
from strata.core.volatile import Arrival, JobVolatile, OpenRound
from strata.errors import InvalidInput, Refused, StaleGeneration

MAX_OPEN_ROUNDS = 1024
MAX_UNHEARD = 1024
NAMES_SHOWN = 8

rules = Rules()


@rules.handles(BarrierArrived)
def on_arrived(turn: Turn, event: BarrierArrived) -> None:
    job = turn.state.job(event.job)
    member = job.member(event.worker, event.incarnation)
    volatile = turn.volatile.job(event.job)
    _check_arrival(event)
    verdict = _verdict_of(job, event, member)
    if verdict is not None:
        turn.reply(verdict)
        return
    _check_number(volatile, event, member)
    if event.arrival <= max(member.settled, volatile.settled.get(event.worker, 0)):
        raise Refused(f"arrival {event.arrival} of {event.worker!r} at barrier {event.barrier!r} was answered long ago")
    _check_generation(job, event)
    waiting = volatile.rounds.get(event.barrier)
    if waiting is not None and _is_retry(waiting, event, member):
        turn.reply(Waiting(len(waiting.arrivals), waiting.expected))
        return
    if waiting is None or waiting.arrivals.keys() <= {event.worker}:
        waiting = _first(turn, job, event)
    else:
        _check_belongs(waiting, event, member)
    _settle(turn, volatile, event)
    _replace(turn, event, volatile.rounds.get(event.barrier), waiting)
    volatile.rounds[event.barrier] = waiting
    waiting.arrivals[event.worker] = Arrival(member.incarnation, member.rank, event.arrival, event.settled, turn.now)
    if event.timeout_seconds is not None:
        waiting.deadline = min(waiting.deadline, turn.now + event.timeout_seconds)
    if len(waiting.arrivals) < waiting.expected:
        turn.reply(Waiting(len(waiting.arrivals), waiting.expected))
        return
    _release(turn, job, waiting, f"all {waiting.expected} arrived", last=event.worker)
    verdict = _verdict_of(job, event, member)
    assert verdict is not None
    turn.reply(verdict)


def join(job: Job, volatile: JobVolatile, event: BarrierArrived, now: float) -> bool:
    """All that most arrivals do, at a fraction of the cost: one more comes to the only barrier that is waited at.

    False, and nothing done, for any that must be decided: the first and the last, retries, refusals, time limits.
    """
    worker, rounds = event.worker, volatile.rounds
    waiting, member = rounds.get(event.barrier), job.world.members.get(worker)
    if waiting is None or member is None or len(rounds) != 1:
        return False
    number, settled = event.arrival, event.settled
    before = volatile.settled.get(worker, 0)
    arrivals, verdicts = waiting.arrivals, member.verdicts
    if (
        member.incarnation != event.incarnation
        or member.status != "live"
        or worker in arrivals
        or len(arrivals) + 1 >= waiting.expected
        or event.expected != waiting.said
        or event.timeout_seconds is not None
        or event.generation is not None
        or waiting.generation is not None
        or not 0 <= settled < number
        or number <= before
        or number <= member.settled
        or number in verdicts
        or len(verdicts) >= MAX_UNHEARD
        or not (waiting.ranks is None or member.rank in waiting.ranks)
    ):
        return False
    volatile.settled[worker] = settled if settled > before else before
    arrivals[worker] = Arrival(member.incarnation, member.rank, number, settled, now)
    return True


def _check_arrival(event: BarrierArrived) -> None:
    check_id(event.barrier, "barrier_id")
    check_int(event.arrival, "arrival", least=1)
    check_int(event.settled, "settled", most=event.arrival - 1)
    check_int(event.expected, "expected_participants", least=1)
    if event.timeout_seconds is not None and not 0 <= event.timeout_seconds < math.inf:
        raise InvalidInput(f"timeout must be a number of seconds that is not negative, not {event.timeout_seconds}")


def _check_number(volatile: JobVolatile, event: BarrierArrived, member: Member) -> None:
    """A number stands for one wait at one barrier, and the verdicts that nobody settles have an end."""
    elsewhere = event.arrival in member.verdicts
    for waiting in volatile.rounds.values():
        there = waiting.arrivals.get(event.worker)
        if there is not None and waiting.barrier != event.barrier and there.number == event.arrival:
            elsewhere = elsewhere or there.incarnation == member.incarnation
    if elsewhere:
        raise Refused(f"arrival {event.arrival} of {event.worker!r} was made at another barrier than {event.barrier!r}")
    if len(member.verdicts) >= MAX_UNHEARD:
        raise Refused(
            f"worker {event.worker!r} has {MAX_UNHEARD} verdicts that it never said it heard: "
            "say up to which arrival all are settled"
        )


def _verdict_of(job: Job, event: BarrierArrived, member: Member) -> BarrierVerdict | None:
    number = member.verdicts.get(event.arrival)
    if number is None or job.rounds[number].barrier != event.barrier:
        return None
    over = job.rounds[number]
    return BarrierVerdict(event.barrier, number, over.released, over.reason, tuple(over.missing))


def _check_generation(job: Job, event: BarrierArrived) -> None:
    if event.generation is not None and event.generation != job.world.generation:
        raise StaleGeneration(
            f"worker {event.worker!r} comes to barrier {event.barrier!r} from generation {event.generation}, but the "
            f"world changed: it is generation {job.world.generation} now. Recover, then come again",
            generation=job.world.generation,
        )


def _first(turn: Turn, job: Job, event: BarrierArrived) -> OpenRound:
    """A new round: who takes part is decided now."""
    if job.world.declared and event.expected > job.world.declared:
        raise Refused(
            f"barrier {event.barrier!r} expects {event.expected} participants, but the world has {job.world.declared}"
        )
    if len(turn.volatile.job(job.job).rounds) >= MAX_OPEN_ROUNDS:
        raise Refused(f"job {job.job!r} waits at {MAX_OPEN_ROUNDS} barriers at once, which is the limit", retry=True)
    ranks = _everybody(job) if event.expected == (job.world.declared or job.world.size) else None
    expected = event.expected if ranks is None else len(ranks)
    return OpenRound(event.barrier, event.expected, expected, event.generation, ranks, turn.now, math.inf)


def _everybody(job: Job) -> set[int]:
    """The ranks that a barrier of the whole world waits for: those that are out too, unless it may shrink."""
    if job.settings.barriers == "shrink" or not job.world.declared:
        return set(job.world.roster())
    return set(range(job.world.declared))


def _is_retry(waiting: OpenRound, event: BarrierArrived, member: Member) -> bool:
    """Whether this very arrival is waiting already; refused if a later one of the same process is."""
    there = waiting.arrivals.get(event.worker)
    if there is None or there.incarnation != member.incarnation:
        return False
    if event.arrival < there.number:
        raise Refused(f"arrival {event.arrival} of {event.worker!r} is older than {there.number}, which is waiting")
    return there.number == event.arrival


def _check_belongs(waiting: OpenRound, event: BarrierArrived, member: Member) -> None:
    if event.expected != waiting.said:
        raise Refused(
            f"worker {event.worker!r} expects {event.expected} participants at barrier {event.barrier!r}, but "
            f"{_names(sorted(waiting.arrivals))} came with {waiting.said}: all must say the same"
        )
    if event.generation != waiting.generation:
        raise Refused(
            f"worker {event.worker!r} comes to barrier {event.barrier!r} {_bound(event.generation)}, the others came "
            f"{_bound(waiting.generation)}: all must say the same"
        )
    if waiting.ranks is not None and member.rank not in waiting.ranks:
        raise Refused(
            f"worker {event.worker!r} (rank {member.rank}) joined after this round of barrier {event.barrier!r} began "
            "and takes no part in it; it can take part in the next one",
            retry=True,
        )


def _bound(generation: int | None) -> str:
    return "for any generation" if generation is None else f"for generation {generation} alone"


def _replace(turn: Turn, event: BarrierArrived, former: OpenRound | None, waiting: OpenRound) -> None:
    """This arrival takes the place of an older one of the same worker, which waits no more."""
    for there in (former, waiting):
        older = None if there is None else there.arrivals.pop(event.worker, None)
        if older is not None:
            newer = f"arrival {event.arrival} came"
            turn.effect(DismissArrival(event.job, event.barrier, event.worker, older.number, "given_up", newer))


def _settle(turn: Turn, volatile: JobVolatile, event: BarrierArrived) -> None:
    """The worker says that it waits no more for anything up to `settled`: it gave up on what is still open of that."""
    volatile.settled[event.worker] = max(event.settled, volatile.settled.get(event.worker, 0))
    given_up = [
        waiting
        for waiting in volatile.rounds.values()
        if (arrival := waiting.arrivals.get(event.worker)) is not None and arrival.number <= event.settled
    ]
    for waiting in given_up:
        older = waiting.arrivals.pop(event.worker)
        settled = "its sender settled it"
        turn.effect(DismissArrival(event.job, waiting.barrier, event.worker, older.number, "given_up", settled))
        if not waiting.arrivals:
            del volatile.rounds[waiting.barrier]


# -- verdicts --------------------------------------------------------------------------------------------------------


def _release(turn: Turn, job: Job, waiting: OpenRound, reason: str, last: str = "") -> None:
    arrivals = _close(turn, job, waiting)
    number = job.next_round
    turn.record(BarrierReleased(job.job, waiting.barrier, number, arrivals, reason, last))
    turn.effect(
        ReleaseBarrier(
            job.job,
            waiting.barrier,
            number,
            {who: at for who, (at, _) in arrivals.items()},
            reason,
            last,
            turn.now - waiting.began,
        )
    )


def _break(turn: Turn, job: Job, waiting: OpenRound, reason: str, missing: Sequence[str]) -> None:
    arrivals = _close(turn, job, waiting)
    number = job.next_round
    turn.record(BarrierBroken(job.job, waiting.barrier, number, arrivals, reason, list(missing)))
    turn.effect(
        BreakBarrier(
            job.job,
            waiting.barrier,
            number,
            {who: at for who, (at, _) in arrivals.items()},
            reason,
            tuple(missing),
            turn.now - waiting.began,
        )
    )


def _close(turn: Turn, job: Job, waiting: OpenRound) -> dict[str, tuple[int, int]]:
    del turn.volatile.job(job.job).rounds[waiting.barrier]
    arrivals = waiting.arrivals
    return {worker: ((there := arrivals[worker]).number, there.settled) for worker in sorted(arrivals)}


def missing_from(job: Job, waiting: OpenRound) -> list[str]:
    """Who has not come, by name; a rank where nobody is registered; a count where nobody in particular is awaited."""
    came = {arrival.rank for arrival in waiting.arrivals.values()}
    if waiting.ranks is not None:
        return [_who(job, rank) for rank in sorted(waiting.ranks - came)]
    absent = [_who(job, rank) for rank in _awaited(job) if rank not in came]
    lacking = waiting.expected - len(waiting.arrivals)
    if lacking < len(absent):
        return [f"{lacking} of: {_names(absent)}"]
    unknown = lacking - len(absent)
    return [*absent, f"{unknown} not registered yet"] if unknown else absent


def _awaited(job: Job) -> list[int]:
    return sorted({*job.world.roster(), *range(job.world.declared)})


def _who(job: Job, rank: int) -> str:
    member = job.world.at_rank(rank)
    if member is not None:
        return member.worker
    latest = _last_at(job, rank)
    if latest is not None:
        return f"{latest.worker} (rank {rank}, out: {latest.reason})"
    return f"rank {rank} (never registered)"


def _last_at(job: Job, rank: int) -> Member | None:
    gone = [member for member in job.world.members.values() if member.rank == rank]
    return max(gone, key=lambda member: member.incarnation, default=None)


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


# -- losses and time -------------------------------------------------------------------------------------------------


@rules.reacts(WorkerLost)
def on_lost(turn: Turn, record: WorkerLost) -> None:
    """A lost participant ends the wait for everyone, or shrinks it. One replaced before it came may still come."""
    job = turn.state.jobs[record.job]
    for barrier in sorted(turn.volatile.job(record.job).rounds):
        waiting = turn.volatile.job(record.job).rounds[barrier]
        arrival = waiting.arrivals.get(record.worker)
        came = arrival is not None and arrival.incarnation == record.incarnation
        replaced = record.cause == "superseded" and record.rank in job.world.view.slots
        awaited = waiting.ranks is not None and record.rank in waiting.ranks
        if waiting.generation is None and not came and (replaced or not awaited):
            continue
        if came:
            gone = waiting.arrivals.pop(record.worker)
            turn.effect(DismissArrival(record.job, barrier, record.worker, gone.number, record.cause, record.reason))
        if job.settings.barriers == "shrink" and waiting.generation is None:
            _shrink(turn, job, waiting, None if replaced else record.rank, f"{record.worker} was lost: {record.reason}")
        else:
            when = "after it had come" if came else "before it came"
            lost = f"{record.worker} was lost {when}: {record.reason}"
            _break(turn, job, waiting, lost, [record.worker])


def _shrink(turn: Turn, job: Job, waiting: OpenRound, rank: int | None, reason: str) -> None:
    """Go on without this rank, or, where None, without an arrival that its process must make again."""
    if rank is not None:
        waiting.expected -= 1
        if waiting.ranks is not None:
            waiting.ranks.discard(rank)
    if not waiting.arrivals:
        del turn.volatile.job(job.job).rounds[waiting.barrier]
    elif len(waiting.arrivals) >= waiting.expected:
        _release(turn, job, waiting, f"all {waiting.expected} survivors arrived; {reason}")


@rules.reacts(ViewChanged)
def on_rank_left(turn: Turn, record: ViewChanged) -> None:
    """Nobody will come from a rank that is no more: its process moved to another one."""
    job = turn.state.jobs[record.job]
    if record.joined or record.rank in job.world.by_rank:
        return
    rounds = turn.volatile.job(record.job).rounds
    for barrier in sorted(name for name, waiting in rounds.items() if record.rank in (waiting.ranks or ())):
        if job.settings.barriers == "shrink":
            _shrink(turn, job, rounds[barrier], record.rank, record.reason)
        else:
            moved = _last_at(job, record.rank)
            _break(turn, job, rounds[barrier], record.reason, [moved.worker if moved else f"rank {record.rank}"])


@rules.reacts(WorkerJoined, WorkerDraining, GenerationAdvanced)
def on_world_changed(turn: Turn, record: WorkerJoined | WorkerDraining | GenerationAdvanced) -> None:
    """A round that was for one generation alone is over: its waiters must recover before they can meet again."""
    job = turn.state.jobs[record.job]
    rounds = turn.volatile.job(record.job).rounds
    for barrier in sorted(name for name, waiting in rounds.items() if waiting.generation is not None):
        _break(turn, job, rounds[barrier], f"the world changed: {record.reason}", [])


@rules.handles(SweepDue)
def on_sweep(turn: Turn, event: SweepDue) -> None:
    """End the waits whose time ran out."""
    for name in sorted(turn.volatile.astir):
        rounds = turn.volatile.job(name).rounds
        for barrier in sorted(barrier for barrier, waiting in rounds.items() if waiting.deadline <= turn.now):
            job, waiting = turn.state.jobs[name], rounds[barrier]
            missing = missing_from(job, waiting)
            reason = (
                f"timed out after {turn.now - waiting.began:.1f} s with {len(waiting.arrivals)} of {waiting.expected}; "
                f"missing: {_names(missing)}"
            )
            _break(turn, job, waiting, reason, missing)


# -- apply -----------------------------------------------------------------------------------------------------------


@rules.applies(BarrierReleased, BarrierBroken)
def apply_verdict(state: State, record: BarrierReleased | BarrierBroken) -> None:
    job = state.jobs[record.job]
    released = isinstance(record, BarrierReleased)
    missing = [] if isinstance(record, BarrierReleased) else list(record.missing)
    members, number = job.world.members, record.round
    for worker, (arrival, settled) in record.arrivals.items():
        member = members[worker]
        job.settle(member, settled)
        member.verdicts[arrival] = number
    if record.arrivals:
        job.rounds[record.round] = Round(record.barrier, released, record.reason, missing, len(record.arrivals))
    job.next_round = record.round + 1
