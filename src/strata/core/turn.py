"""One turn of the machine: what a handler may see and do while it decides about one event.

A handler checks everything first and raises before it records anything; from its first `record` on it cannot fail. Each
record is applied at once, and then those who react to its kind decide in turn, so every decision sees the state that
the ones before it made.
"""

from collections.abc import Callable
from typing import Any

from strata.core.effects import Answer, Effect, Reply
from strata.core.records import JobOpened, JobRecord, Record
from strata.core.settings import Policy
from strata.core.state import Job, State
from strata.core.volatile import Volatile

Apply = Callable[[State, Any], None]
Handler = Callable[["Turn", Any], None]


class Rules:
    """Who handles which event, applies which record, and reacts to it: the machine's wiring."""

    def __init__(self) -> None:
        self.handlers: dict[type, list[Handler]] = {}
        self.appliers: dict[type, Apply] = {}
        self.reactions: dict[type, list[Handler]] = {}

    def handles(self, kind: type) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            self.handlers.setdefault(kind, []).append(handler)
            return handler

        return add

    def applies(self, *kinds: type) -> Callable[[Apply], Apply]:
        def add(apply: Apply) -> Apply:
            for kind in kinds:
                assert kind not in self.appliers, f"two appliers for {kind.__name__}"
                self.appliers[kind] = apply
            return apply

        return add

    def include(self, other: "Rules") -> None:
        """Take over another module's rules; where both handle or react to a kind, those included first go first."""
        for kind, handlers in other.handlers.items():
            self.handlers.setdefault(kind, []).extend(handlers)
        for kind, apply in other.appliers.items():
            self.applies(kind)(apply)
        for kind, reactions in other.reactions.items():
            self.reactions.setdefault(kind, []).extend(reactions)

    def reacts(self, *kinds: type) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            for kind in kinds:
                self.reactions.setdefault(kind, []).append(handler)
            return handler

        return add


class Turn:
    """The state, the time, and what was decided so far."""

    __slots__ = ("effects", "now", "policy", "records", "rules", "state", "volatile")

    def __init__(self, rules: Rules, state: State, volatile: Volatile, policy: Policy, now: float) -> None:
        self.rules, self.state, self.volatile, self.policy, self.now = rules, state, volatile, policy, now
        self.records: list[Record] = []
        self.effects: list[Effect] = []

    def record(self, record: Record) -> None:
        """Decide this: it is journaled, takes effect, and is reacted to."""
        kind = type(record)
        self.rules.appliers[kind](self.state, record)
        self.state.index += 1
        self.records.append(record)
        if isinstance(record, JobRecord):
            self.volatile.astir.add(record.job)
        for react in self.rules.reactions.get(kind, ()):
            react(self, record)

    def effect(self, effect: Effect) -> None:
        self.effects.append(effect)

    def reply(self, answer: Answer) -> None:
        self.effects.append(Reply(answer))

    def opened(self, name: str) -> Job:
        """The job, opened now if this is its first mention. Call it when nothing can be refused any more."""
        if name not in self.state.jobs:
            self.record(JobOpened(name))
        return self.state.jobs[name]
