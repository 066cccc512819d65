"""What the shell must do once the journal is durable up to the decision's index, and the answers it carries out.

Effects are imperative. None of them is needed for safety: a lost effect is made good by the peer's retry, which is why
every event is idempotent.
"""

from typing import Literal

import msgspec


class Effect(msgspec.Struct, frozen=True):
    """The root of all effects."""


class Answer(msgspec.Struct, frozen=True):
    """The root of all answers."""


class Reply(Effect, frozen=True):
    """Answer the sender of the event that was handled."""

    answer: Answer


class ReleaseBarrier(Effect, frozen=True):
    """Let everybody in `arrivals` (worker → arrival number) go on."""

    job: str
    barrier: str
    round: int
    arrivals: dict[str, int]
    reason: str
    last: str = ""
    waited_seconds: float = 0.0


class BreakBarrier(Effect, frozen=True):
    """End the wait of everybody in `arrivals` with an error that names `missing`."""

    job: str
    barrier: str
    round: int
    arrivals: dict[str, int]
    reason: str
    missing: tuple[str, ...]
    waited_seconds: float = 0.0


class DismissArrival(Effect, frozen=True):
    """An arrival that waits no more, and will get no verdict. `cause`: as of a lost worker, or given_up."""

    job: str
    barrier: str
    worker: str
    arrival: int
    cause: str
    reason: str


class AbandonAttempt(Effect, frozen=True):
    """Tell the participants that their parts are of no use any more."""

    job: str
    attempt: int
    workers: tuple[str, ...]
    reason: str


class AnnounceCommit(Effect, frozen=True):
    """Tell the participants that the checkpoint is committed."""

    job: str
    attempt: int
    workers: tuple[str, ...]


class Errand(msgspec.Struct, frozen=True):
    """Something only a worker can do, since the coordinator has no state to save and no storage credentials."""

    kind: Literal["save", "put_manifest", "remove_manifest", "remove_files", "propose_save", "save_at", "drain", "stop"]
    attempt: int = 0
    step: int = -1
    request: int = 0
    reason: str = ""
    last: bool = False
    """The job stops when that is saved."""


class Done(Answer, frozen=True):
    """Accepted; or it had been, and the repeat changed nothing."""


class Registered(Answer, frozen=True):
    worker: str
    incarnation: int
    rank: int
    world_size: int
    generation: int
    term: int
    heartbeat_seconds: float
    lease_seconds: float
    reason: str


class Alive(Answer, frozen=True):
    """The lease is renewed. `generation` tells of changes; `errands` are to be acted on."""

    generation: int
    errands: tuple[Errand, ...] = ()

    @property
    def draining(self) -> bool:
        return any(errand.kind == "drain" for errand in self.errands)


class BarrierVerdict(Answer, frozen=True):
    """The round this arrival belonged to is over."""

    barrier: str
    round: int
    released: bool
    reason: str
    missing: tuple[str, ...] = ()


class Waiting(Answer, frozen=True):
    """The arrival counts; the verdict follows as ReleaseBarrier or BreakBarrier."""

    arrived: int
    expected: int


class DatasetInfo(Answer, frozen=True):
    dataset: str
    version: int
    epoch: int


class Levelled(msgspec.Struct, frozen=True):
    """A rank's share with the ends evened out: `stretches` of places, flat, in the order in which they are read, of
    which the first `read` samples are consumed. So many `ranks` share what was `left` when all of them began."""

    ranks: int
    left: int
    stretches: list[int]
    read: int


class Assignments(Answer, frozen=True):
    """What a worker may read of a dataset, in ascending shard ids: `granted` now, from `cursors` on where a shard was
    begun; `awaited` once others gave it up; `revoked` it must give up itself.

    After a rollback, places beyond a cursor may have been read too: `beyond` has them by shard, as flat ranges counted
    from the beginning of the shard. They are to be left out.

    Where ends are evened out, `levelled` says it all, and nothing else is granted.
    """

    version: int
    epoch: int
    generation: int
    point: int
    granted: list[int]
    awaited: list[int]
    revoked: list[int]
    cursors: dict[int, int]
    beyond: dict[int, list[int]] = {}
    levelled: Levelled | None = None


class EpochNow(Answer, frozen=True):
    epoch: int


class LedgerNow(Answer, frozen=True):
    """The epoch in force, now that a report is counted; how many ranks have said nothing of it yet, and how many of its
    samples are consumed."""

    epoch: int
    absent: int = 0
    consumed: int = 0


class Begun(Answer, frozen=True):
    """Write the parts under this attempt's number. `status` is open; or decided, or committed: nothing left to do."""

    attempt: int
    lineage: int
    step: int
    status: str


class Skipped(Answer, frozen=True):
    """No rank saves this step."""

    step: int
    reason: str


class Acknowledged(Answer, frozen=True):
    """The part counts. `put_manifest`: all parts are in, and the sender is the one to write the manifest."""

    attempt: int
    status: str
    put_manifest: bool


class RecoveryPoint(Answer, frozen=True):
    """Where everybody goes on from: a committed attempt, or the beginning where `attempt` is 0.

    `ranks` is the world of this generation; a rank's place in it decides which part of each batch is its own. `point`
    numbers the times the data was taken back; progress is reported under it. `place` is where in the storage the
    checkpoint is. `carries_on`: nobody goes back when another is lost.
    """

    generation: int
    lineage: int
    attempt: int
    step: int
    epoch: int
    reason: str
    ranks: tuple[int, ...] = ()
    point: int = 0
    place: str = ""
    carries_on: bool = False


class FinishFirst(Answer, frozen=True):
    """A decided attempt has no manifest yet: run the errand, report it, then ask again."""

    errand: Errand


class SaveAsked(Answer, frozen=True):
    """`step` is where everybody will save, or -1 while that is being agreed."""

    request: int
    step: int


class LineageNow(Answer, frozen=True):
    lineage: int
    generation: int
    step: int
