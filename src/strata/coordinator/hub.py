"""The hub: one machine, one journal, and everybody who waits for the two.

    ask(event) ──▶ decided at once ──▶ its records gather for the next commit
    answers, refusals, releases, the log ──▶ wait until the journal holds what they were computed from

The law: durable before seen. Nothing leaves the hub, not even a refusal, before every record that it may rest on is on
the disk. When the journal fails, the hub is over: whoever waits is told so, and nobody is served any more.

A callback that raises is logged, and the next one is called: the journal goes on, and so does everybody else.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from strata.coordinator.groupcommit import Commits, Durable, Failed, GroupCommit
from strata.coordinator.journal import Journal, JournalError
from strata.coordinator.replay import Entry, replayed
from strata.core.effects import Answer, BreakBarrier, DismissArrival, ReleaseBarrier, Reply
from strata.core.events import BarrierArrived, CoordinatorStarted, Event, HeartbeatReceived, SweepDue
from strata.core.machine import Decision
from strata.core.records import Record
from strata.core.settings import Policy
from strata.errors import StrataError
from strata.logs import get_logger
from strata.rpc import Later, RpcError, Status

logger = get_logger("strata.coordinator")

SNAPSHOT_BYTES = 8 << 20
"""Of records since the last snapshot, at least, before the next one; and four times as many as that one took."""

Verdict: TypeAlias = ReleaseBarrier | BreakBarrier
Outcome: TypeAlias = Verdict | DismissArrival
Say: TypeAlias = Callable[[RpcError | None], None]
"""Carries out what was owed; given an error, tells that instead."""


class Hub:
    """Made within a running loop. `start` comes first and `stop` last.

    `tell_verdict` makes of a verdict what all who wait for it are answered, or the error they get.
    """

    def __init__(
        self,
        journal: Journal,
        policy: Policy | None = None,
        *,
        tell_verdict: Callable[[Outcome], Any],
        clock: Callable[[], float] = time.monotonic,
        snapshot_after_bytes: int = SNAPSHOT_BYTES,
        commits: Callable[[Journal, int, Durable, Failed], Commits] = GroupCommit,
    ) -> None:
        self.journal = journal
        self.clock = clock
        found = replayed(journal, policy)
        self.machine = found.machine
        self.records_replayed = found.fed
        self.history = found.history
        self.durable = self.machine.index
        self.failure: asyncio.Future[JournalError] = asyncio.get_running_loop().create_future()
        self.watchers: set[Callable[[list[Entry]], None]] = set()
        self.verdict_watchers: set[Callable[[Verdict, float], None]] = set()
        self._tell_verdict = tell_verdict
        self._commit = commits(journal, self.machine.index, self._on_durable, self._on_failure)
        self._owed: deque[tuple[int, Say]] = deque()
        self._unseen: deque[Entry] = deque()
        self._waits: dict[tuple[str, str, int], list[Later]] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._journal_bytes, self._snapshot_bytes = found.fed_bytes, found.snapshot_bytes
        self._snapshot_after_bytes = snapshot_after_bytes
        self._closed = ""

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin a new term, durable before anybody is served."""
        self._take(self.machine.handle(CoordinatorStarted(), self.clock()))
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owe(lambda failure: ready.set_result(None))
        await ready
        if self.failure.done():
            raise self.failure.result()
        self._sweep_later()

    async def stop(self) -> None:
        """Once everything that was decided is durable. Those who wait at barriers come again when it is back."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        self.release_waits()
        await self._commit.close()
        self.journal.close()

    def release_waits(self) -> None:
        """Take no more questions, and keep nobody waiting at a barrier."""
        self._close("the coordinator is shutting down; ask again when it is back")

    def _close(self, why: str) -> None:
        self._closed = self._closed or why
        self.wake_watchers()
        waits, self._waits = self._waits, {}
        for later in (each for several in waits.values() for each in several):
            _call(later.fail, self._refusal())

    @property
    def is_closed(self) -> bool:
        """Whether nobody is served any more."""
        return bool(self._closed)

    def _refusal(self) -> RpcError:
        """Made anew for each: an error that is raised twice keeps the traces of both."""
        return RpcError(Status.UNAVAILABLE, self._closed)

    # -- questions ---------------------------------------------------------------------------------------------------

    def ask(self, event: Event, *, trusted: bool = False) -> Answer | None:
        """Decide about the event; raises what the machine raises.

        What it led to is not durable yet: whatever is made of it must pass through `answer` or `refuse`. The fields of
        a `trusted` event are known to hold what they are declared to hold.
        """
        if self._closed:
            raise self._refusal()
        return self._take(self._decided(event, trusted=trusted))

    def _decided(self, event: Event, *, trusted: bool) -> Decision:
        """A rule that fails in the middle leaves a state that no journal leads to: nothing may be told of it."""
        index = self.machine.state.index
        try:
            return (self.machine.decide if trusted else self.machine.handle)(event, self.clock())
        except StrataError:
            if self.machine.state.index != index:
                self._on_failure(JournalError(f"a rule refused {type(event).__name__} after it had decided: a defect"))
            raise
        except Exception as error:
            logger.exception("a rule failed on %s", type(event).__name__)
            self._on_failure(JournalError(f"a rule failed on {type(event).__name__}: {error!r}. This is a defect"))
            raise self._refusal() from error

    def renew_lease(self, event: HeartbeatReceived) -> int | None:
        """For the usual heartbeat: the generation; None for one that has to be asked about. Trusts the event."""
        if self._closed:
            raise self._refusal()
        return self.machine.renew_lease(event, self.clock())

    def answer(self, response: Any) -> Any:
        """The response itself if all that it may rest on is durable, else a Later with it."""
        if self.durable == self.machine.state.index:
            return response
        self._check_alive()
        later = Later()
        self._owe(lambda failure: later.answer(response) if failure is None else later.fail(failure))
        return later

    def refuse(self, error: Exception) -> Later:
        """The same for an error."""
        if self.durable == self.machine.state.index:
            raise error
        self._check_alive()
        later = Later()
        self._owe(lambda failure: later.fail(failure or error))
        return later

    def _check_alive(self) -> None:
        """Nothing becomes durable any more once the journal failed."""
        if self.failure.done():
            raise self._refusal()

    def when_durable(self, say: Say) -> None:
        """Once everything decided so far is: at once, where it is already."""
        if self.durable == self.machine.state.index:
            say(None)
        elif self.failure.done():
            say(self._refusal())
        else:
            self._owe(say)

    async def settled(self) -> None:
        """Wait until everything decided so far is durable."""
        await self.answer(None) if self.durable != self.machine.state.index else None

    def join_barrier(self, event: BarrierArrived) -> Later | None:
        """For the usual arrival, which now waits with the others: its answer. None: it has to be asked about."""
        if self._closed:
            raise self._refusal()
        if not self.machine.join_barrier(event, self.clock()):
            return None
        return self.wait_at_barrier(event.job, event.worker, event.arrival)

    def wait_at_barrier(self, job: str, worker: str, arrival: int) -> Later:
        """What the verdict on this arrival will answer, to every try of the same one."""
        later = Later()
        tries = self._waits.setdefault((job, worker, arrival), [later])
        if tries[-1] is not later:
            tries[:] = [*(each for each in tries if not each.given_up), later]
        return later

    @property
    def waiting(self) -> int:
        """How many arrivals at barriers have no verdict yet."""
        return len(self._waits)

    # -- decisions ---------------------------------------------------------------------------------------------------

    def _take(self, decision: Decision) -> Answer | None:
        records, effects = decision
        if records:
            self._record(records)
        answer: Answer | None = None
        for effect in effects:
            if type(effect) is Reply:
                answer = effect.answer
            elif isinstance(effect, ReleaseBarrier | BreakBarrier):
                self._carry_out_later(effect)
            elif isinstance(effect, DismissArrival):
                self._dismiss_later(effect)
        return answer

    def _record(self, records: list[Record]) -> None:
        state = self.machine.state
        first, when = state.index - len(records), time.time()
        self._unseen.extend(Entry(index, state.term, when, record) for index, record in enumerate(records, first))
        self._commit.add(records, state.term)
        if self._journal_bytes > max(self._snapshot_after_bytes, 4 * self._snapshot_bytes):
            snapshot = self.machine.snapshot()
            self._journal_bytes, self._snapshot_bytes = 0, len(snapshot)
            self._commit.add_snapshot(state.index, snapshot)

    def _carry_out_later(self, verdict: Verdict) -> None:
        decided = self.clock()
        self._owe(lambda failure: None if failure else self._carry_out(verdict, decided))

    def _carry_out(self, verdict: Verdict, decided: float) -> None:
        outcome = self._outcome(verdict)
        failed = isinstance(outcome, Exception)
        job, take = verdict.job, self._waits.pop
        for worker, arrival in verdict.arrivals.items():
            for later in take((job, worker, arrival), ()):
                _call(later.fail if failed else later.answer, outcome)
        for watcher in list(self.verdict_watchers):
            _call(watcher, verdict, self.clock() - decided)

    def _outcome(self, decided: Outcome) -> Any:
        """The answer or error for everyone who waits; an error, too, where the outcome cannot be put in words."""
        try:
            return self._tell_verdict(decided)
        except Exception:
            logger.exception("cannot tell %s", decided)
            return RpcError(Status.INTERNAL, "the coordinator decided, but could not send its answer: see its log")

    def _dismiss_later(self, dismissed: DismissArrival) -> None:
        self._owe(lambda failure: None if failure else self._dismiss(dismissed))

    def _dismiss(self, dismissed: DismissArrival) -> None:
        for later in self._waits.pop((dismissed.job, dismissed.worker, dismissed.arrival), ()):
            _call(later.fail, self._outcome(dismissed))

    # -- durability --------------------------------------------------------------------------------------------------

    def _owe(self, say: Say) -> None:
        self._owed.append((self.machine.state.index, say))

    def _on_durable(self, index: int, size: int) -> None:
        self.durable = index
        self._journal_bytes += size
        owed = self._owed
        while owed and owed[0][0] <= index:
            _call(owed.popleft()[1], None)
        seen: list[Entry] = []
        while self._unseen and self._unseen[0].index < index:
            seen.append(self._unseen.popleft())
        self.history.extend(seen)
        self._tell_watchers(seen)

    def wake_watchers(self) -> None:
        """Let everybody who watches look up: who may watch has changed, or it is over."""
        self._tell_watchers([])

    def _tell_watchers(self, entries: list[Entry]) -> None:
        for watcher in list(self.watchers):
            _call(watcher, entries)

    def _on_failure(self, error: JournalError) -> None:
        if not self.failure.done():
            self.failure.set_result(error)
        self._close("the coordinator stops: its journal cannot be written")
        while self._owed:
            _call(self._owed.popleft()[1], self._refusal())

    # -- the sweep ---------------------------------------------------------------------------------------------------

    def _sweep_later(self) -> None:
        seconds = self.machine.policy.sweep_seconds
        self._sweeping = asyncio.get_running_loop().call_later(seconds, self._sweep)

    def _sweep(self) -> None:
        if not self._closed:
            try:
                self._take(self._decided(SweepDue(), trusted=True))
            except StrataError:
                logger.exception("the sweep was refused")
            self._sweep_later()


def _call(callback: Callable[..., object], *about: object) -> None:
    try:
        callback(*about)
    except Exception:
        logger.exception("a callback of the coordinator failed: %r", callback)
