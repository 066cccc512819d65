"""Durable state: what the journal rebuilds, and nothing else.

Only `apply` functions change it. It holds no instants, no floats and nothing whose order depends on a hash; whoever
iterates over a dict here sorts first where the order matters, since a restored snapshot lists keys in sorted order.
"""

from collections.abc import Collection

import msgspec

from strata.core.events import Position
from strata.core.ids import MAX_COUNT, advice_on_default
from strata.core.ranges import RangeSet
from strata.core.settings import JobSettings
from strata.core.views import View
from strata.errors import Expired, InvalidInput, NotFound, NotRegistered, Refused, Superseded

GONE = ("died", "expired", "left", "superseded")
SETTLED = ("committed", "damaged")
SKIPPED_KEPT = 256
MAX_JOBS = 10_000


class Member(msgspec.Struct):
    """The latest process known under a worker's name. `status` is live, draining, or one of GONE."""

    worker: str
    incarnation: int
    nonce: str
    rank: int
    status: str
    reason: str
    past_nonces: list[str] = []
    ip: str = ""
    port: int = 0
    gpu_count: int = 0
    memory_bytes: int = 0
    metadata: dict[str, str] = {}
    gone_in: int = 0
    """The generation in which it went."""
    settled: int = 0
    verdicts: dict[int, int] = {}
    """Of its arrivals at barriers, by number: the round that each was part of, until it is known to have heard."""

    @property
    def gone(self) -> bool:
        return self.status in GONE


class World(msgspec.Struct):
    """Who is in the job. `by_rank` holds the processes that are there; `view` the ranks that shards divide over."""

    generation: int = 0
    declared: int = 0
    next_incarnation: int = 1
    view: View = msgspec.field(default_factory=View.empty)
    members: dict[str, Member] = {}
    by_rank: dict[int, str] = {}
    draining: list[int] = []
    first_free: int = 0
    described: int = 0
    """How often a process that was there said of itself what was not known: that is no other world."""

    @property
    def size(self) -> int:
        """How many ranks take part: those in the view, joined yet or not, and those that are draining."""
        return len(self.view) + len(self.draining)

    def roster(self) -> list[int]:
        """Those ranks, ascending."""
        return sorted([*self.view.slots, *self.draining])

    def seat(self, worker: str, rank: int) -> None:
        """The worker takes the rank. `first_free` stays the lowest one that nobody holds."""
        self.by_rank[rank] = worker
        while self.first_free in self.by_rank:
            self.first_free += 1

    def unseat(self, rank: int) -> None:
        del self.by_rank[rank]
        self.first_free = min(self.first_free, rank)
        self.draining = [other for other in self.draining if other != rank]

    def at_rank(self, rank: int) -> Member | None:
        """The process at this rank, if one is there."""
        worker = self.by_rank.get(rank)
        return None if worker is None else self.members[worker]


class Round(msgspec.Struct):
    """A barrier round that is over, kept while any of `unheard` workers may still ask for the verdict."""

    barrier: str
    released: bool
    reason: str
    missing: list[str]
    unheard: int


PROOFS_KEPT = 64


class Proof(msgspec.Struct):
    """What is known of a finished epoch."""

    version: int
    epoch: int
    total: int
    consumed: int
    reissued: int
    reading: str = ""
    """How it was read, as its readers said it: what that leaves out on purpose is not missing."""
    left_out: int = 0
    """So many of the consumed samples were damaged: nobody was given them."""


