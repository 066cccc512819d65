"""The state machine that decides everything a coordinator decides.

    handle(event, now) -> Decision(records, effects)      decides: raises a StrataError and changes nothing, or decides
    apply(record)                                         replays: alone changes durable state; no clock, no policy

The shell journals the records of a decision, and carries out its effects (answers included) only when the journal is
durable up to `index` as it is after the decision. Feeding the same events at the same times to the same state gives
the same decisions; feeding the same records gives the same state, byte for byte.
"""

from typing import NamedTuple

from strata.core import (
    appointments,
    barriers,
    codec,
    commits,
    datasets,
    deletion,
    explanations,
    handover,
    membership,
    progress,
    recovery,
)
from strata.core.effects import Effect
from strata.core.events import BarrierArrived, Event, HeartbeatReceived
from strata.core.records import Record
from strata.core.settings import Policy
from strata.core.shapes import check_shape
from strata.core.state import State
from strata.core.turn import Rules, Turn
from strata.core.volatile import Volatile
from strata.errors import InvalidInput

RULES = Rules()
for _module in (
    membership,
    appointments,
    barriers,
    datasets,
    progress,
    handover,
    commits,
    deletion,
    recovery,
    explanations,
):
    RULES.include(_module.rules)


class Decision(NamedTuple):
    """What was decided about one event."""

    records: list[Record]
    effects: list[Effect]


class Machine:
    """Durable state, its volatile side, and the rules."""

    def __init__(self, policy: Policy | None = None, state: State | None = None) -> None:
        self.policy = policy or Policy()
        self.state = state or State()
        self.volatile = Volatile()

    @classmethod
    def restore(cls, snapshot: bytes, policy: Policy | None = None) -> "Machine":
        """The machine as it was when `snapshot` was taken, less what is volatile."""
        return cls(policy, codec.decode_state(snapshot))

    def handle(self, event: Event, now: float) -> Decision:
        """Decide about an event at this instant of the monotonic clock."""
        if type(event) not in RULES.handlers:
            raise InvalidInput(f"{type(event).__name__} is not an event")
        check_shape(event)
        return self.decide(event, now)

    def decide(self, event: Event, now: float) -> Decision:
        """The same for an event whose fields are known to hold what they are declared to hold."""
        turn = Turn(RULES, self.state, self.volatile, self.policy, now)
        for handler in RULES.handlers[type(event)]:
            handler(turn, event)
        return Decision(turn.records, turn.effects)

    def renew_lease(self, event: HeartbeatReceived, now: float) -> int | None:
        """All that most heartbeats do, at a fraction of the cost: the generation, or None for one that must be decided.

        Nothing is recorded, and there is no errand for the worker. The event's fields are known to be sound.
        """
        job = self.state.jobs.get(event.job)
        if job is None or not membership.is_uneventful(job, event):
            return None
        membership.renew(self.volatile.job(event.job), event, self.policy, now)
        return job.world.generation

    def join_barrier(self, event: BarrierArrived, now: float) -> bool:
        """The same for arrivals at a barrier: whether this one waits with the others now. Any other must be decided."""
        job, volatile = self.state.jobs.get(event.job), self.volatile.jobs.get(event.job)
        return job is not None and volatile is not None and barriers.join(job, volatile, event, now)

    def apply(self, record: Record) -> None:
        """Replay one record of the journal."""
        RULES.appliers[type(record)](self.state, record)
        self.state.index += 1

    @property
    def index(self) -> int:
        """How far the journal must be durable before anyone may know what was decided last."""
        return self.state.index

    def snapshot(self) -> bytes:
        """The durable state in its canonical form."""
        return codec.encode_state(self.state)

    def digest(self) -> str:
        """A short name for this very state."""
        return codec.digest(self.state)
