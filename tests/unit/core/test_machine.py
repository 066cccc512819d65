"""The machine's promises, whatever happens: refusals change nothing, replay is exact, numbers only grow."""

import contextlib
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from strata.core import codec
from strata.core.effects import Alive, Reply
from strata.core.events import (
    AssignmentsRequested,
    BarrierArrived,
    BatchesReported,
    CheckpointAck,
    CheckpointBeginRequested,
    CoordinatorStarted,
    DamageReported,
    DatasetRegisterRequested,
    DatasetRemoveRequested,
    DeregisterRequested,
    DrainRequested,
    EpochAdvanceRequested,
    Event,
    FilesRemoved,
    HeartbeatReceived,
    JobConfigureRequested,
    ManifestPut,
    ManifestRemoved,
    PartFailed,
    PinRequested,
    Position,
    ProgressReported,
    RecoverRequested,
    RegisterRequested,
    RevocationAcknowledged,
    RollBackRequested,
    SaveRequested,
    StopRequested,
    SweepDue,
)
from strata.core.machine import Decision, Machine
from strata.core.records import Record
from strata.core.settings import JobSettings, Policy, Retention
from strata.core.state import Job
from strata.errors import InvalidInput, StrataError
from tests.unit.core.cluster import JOB, Cluster

POLICY = Policy(lease_seconds=10.0, heartbeat_seconds=2.0, attempt_seconds=30.0, gone_members_kept=3)

PICK = st.integers(0, 19)
"""Which of those that are there; the largest are something that is not there, or not any more."""

DATASETS = st.sampled_from(["images", "texts"])
GENERATIONS = st.sampled_from(["unsaid", "now", "now", "stale"])
ORDERS = {"images": "affinity", "texts": "elastic"}
ODD = st.integers(0, 15).map(lambda number: number == 15)
"""Seldom true: whether to say something that cannot be right."""


