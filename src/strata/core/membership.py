"""Who is in a job: registration, leases, ranks, draining and leaving.

    (new) ──register──▶ live ──drain──▶ draining
                         │ └──────┬────────┘
                         ▼        ▼
                 expired | died | left | superseded       each of them fenced, and told apart

The law: a name is held by one process at a time. A process proves itself by its nonce once, and by the incarnation it
was given ever after. Every change of who is there has a generation of its own; generations only grow.
"""

from math import inf

from strata.core import appointments
from strata.core.effects import Alive, Done, Registered
from strata.core.errands import errands_for
from strata.core.events import (
    MAX_RESOURCES,
    CoordinatorStarted,
    DeregisterRequested,
    DrainRequested,
    HeartbeatReceived,
    JobConfigureRequested,
    RegisterRequested,
    SweepDue,
)
from strata.core.ids import (
    MAX_COUNT,
    MAX_NUMBER,
    advice_on_default,
    check_finite,
    check_id,
    check_int,
    check_plain,
)
from strata.core.records import (
    HistoryLost,
    JobConfigured,
    JobOpened,
    TermStarted,
    ViewChanged,
    WorkerDescribed,
    WorkerDraining,
    WorkerJoined,
    WorkerLost,
    WorkersForgotten,
    WorldDeclared,
)
from strata.core.settings import Policy
from strata.core.state import GONE, Job, Member, State, World, check_job_count
from strata.core.turn import Rules, Turn
from strata.core.views import View
from strata.core.volatile import JobVolatile, Vitals
from strata.errors import Expired, InvalidInput, NotFound, Refused, Superseded

PAST_NONCES_KEPT = 8
PACE_HEARTBEATS = 0.25
"""A pace is measured over no less of the interval between heartbeats."""
MAX_WORLD_SIZE = 100_000
MAX_PREVIOUS = 2**52
MAX_GPUS = 2**31 - 1
"""As the wire contract holds it."""
MAX_METADATA_ENTRIES = 64
MAX_METADATA_CHARS = 4096

rules = Rules()


# -- jobs and terms --------------------------------------------------------------------------------------------------


@rules.handles(CoordinatorStarted)
def on_started(turn: Turn, event: CoordinatorStarted) -> None:
    """A new term. Nobody could reach the coordinator while it was down, so everybody gets one full lease."""
    turn.record(TermStarted(turn.state.term + 1))
    turn.volatile.last_sweep = turn.now
    turn.volatile.astir.update(turn.state.jobs)
    for job in turn.state.jobs.values():
        volatile = turn.volatile.job(job.job)
        for worker in job.world.by_rank.values():
            volatile.leases[worker] = turn.now + turn.policy.lease_seconds
            volatile.vitals[worker] = Vitals(turn.now, step_since=turn.now)


@rules.handles(JobConfigureRequested)
def on_configure(turn: Turn, event: JobConfigureRequested) -> None:
    check_id(event.job, "job_id")
    check_job_count(turn.state, event.job)
    job = turn.opened(event.job)
    if job.settings != event.settings:
        turn.record(JobConfigured(event.job, event.settings))
    turn.reply(Done())


# -- registration ----------------------------------------------------------------------------------------------------


