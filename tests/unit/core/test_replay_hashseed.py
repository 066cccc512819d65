"""The same events give the same journal and the same state, byte for byte, under every PYTHONHASHSEED."""

import os
import subprocess
import sys
from functools import cache

import msgspec
import pytest

from strata.core import codec
from strata.core.effects import Registered
from strata.core.events import (
    AssignmentsRequested,
    BatchesReported,
    DamageReported,
    DatasetRemoveRequested,
    DrainRequested,
    EpochAdvanceRequested,
    FilesRemoved,
    Found,
    ManifestRemoved,
    PartFailed,
    PinRequested,
    Position,
    ProgressReported,
    RegisterRequested,
    RevocationAcknowledged,
    RollBackRequested,
    SaveRequested,
    StopRequested,
    SweepDue,
)
from strata.core.machine import Machine
from strata.core.records import HistoryLost, every_record
from strata.core.settings import Policy
from tests.unit.core.cluster import JOB, Cluster

SEEDS = ("0", "1", "4242")


def scenario() -> Cluster:
    """A busy day: every kind of record is written, most of them more than once."""
    cluster = Cluster(Policy(gone_members_kept=2), keep_count=2, best_metric="loss", recovery="carry_on")
    cluster.add_dataset("images", strategy="slots-v1", total_samples=1000, seed=7)
    cluster.add_dataset("audio", strategy="ring-v1", total_samples=999, shuffle=True)
    cluster.add_dataset("texts", order="elastic")
    workers = [cluster.register(f"node-{name}", metadata={"zone": name, "pool": "a"}) for name in ["delta", "alpha"]]
    cluster.recover(workers[0])
    _share_data(cluster, workers)
    _meet(cluster, workers)
    _save(cluster, workers)
    _come_and_go(cluster)
    return cluster


def _share_data(cluster: Cluster, workers: list[Registered]) -> None:
    first, second = workers
    for dataset in ("images", "audio"):
        granted = cluster.from_worker(AssignmentsRequested, first, dataset=dataset).granted
        cursors = dict.fromkeys(granted[:7], 4)
        cluster.from_worker(
            ProgressReported, first, dataset=dataset, version=1, epoch=0, point=cluster.job.points, cursors=cursors
        )
    workers.append(cluster.register("node-charlie"))
    for dataset in ("images", "audio"):
        revoked = cluster.from_worker(AssignmentsRequested, second, dataset=dataset).revoked
        fields = {
            "dataset": dataset,
            "version": 1,
            "epoch": 0,
            "point": cluster.job.points,
            "generation": cluster.generation,
            "shards": revoked,
        }
        cluster.from_worker(RevocationAcknowledged, second, **fields, cursors=dict.fromkeys(revoked[:2], 3))
    generation = cluster.generation
    fields = {"dataset": "texts", "version": 1, "epoch": 0, "generation": generation, "point": cluster.job.points}
    for who in workers:
        cluster.from_worker(BatchesReported, who, **fields, through=100)
    cluster.send(EpochAdvanceRequested(JOB, "texts", 1, asked_by="node-delta"))


def _meet(cluster: Cluster, workers: list[Registered]) -> None:
    for arrival, barrier in enumerate(["warm-up", "epoch", "warm-up"], start=1):
        for who in workers:
            cluster.arrive(who, barrier, expected=3, arrival=arrival)
    for who in workers[:2]:
        cluster.arrive(who, "epoch", expected=3, arrival=4, timeout_seconds=2.0)
    cluster.pass_time(3.0, alive=workers)


