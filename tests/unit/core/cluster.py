"""A cluster for tests: the machine, a clock to set, and the journal that it wrote."""

from collections.abc import Iterable
from typing import Any

from strata.core import codec
from strata.core.effects import Effect, Registered, Reply
from strata.core.events import (
    BarrierArrived,
    CheckpointAck,
    CheckpointBeginRequested,
    CoordinatorStarted,
    DatasetRegisterRequested,
    DeregisterRequested,
    Event,
    HeartbeatReceived,
    JobConfigureRequested,
    ManifestPut,
    Position,
    RecoverRequested,
    RegisterRequested,
    SweepDue,
)
from strata.core.machine import Machine
from strata.core.records import Record
from strata.core.settings import JobSettings, Policy, Retention
from strata.core.state import Dataset, Job

JOB = "llm"


class Cluster:
    """Sends events as the shell would, and keeps what was decided."""

    def __init__(self, policy: Policy | None = None, **settings: Any) -> None:
        self.policy = policy or Policy()
        self.machine = Machine(self.policy)
        self.now = 0.0
        self.records: list[Record] = []
        self.decided: list[Record] = []
        self.effects: list[Effect] = []
        self._processes = 0
        self.send(CoordinatorStarted())
        if settings:
            self.configure(**settings)

    # -- what the machine knows

    @property
    def job(self) -> Job:
        return self.machine.state.jobs[JOB]

    @property
    def generation(self) -> int:
        return self.job.world.generation

    def dataset(self, name: str = "images") -> Dataset:
        return self.job.datasets[name]

    def effect(self, kind: type[Effect]) -> Any:
        """The one effect of this kind that the last decision had."""
        (found,) = [effect for effect in self.effects if isinstance(effect, kind)]
        return found

    def recorded(self, kind: type[Record]) -> list[Any]:
        """What the journal holds of this kind."""
        return [record for record in self.records if isinstance(record, kind)]

    # -- events

    def send(self, event: Event) -> Any:
        """The answer to the event; raises what the machine raises."""
        decision = self.machine.handle(event, self.now)
        self.decided, self.effects = decision.records, decision.effects
        self.records.extend(decision.records)
        answers = [effect.answer for effect in decision.effects if isinstance(effect, Reply)]
        assert len(answers) <= 1, "one question, one answer"
        return answers[0] if answers else None

    def configure(self, **settings: Any) -> None:
        rules = {name: settings.pop(name) for name in list(settings) if name in Retention.__struct_fields__}
        self.send(JobConfigureRequested(JOB, JobSettings(**settings, retention=Retention(**rules))))

    def register(self, worker: str, **more: Any) -> Registered:
        """A new process under this name, unless its `nonce` says that it is one seen before."""
        self._processes += 1
        more.setdefault("nonce", f"process-{self._processes}")
        answer: Registered = self.send(RegisterRequested(JOB, worker, **more))
        return answer

    def world(self, size: int) -> list[Registered]:
        """w0, w1 …: a declared world in which everybody has come."""
        return [self.register(f"w{rank}", rank=rank, world_size=size) for rank in range(size)]

    def open_world(self, size: int) -> list[Registered]:
        """w0, w1 …: as many as happen to be there."""
        return [self.register(f"w{rank}") for rank in range(size)]

    def from_worker(self, kind: type[Event], who: Registered, **more: Any) -> Any:
        return self.send(kind(job=JOB, worker=who.worker, incarnation=who.incarnation, **more))

    def heartbeat(self, who: Registered, **more: Any) -> Any:
        return self.from_worker(HeartbeatReceived, who, **more)

    def leave(self, who: Registered, **more: Any) -> Any:
        return self.from_worker(DeregisterRequested, who, **more)

    def arrive(self, who: Registered, barrier: str, *, expected: int, arrival: int = 1, **more: Any) -> Any:
        """Unless told otherwise, every earlier arrival of this worker is settled."""
        more.setdefault("settled", arrival - 1)
        return self.from_worker(BarrierArrived, who, barrier=barrier, arrival=arrival, expected=expected, **more)

    def add_dataset(self, dataset: str = "images", **more: Any) -> Any:
        """100 samples in 10 shards, read in the affinity order."""
        fields: dict[str, Any] = {"total_samples": 100, "shard_size": 10, "order": "affinity"} | more
        return self.send(DatasetRegisterRequested(JOB, dataset, **fields))

    def begin(self, who: Registered, step: int, **more: Any) -> Any:
        return self.from_worker(CheckpointBeginRequested, who, step=step, **more)

    def ack(self, who: Registered, attempt: int, **more: Any) -> Any:
        fields = {"digest": f"xxh3-128:{who.worker}-{attempt}", "part_bytes": 4096} | more
        return self.from_worker(CheckpointAck, who, attempt=attempt, **fields)

    def put(self, who: Registered, attempt: int) -> Any:
        return self.from_worker(ManifestPut, who, attempt=attempt)

    def decide(self, workers: Iterable[Registered], step: int, **begin: Any) -> int:
        """All parts of this step become durable; the manifest is still to be written."""
        workers = list(workers)
        attempt: int = self.begin(workers[0], step, **begin).attempt
        for who in workers:
            self.ack(who, attempt)
        return attempt

    def save(
        self,
        workers: Iterable[Registered],
        step: int,
        positions: dict[str, dict[str, Position]] | None = None,
        metrics: dict[str, str] | None = None,
        **begin: Any,
    ) -> int:
        """The whole way to a committed checkpoint; `positions` maps workers to what they say of each dataset."""
        workers = list(workers)
        attempt: int = self.begin(workers[0], step, **begin).attempt
        for who in workers:
            self.ack(who, attempt, positions=(positions or {}).get(who.worker, {}), metrics=metrics or {})
        self.put(workers[0], attempt)
        return attempt

    def recover(self, who: Registered, generation: int | None = None, **more: Any) -> Any:
        return self.from_worker(RecoverRequested, who, generation=generation, **more)

    # -- time

    def sweep(self, at: float | None = None) -> None:
        self.now = self.now if at is None else at
        self.send(SweepDue())

    def pass_time(self, seconds: float, alive: Iterable[Registered] = ()) -> None:
        """Sweep on time until then; those alive send their heartbeats."""
        alive, until = list(alive), self.now + seconds
        while self.now < until:
            self.now = min(self.now + self.policy.sweep_seconds, until)
            for who in alive:
                self.heartbeat(who)
            self.send(SweepDue())

    def expire(self, *lost: Registered) -> None:
        """Time passes until these are gone; everybody else is heard of."""
        names = {who.worker for who in lost}
        others = [
            Registered(m.worker, m.incarnation, m.rank, 0, 0, 0, 0.0, 0.0, "")
            for m in self.job.world.members.values()
            if not m.gone and m.worker not in names
        ]
        self.pass_time(self.policy.lease_seconds + self.policy.sweep_seconds, alive=others)

    # -- the journal

    def replay(self) -> Machine:
        """A machine rebuilt from the journal's bytes; it is the same, byte for byte."""
        rebuilt = Machine(self.policy)
        for record in self.records:
            rebuilt.apply(codec.decode_record(codec.encode_record(record)))
        assert rebuilt.digest() == self.machine.digest()
        assert rebuilt.snapshot() == self.machine.snapshot()
        return rebuilt

    def restart(self) -> None:
        """The coordinator dies and comes back with nothing but its journal."""
        self.machine = self.replay()
        self.send(CoordinatorStarted())
