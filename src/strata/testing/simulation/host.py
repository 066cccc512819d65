"""The simulated coordinator process: the real machine, a journal with a disk's delays, and a power switch.

It keeps the promise of the real shell: nothing decided is shown before the journal is durable up to that index. A
crash loses what was not durable; a batch that was on its way to the disk may or may not have made it.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from strata.core import codec
from strata.core.effects import AbandonAttempt, AnnounceCommit, Answer, BreakBarrier, Effect, ReleaseBarrier, Reply
from strata.core.events import (
    CoordinatorStarted,
    Event,
    HeartbeatReceived,
    RecoverRequested,
    RegisterRequested,
    SweepDue,
)
from strata.core.machine import Machine
from strata.core.records import Record
from strata.core.settings import Policy
from strata.core.state import State
from strata.errors import Fenced, NotFound, NotRegistered, StrataError
from strata.testing.simulation.checker import Checker
from strata.testing.simulation.loop import VirtualLoop
from strata.testing.simulation.violation import Violation

Respond = Callable[[Answer | StrataError], None]
Push = Callable[[str, Effect], None]

SNAPSHOT_EVERY = 700


class Host:
    """One coordinator at a time on one disk. `boot` numbers its processes: a connection does not outlive one."""

    def __init__(self, loop: VirtualLoop, rng: Random, policy: Policy, checker: Checker, push: Push) -> None:
        self._loop, self._rng, self._policy, self._checker, self._push = loop, rng, policy, checker, push
        self.boot = 0
        self.handled = 0
        self.restarts = 0
        self.up = False
        self.paused = False
        self._snapshot = codec.encode_state(State())
        self._journal: list[bytes] = []
        self._standby = checker.standby
        self._start()

    # -- power -----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self.boot += 1
        self.up, self.paused = True, False
        self.machine = Machine.restore(self._snapshot, self._policy)
        for line in self._journal:
            self.machine.apply(codec.decode_record(line))
        if self.machine.snapshot() != self._standby.snapshot():
            raise Violation("replay", f"replaying {self.machine.index} records gave another state than applying them")
        self._durable = self._shown = self.machine.index
        self._pending: list[Record] = []
        self._flushing = 0
        self._outbox: deque[tuple[int, Callable[[Any], None], Any]] = deque()
        self._backlog: list[tuple[Event, Respond | None]] = []
        self._checker.leases.booted()
        self._decide(CoordinatorStarted(), None)
        self._sweep(self.boot)

    def crash(self, seconds: float) -> None:
        """Die now, and start again after a while."""
        if not self.up:
            return
        self.up = False
        if self._flushing and self._rng.random() < 0.5:
            self._make_durable(self._flushing)
        if self._shown > self._durable:
            raise Violation(
                "durable before seen", f"index {self._shown} was shown, but only {self._durable} survived the crash"
            )
        self._loop.after(seconds, self._restart)

    def _restart(self) -> None:
        self.restarts += 1
        self._start()

    def pause(self, seconds: float) -> None:
        """Stop like a process under SIGSTOP: nothing runs, and what comes in waits."""
        if self.up and not self.paused:
            self.paused = True
            self._loop.after(seconds, self._resume, self.boot, seconds)

    def _resume(self, boot: int, seconds: float) -> None:
        if boot != self.boot or not self.up:
            return
        self._checker.leases.slept(seconds)
        self.paused = False
        backlog, self._backlog = self._backlog, []
        for event, respond in backlog:
            self._decide(event, respond)
        if self._flushing:
            self._flushed(boot)

    # -- deciding ----------------------------------------------------------------------------------------------------

    def receive(self, boot: int, event: Event, respond: Respond | None) -> None:
        """A message arrived over a connection to the process numbered `boot`."""
        if boot != self.boot or not self.up:
            return
        if self.paused:
            self._backlog.append((event, respond))
        else:
            self._decide(event, respond)

    def _decide(self, event: Event, respond: Respond | None) -> None:
        self.handled += 1
        try:
            decision = self.machine.handle(event, self._loop.now)
        except StrataError as error:
            if type(event) is RecoverRequested and not isinstance(error, Fenced | NotFound | NotRegistered):
                self._checker.leases.heard(event.job, event.worker)  # who has to wait is heard of all the same
            self._show(respond, error)
            return
        if isinstance(event, HeartbeatReceived | RegisterRequested | RecoverRequested):
            self._checker.leases.heard(event.job, event.worker)
        if decision.records:
            self._checker.decided(self.machine, event, decision.records)
            self._pending.extend(decision.records)
            if not self._flushing:
                self._flush()
        for effect in decision.effects:
            if type(effect) is Reply:
                self._show(respond, effect.answer)
            else:
                self._when_durable(self._carry_out, effect)

    def _show(self, respond: Respond | None, answer: Answer | StrataError) -> None:
        if respond is not None:
            self._when_durable(respond, answer)

    def _when_durable(self, act: Callable[[Any], None], what: Any) -> None:
        index = self.machine.index
        if index <= self._durable:
            self._shown = index
            act(what)
        else:
            self._outbox.append((index, act, what))

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, ReleaseBarrier | BreakBarrier):
            for worker in effect.arrivals:
                self._push(worker, effect)
        elif isinstance(effect, AbandonAttempt | AnnounceCommit):
            for worker in effect.workers:
                self._push(worker, effect)

    def _sweep(self, boot: int) -> None:
        if boot != self.boot:
            return
        if self.up and not self.paused:
            self._decide(SweepDue(), None)
        self._loop.after(self._policy.sweep_seconds, self._sweep, boot)

    # -- the journal -------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Group commit: all that is pending goes to the disk together, and takes its time."""
        self._flushing = len(self._pending)
        self._loop.after(0.0003 + 0.0015 * self._rng.random(), self._flushed, self.boot)

    def _flushed(self, boot: int) -> None:
        if boot != self.boot or not self.up or self.paused or not self._flushing:
            return
        self._make_durable(self._flushing)
        self._flushing = 0
        while self._outbox and self._outbox[0][0] <= self._durable:
            self._shown, act, what = self._outbox.popleft()
            act(what)
        if self._pending:
            self._flush()

    def _make_durable(self, count: int) -> None:
        batch, self._pending = self._pending[:count], self._pending[count:]
        for record in batch:
            self._journal.append(codec.encode_record(record))
            self._checker.before(record)
            self._standby.apply(record)
            self._durable += 1
            self._checker.after(record)
        if len(self._journal) >= SNAPSHOT_EVERY + self._standby.index // 4:
            self._snapshot, self._journal = self._standby.snapshot(), []

    def check_in_full(self) -> None:
        """The standby that was fed the journal is where the live machine is, and leases are kept."""
        if self.up and not self.paused and not self._pending:
            self._checker.leases.check_in_full()
        if self.up and not self._pending and self.machine.snapshot() != self._standby.snapshot():
            raise Violation("replay", "the standby fed with the journal differs from the live machine")

    def digest(self) -> str:
        """A name for the durable state."""
        return self._standby.digest()