def _save(cluster: Cluster, workers: list[Registered]) -> None:
    images = {"images": Position(1, 0, [10, 14, 200, 203]), "texts": Position(1, 5, [0, 20])}
    for step, loss in [(10, "0.9"), (20, "0.3"), (30, "0.8"), (40, "0.7")]:
        positions = {"node-alpha": images, "node-delta": images}
        cluster.save(workers, step, positions=positions, metrics={"loss": loss, "accuracy": "0.5"})
        cluster.send(PinRequested(JOB, cluster.job.next_attempt - 1, "paper", pinned=step == 20))
    cluster.begin(workers[1], step=50)
    cluster.begin(workers[1], step=60)
    cluster.from_worker(PartFailed, workers[2], attempt=5, reason="disk full")
    for attempt in (1, 3):
        if cluster.job.attempts[attempt].status == "doomed":
            cluster.from_worker(ManifestRemoved, workers[0], attempt=attempt)
            cluster.pass_time(40.0, alive=workers)
            cluster.from_worker(FilesRemoved, workers[0], attempt=attempt)
    cluster.from_worker(DamageReported, workers[0], attempt=4, reason="digest differs")
    cluster.send(RollBackRequested(JOB, 20, cluster.generation))
    cluster.configure(recovery="rollback", barriers="shrink", keep_count=1)
    point = cluster.recover(workers[0])
    cluster.recover(workers[1], generation=point.generation)
    unheard = {"dataset": "texts", "version": 1, "epoch": 4, "generation": cluster.generation, "over": True}
    cluster.from_worker(BatchesReported, workers[1], **unheard, point=cluster.job.points, through=100)
    cluster.recover(workers[2], found=Found(25, 1, "elsewhere"), insist=True)
    _agree(cluster, workers)


def _agree(cluster: Cluster, workers: list[Registered]) -> None:
    """A step is agreed to, and missed by one."""
    request = cluster.send(SaveRequested(JOB, "maintenance")).request
    cluster.heartbeat(workers[0], step=70)
    for who in workers:
        cluster.heartbeat(who, step=70, promised_request=request, promised_step=71)
    for who in workers:
        cluster.heartbeat(who, step=72)
    cluster.send(SweepDue())
    for _ in range(60):
        cluster.pass_time(4.0, alive=workers)


def _come_and_go(cluster: Cluster) -> None:
    cluster.send(DrainRequested(JOB, "node-alpha", "the node goes down"))
    cluster.restart()
    for name in ["echo", "foxtrot", "golf", "hotel"]:
        cluster.leave(cluster.register(f"node-{name}"))
    cluster.register("node-delta")
    cluster.pass_time(20.0)
    for rank in (2, 0, 1):
        cluster.register(f"late-{rank}", rank=rank, world_size=3)
    cluster.send(RegisterRequested("another-job", "solo", "n"))
    cluster.send(RegisterRequested("another-job", "solo", "n", ip="10.0.0.1", metadata={"zone": "a", "pool": "b"}))
    cluster.send(StopRequested("another-job"))
    lost = HistoryLost("another-job", 1000, "restored", 1000)
    cluster.machine.apply(lost)
    cluster.records.append(lost)
    cluster.send(DatasetRemoveRequested(JOB, "audio"))


def journal(cluster: Cluster) -> list[bytes]:
    return [codec.encode_record(record) for record in cluster.records]


@cache
def under(seed: str) -> tuple[str, bytes, list[bytes]]:
    """Digest, snapshot and journal of the scenario in a process of its own."""
    program = f"from {__name__} import write; write()"
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, env=environment).stdout
    return msgspec.msgpack.decode(output, type=tuple[str, bytes, list[bytes]])


def write() -> None:
    cluster = scenario()
    told = (cluster.machine.digest(), cluster.machine.snapshot(), journal(cluster))
    sys.stdout.buffer.write(msgspec.msgpack.encode(told))


def test_the_scenario_writes_every_kind_of_record() -> None:
    assert {type(record) for record in scenario().records} == set(every_record())


def test_the_seeds_take_effect() -> None:
    program = "print(hash('strata'))"
    hashes = {
        subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, env={"PYTHONHASHSEED": seed}
        ).stdout.decode()
        for seed in SEEDS
    }
    assert len(hashes) == len(SEEDS)


@pytest.mark.parametrize("seed", SEEDS[1:])
def test_journals_are_equal_byte_for_byte(seed: str) -> None:
    assert under(seed)[2] == under(SEEDS[0])[2]


@pytest.mark.parametrize("seed", SEEDS[1:])
def test_states_are_equal_byte_for_byte(seed: str) -> None:
    assert under(seed)[:2] == under(SEEDS[0])[:2]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_journal_written_under_one_seed_is_replayed_under_another(seed: str) -> None:
    digest, snapshot, records = under(seed)
    machine = Machine()
    for data in records:
        machine.apply(codec.decode_record(data))
    assert machine.digest() == digest
    assert Machine.restore(snapshot).digest() == digest