@rules.handles(RegisterRequested)
def on_register(turn: Turn, event: RegisterRequested) -> None:
    job = turn.state.jobs.get(event.job) or Job(event.job)
    _check_registration(event, job.world.next_incarnation)
    check_job_count(turn.state, event.job)
    world = job.world
    known = world.members.get(event.worker)
    if known is not None and _is_repeat(known, event):
        touch(turn, event.job, known)
        _describe(turn, event, known)
        turn.reply(_registered(turn, world, known, known.reason))
        return
    fresh = not any(worker != event.worker for worker in world.by_rank.values())
    declared = _declared_size(world, event, fresh)
    rank, how = _place(world, event, declared, fresh)

    job = turn.opened(event.job)
    world = job.world
    replaced = known if known is not None and not known.gone else None
    if replaced is not None:
        new = f"superseded by a new process (nonce {event.nonce[:12]})"
        turn.record(
            WorkerLost(
                event.job, event.worker, replaced.incarnation, replaced.rank, "superseded", world.generation + 1, new
            )
        )
    if fresh:
        turn.record(WorldDeclared(event.job, declared, "nobody else is there: the world begins anew"))
    elif replaced is not None and replaced.rank != rank and replaced.rank in world.view.slots:
        turn.record(ViewChanged(event.job, replaced.rank, joined=False, reason=f"{event.worker} moved to rank {rank}"))
    turn.record(
        WorkerJoined(
            event.job,
            event.worker,
            max(world.next_incarnation, (event.previous or 0) + 1),
            event.nonce,
            rank,
            world.generation + 1,
            how,
            event.ip,
            event.port,
            event.gpu_count,
            event.memory_bytes,
            dict(event.metadata),
        )
    )
    if rank not in world.view.slots:
        turn.record(ViewChanged(event.job, rank, joined=True, reason=f"{event.worker} joined as rank {rank}"))
    member = world.members[event.worker]
    touch(turn, event.job, member)
    volatile = turn.volatile.job(event.job)
    volatile.joined, volatile.heard_since = turn.now, 0
    turn.reply(_registered(turn, world, member, how))


def _check_registration(event: RegisterRequested, next_incarnation: int) -> None:
    check_id(event.job, "job_id")
    check_id(event.worker, "worker_id")
    check_id(event.nonce, "nonce")
    if event.world_size is not None:
        check_int(event.world_size, "world_size", least=1, most=MAX_WORLD_SIZE)
    if event.rank is not None:
        check_int(event.rank, "rank", most=MAX_WORLD_SIZE - 1)
    if event.previous is not None:
        check_int(event.previous, "previous incarnation", most=MAX_COUNT)
        if event.previous > max(MAX_PREVIOUS, next_incarnation):
            raise InvalidInput(f"previous incarnation {event.previous} is more than any process was ever given")
    check_plain(event.ip, "ip")
    for key in event.metadata:
        check_plain(key, "a key of metadata")
    check_int(event.port, "port", most=65535)
    check_int(event.gpu_count, "gpu_count", most=MAX_GPUS)
    check_int(event.memory_bytes, "memory_bytes")
    size = sum(len(str(key)) + len(str(value)) for key, value in event.metadata.items())
    if len(event.metadata) > MAX_METADATA_ENTRIES or size > MAX_METADATA_CHARS:
        raise InvalidInput(
            f"metadata has {len(event.metadata)} entries and {size} characters; "
            f"at most {MAX_METADATA_ENTRIES} and {MAX_METADATA_CHARS} are kept"
        )


def _is_repeat(known: Member, event: RegisterRequested) -> bool:
    """Whether this is the process that is registered already; raises if it is one that must not come back."""
    if event.nonce == known.nonce:
        if known.gone:
            raise Expired(
                f"worker {event.worker!r}: this registration is over ({known.reason}). "
                "Register again with a new nonce, then recover"
            )
        return True
    if event.nonce in known.past_nonces or (event.previous is not None and event.previous < known.incarnation):
        raise Superseded(
            f"worker {event.worker!r}: this process was superseded by incarnation {known.incarnation}; "
            f"another process took its name, so this one must stop{advice_on_default(event.job)}"
        )
    return False


def _describe(turn: Turn, event: RegisterRequested, known: Member) -> None:
    """What it says of itself may have come to be known later than it came. Who says nothing takes nothing back."""
    said = (event.ip, event.port, event.gpu_count, event.memory_bytes, dict(event.metadata))
    if any(said) and said != (known.ip, known.port, known.gpu_count, known.memory_bytes, known.metadata):
        turn.record(WorkerDescribed(event.job, event.worker, known.incarnation, *said))


def _declared_size(world: World, event: RegisterRequested, fresh: bool) -> int:
    """The size of the world this registration leads to (0: open), or the reason why it cannot be."""
    if fresh:
        return event.world_size or 0
    if event.world_size is None or event.world_size == world.declared:
        return world.declared
    there = ", ".join(world.by_rank[rank] for rank in sorted(world.by_rank)[:5])
    said = f"a declared size of {world.declared}" if world.declared else "no declared size"
    raise Refused(
        f"worker {event.worker!r} says world_size={event.world_size}, but the job runs with {said} and "
        f"{len(world.by_rank)} workers are there ({there}). Start it with the same world_size, or wait until the "
        "others have left or their leases ran out",
        retry=True,
    )


