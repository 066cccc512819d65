"""Explanations: for any job, one sentence on what it is doing, or what holds it back, and why.

A pure question about the state, asked by whoever shows a job to a person. The sweep asks it too, and records when the
answer has changed for good, so that the events tell the story.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import filterfalse, islice
from operator import attrgetter

import msgspec

from strata.core.barriers import missing_from
from strata.core.events import SweepDue
from strata.core.records import SituationChanged
from strata.core.settings import Policy
from strata.core.state import Attempt, Job, Member, State
from strata.core.turn import Rules, Turn
from strata.core.volatile import JobVolatile

NAMES_SHOWN = 3
SILENT_HEARTBEATS = 2
"""So many intervals without a heartbeat are worth a word."""

_state, _step, _step_since, _epoch, _heard = (
    attrgetter(name) for name in ("state", "step", "step_since", "epoch", "heard")
)
"""Of the vitals of thousands, at each sweep."""

rules = Rules()


class Explanation(msgspec.Struct, frozen=True):
    """`situation` is one word for programs; `held_back` whether somebody should look; `culprits` whom to look at."""

    situation: str
    sentence: str
    held_back: bool = False
    culprits: tuple[str, ...] = ()


def explain(job: Job, volatile: JobVolatile, policy: Policy, now: float) -> Explanation:
    """What matters most about the job at this instant."""
    looks = (_nobody, _incomplete, _rolled_back, _barrier, _stalled, _manifest, _saving, _appointed)
    found = next(filter(None, (look(job, volatile, policy, now) for look in looks)), None)
    if job.stopping and job.world.by_rank:
        return _stopping(job, found)
    return found or _at_work(job, volatile, policy, now)


def _nobody(job: Job, volatile: JobVolatile, policy: Policy, now: float) -> Explanation | None:
    if job.world.by_rank:
        return None
    if not job.world.members:
        return Explanation("empty", "waits for its first worker")
    last = max(job.world.members.values(), key=lambda member: member.gone_in)
    reason = f"the last one, {last.worker}, is out: {last.reason}"
    if last.status == "left":
        return Explanation("over", f"has no workers any more; {reason}")
    return Explanation("lost", f"has lost all its workers; {reason}", True, (last.worker,))


def _stopping(job: Job, otherwise: Explanation | None) -> Explanation:
    """What holds back the last checkpoint holds back the stop; without one nothing does."""
    there = _named(job.world.by_rank.values())
    first = "" if job.appointment is None else "; it saves a last checkpoint first"
    if first and otherwise is not None and otherwise.held_back:
        but = f"is to stop ({job.stopping}) after a last checkpoint, but {otherwise.sentence}"
        return msgspec.structs.replace(otherwise, sentence=but)
    return Explanation(
        "stopping", f"is stopping ({job.stopping}): {len(job.world.by_rank)} still there ({there}){first}"
    )


def _incomplete(job: Job, volatile: JobVolatile, policy: Policy, now: float) -> Explanation | None:
    """A job that rolls back can do nothing until every rank of its world is there."""
    world = job.world
    if job.settings.recovery != "rollback" or not world.declared:
        return None
    count = world.declared - len(world.by_rank)
    if not count:
        return None
    absent = list(islice(filterfalse(world.by_rank.__contains__, range(world.declared)), NAMES_SHOWN))
    last: dict[int, Member] = {}
    for member in world.members.values() if len(world.members) > len(world.by_rank) else ():
        if member.rank in absent and member.incarnation >= getattr(last.get(member.rank), "incarnation", 0):
            last[member.rank] = member
    who = [
        f"rank {rank} ({last[rank].worker}: {last[rank].reason})" if rank in last else f"rank {rank} (never came)"
        for rank in absent
    ]
    more = f" and {count - NAMES_SHOWN} more" if count > NAMES_SHOWN else ""
    culprits = tuple(last[rank].worker for rank in absent if rank in last)
    sentence = f"waits for {count} of {world.declared} workers: {', '.join(who)}{more}"
    return Explanation("incomplete", sentence, True, culprits)


def _rolled_back(job: Job, volatile: JobVolatile, policy: Policy, now: float) -> Explanation | None:
    """The world changed, and nobody has asked yet where to go on from."""
    if job.settings.recovery != "rollback" or (job.point is None and not job.attempts):
        return None
    if job.point is not None and job.point.generation == job.world.generation:
        return None
    before = 0 if job.point is None else job.point.generation
    return Explanation(
        "recovering",
        f"has to recover: the world changed (generation {before} → {job.world.generation}), and its workers have not "
        "yet asked where to go on from",
    )


def _barrier(job: Job, volatile: JobVolatile, policy: Policy, now: float) -> Explanation | None:
    waits = [waiting for waiting in volatile.rounds.values() if now - waiting.began >= policy.patient_seconds]
    if not waits:
        return None
    longest = min(waits, key=lambda waiting: (waiting.began, waiting.barrier))
    missing = missing_from(job, longest)
    sentence = (
        f"waits at barrier {longest.barrier!r} for {_named(missing)}: {len(longest.arrivals)} of {longest.expected} "
        f"have been waiting for up to {now - longest.began:.0f} s{_last_seen(volatile, missing, policy, now)}"
    )
    return Explanation("at_barrier", sentence, True, tuple(missing[:NAMES_SHOWN]))


def _last_seen(volatile: JobVolatile, names: Sequence[str], policy: Policy, now: float) -> str:
    """What the first of those who are missing last said of itself."""
    vitals = volatile.vitals.get(names[0]) if names else None
    if vitals is None:
        return ""
    if vitals.heard < _silent_before(policy, now):
        return f"; {_silence(volatile, names[0], now)}"
    doing = f"{vitals.state} " if vitals.state else ""
    at = f"at step {vitals.step} for {now - vitals.step_since:.0f} s" if vitals.step >= 0 else "before its first step"
    return f"; {names[0]} is alive (heard {now - vitals.heard:.0f} s ago), {doing}{at}"


def _silent_before(policy: Policy, now: float) -> float:
    return now - SILENT_HEARTBEATS * policy.heartbeat_seconds


def _silence(volatile: JobVolatile, worker: str, now: float) -> str:
    """Of one that is there, also since this coordinator started."""
    silent, left = now - volatile.vitals[worker].heard, volatile.leases.get(worker, now) - now
    return f"{worker} has been silent for {silent:.0f} s, and is given up in {max(0.0, left):.0f} s"


def _saving(job: Job, volatile: JobVolatile, policy: Policy, now: float) -> Explanation | None:
    for number in job.unsettled:
        attempt = job.attempts[number]
        seconds = now - volatile.attempt_began.get(number, now)
        if attempt.status == "open" and (attempt.parts or attempt.place) and seconds >= policy.patient_seconds:
            absent = _absent(attempt)
            sentence = (
                f"saves step {attempt.step}: {len(attempt.parts)} of {len(attempt.participants)} parts are durable "
                f"after {seconds:.0f} s; {_named(absent)} still to come"
            )
            return Explanation("saving", sentence, False, tuple(absent[:NAMES_SHOWN]))
    return None


def _absent(attempt: Attempt) -> list[str]:
    """Whoever says the place acknowledges last, when it has seen the others' parts: it keeps nobody waiting."""
    ranks = sorted(attempt.absent())
    if attempt.place and len(ranks) > 1:
        ranks = [rank for rank in ranks if rank != min(attempt.participants)]
    return [attempt.participants[rank][0] or f"rank {rank}" for rank in ranks]


