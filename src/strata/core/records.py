"""What was decided: the journal's content, and the only thing that changes durable state.

A record holds an outcome, never a question, so replaying needs no clock, no policy and no heartbeat. `reason` is for
people. A record's meaning never changes once released: a new meaning is a new record.
"""

import msgspec

from strata.core.events import Position
from strata.core.settings import JobSettings


class Record(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The root of all records."""


class TermStarted(Record, frozen=True):
    term: int


class JobRecord(Record, frozen=True):
    """A record about one job."""

    job: str


class JobOpened(JobRecord, frozen=True):
    pass


class JobConfigured(JobRecord, frozen=True):
    settings: JobSettings


class WorkerJoined(JobRecord, frozen=True):
    worker: str
    incarnation: int
    nonce: str
    rank: int
    generation: int
    reason: str
    ip: str = ""
    port: int = 0
    gpu_count: int = 0
    memory_bytes: int = 0
    metadata: dict[str, str] = {}


class WorkerDescribed(JobRecord, frozen=True):
    """A process that is there already says of itself what it had not said, or says it anew."""

    worker: str
    incarnation: int
    ip: str
    port: int
    gpu_count: int
    memory_bytes: int
    metadata: dict[str, str]


class WorkerLost(JobRecord, frozen=True):
    """`cause` is expired, died, left or superseded; in each case this incarnation is fenced from here on."""

    worker: str
    incarnation: int
    rank: int
    cause: str
    generation: int
    reason: str


class WorkerDraining(JobRecord, frozen=True):
    worker: str
    incarnation: int
    rank: int
    generation: int
    reason: str


class WorkersForgotten(JobRecord, frozen=True):
    workers: list[str]


class HistoryLost(JobRecord, frozen=True):
    """This history goes on from an older state: numbers that were given out meanwhile are skipped. `skipped` is of
    processes, generations, saves and rounds; `further` of recovery points, requests for a save and versions of
    datasets, of which older journals skip none."""

    skipped: int
    reason: str
    further: int = 0


class WorldDeclared(JobRecord, frozen=True):
    """A fresh world: nobody else is there. `world_size` 0 is an open world, which is whoever joins."""

    world_size: int
    reason: str


class ViewChanged(JobRecord, frozen=True):
    """One rank joined the view of the shards, or left it."""

    rank: int
    joined: bool
    reason: str


class SaveWanted(JobRecord, frozen=True):
    """A checkpoint was asked for; where it will be is still to be agreed."""

    request: int
    reason: str


class SaveAgreed(JobRecord, frozen=True):
    """Every rank promised to save at this step."""

    request: int
    step: int
    reason: str


class SaveReopened(JobRecord, frozen=True):
    """What was agreed does not hold any more, so a new step has to be found."""

    request: int
    reason: str


class SaveDropped(JobRecord, frozen=True):
    """No step could be agreed, or nobody waits for it any more."""

    request: int
    reason: str


class JobStopping(JobRecord, frozen=True):
    """Everybody is told to stop: `at_once`, or when what is asked for is saved."""

    reason: str
    at_once: bool = False


class SituationChanged(JobRecord, frozen=True):
    """What the job is doing, or what holds it back, in words; for people alone."""

    situation: str
    reason: str
    held_back: bool = False


class BarrierRecord(JobRecord, frozen=True):
    """A round ended. `arrivals` maps each waiting worker to the number of its arrival and to what it has settled."""

    barrier: str
    round: int
    arrivals: dict[str, tuple[int, int]]
    reason: str


class BarrierReleased(BarrierRecord, frozen=True):
    last: str = ""


class BarrierBroken(BarrierRecord, frozen=True):
    missing: list[str] = []


class DatasetRegistered(JobRecord, frozen=True):
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
    reason: str
    fingerprint: str = ""
    columns: str = ""


class DatasetRemoved(JobRecord, frozen=True):
    dataset: str


class EpochAdvanced(JobRecord, frozen=True):
    dataset: str
    version: int
    epoch: int
    consumed: int
    reason: str


class EpochProven(JobRecord, frozen=True):
    """One that ended while the coordinator did not hear of it: a checkpoint from behind it shows that it did."""

    dataset: str
    version: int
    epoch: int
    consumed: int
    reason: str
    reading: str = ""


class ShardsRevoked(JobRecord, frozen=True):
    """`worker` still holds these shards (flat ranges) though the view gives them to another."""

    dataset: str
    worker: str
    shards: list[int]


class ShardsReleased(JobRecord, frozen=True):
    dataset: str
    worker: str
    shards: list[int]


class ShardsReissued(JobRecord, frozen=True):
    """Shards of a lost worker went to others: so many samples had been granted to it and not reported."""

    dataset: str
    worker: str
    shards: int
    samples: int


class ProgressMade(JobRecord, frozen=True):
    """`consumed` is flat ranges of the epoch's order. An empty `worker` is the whole job: a completed global step."""

    dataset: str
    epoch: int
    worker: str
    consumed: list[int]
    reading: str = ""
    left_out: int = 0
    """So many of them were damaged, and left out of their batches."""


class CheckpointBegun(JobRecord, frozen=True):
    """`participants` maps each rank to the worker and incarnation that must save it; "" and 0 where none is there."""

    attempt: int
    lineage: int
    step: int
    epoch: int
    term: int
    generation: int
    participants: dict[int, tuple[str, int]]
    references: list[int]
    reason: str
    place: str = ""


class CheckpointAdopted(JobRecord, frozen=True):
    """A checkpoint that is in the storage, and of which nothing was known here."""

    attempt: int
    lineage: int
    step: int
    epoch: int
    term: int
    generation: int
    place: str
    reason: str
    positions: dict[str, Position] = {}


class CheckpointSkipped(JobRecord, frozen=True):
    lineage: int
    step: int
    reason: str


class PartAcknowledged(JobRecord, frozen=True):
    attempt: int
    rank: int
    worker: str
    incarnation: int
    digest: str
    part_bytes: int
    positions: dict[str, Position] = {}
    metrics: dict[str, str] = {}
    place: str = ""


class AttemptRecord(JobRecord, frozen=True):
    """The attempt moved on to the next state of its life."""

    attempt: int
    reason: str


class CheckpointDecided(AttemptRecord, frozen=True):
    pass


class CheckpointCommitted(AttemptRecord, frozen=True):
    pass


class CheckpointAbandoned(AttemptRecord, frozen=True):
    pass


class CheckpointDamaged(AttemptRecord, frozen=True):
    pass


class CheckpointDoomed(AttemptRecord, frozen=True):
    pass


class CheckpointUnlinked(AttemptRecord, frozen=True):
    pass


class CheckpointDeleted(AttemptRecord, frozen=True):
    pass


class CheckpointPinned(JobRecord, frozen=True):
    attempt: int
    name: str
    pinned: bool


class LineageStarted(JobRecord, frozen=True):
    """A new branch off `base_attempt` (0: the beginning). `from_generation` makes a repeated request recognisable."""

    lineage: int
    parent: int
    base_step: int
    base_attempt: int
    from_generation: int
    reason: str


class GenerationAdvanced(JobRecord, frozen=True):
    """The world must recover again though nobody joined or left."""

    generation: int
    reason: str


class RecoveryPointSet(JobRecord, frozen=True):
    """Everyone goes on from here, and the data positions go back with it. `attempt` 0 is the beginning."""

    generation: int
    lineage: int
    attempt: int
    step: int
    epoch: int
    reason: str


def every_record() -> tuple[type[Record], ...]:
    """All record types that a journal may hold: the leaves of the tree above, by name."""
    leaves: list[type[Record]] = []
    branches: list[type[Record]] = [Record]
    while branches:
        kind = branches.pop()
        children = kind.__subclasses__()
        branches.extend(children)
        if not children:
            leaves.append(kind)
    return tuple(sorted(leaves, key=lambda kind: kind.__name__))