class Anything(RuleBasedStateMachine):
    """Events, sound and unsound, to one machine; and three others that must stay its equals."""

    @initialize(size=st.integers(1, 4), declared=st.booleans(), strategy=st.sampled_from(["slots-v1", "ring-v1"]))
    def start(self, size: int, declared: bool, strategy: str) -> None:
        self.machine = Machine(POLICY)
        self.twin = Machine(POLICY)
        self.follower = Machine(POLICY)
        self.restored = Machine(POLICY)
        self.records: list[Record] = []
        self.processes = 0
        self.now = 0.0
        self.grown: dict[str, int] = {}
        self.send(CoordinatorStarted())
        for dataset, order in ORDERS.items():
            self.send(DatasetRegisterRequested(JOB, dataset, 20, 5, strategy=strategy, order=order))
        for rank in range(size):
            self.register(rank, rank if declared else None, size if declared else None, None, odd=False)

    def send(self, event: Event) -> Decision:
        before = self.machine.snapshot()
        try:
            decision = self.machine.handle(event, self.now)
        except StrataError:
            assert self.machine.snapshot() == before, "an error means that nothing was changed"
            return Decision([], [])
        self.keep(decision, event)
        return decision

    def keep(self, decision: Decision, event: Event) -> None:
        replies = [effect for effect in decision.effects if isinstance(effect, Reply)]
        assert len(replies) == (not isinstance(event, CoordinatorStarted | SweepDue))
        # The twin never hears of what was refused. If a refusal had left a trace, the two would part sooner or later.
        assert self.twin.handle(event, self.now) == decision
        self.records.extend(decision.records)
        for record in decision.records:
            data = codec.encode_record(record)
            self.follower.apply(codec.decode_record(data))
            self.restored.apply(codec.decode_record(data))
        assert self.machine.index == len(self.records)

    # -- who and what

    @property
    def job(self) -> Job:
        return self.machine.state.jobs[JOB]

    def sender(self, pick: int) -> dict[str, Any]:
        """Somebody who is there; or a stranger, or a ghost."""
        there = [self.job.world.members[worker] for _, worker in sorted(self.job.world.by_rank.items())]
        if pick == 19 or not there:
            return {"job": JOB, "worker": "stranger", "incarnation": 1}
        member = there[pick % len(there)]
        return {"job": JOB, "worker": member.worker, "incarnation": member.incarnation - (pick == 18)}

    def generation(self, which: str) -> int | None:
        return {"unsaid": None, "now": self.job.world.generation, "stale": self.job.world.generation - 1}[which]

    def attempt(self, pick: int) -> int:
        known = sorted(self.job.attempts)
        return self.job.next_attempt + pick - 19 if pick > 17 or not known else known[pick % len(known)]

    def in_force(self, dataset: str, odd: bool) -> dict[str, Any]:
        data = self.job.datasets.get(dataset)
        version, epoch = (1, 0) if data is None else (data.version, data.epoch)
        return {"dataset": dataset, "version": version, "epoch": epoch - odd}

    # -- time and the coordinator itself

    @rule(seconds=st.sampled_from([0.5, 1.0, 1.0, 3.0]), sweeps=st.integers(1, 12), silent=PICK)
    def time_passes(self, seconds: float, sweeps: int, silent: int) -> None:
        """One may be silent, so that its lease runs out; the others are heard of."""
        for _ in range(sweeps):
            self.now += seconds
            quiet = self.sender(silent)["worker"]
            for worker in sorted(self.job.world.by_rank.values()):
                if worker != quiet:
                    incarnation = self.job.world.members[worker].incarnation
                    self.send(HeartbeatReceived(JOB, worker, incarnation, "training", sweeps))
            self.send(SweepDue())

    @rule()
    def the_coordinator_was_paused(self) -> None:
        self.now += 60.0
        self.send(SweepDue())

    @rule()
    def the_coordinator_dies_and_comes_back(self) -> None:
        self.machine, self.twin = (Machine.restore(self.follower.snapshot(), POLICY) for _ in range(2))
        self.send(CoordinatorStarted())

    @rule()
    def a_snapshot_is_taken(self) -> None:
        self.restored = Machine.restore(self.machine.snapshot(), POLICY)

    @rule(
        barriers=st.sampled_from(["fail", "shrink"]),
        recovery=st.sampled_from(["rollback", "carry_on"]),
        saves=st.sampled_from(["skip", "wait"]),
        keep_count=st.integers(0, 2),
        best_metric=st.sampled_from(["", "loss"]),
    )
    def configure(self, keep_count: int, best_metric: str, **choices: Any) -> None:
        retention = Retention(keep_count=keep_count, best_metric=best_metric)
        self.send(JobConfigureRequested(JOB, JobSettings(**choices, retention=retention)))

    # -- workers

    @rule(
        worker=st.integers(0, 5),
        rank=st.one_of(st.none(), st.integers(0, 5)),
        world_size=st.sampled_from([None, None, 2, 4]),
        previous=st.sampled_from([None, None, None, 0, 9]),
        odd=ODD,
    )
    def register(self, worker: int, rank: int | None, world_size: int | None, previous: int | None, odd: bool) -> None:
        """An odd one is a late repeat of a registration that was."""
        self.processes += not odd
        nonce = f"process-{self.processes // 2 if odd else self.processes}"
        self.send(RegisterRequested(JOB, f"w{worker}", nonce, rank, world_size, previous))

    @rule(who=PICK, died=st.booleans())
    def leave(self, who: int, died: bool) -> None:
        self.send(DeregisterRequested(**self.sender(who), died=died))

    @rule(who=PICK)
    def drain(self, who: int) -> None:
        self.send(DrainRequested(JOB, self.sender(who)["worker"]))

    @rule(
        who=PICK,
        barrier=st.sampled_from(["epoch", "step"]),
        arrival=st.integers(0, 5),
        unsettled=st.integers(0, 2),
        all_of_them=st.booleans(),
        timeout_seconds=st.sampled_from([None, None, 0.0, 5.0, -1.0]),
        which=GENERATIONS,
    )
    def arrive(self, who: int, arrival: int, unsettled: int, all_of_them: bool, which: str, **more: Any) -> None:
        expected = len(self.job.world.roster()) if all_of_them else 2
        settled = max(0, arrival - 1 - unsettled)
        numbers: dict[str, Any] = {"arrival": arrival, "settled": settled, "expected": expected}
        self.send(BarrierArrived(**self.sender(who), **numbers, **more, generation=self.generation(which)))

    @rule(arrival=st.integers(1, 9))
    def all_meet(self, arrival: int) -> None:
        for pick in range(len(self.job.world.by_rank)):
            self.arrive(pick, arrival, 0, True, "now", barrier="epoch", timeout_seconds=None)

    # -- data

    @rule(dataset=DATASETS, total_samples=st.sampled_from([20, 23, 0]), shard_size=st.sampled_from([5, 40]), odd=ODD)
    def register_dataset(self, dataset: str, total_samples: int, shard_size: int, odd: bool) -> None:
        order = ORDERS[dataset]
        self.send(
            DatasetRegisterRequested(
                JOB, dataset, total_samples, shard_size, order=order, replaces=self.version_of(dataset, odd)
            )
        )

    def version_of(self, dataset: str, odd: bool) -> int | None:
        data = self.job.datasets.get(dataset)
        return None if data is None or odd else data.version

    @rule(dataset=DATASETS, odd=ODD)
    def remove_dataset(self, dataset: str, odd: bool) -> None:
        self.send(DatasetRemoveRequested(JOB, dataset if odd else "nowhere"))

    @rule(dataset=DATASETS, odd=ODD, which=GENERATIONS)
    def advance(self, dataset: str, odd: bool, which: str) -> None:
        epoch = self.in_force(dataset, odd)["epoch"]
        self.send(EpochAdvanceRequested(JOB, dataset, epoch, point=self.job.points - (which == "stale")))

    @rule(who=PICK, cursor=st.integers(0, 6), odd=ODD)
    def read_on(self, who: int, cursor: int, odd: bool) -> None:
        """A worker asks what it may read, reads, and reports; an odd one reads what it was not given."""
        sender = self.sender(who)
        self.send(AssignmentsRequested(**sender, dataset="images"))
        shards = [0, 1, 2, 3] if odd else self.shards_of(sender["worker"])
        self.send(
            ProgressReported(
                **sender, **self.in_force("images", False), point=self.job.points, cursors=dict.fromkeys(shards, cursor)
            )
        )

    def shards_of(self, worker: str) -> list[int]:
        data, member = self.job.datasets.get("images"), self.job.world.members.get(worker)
        if data is None or member is None:
            return []
        owned = self.machine.volatile.ownerships.of(JOB, data, self.job.world.view).shards_of(member.rank)
        return [int(shard) for shard in owned if data.held.get(int(shard), worker) == worker]

    @rule(who=PICK, odd=ODD, through=st.integers(-1, 23))
    def report_batches(self, who: int, odd: bool, through: int) -> None:
        generation = self.generation("stale" if odd else "now")
        fields = self.in_force("texts", odd) | {"generation": generation, "point": self.job.points, "through": through}
        self.send(BatchesReported(**self.sender(who), **fields))

    @rule(who=PICK, odd=ODD, cursor=st.integers(0, 5))
    def give_up_shards(self, who: int, odd: bool, cursor: int) -> None:
        sender = self.sender(who)
        data = self.job.datasets.get("images")
        held = {} if data is None else data.held
        mine = [shard for shard, holder in sorted(held.items()) if holder == sender["worker"]]
        cursors = dict.fromkeys([*mine, 3] if odd else mine, cursor)
        self.send(
            RevocationAcknowledged(
                **sender,
                **self.in_force("images", odd),
                point=self.job.points,
                generation=self.job.world.generation,
                shards=mine,
                cursors=cursors,
            )
        )

    # -- checkpoints

    @rule(who=PICK, ahead=st.integers(-1, 2), which=GENERATIONS, reference=PICK)
    def begin(self, who: int, ahead: int, which: str, reference: int) -> None:
        step = max([attempt.step for attempt in self.job.attempts.values()], default=0) + ahead
        references = [self.attempt(reference)] if reference < 5 else []
        fields: dict[str, Any] = {"step": step, "generation": self.generation(which), "references": references}
        self.send(CheckpointBeginRequested(**self.sender(who), **fields))

    @rule(
        who=PICK,
        pick=PICK,
        digest=st.sampled_from(["aa", "aa", "bb", ""]),
        consumed=st.sampled_from([[], [0, 5], [5, 10, 15, 20], [0, 20], [5], [0, 99]]),
        loss=st.sampled_from(["0.5", "0.25", "nan", "low"]),
    )
    def ack(self, who: int, pick: int, digest: str, consumed: list[int], loss: str) -> None:
        said = self.in_force("images", False)
        positions = {"images": Position(said["version"], said["epoch"], consumed)} if consumed else {}
        fields: dict[str, Any] = {"digest": digest, "part_bytes": 1, "positions": positions, "metrics": {"loss": loss}}
        self.send(CheckpointAck(**self.sender(who), attempt=self.attempt(pick), **fields))

    @rule(ahead=st.integers(1, 2), missing=ODD, put=st.booleans())
    def all_save(self, ahead: int, missing: bool, put: bool) -> None:
        self.begin(0, ahead, "now", reference=10)
        number, there = self.job.next_attempt - 1, len(self.job.world.by_rank)
        for pick in range(there - missing):
            self.send(CheckpointAck(**self.sender(pick), attempt=number, digest="aa", part_bytes=1))
        if put:
            self.send(ManifestPut(**self.sender(0), attempt=number))

    @rule(who=PICK, pick=PICK, kind=st.sampled_from([ManifestPut, ManifestRemoved, FilesRemoved]))
    def do_an_errand(self, who: int, pick: int, kind: type[Event]) -> None:
        self.send(kind(**self.sender(who), attempt=self.attempt(pick)))

    @rule()
    def all_do_their_errands(self) -> None:
        """Ten sweeps later what was two leases away has come, too."""
        kinds = {"put_manifest": ManifestPut, "remove_manifest": ManifestRemoved, "remove_files": FilesRemoved}
        self.time_passes(1.0, 10, silent=19)
        for pick in range(len(self.job.world.by_rank)):
            (reply,) = self.send(HeartbeatReceived(**self.sender(pick))).effects
            assert isinstance(reply, Reply)
            assert isinstance(reply.answer, Alive)
            for errand in reply.answer.errands:
                if errand.kind in kinds:
                    self.send(kinds[errand.kind](**self.sender(pick), attempt=errand.attempt))

    @rule(who=PICK, pick=PICK, kind=st.sampled_from([PartFailed, DamageReported]))
    def find_a_fault(self, who: int, pick: int, kind: type[Event]) -> None:
        self.send(kind(**self.sender(who), attempt=self.attempt(pick), reason="disk full"))

    @rule(pick=PICK, name=st.sampled_from(["paper", "demo", "a/b"]), pinned=st.booleans())
    def pin(self, pick: int, name: str, pinned: bool) -> None:
        self.send(PinRequested(JOB, self.attempt(pick), name, pinned))

    @rule(who=PICK, which=GENERATIONS)
    def recover(self, who: int, which: str) -> None:
        self.send(RecoverRequested(**self.sender(who), generation=self.generation(which)))

    @rule(pick=PICK, odd=ODD)
    def roll_back(self, pick: int, odd: bool) -> None:
        known = self.job.attempts.get(self.attempt(pick))
        generation = self.generation("stale" if odd else "now")
        self.send(RollBackRequested(JOB, 7 if known is None else known.step, generation or 0))

    @rule()
    def another_job_goes_on_beside(self) -> None:
        self.processes += 1
        self.send(RegisterRequested("other", "w0", f"process-{self.processes}"))

    # -- what must hold

    @property
    def jobs(self) -> list[Job]:
        return list(self.machine.state.jobs.values())

    @invariant()
    def all_machines_are_equal_byte_for_byte(self) -> None:
        snapshot = self.machine.snapshot()
        assert self.follower.snapshot() == snapshot, "replaying the journal gives another state"
        assert self.restored.snapshot() == snapshot, "a snapshot and the rest of the journal give another state"
        assert self.twin.snapshot() == snapshot, "the same events gave another state"

    @invariant()
    def what_only_grows_only_grows(self) -> None:
        state = self.machine.state
        now = {"term": state.term, "index": state.index}
        for job in self.jobs:
            world = job.world
            now |= {f"{job.job} generation": world.generation, f"{job.job} incarnation": world.next_incarnation}
            now |= {f"{job.job} attempt": job.next_attempt, f"{job.job} round": job.next_round}
            now |= {f"{job.job} {worker}": member.incarnation for worker, member in world.members.items()}
            now |= {f"{job.job} version of {name}": version for name, version in job.dataset_versions.items()}
        for name, number in now.items():
            assert number >= self.grown.get(name, 0), name
        self.grown |= now

    @invariant()
    def each_rank_has_one_live_worker(self) -> None:
        for job in self.jobs:
            there = {member.worker: member.rank for member in job.world.members.values() if not member.gone}
            assert {worker: rank for rank, worker in job.world.by_rank.items()} == there
            live = {member.rank for member in job.world.members.values() if member.status == "live"}
            assert live <= job.world.view.slots.keys()
            assert (set(there.values()) - live).isdisjoint(job.world.view.slots)
            assert job.world.roster() == sorted(job.world.view.slots.keys() | job.world.by_rank.keys())
            assert job.world.size == len(job.world.roster())

    @invariant()
    def only_live_workers_hold_shards(self) -> None:
        for job in self.jobs:
            for dataset in job.datasets.values():
                assert set(dataset.held.values()) <= set(job.world.by_rank.values())
                assert {shard: who for who, shards in dataset.owing.items() for shard in shards} == dataset.held

    @invariant()
    def the_ledger_adds_up(self) -> None:
        for job in self.jobs:
            for dataset in job.datasets.values():
                consumed = dataset.departed
                for own in dataset.own.values():
                    consumed = consumed.union(own)
                assert dataset.consumed == consumed
                assert dataset.own.keys() <= set(job.world.by_rank.values())
                assert dataset.consumed.count < dataset.total_samples, "a consumed epoch is over"

    @invariant()
    def nothing_is_committed_with_a_part_missing(self) -> None:
        for job in self.jobs:
            for attempt in job.attempts.values():
                assert (attempt.status == "open") == bool(attempt.absent())

    @invariant()
    def no_two_checkpoints_share_a_place(self) -> None:
        for job in self.jobs:
            places = [(attempt.lineage, attempt.step) for attempt in job.attempts.values()]
            assert len(places) == len(set(places))

    @invariant()
    def the_recovery_point_can_be_loaded(self) -> None:
        for job in self.jobs:
            if job.point is not None and job.point.attempt and job.point.generation == job.world.generation:
                assert job.attempts[job.point.attempt].usable

    def teardown(self) -> None:
        with contextlib.suppress(AttributeError):  # nothing was started
            rebuilt = Machine()
            for record in self.records:
                rebuilt.apply(codec.decode_record(codec.encode_record(record)))
            assert rebuilt.digest() == self.machine.digest()