class Dataset(msgspec.Struct):
    """A dataset's one version in force, and what its current epoch has consumed.

    `consumed` is the truth for grants and for the end of the epoch. `departed` is the part of it that no live worker
    will report in a checkpoint: from workers that are gone, or from before the recovery point. `own` is the rest.
    `held` maps shards to workers that must still give them up, against what the view says; `owing` is the same by
    worker.
    """

    dataset: str
    version: int
    total_samples: int
    shard_size: int
    shuffle: bool
    seed: int
    path: str
    format: str
    strategy: str
    order: str
    fingerprint: str = ""
    """Of its files, as whoever registered it found them; empty: it did not look."""
    epoch: int = 0
    reading: str = ""
    """How the epoch is read, as its readers say it to each other; empty while nothing is consumed."""
    consumed: RangeSet = msgspec.field(default_factory=RangeSet)
    begun_with: RangeSet = msgspec.field(default_factory=RangeSet)
    """What was consumed when all began to read: at the recovery point, or at the beginning of the epoch since."""
    departed: RangeSet = msgspec.field(default_factory=RangeSet)
    own: dict[str, RangeSet] = {}
    former: Position | None = None
    """`departed` as it was at the end of the epoch before: a save of that may be begun late."""
    held: dict[int, str] = {}
    owing: dict[str, list[int]] = {}
    revoked_in: dict[str, int] = {}
    """The generation in which a worker was last told to give something up; older acknowledgements are void."""
    reissued: int = 0
    proofs: list[Proof] = []
    is_begun: bool = False
    """Whether readers were ever told here where to begin."""
    unproven: list[int] = []
    """Epochs that were begun here, and ended unheard: a checkpoint from behind them is gone on from. In the elastic
    order any reader knows how much they had."""
    columns: str = ""
    """The names and types of its columns, as whoever registered it found them."""
    left_out: int = 0
    """So many of the samples consumed in this epoch were damaged: nobody was given them."""

    @property
    def shard_count(self) -> int:
        return -(-self.total_samples // self.shard_size)

    def bounds(self, shard: int) -> tuple[int, int]:
        """The half-open range of samples that the shard holds."""
        start = shard * self.shard_size
        return start, min(start + self.shard_size, self.total_samples)

    def revoke(self, worker: str, shards: list[int], generation: int) -> None:
        """These shards stay with the worker until it gives them up."""
        self.revoked_in[worker] = generation
        self.held.update(dict.fromkeys(shards, worker))
        self.owing[worker] = sorted([*self.owing.get(worker, ()), *shards])

    def release(self, worker: str, shards: Collection[int]) -> None:
        """The worker gave these up."""
        for shard in shards:
            del self.held[shard]
        owing = [shard for shard in self.owing.pop(worker, ()) if shard not in shards]
        if owing:
            self.owing[worker] = owing
        else:
            self.revoked_in.pop(worker, None)

    def begin_epoch(self, epoch: int, consumed: list[int], reading: str = "", left_out: int = 0) -> None:
        """Nobody holds anything, and `consumed` (flat ranges) is all that was read."""
        self.epoch, self.reading, self.left_out = epoch, reading, left_out
        self.consumed, self.departed = RangeSet.from_flat(consumed), RangeSet.from_flat(consumed)
        self.begun_with = RangeSet.from_flat(consumed)
        self.own, self.held, self.owing, self.revoked_in, self.reissued = {}, {}, {}, {}, 0
        self.former = None

    def rewind(self, position: Position | None) -> None:
        """Go back to what a checkpoint says, or to the beginning where it says nothing of this version. It may lie
        ahead of what was heard."""
        was_begun, self.is_begun, before = self.is_begun, True, self.epoch
        if position is not None and position.version == self.version and _fits(position, self.total_samples):
            self.begin_epoch(position.epoch, position.consumed, position.reading, position.left_out)
        else:
            self.begin_epoch(0, [])
        self.proofs = [proof for proof in self.proofs if proof.version != self.version or proof.epoch < self.epoch]
        unheard = range(before, self.epoch) if was_begun and self.order == "elastic" else ()
        self.unproven = [epoch for epoch in (*self.unproven, *unheard) if epoch < self.epoch][-PROOFS_KEPT:]

    def prove(self, proof: Proof) -> None:
        self.unproven = [epoch for epoch in self.unproven if epoch != proof.epoch]
        self.proofs = sorted([*self.proofs, proof], key=lambda each: (each.version, each.epoch))[-PROOFS_KEPT:]


def _fits(position: Position, total_samples: int) -> bool:
    """A checkpoint that was found says of a dataset that comes later whatever it says."""
    return not position.consumed or position.consumed[-1] <= total_samples


class Part(msgspec.Struct):
    """One rank's durable part of an attempt."""

    worker: str
    incarnation: int
    digest: str
    part_bytes: int
    positions: dict[str, Position]
    metrics: dict[str, str]
    place: str = ""


class Attempt(msgspec.Struct):
    """One try at saving one step. `status`: open, decided, committed, damaged, doomed, unlinked. `place` is where in
    the storage it goes, as its workers say it to each other."""

    attempt: int
    lineage: int
    step: int
    epoch: int
    term: int
    generation: int
    participants: dict[int, tuple[str, int]]
    references: list[int]
    base: dict[str, Position]
    """What departed workers had consumed when it began."""
    status: str = "open"
    parts: dict[int, Part] = {}
    positions: dict[str, Position] = {}
    pins: list[str] = []
    place: str = ""
    former: dict[str, Position] = {}
    """The same of the epoch before, in the affinity order: its last step may be saved when the next has begun."""

    def absent(self) -> list[int]:
        """The ranks whose part has not come."""
        return [rank for rank in sorted(self.participants) if rank not in self.parts]

    def awaits(self, member: Member) -> bool:
        """Whether the part of this very process is still to come."""
        frozen = self.participants.get(member.rank)
        return member.rank not in self.parts and frozen in (("", 0), (member.worker, member.incarnation))

    def is_late(self, dataset: str, position: Position) -> bool:
        """Whether this is in the epoch that was over when the save began."""
        former = self.former.get(dataset)
        return former is not None and (former.version, former.epoch) == (position.version, position.epoch)

    def workers(self) -> tuple[str, ...]:
        """The participants by name, in rank order."""
        return tuple(worker for _, (worker, _) in sorted(self.participants.items()) if worker)

    @property
    def total_bytes(self) -> int:
        """Of the parts that are there; at most what every reader holds, whichever version let them in."""
        return min(MAX_COUNT, sum(part.part_bytes for part in self.parts.values()))

    @property
    def usable(self) -> bool:
        """Whether it may be offered for recovery."""
        return self.status == "committed"


class Lineage(msgspec.Struct):
    """A branch of the job's history off `parent` at `base_step` (-1: the beginning); `tip` is its furthest saved step.

    A step's number occurs once in a lineage, whatever became of the checkpoint that it named.
    """

    parent: int
    base_step: int
    from_generation: int
    tip: int = -1


class Point(msgspec.Struct):
    """The recovery point in force."""

    generation: int
    lineage: int
    attempt: int
    step: int
    epoch: int
    reason: str
    newcomers: int = 0
    """The incarnation of the first process that came after it was set."""
    ranks: list[int] = []
    """Those that took part when it was set."""
    view: View = msgspec.field(default_factory=View.empty)
    """As it was then: whose which shard was."""


class Appointment(msgspec.Struct):
    """A checkpoint that was asked for. `step` is where everybody will save, or -1 while that is being agreed; `attempt`
    is the save that keeps it, once that has begun; `tries` how many came to nothing."""

    request: int
    reason: str
    step: int = -1
    attempt: int = 0
    tries: int = 0


class Job(msgspec.Struct):
    """One job: everything that is durable about it."""

    job: str
    settings: JobSettings = JobSettings()
    world: World = msgspec.field(default_factory=World)
    rounds: dict[int, Round] = {}
    next_round: int = 1
    datasets: dict[str, Dataset] = {}
    dataset_versions: dict[str, int] = {}
    versions_skipped: int = 0
    """Where the versions of a dataset begin that is not known yet: a history that was lost may have known it."""
    attempts: dict[int, Attempt] = {}
    next_attempt: int = 1
    unsettled: list[int] = []
    skipped: dict[int, str] = {}
    lineages: dict[int, Lineage] = msgspec.field(default_factory=lambda: {0: Lineage(-1, -1, 0)})
    lineage: int = 0
    point: Point | None = None
    points: int = 0
    restarted: bool = True
    appointment: Appointment | None = None
    next_request: int = 1
    stopping: str = ""
    """Why everybody was told to stop, if they were; until the world begins anew."""
    situation: str = ""

    @property
    def rolled_back(self) -> bool:
        """Whether everybody must recover before anything counts: an operator rolled back, and nobody has been told."""
        return self.lineage > 0 and (self.point is None or self.point.lineage != self.lineage)

    @property
    def at_rest(self) -> bool:
        """Whether time alone changes nothing about it: nobody is there, and no save is open."""
        return not self.world.by_rank and all(self.attempts[number].status != "open" for number in self.unsettled)

    def member(self, worker: str, incarnation: int) -> Member:
        """The live process that sent an event, or the reason why it is a ghost."""
        if incarnation < 1:
            raise InvalidInput(f"incarnation is {incarnation}: say the one that {worker!r} got when it registered")
        member = self.world.members.get(worker)
        if member is None or incarnation > member.incarnation:
            raise NotRegistered(
                f"worker {worker!r} (incarnation {incarnation}) is not known in job {self.job!r}: register it again"
            )
        if incarnation < member.incarnation:
            raise Superseded(
                f"worker {worker!r}: this process (incarnation {incarnation}) was superseded by incarnation "
                f"{member.incarnation}; another process took its name, so this one must stop"
                f"{advice_on_default(self.job)}"
            )
        if member.gone:
            raise Expired(
                f"worker {worker!r} (incarnation {incarnation}) is out of job {self.job!r}: {member.reason}. "
                "Register again as a new incarnation, then recover"
            )
        return member

    def settle(self, member: Member, through: int) -> None:
        """The member has heard the verdicts on its arrivals up to this number."""
        member.settled = max(member.settled, through)
        verdicts = member.verdicts
        for arrival in list(verdicts):
            if arrival <= through:
                number = verdicts.pop(arrival)
                heard = self.rounds[number]
                heard.unheard -= 1
                if not heard.unheard:
                    del self.rounds[number]

    def set_status(self, attempt: Attempt, status: str) -> None:
        """Move an attempt on; `unsettled` lists those that wait for somebody to do something about them."""
        attempt.status = status
        others = [number for number in self.unsettled if number != attempt.attempt]
        there = attempt.attempt in self.attempts and status not in SETTLED
        self.unsettled = sorted([*others, attempt.attempt]) if there else others

    def skip(self, step: int, reason: str) -> None:
        """No rank saves this step: whoever still asks is told the same as the others were."""
        kept = sorted({*self.skipped, step})[-SKIPPED_KEPT:]
        self.skipped = {number: reason if number == step else self.skipped[number] for number in kept}

    def is_kept_by(self, step: int) -> bool:
        """Whether a save at this step is as good as the one that was asked for: at one that everybody stops at, none is
        but that very one."""
        wanted = self.appointment
        return wanted is not None and (step == wanted.step if self.stopping else step >= wanted.step)

    def agree(self, step: int) -> None:
        """Where the checkpoint that was asked for will be; -1: that is open again."""
        if self.appointment is not None:
            self.appointment.step, self.appointment.attempt = step, 0

    def dataset(self, name: str) -> Dataset:
        dataset = self.datasets.get(name)
        if dataset is None:
            known = ", ".join(sorted(self.datasets)[:10]) or "none"
            raise NotFound(f"no dataset {name!r} in job {self.job!r}; registered: {known}")
        return dataset


class State(msgspec.Struct):
    """All jobs, and how far the journal was applied."""

    term: int = 0
    index: int = 0
    jobs: dict[str, Job] = {}

    def job(self, name: str) -> Job:
        job = self.jobs.get(name)
        if job is None:
            raise NotFound(f"no job {name!r} here: it begins with its first worker, dataset or settings")
        return job


def check_job_count(state: State, name: str) -> None:
    """Jobs are kept for good, so there is an end to them."""
    if name not in state.jobs and len(state.jobs) >= MAX_JOBS:
        raise Refused(f"this coordinator has {MAX_JOBS:,} jobs, which is the limit: give the next ones another state")
