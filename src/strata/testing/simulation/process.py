"""A simulated worker process: it registers, keeps its lease, calls until it is answered, and dies when told to.

What a real worker must do to be safe, this one does: the same request on every retry, one number for each barrier it
waits at, and no work beyond the lease it knows to have, counted from when it *sent* the heartbeat that renewed it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from strata.core.effects import (
    Alive,
    BarrierVerdict,
    BreakBarrier,
    Effect,
    Errand,
    Registered,
    ReleaseBarrier,
    Waiting,
)
from strata.core.events import (
    BarrierArrived,
    DeregisterRequested,
    Event,
    FilesRemoved,
    HeartbeatReceived,
    ManifestPut,
    ManifestRemoved,
    RegisterRequested,
)
from strata.errors import Expired, Fenced, NotRegistered, StaleGeneration, StrataError, Superseded

if TYPE_CHECKING:
    from strata.testing.simulation.run import Simulation

RETRY_SECONDS = 1.5
ARRIVE_AGAIN_SECONDS = 4.0
BARRIER_TIMEOUT_SECONDS = 30.0

Then = Callable[[Any], None]


class Process:
    """One process under a worker's name. Subclasses train."""

    job: str
    rank_wanted: int | None = None
    world_size: int | None = None

    def __init__(self, sim: Simulation, worker: str, nonce: str) -> None:
        self.sim, self.worker, self.nonce = sim, worker, nonce
        self.alive = True
        self.hung = False
        self.phase = "initializing"
        self.incarnation = 0
        self.rank = -1
        self.generation = -1
        self.lease_until = 0.0
        self.leaving = False
        self.arrival = 0
        self.settled = 0
        self._previous: int | None = None
        self._rejoins = 0
        self._flow = 0
        self._calls = 0
        self._waiting: dict[int, tuple[Event, Then, int | None, float]] = {}
        self._retrying = False
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._errands: set[tuple[str, int]] = set()
        self._at_barrier: tuple[str, int, Then] | None = None

    # -- running -----------------------------------------------------------------------------------------------------

    def after(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        """A timer of this process: it does not fire when dead, and late when hung."""
        self.sim.loop.after(seconds, self.run, call, args)

    def run(self, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        """Do it now if the process runs, when it wakes if it hangs, never if it is dead."""
        if not self.alive:
            return
        if self.hung:
            self._backlog.append((call, args))
        else:
            call(*args)

    def in_flow(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        """A timer that is void once the process took another turn, such as a recovery."""
        self.after(seconds, self._if_flow, self._flow, call, args)

    def _if_flow(self, flow: int, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        if flow == self._flow:
            call(*args)

    def turn(self, phase: str) -> None:
        """Drop what this process was waiting for, and do something else."""
        self._flow += 1
        self.phase = phase
        self._give_up_barrier()

    def hang(self, seconds: float) -> None:
        if self.alive and not self.hung:
            self.hung = True
            self.sim.loop.after(seconds, self._wake)

    def _wake(self) -> None:
        self.hung = False
        backlog, self._backlog = self._backlog, []
        for call, args in backlog:
            self.run(call, args)

    def kill(self) -> None:
        self.alive = False

    @property
    def has_lease(self) -> bool:
        return self.sim.loop.now < self.lease_until

    # -- calls -------------------------------------------------------------------------------------------------------

    def call(self, event: Event, then: Then, *, flow: bool = True) -> None:
        """Send the event until it is answered; `then` gets the answer or error; with `flow`, unless turned since."""
        self._calls += 1
        self._waiting[self._calls] = (event, then, self._flow if flow else None, self.sim.loop.now)
        self._transmit(event, self._calls)
        if not self._retrying:
            self._retrying = True
            self.after(RETRY_SECONDS, self._retry)

    def _retry(self) -> None:
        """Send again what has waited for a while, except heartbeats, which go stale, and what nobody waits for now."""
        for number, (event, _, flow, since) in list(self._waiting.items()):
            if type(event) is HeartbeatReceived or flow not in (None, self._flow):
                del self._waiting[number]
            elif since < self.sim.loop.now - RETRY_SECONDS / 2:
                self._transmit(event, number)
        self._retrying = bool(self._waiting)
        if self._retrying:
            self.after(RETRY_SECONDS, self._retry)

    def _transmit(self, event: Event, number: int) -> None:
        host = self.sim.host

        def respond(answer: Any) -> None:
            self.sim.network.send(self.worker, self.run, self._answered, (number, answer))

        self.sim.network.send(self.worker, host.receive, host.boot, event, respond)

    def _answered(self, number: int, answer: Any) -> None:
        entry = self._waiting.pop(number, None)
        if entry is None or (entry[2] is not None and entry[2] != self._flow):
            return
        if isinstance(answer, Fenced) and not self._is_mine(entry[0]):
            return  # it is about an incarnation that this process itself has left behind
        if isinstance(answer, StrataError) and self._is_fenced_by(answer):
            return
        entry[1](answer)

    def _is_mine(self, event: Event) -> bool:
        if isinstance(event, RegisterRequested):
            return event.nonce == self.nonce
        return getattr(event, "incarnation", self.incarnation) == self.incarnation

    def _is_fenced_by(self, error: StrataError) -> bool:
        if isinstance(error, Superseded):
            self.sim.note(self.worker, "superseded: stops")
            self.kill()
            return True
        if isinstance(error, Expired | NotRegistered):
            self.rejoin()
            return True
        return False

    # -- membership --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.turn("initializing")
        event = RegisterRequested(self.job, self.worker, self.nonce, self.rank_wanted, self.world_size, self._previous)
        sent = self.sim.loop.now
        self.call(event, lambda answer: self._registered(answer, sent))

    def rejoin(self) -> None:
        """Fenced, but not replaced: come back as a new incarnation."""
        self.sim.note(self.worker, f"incarnation {self.incarnation} is out: registers again")
        self._previous = self.incarnation or self._previous
        self._rejoins += 1
        self.nonce = f"{self.nonce.split('.')[0]}.{self._rejoins}"
        self.incarnation, self.lease_until = 0, 0.0
        self._errands.clear()
        self.forget()
        if self.leaving:
            self.kill()
        else:
            self.start()

    def forget(self) -> None:
        """Drop what only held for the incarnation that is over."""

    def _registered(self, answer: Registered | StrataError, sent: float) -> None:
        if isinstance(answer, StrataError):
            self.in_flow(1.0, self.start)
            return
        fresh = self.incarnation != answer.incarnation
        self.incarnation, self.rank = answer.incarnation, answer.rank
        self.arrival = self.settled = 0
        self.lease_until = sent + answer.lease_seconds
        if fresh:
            self.after(self.sim.rng.random() * answer.heartbeat_seconds, self._beat, self.incarnation)
        self.begin()

    def begin(self) -> None:
        """Registered: what now?"""
        raise NotImplementedError

    def _beat(self, incarnation: int) -> None:
        if incarnation != self.incarnation:
            return
        sent = self.sim.loop.now
        self._calls += 1
        event = HeartbeatReceived(self.job, self.worker, self.incarnation, self.phase)
        self._waiting[self._calls] = (event, lambda answer: self._lives(answer, sent), None, sent)
        self._transmit(event, self._calls)
        self.after(self.sim.plan.policy.heartbeat_seconds, self._beat, incarnation)

    def _lives(self, answer: Alive | StrataError, sent: float) -> None:
        if isinstance(answer, StrataError):
            return
        self.lease_until = max(self.lease_until, sent + self.sim.plan.policy.lease_seconds)
        for errand in answer.errands:
            if errand.kind == "save":
                self.save(errand.step)
            elif errand.kind != "drain":
                self.run_errand(errand)
        if answer.draining and not self.leaving:
            self.leave()
        elif answer.generation > self.generation:  # a late answer may tell of a world long gone
            self.world_changed(answer.generation)

    def save(self, step: int) -> None:
        """A save of this step waits for this process's part."""

    def world_changed(self, generation: int) -> None:
        """A heartbeat told of another generation than the one this process works in."""

    def leave(self) -> None:
        """Hand over, then go."""
        self.leaving = True
        self.turn("left")
        self.call(DeregisterRequested(self.job, self.worker, self.incarnation), lambda _: self.kill())

    # -- errands -----------------------------------------------------------------------------------------------------

    def run_errand(self, errand: Errand, then: Callable[[], None] | None = None) -> None:
        """Do what only a worker can do, then report it."""
        if (errand.kind, errand.attempt) not in self._errands:
            self._errands.add((errand.kind, errand.attempt))
            self.after(0.02 + 0.2 * self.sim.rng.random(), self._errand_done, errand, then)
        elif then is not None:
            self.in_flow(0.5, then)

    def _errand_done(self, errand: Errand, then: Callable[[], None] | None) -> None:
        kinds = {"put_manifest": ManifestPut, "remove_manifest": ManifestRemoved, "remove_files": FilesRemoved}
        if errand.kind == "put_manifest":
            parts = self.sim.store.parts.get((self.job, errand.attempt), {})
            self.sim.store.put_manifest(self.job, errand.attempt, tuple(parts[rank].digest for rank in sorted(parts)))
        elif errand.kind == "remove_manifest":
            self.sim.checker.commits.manifest_removed(self.job, errand.attempt)

        def reported(_: Any) -> None:
            self._errands.discard((errand.kind, errand.attempt))
            if then is not None:
                then()

        event = kinds[errand.kind](self.job, self.worker, self.incarnation, errand.attempt)
        self.call(event, reported, flow=False)

    # -- barriers ----------------------------------------------------------------------------------------------------

    def wait_at(self, barrier: str, expected: int, generation: int | None, then: Then) -> None:
        """Arrive, and arrive again until there is a verdict; `then` gets the verdict, or the error."""
        self._give_up_barrier()
        self.arrival += 1
        self._at_barrier = (barrier, self.arrival, then)
        event = BarrierArrived(
            self.job,
            self.worker,
            self.incarnation,
            barrier,
            self.arrival,
            self.settled,
            expected,
            BARRIER_TIMEOUT_SECONDS,
            generation,
        )
        self.sim.checker.barriers.arrived(self, event)
        self._arrive(event)

    def _arrive(self, event: BarrierArrived) -> None:
        there = self._at_barrier
        if there is not None and there[1] == event.arrival and event.incarnation == self.incarnation:
            self.call(event, lambda answer: self._heard(event, answer))
            self.in_flow(ARRIVE_AGAIN_SECONDS, self._arrive, event)

    def _heard(self, event: BarrierArrived, answer: Any) -> None:
        if not isinstance(answer, Waiting):
            self._verdict(event.barrier, event.arrival, answer)

    def _verdict(self, barrier: str, arrival: int, verdict: Any) -> None:
        there = self._at_barrier
        if there is None or there[:2] != (barrier, arrival):
            return
        self._at_barrier = None
        self.settled = arrival
        if isinstance(verdict, BarrierVerdict):
            self.sim.checker.barriers.told(self, barrier, arrival, verdict)
        then = there[2]
        then(verdict)

    def _give_up_barrier(self) -> None:
        if self._at_barrier is not None:
            self.sim.checker.barriers.gave_up(self, self._at_barrier[1])
            self.settled = self._at_barrier[1]
            self._at_barrier = None

    def pushed(self, effect: Effect) -> None:
        """The coordinator said something by itself."""
        if isinstance(effect, ReleaseBarrier | BreakBarrier):
            released = isinstance(effect, ReleaseBarrier)
            verdict = BarrierVerdict(effect.barrier, effect.round, released, effect.reason)
            self._verdict(effect.barrier, effect.arrivals[self.worker], verdict)

    def stale(self, answer: Any) -> bool:
        return isinstance(answer, StaleGeneration)
