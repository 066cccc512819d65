"""What can happen to a coordinator: the only input of the state machine, beside the time.

Names are past tense. Every event that concerns a job carries `job`; every event from a worker carries the
incarnation it was given, so that a ghost is recognised. A retried event is the same event.
"""

import msgspec

from strata.core.settings import JobSettings
from strata.errors import InvalidInput

MAX_RESOURCES = 32
"""In a heartbeat."""


class Event(msgspec.Struct, frozen=True):
    """The root of all events."""


class CoordinatorStarted(Event, frozen=True):
    """The process began to serve, after replaying its journal: the first event of every run."""


class SweepDue(Event, frozen=True):
    """A regular look at what has run out. If it comes late, the coordinator itself was paused."""


class JobConfigureRequested(Event, frozen=True):
    job: str
    settings: JobSettings


class RegisterRequested(Event, frozen=True):
    """A process asks for a place. `nonce` is its own for life; `previous` the incarnation it held before, if any."""

    job: str
    worker: str
    nonce: str
    rank: int | None = None
    world_size: int | None = None
    previous: int | None = None
    ip: str = ""
    port: int = 0
    gpu_count: int = 0
    memory_bytes: int = 0
    metadata: dict[str, str] = {}


class WorkerEvent(Event, frozen=True):
    """From a registered worker process."""

    job: str
    worker: str
    incarnation: int


class HeartbeatReceived(WorkerEvent, frozen=True):
    """`step` is the one completed last. `promised_step` answers a proposal: the process will not go beyond it before
    it hears the outcome of `promised_request`. Who `vouched` for it watches it, and only repeats what it said."""

    state: str = ""
    step: int = -1
    epoch: int = -1
    promised_request: int = 0
    promised_step: int = -1
    resources: dict[str, float] = {}
    vouched: bool = False


class DeregisterRequested(WorkerEvent, frozen=True):
    """It leaves; or it `died`, says one who watched it."""

    reason: str = ""
    died: bool = False


class DrainRequested(Event, frozen=True):
    """With `incarnation`, a late repeat does not drain the process that came after."""

    job: str
    worker: str
    reason: str = ""
    incarnation: int | None = None


class SaveRequested(Event, frozen=True):
    """Somebody wants a checkpoint soon: at a step that every rank agrees to."""

    job: str
    reason: str = ""
    within: float = 0.0
    """Seconds after which it is of no use any more; zero: there is no hurry."""


class StopRequested(Event, frozen=True):
    """The whole job is to stop, after one more checkpoint unless that is not wanted."""

    job: str
    reason: str = ""
    save: bool = True
    within: float = 0.0


class BarrierArrived(WorkerEvent, frozen=True):
    """`arrival` numbers this process's waits and stays the same over retries; all up to `settled` are answered.

    With `generation` the caller asks to be refused if the world changed since; without it, it waits for whoever comes.
    """

    barrier: str
    arrival: int
    settled: int
    expected: int
    timeout_seconds: float | None = None
    generation: int | None = None


class DatasetRegisterRequested(Event, frozen=True):
    """`replaces` is the version that this one takes the place of: a compare-and-set, so no repeat brings one back."""

    job: str
    dataset: str
    total_samples: int
    shard_size: int
    shuffle: bool = False
    seed: int = 0
    path: str = ""
    format: str = ""
    strategy: str = "slots-v1"
    order: str = "elastic"
    replaces: int | None = None
    fingerprint: str = ""
    """Of its files, as whoever registers it finds them; empty: it did not look."""
    columns: str = ""
    """Their names and types, to be told where they are others than they were."""


class DatasetRemoveRequested(Event, frozen=True):
    job: str
    dataset: str
    version: int | None = None


class EpochAdvanceRequested(Event, frozen=True):
    """Compare-and-set on the epoch it starts from, so that it happens once however many ask.

    `point` guards against a request that was overtaken by a rollback into that very epoch.
    """

    job: str
    dataset: str
    from_epoch: int
    asked_by: str = ""
    point: int | None = None


class AssignmentsRequested(WorkerEvent, frozen=True):
    """Affinity order: which shards may this worker read now, and which must it give up? With `level`, its share with
    the ends evened out: one text for all that the steps of its ranks depend on, the same for all of them."""

    dataset: str
    level: str = ""


class ProgressReported(WorkerEvent, frozen=True):
    """Affinity order: how far into each of its shards this worker is. Cursors only grow: a repeat changes nothing.

    `point` is the number of the recovery point that its reading goes on from: what was read before a rollback is void.
    Where ends are evened out, `levelled` is how far it is in its share.
    """

    dataset: str
    version: int
    epoch: int
    point: int
    cursors: dict[int, int]
    levelled: int | None = None