TestAnything = Anything.TestCase
TestAnything.settings = settings(max_examples=60, stateful_step_count=50)


# -- by hand ---------------------------------------------------------------------------------------------------------


def test_a_fresh_machine_has_decided_nothing() -> None:
    machine = Machine()
    assert (machine.index, machine.state.term, machine.state.jobs) == (0, 0, {})
    assert Machine.restore(machine.snapshot()).digest() == machine.digest()


def test_every_start_of_the_coordinator_is_a_term() -> None:
    cluster = Cluster()
    for term in (1, 2, 3):
        assert cluster.machine.state.term == term
        cluster.restart()


def test_the_index_counts_the_records() -> None:
    cluster = Cluster()
    cluster.world(3)
    assert cluster.machine.index == len(cluster.records)


def test_a_replay_reads_no_policy() -> None:
    cluster = Cluster(Policy(lease_seconds=10.0, gone_members_kept=1))
    for number in range(5):
        cluster.expire(cluster.register(f"w{number}"))
    patient = Machine(Policy(lease_seconds=1e6, gone_members_kept=1000))
    for record in cluster.records:
        patient.apply(record)
    assert patient.digest() == cluster.machine.digest()


def test_a_restored_view_lists_its_ranks_in_order() -> None:
    cluster = Cluster()
    cluster.world(12)
    restored = Machine.restore(cluster.machine.snapshot())
    view = restored.state.jobs[JOB].world.view
    assert view.ranks == tuple(range(12))
    assert [view.position(rank) for rank in range(12)] == list(range(12))