def _place(world: World, event: RegisterRequested, declared: int, fresh: bool) -> tuple[int, str]:
    """The rank, and how it came about; or the reason for a refusal."""

    def is_free(rank: int) -> bool:
        return world.by_rank.get(rank, event.worker) == event.worker

    if event.rank is not None:
        if declared and event.rank >= declared:
            raise Refused(
                f"worker {event.worker!r} says rank={event.rank}, but the world has ranks 0 to {declared - 1}"
            )
        if not is_free(event.rank):
            holder = world.members[world.by_rank[event.rank]]
            raise Refused(
                f"rank {event.rank} is held by worker {holder.worker!r} (incarnation {holder.incarnation}), so "
                f"{event.worker!r} cannot have it. Give each worker a rank of its own, or wait until that one has left "
                "or its lease ran out",
                retry=True,
            )
        return event.rank, f"rank {event.rank} as the launcher said"
    former = world.members.get(event.worker)
    if former is not None and not fresh and is_free(former.rank) and (not declared or former.rank < declared):
        return former.rank, f"rank {former.rank} as before"
    rank = 0 if fresh else world.first_free
    if declared and rank >= declared:
        raise Refused(
            f"all {declared} ranks of the world are taken, so worker {event.worker!r} cannot join until one has left",
            retry=True,
        )
    return rank, f"rank {rank} assigned: the lowest free one"


def _registered(turn: Turn, world: World, member: Member, reason: str) -> Registered:
    return Registered(
        worker=member.worker,
        incarnation=member.incarnation,
        rank=member.rank,
        world_size=world.declared or world.size,
        generation=world.generation,
        term=turn.state.term,
        heartbeat_seconds=turn.policy.heartbeat_seconds,
        lease_seconds=turn.policy.lease_seconds,
        reason=reason,
    )


# -- life and death --------------------------------------------------------------------------------------------------


def touch(turn: Turn, job: str, member: Member) -> None:
    """It lives: it has just been heard."""
    volatile = turn.volatile.job(job)
    volatile.leases[member.worker] = turn.now + turn.policy.lease_seconds
    volatile.vitals.setdefault(member.worker, Vitals(turn.now, step_since=turn.now)).heard = turn.now


@rules.handles(HeartbeatReceived)
def on_heartbeat(turn: Turn, event: HeartbeatReceived) -> None:
    job = turn.state.job(event.job)
    member = job.member(event.worker, event.incarnation)
    check_int(event.step, "step", least=-1)
    check_int(event.epoch, "epoch", least=-1)
    if len(event.resources) > MAX_RESOURCES:
        raise InvalidInput(f"a heartbeat has {len(event.resources)} resources; at most {MAX_RESOURCES} are kept")
    for name, value in event.resources.items():
        check_plain(name, "a key of resources")
        check_finite(value, f"resource {name[:80]!r}")
    volatile = turn.volatile.job(event.job)
    renew(volatile, event, turn.policy, turn.now)
    if job.appointment is not None and not event.vouched:
        appointments.hear(turn, job, member, event)
    turn.reply(Alive(job.world.generation, errands_for(job, volatile, member, turn.now)))


def renew(volatile: JobVolatile, event: HeartbeatReceived, policy: Policy, now: float) -> None:
    """The worker lives, and this is what it says of itself."""
    worker = event.worker
    volatile.leases[worker] = now + policy.lease_seconds
    vitals = volatile.vitals.get(worker)
    if vitals is None:
        vitals = volatile.vitals[worker] = Vitals(now, step_since=now)
    vitals.heard = now
    if event.vouched and (vitals.state or vitals.step >= 0):
        return  # it may have been overtaken by what the worker itself said
    vitals.state, vitals.epoch = event.state, event.epoch
    if event.resources:
        vitals.resources = event.resources
    step = event.step
    if step != vitals.step:
        _measure_pace(vitals, step, policy.heartbeat_seconds * PACE_HEARTBEATS, now)
        vitals.step, vitals.step_since = step, now


