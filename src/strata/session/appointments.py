"""A save that somebody asked for, as one rank sees it: it falls on the same step everywhere. The coordinator's half,
and how a step comes to be agreed, is in `strata.core.appointments`.

    proposed: "save at step S?" ──▶ promised, if this rank has yet to come to S ──▶ agreed ──▶ saved at S
                                          │
                                          └── at S, and the outcome not known: it holds there
                                              until it is, or the coordinator says that there is nothing to hold for

The law: who promised a step does not go beyond it before it knows the outcome, unless the coordinator is silent for too
long: training goes on without one. A rank that never asks whether to save promises nothing.

Steps come from the training thread, words of the coordinator from Strata's own.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from strata.logs import get_logger
from strata.v1 import coordinator_pb2 as pb

logger = get_logger("strata.session")


class Promise(NamedTuple):
    """As heartbeats carry it."""

    request: int = 0
    step: int = 0


class Agreed(NamedTuple):
    """Every rank saves at this step. `last`: the job stops then."""

    step: int
    reason: str
    last: bool


NOTHING = Promise()


HOLD_SECONDS = 30.0
"""The longest that the outcome is waited for."""
ASK_SECONDS = 0.5
"""While this rank holds, the coordinator is asked so often."""


class Appointments:
    """Of one process. `speak` sends a heartbeat."""

    def __init__(self, speak: Callable[[], None], hold_seconds: float = HOLD_SECONDS) -> None:
        self._speak, self._hold_seconds = speak, hold_seconds
        self._changed = threading.Condition()
        self._passed: int | None = None
        """The step that this rank went on from last; None: it has not asked yet."""
        self.promised = NOTHING
        self._proposed = NOTHING
        self._agreed: dict[int, Agreed] = {}
        """By step: who asks that the job stops does not undo what others were promised before."""

    @property
    def has_begun(self) -> bool:
        """Whether this rank has asked at a step, since everybody went back last."""
        return self._passed is not None

    def heard(self, commands: Iterable[pb.Command]) -> bool:
        """What the coordinator says; whether there is something to tell it at once."""
        is_news = False
        with self._changed:
            for command in commands:
                if command.kind == pb.Command.KIND_PROPOSE_SAVE:
                    is_news = self._consider(Promise(command.request, command.step)) or is_news
                elif command.kind == pb.Command.KIND_SAVE_AT and not self._is_past(command.step):
                    self._agreed[command.step] = Agreed(command.step, command.reason, command.last)
                    self._changed.notify_all()
        return is_news

    def _is_past(self, step: int) -> bool:
        """It is said again until the save has begun."""
        return self._passed is not None and step <= self._passed

    def _consider(self, proposal: Promise) -> bool:
        if proposal == self._proposed:
            return False
        self._proposed = proposal
        if self._passed is not None and not self._is_past(proposal.step):
            self.promised = proposal
        return True  # also that this rank is beyond it

    def answered(self, carried: Promise, commands: Iterable[pb.Command]) -> None:
        """A heartbeat with this promise was: if neither the proposal nor an agreement is in the answer, this rank is
        free."""
        kept = (
            command.kind == pb.Command.KIND_SAVE_AT
            or (command.kind == pb.Command.KIND_PROPOSE_SAVE and Promise(command.request, command.step) == carried)
            for command in commands
        )
        with self._changed:
            if carried != NOTHING and carried == self.promised and not any(kept):
                self.promised = self._proposed = NOTHING
                self._changed.notify_all()

    def reached(self, step: int) -> Agreed | None:
        """This rank completed a step: whether all save there. Waits, if that was promised and is not known yet."""
        with self._changed:
            ends = time.monotonic() + self._hold_seconds
            while step not in self._agreed and self.promised != NOTHING and self.promised.step == step:
                self._speak()
                self._changed.wait(ASK_SECONDS)
                if time.monotonic() > ends:
                    logger.warning(
                        "whether all ranks save at step %d is not known after %g s: this one goes on",
                        step,
                        self._hold_seconds,
                    )
                    self.promised = NOTHING
            self._passed, agreed = step, self._agreed.get(step)
            self._agreed = {later: each for later, each in self._agreed.items() if later > step}
            if self.promised.step <= step:
                self.promised = NOTHING
            return agreed

    def begin_again(self) -> None:
        """From a recovery point: what was promised and agreed holds no more."""
        with self._changed:
            self.promised = self._proposed = NOTHING
            self._agreed, self._passed = {}, None
            self._changed.notify_all()