def _manifest(job: Job, volatile: JobVolatile, policy: Policy, now: float) -> Explanation | None:
    for number in job.unsettled:
        attempt = job.attempts[number]
        if attempt.status == "decided" and now >= volatile.manifest_deadlines.get(number, now + 1):
            return Explanation(
                "uncommitted",
                f"has all parts of step {attempt.step}, but nobody has written its manifest yet",
                True,
                attempt.workers()[:1],
            )
    return None


def _appointed(job: Job, volatile: JobVolatile, policy: Policy, now: float) -> Explanation | None:
    wanted, proposal = job.appointment, volatile.proposal
    if wanted is None or wanted.attempt:
        return None
    if wanted.step >= 0:
        return Explanation("saving_soon", f"saves at step {wanted.step} ({wanted.reason})")
    silent = [
        worker
        for _, worker in sorted(job.world.by_rank.items())
        if proposal is None or (worker, job.world.members[worker].incarnation) not in proposal.promised
    ]
    late = proposal is not None and now - proposal.since >= policy.patient_seconds + policy.heartbeat_seconds
    sentence = f"looks for a step at which all can save ({wanted.reason}); {_named(silent)} did not answer yet"
    return Explanation("agreeing", sentence, late, tuple(silent[:NAMES_SHOWN]) if late else ())