def _measure_pace(vitals: Vitals, step: int, least_seconds: float, now: float) -> None:
    """Until so many seconds have passed, what is known counts as if it had taken them: that is too little, not too
    much."""
    if vitals.step < 0:
        vitals.pace, vitals.is_paced = 0.0, False
    else:
        elapsed = now - vitals.paced_since
        pace = max(0.0, (step - vitals.paced_step) / max(elapsed, least_seconds))
        if elapsed < least_seconds:
            if elapsed > 0 and not vitals.is_paced:
                vitals.pace = pace
            return
        # A recovery leaps over many steps, and is no pace to go by.
        vitals.pace = min(pace, 2 * vitals.pace) if vitals.is_paced and vitals.pace else pace
        vitals.is_paced = True
    vitals.paced_step, vitals.paced_since = step, now


def is_uneventful(job: Job, event: HeartbeatReceived) -> bool:
    """Whether this heartbeat is like most: it renews the lease of a live worker, and nobody has anything to do."""
    member = job.world.members.get(event.worker)
    return (
        member is not None
        and member.incarnation == event.incarnation
        and member.status == "live"
        and not event.resources
        and -1 <= event.step <= MAX_NUMBER
        and -1 <= event.epoch <= MAX_NUMBER
        and not job.unsettled
        and job.appointment is None
        and not job.stopping
    )


@rules.handles(DeregisterRequested)
def on_deregister(turn: Turn, event: DeregisterRequested) -> None:
    job = turn.state.job(event.job)
    known = job.world.members.get(event.worker)
    if known is None or known.incarnation != event.incarnation or known.status not in ("left", "died"):
        member = job.member(event.worker, event.incarnation)
        if event.died:
            lose(turn, job, member, "died", f"its process died: {event.reason}".removesuffix(": "))
        else:
            lose(turn, job, member, "left", event.reason or "it deregistered")
    turn.reply(Done())


@rules.handles(DrainRequested)
def on_drain(turn: Turn, event: DrainRequested) -> None:
    job = turn.state.job(event.job)
    member = job.world.members.get(event.worker)
    if member is None or member.gone or event.incarnation not in (None, member.incarnation):
        raise NotFound(f"no live worker {event.worker!r} in job {event.job!r} to drain")
    if member.status != "draining":
        reason = event.reason or "an operator asked"
        turn.record(
            WorkerDraining(event.job, member.worker, member.incarnation, member.rank, job.world.generation + 1, reason)
        )
        _leave_view(turn, job, member.rank, f"{member.worker} is draining: {reason}")
    turn.reply(Done())


@rules.handles(SweepDue)
def on_sweep(turn: Turn, event: SweepDue) -> None:
    """Expire what ran out. A late sweep means that this process was paused: that time is nobody's fault but ours."""
    last, turn.volatile.last_sweep = turn.volatile.last_sweep, turn.now
    late = 0.0 if last is None else turn.now - last - turn.policy.sweep_seconds
    if late > turn.policy.sweep_seconds:
        turn.volatile.extend(late, turn.now, turn.now + turn.policy.lease_seconds)
    for name in sorted(turn.volatile.astir):
        leases = turn.volatile.job(name).leases
        if min(leases.values(), default=inf) > turn.now:
            continue
        job = turn.state.jobs[name]
        due = [job.world.members[worker] for worker, deadline in leases.items() if deadline <= turn.now]
        for member in sorted(due, key=lambda member: member.rank):
            heard = turn.now - turn.volatile.job(name).vitals[member.worker].heard
            lose(turn, job, member, "expired", f"its lease ran out: not heard for {heard:.1f} s")