class BatchesReported(WorkerEvent, frozen=True):
    """Elastic order: this rank completed the global steps up to `through` samples of the epoch's order; `over`: which
    are all of the epoch."""

    dataset: str
    version: int
    epoch: int
    generation: int
    point: int
    through: int
    reading: str = ""
    """How the epoch is read: all that its batches depend on beyond the dataset, as its readers say it to each other."""
    over: bool = False
    joins: bool = False
    """It has completed nothing since the recovery point, and takes up where the others are."""
    left_out: dict[int, int] = {}
    """How many damaged samples this rank left out of which batches, each named by the place at which it ends. A report
    repeats those that may not be counted yet."""


class RevocationAcknowledged(WorkerEvent, frozen=True):
    """The worker no longer reads `shards`; `cursors` says how far it got in those it had begun, on every retry.

    `generation` is that of the assignments it answers: a shard taken from it again since is not meant.
    """

    dataset: str
    version: int
    epoch: int
    point: int
    generation: int
    shards: list[int]
    cursors: dict[int, int]


class Position(msgspec.Struct, frozen=True):
    """What a checkpoint says of one dataset: the ranges of its order consumed in this epoch, flat: s0, e0, s1, e1 …"""

    version: int
    epoch: int
    consumed: list[int]
    reading: str = ""
    left_out: int = 0
    """So many of them were damaged: each rank's part counts those that it left out itself, the checkpoint their sum."""


def check_position(value: object, what: str) -> None:
    """InvalidInput unless it is a `Position` whose fields have their types: no checkpoint with another can be read."""
    if not isinstance(value, Position):
        raise InvalidInput(f"{what} must be a position in a dataset, not {type(value).__name__}")
    try:
        msgspec.convert(msgspec.to_builtins(value), Position)
    except (TypeError, msgspec.ValidationError) as error:
        raise InvalidInput(f"{what} must be a position in a dataset, and {value} is not: {error}") from None


class CheckpointBeginRequested(WorkerEvent, frozen=True):
    step: int
    epoch: int = 0
    generation: int | None = None
    references: list[int] = []
    place: str = ""
    """Where in the storage it goes: nothing that is looked into here."""
    skip: str = ""
    """Why nobody is to save this step."""


class CheckpointAck(WorkerEvent, frozen=True):
    """This worker's part of the attempt is durable."""

    attempt: int
    digest: str
    part_bytes: int
    positions: dict[str, Position] = {}
    metrics: dict[str, str] = {}
    place: str = ""


class PartFailed(WorkerEvent, frozen=True):
    """This worker cannot save its part, so nobody's will be of use."""

    attempt: int
    reason: str


class ManifestPut(WorkerEvent, frozen=True):
    """The manifest of a decided attempt is in storage: the checkpoint is committed."""

    attempt: int


class DamageReported(WorkerEvent, frozen=True):
    attempt: int
    reason: str


class PinRequested(Event, frozen=True):
    job: str
    attempt: int
    name: str
    pinned: bool = True


class ManifestRemoved(WorkerEvent, frozen=True):
    attempt: int


class FilesRemoved(WorkerEvent, frozen=True):
    attempt: int


class CheckpointRemoved(WorkerEvent, frozen=True):
    """The job itself did not keep this checkpoint: nothing of it is in the storage any more."""

    attempt: int


class Found(msgspec.Struct, frozen=True):
    """The latest checkpoint that is in the storage; step -1: none is."""

    step: int
    epoch: int = 0
    place: str = ""
    positions: dict[str, Position] = {}


class RecoverRequested(WorkerEvent, frozen=True):
    """`generation` is that of the point this process last took up; None for one that has taken up none. `insist`: go
    back to what was found, whatever was agreed. `since`: the point that this process goes on from, where what was found
    was saved since then without the coordinator; nobody goes back for that. `earlier`: what was saved before it without
    the coordinator, too, the oldest first. `known_attempt`: the newest checkpoint that this process knew of when it
    insisted."""

    generation: int | None = None
    found: Found | None = None
    insist: bool = False
    since: int | None = None
    earlier: list[Found] = []
    known_attempt: int | None = None


class RollBackRequested(Event, frozen=True):
    """Go back to `step` and train on from there in a new lineage. A compare-and-set on the generation."""

    job: str
    step: int
    generation: int