def _stalled(job: Job, volatile: JobVolatile, policy: Policy, now: float) -> Explanation | None:
    """Alive, but without progress: who stands still the longest, and at the lowest step, is looked at first."""
    before = now - policy.stalled_seconds
    if min(map(_step_since, volatile.vitals.values()), default=now) > before:
        return None
    stuck = [
        (vitals.step, vitals.step_since, worker)
        for worker, vitals in volatile.vitals.items()
        if vitals.state == "training" and vitals.step_since <= before
    ]
    if not stuck:
        return None
    step, since, worker = min(stuck)
    ahead = sum(1 for other, _, _ in stuck if other > step)
    others = f"; {ahead} {'other waits' if ahead == 1 else 'others wait'} at a later step" if ahead else ""
    moving = sum(vitals.step_since > before for vitals in volatile.vitals.values())
    going = f"; {moving} of {len(volatile.vitals)} still make progress" if moving else ""
    sentence = (
        f"makes no progress: {worker} is alive, but at step {step} for {now - since:.0f} s"
        f"{others}{going}. Look at that process first"
    )
    return Explanation("stalled", sentence, True, (worker,))


def _at_work(job: Job, volatile: JobVolatile, policy: Policy, now: float) -> Explanation:
    everybody, count = volatile.vitals.values(), len(job.world.by_rank)
    besides = _draining(job) + _silent(volatile, policy, now)
    states = Counter(map(_state, everybody))
    unsaid = states.pop("", 0)
    if not everybody:
        return Explanation("initializing", f"has {count} workers, which have not said yet what they do{besides}")
    if not states:
        return Explanation("initializing", f"is initializing: {unsaid} of {count} workers{besides}")
    most = max(sorted(states), key=lambda state: states[state])
    fastest, at = max(map(_step, everybody)), ""
    if fastest >= 0:
        slowest = min(step for step in map(_step, everybody) if step >= 0)
        spread = f" (the slowest at {slowest})" if slowest < fastest - 1 else ""
        at = f", step {fastest}{spread}"
    epochs = max(map(_epoch, everybody))
    during = f", epoch {epochs}" if epochs >= 0 else ""
    return Explanation(most, f"is {most}: {states[most]} of {count} workers{at}{during}{besides}")


def _draining(job: Job) -> str:
    leaving = [worker for rank in job.world.draining if (worker := job.world.by_rank.get(rank)) is not None]
    return f"; {_named(leaving)} {'is' if len(leaving) == 1 else 'are'} draining" if leaving else ""


def _silent(volatile: JobVolatile, policy: Policy, now: float) -> str:
    before = _silent_before(policy, now)
    if min(map(_heard, volatile.vitals.values()), default=now) >= before:
        return ""
    silent = sorted((vitals.heard, worker) for worker, vitals in volatile.vitals.items() if vitals.heard < before)
    more = f"; {len(silent) - 1} more {'is' if len(silent) == 2 else 'are'} silent" if len(silent) > 1 else ""
    return f"; {_silence(volatile, silent[0][1], now)}{more}"


def _named(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - NAMES_SHOWN} more" if len(listed) > NAMES_SHOWN else ""
    return (", ".join(listed[:NAMES_SHOWN]) + more) or "nobody"


@rules.handles(SweepDue)
def on_sweep(turn: Turn, event: SweepDue) -> None:
    """Record the situation when it has changed and stayed so for a while: the ordinary back and forth is no event. Once
    that is done, a job at rest is swept no more."""
    for name in sorted(turn.volatile.astir):
        job, volatile = turn.state.jobs[name], turn.volatile.job(name)
        found = explain(job, volatile, turn.policy, turn.now)
        said = f"{found.situation} {' '.join(found.culprits)}".strip()
        if said == job.situation:
            volatile.situation_seen = said
            if job.at_rest:
                turn.volatile.astir.discard(name)
        elif volatile.situation_seen != said:
            volatile.situation_seen, volatile.situation_since = said, turn.now
        elif turn.now - volatile.situation_since >= turn.policy.patient_seconds:
            turn.record(SituationChanged(name, said, found.sentence, found.held_back))


@rules.applies(SituationChanged)
def apply_situation(state: State, record: SituationChanged) -> None:
    state.jobs[record.job].situation = record.situation