def test_equal_states_have_equal_digests_and_others_have_not() -> None:
    ones, others = Cluster(), Cluster()
    for cluster in (ones, others):
        cluster.world(2)
    assert ones.machine.digest() == others.machine.digest()
    others.register("w1", rank=1, world_size=2)
    assert ones.machine.digest() != others.machine.digest()


def test_what_is_no_event_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Event is not an event"):
        Machine().handle(Event(), 0.0)


# -- the short way for heartbeats --------------------------------------------------------------------------------------


@given(st.integers(0, 2**32))
def test_the_short_way_for_a_heartbeat_leads_where_the_long_one_does(seed: int) -> None:
    """Or it says that it does not know the way."""
    random = Random(seed)
    one, other = _busy(seed), _busy(seed)
    for _ in range(20):
        now = one.now + random.random() * 10
        event = HeartbeatReceived(
            JOB,
            f"w{random.randrange(5)}",
            random.randrange(1, 7),
            random.choice(["", "training", "idle"]),
            random.randrange(-1, 50),
            random.randrange(-1, 3),
            resources=random.choice([{}, {}, {"gpu": 0.5}]),
            vouched=random.random() < 0.3,
        )
        generation = one.machine.renew_lease(event, now)
        if generation is None:
            with suppress(StrataError):
                one.machine.handle(event, now)
            with suppress(StrataError):
                other.machine.handle(event, now)
            continue
        decision = other.machine.handle(event, now)
        assert decision.records == []
        assert decision.effects == [Reply(Alive(generation))]
        assert one.machine.volatile.jobs[JOB].leases == other.machine.volatile.jobs[JOB].leases
        assert one.machine.volatile.jobs[JOB].vitals == other.machine.volatile.jobs[JOB].vitals
    assert one.machine.digest() == other.machine.digest()


def _busy(seed: int) -> Cluster:
    """A job in any of the situations that a heartbeat may meet."""
    random = Random(seed)
    cluster = Cluster()
    workers = cluster.open_world(4)
    for step, happens in enumerate(random.sample(["save", "ask", "stop", "drain", "leave", "replace", ""], 3)):
        if happens == "save":
            cluster.begin(workers[0], step=step)
        elif happens == "ask":
            cluster.send(SaveRequested(JOB))
        elif happens == "stop":
            cluster.send(StopRequested(JOB))
        elif happens == "drain":
            cluster.send(DrainRequested(JOB, "w1"))
        elif happens == "leave":
            cluster.leave(workers[2])
        elif happens == "replace":
            cluster.register("w3")
    return cluster