def lose(turn: Turn, job: Job, member: Member, cause: str, reason: str) -> None:
    """This process is out: fence it, then divide what it had."""
    turn.record(
        WorkerLost(job.job, member.worker, member.incarnation, member.rank, cause, job.world.generation + 1, reason)
    )
    _leave_view(turn, job, member.rank, f"{member.worker} is out: {reason}")
    if len(job.world.members) - len(job.world.by_rank) > turn.policy.gone_members_kept:
        gone = [worker for worker, other in job.world.members.items() if other.gone]
        gone.sort(key=lambda worker: job.world.members[worker].incarnation)
        turn.record(WorkersForgotten(job.job, gone[: len(gone) - turn.policy.gone_members_kept // 2]))


def _leave_view(turn: Turn, job: Job, rank: int, reason: str) -> None:
    if rank in job.world.view.slots:
        turn.record(ViewChanged(job.job, rank, joined=False, reason=reason))


@rules.reacts(WorkerLost)
def forget_vitals(turn: Turn, record: WorkerLost) -> None:
    volatile = turn.volatile.job(record.job)
    for table in (volatile.leases, volatile.vitals, volatile.settled):
        table.pop(record.worker, None)


# -- apply -----------------------------------------------------------------------------------------------------------


@rules.applies(TermStarted)
def apply_term(state: State, record: TermStarted) -> None:
    state.term = record.term


@rules.applies(JobOpened)
def apply_opened(state: State, record: JobOpened) -> None:
    state.jobs[record.job] = Job(record.job)


@rules.applies(JobConfigured)
def apply_configured(state: State, record: JobConfigured) -> None:
    state.jobs[record.job].settings = record.settings


@rules.applies(HistoryLost)
def apply_history_lost(state: State, record: HistoryLost) -> None:
    job = state.jobs[record.job]
    job.world.next_incarnation += record.skipped
    job.world.generation += record.skipped
    job.next_attempt += record.skipped
    job.next_round += record.skipped
    job.points += record.further
    job.next_request += record.further
    job.versions_skipped += record.further
    job.dataset_versions = {name: version + record.further for name, version in job.dataset_versions.items()}


@rules.applies(WorldDeclared)
def apply_declared(state: State, record: WorldDeclared) -> None:
    job = state.jobs[record.job]
    job.world.declared = record.world_size
    job.world.view = View.declared(record.world_size) if record.world_size else View.empty()
    job.restarted = True
    job.stopping, job.appointment = "", None
    for dataset in job.datasets.values():
        dataset.held, dataset.owing, dataset.revoked_in = {}, {}, {}


@rules.applies(ViewChanged)
def apply_view(state: State, record: ViewChanged) -> None:
    world = state.jobs[record.job].world
    world.view = world.view.join(record.rank) if record.joined else world.view.leave(record.rank)


@rules.applies(WorkerJoined)
def apply_joined(state: State, record: WorkerJoined) -> None:
    world = state.jobs[record.job].world
    former = world.members.get(record.worker)
    past = [] if former is None else [*former.past_nonces, former.nonce][-PAST_NONCES_KEPT:]
    world.members[record.worker] = Member(
        record.worker,
        record.incarnation,
        record.nonce,
        record.rank,
        "live",
        record.reason,
        past,
        record.ip,
        record.port,
        record.gpu_count,
        record.memory_bytes,
        record.metadata,
    )
    world.seat(record.worker, record.rank)
    world.next_incarnation = record.incarnation + 1
    world.generation = record.generation


@rules.applies(WorkerDescribed)
def apply_described(state: State, record: WorkerDescribed) -> None:
    world = state.jobs[record.job].world
    member = world.members[record.worker]
    member.ip, member.port, member.metadata = record.ip, record.port, record.metadata
    member.gpu_count, member.memory_bytes = record.gpu_count, record.memory_bytes
    world.described += 1


@rules.applies(WorkerLost)
def apply_lost(state: State, record: WorkerLost) -> None:
    assert record.cause in GONE, record.cause
    job = state.jobs[record.job]
    member = job.world.members[record.worker]
    member.status, member.reason, member.gone_in = record.cause, record.reason, record.generation
    job.world.unseat(record.rank)
    job.world.generation = record.generation
    for dataset in job.datasets.values():
        departed = dataset.own.pop(record.worker, None)
        if departed is not None:
            dataset.departed = dataset.departed.union(departed)
    job.settle(member, MAX_COUNT)


@rules.applies(WorkerDraining)
def apply_draining(state: State, record: WorkerDraining) -> None:
    world = state.jobs[record.job].world
    world.members[record.worker].status = "draining"
    world.members[record.worker].reason = record.reason
    world.draining = sorted([*world.draining, record.rank])
    world.generation = record.generation


@rules.applies(WorkersForgotten)
def apply_forgotten(state: State, record: WorkersForgotten) -> None:
    for worker in record.workers:
        del state.jobs[record.job].world.members[worker]
