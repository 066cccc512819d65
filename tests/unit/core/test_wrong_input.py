"""Wrong input gets an error that says what and why, and changes nothing."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from strata.core import codec
from strata.core.events import (
    AssignmentsRequested,
    BarrierArrived,
    BatchesReported,
    CheckpointAck,
    CheckpointBeginRequested,
    CheckpointRemoved,
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
)
from strata.core.machine import RULES, Machine
from strata.core.settings import JobSettings, Policy, Retention
from strata.errors import InvalidInput, NotFound, StrataError
from tests.unit.core.cluster import JOB, Cluster

BAD_IDS = {
    "empty": "",
    "too-long": "x" * 129,
    "slash": "a/b",
    "nul": "a\0b",
    "newline": "a\n",
    "dot-first": ".hidden",
    "space": "a b",
    "not-ascii": "é",
    "none": None,
    "number": 7,
    "bytes": b"a",
}
TOO_LARGE = 2**63


def a_cluster() -> Cluster:
    """w0 and w1, two datasets, and attempt 1 under way, so that an event is refused only for what is wrong in it."""
    cluster = Cluster()
    w0, _ = cluster.open_world(2)
    cluster.add_dataset("images")
    cluster.add_dataset("texts", order="elastic")
    cluster.begin(w0, step=10)
    return cluster


SOUND: dict[type[Event], dict[str, Any]] = {
    JobConfigureRequested: {"job": JOB, "settings": JobSettings()},
    RegisterRequested: {"job": JOB, "worker": "w2", "nonce": "n", "metadata": {"zone": "b"}},
    HeartbeatReceived: {},
    DeregisterRequested: {},
    DrainRequested: {"job": JOB, "worker": "w0"},
    BarrierArrived: {"barrier": "epoch", "arrival": 1, "settled": 0, "expected": 2, "timeout_seconds": 30.0},
    DatasetRegisterRequested: {"job": JOB, "dataset": "audio", "total_samples": 100, "shard_size": 10},
    DatasetRemoveRequested: {"job": JOB, "dataset": "images"},
    EpochAdvanceRequested: {"job": JOB, "dataset": "images", "from_epoch": 0},
    AssignmentsRequested: {"dataset": "images"},
    ProgressReported: {"dataset": "images", "version": 1, "epoch": 0, "point": 0, "cursors": {0: 5}},
    BatchesReported: {"dataset": "texts", "version": 1, "epoch": 0, "generation": 2, "point": 0, "through": 32},
    RevocationAcknowledged: {
        "dataset": "images",
        "version": 1,
        "epoch": 0,
        "point": 0,
        "generation": 9,
        "shards": [0],
        "cursors": {0: 5},
    },
    CheckpointBeginRequested: {"step": 10},
    CheckpointAck: {
        "attempt": 1,
        "digest": "xxh3-128:aa",
        "part_bytes": 4096,
        "positions": {"images": Position(1, 0, [0, 5])},
        "metrics": {"loss": "0.5"},
    },
    PartFailed: {"attempt": 1, "reason": "disk full"},
    ManifestPut: {"attempt": 1},
    DamageReported: {"attempt": 1, "reason": "bad digest"},
    PinRequested: {"job": JOB, "attempt": 1, "name": "paper"},
    ManifestRemoved: {"attempt": 1},
    FilesRemoved: {"attempt": 1},
    CheckpointRemoved: {"attempt": 1},
    RecoverRequested: {},
    RollBackRequested: {"job": JOB, "step": 10, "generation": 2},
    SaveRequested: {"job": JOB, "reason": "maintenance"},
    StopRequested: {"job": JOB, "reason": "budget spent"},
}


def event(kind: type[Event], **wrong: Any) -> Event:
    """A sound event of this kind, but for what is given."""
    sender = {} if "job" in SOUND[kind] else {"job": JOB, "worker": "w0", "incarnation": 1}
    return kind(**sender | SOUND[kind] | wrong)


def position(*consumed: Any, **more: Any) -> dict[str, Position]:
    fields: dict[str, Any] = {"version": 1, "epoch": 0, "consumed": list(consumed)}
    return {"images": Position(**fields | more)}


def refusal_of(cluster: Cluster, wrong: Event) -> StrataError:
    """The error this event gets; it must have changed nothing."""
    before = cluster.machine.snapshot()
    with pytest.raises(StrataError) as refusal:
        cluster.send(wrong)
    assert cluster.machine.snapshot() == before
    return refusal.value


def test_every_event_is_in_the_table() -> None:
    without_input = {"CoordinatorStarted", "SweepDue"}
    assert {kind.__name__ for kind in SOUND} | without_input == {kind.__name__ for kind in RULES.handlers}


# -- ids -------------------------------------------------------------------------------------------------------------

IDS: list[tuple[type[Event], str, str]] = [
    (RegisterRequested, "job", "job_id"),
    (RegisterRequested, "worker", "worker_id"),
    (RegisterRequested, "nonce", "nonce"),
    (JobConfigureRequested, "job", "job_id"),
    (DatasetRegisterRequested, "job", "job_id"),
    (DatasetRegisterRequested, "dataset", "dataset_id"),
    (BarrierArrived, "barrier", "barrier_id"),
    (PinRequested, "name", "the name of a pin"),
]


@pytest.mark.parametrize("bad", BAD_IDS.values(), ids=BAD_IDS)
@pytest.mark.parametrize(("kind", "field", "what"), IDS, ids=lambda value: getattr(value, "__name__", value))
def test_a_bad_id_is_refused_by_name(kind: type[Event], field: str, what: str, bad: object) -> None:
    refusal = refusal_of(a_cluster(), event(kind, **{field: bad}))
    assert isinstance(refusal, InvalidInput)
    if isinstance(bad, str):
        assert str(refusal).startswith(f"{what} {bad[:140]!r} is not a valid id: use 1 to 128 letters")
    else:
        assert f"must be a string, not {type(bad).__name__}" in str(refusal)
        assert what in str(refusal) or field in str(refusal)


@pytest.mark.parametrize("longest", ["a", "x" * 128, "0", "A.b_c-9"])
def test_a_good_id_is_accepted(longest: str) -> None:
    assert Cluster().register(longest).worker == longest


# -- what is not there -----------------------------------------------------------------------------------------------


BEGINNINGS = (JobConfigureRequested, RegisterRequested, DatasetRegisterRequested)


@pytest.mark.parametrize("kind", [kind for kind in SOUND if kind not in BEGINNINGS])
def test_an_unknown_job_is_not_found(kind: type[Event]) -> None:
    refusal = refusal_of(a_cluster(), event(kind, job="lmm"))
    assert isinstance(refusal, NotFound)
    assert "no job 'lmm' here" in str(refusal)


@pytest.mark.parametrize("kind", [kind for kind, fields in SOUND.items() if "job" not in fields])
def test_an_unknown_worker_is_not_found(kind: type[Event]) -> None:
    refusal = refusal_of(a_cluster(), event(kind, worker="w9"))
    assert isinstance(refusal, NotFound)
    assert "worker 'w9' (incarnation 1) is not known in job 'llm'" in str(refusal)


@pytest.mark.parametrize("kind", [kind for kind in SOUND if "dataset" in SOUND[kind] and kind not in BEGINNINGS])
def test_an_unknown_dataset_is_not_found(kind: type[Event]) -> None:
    refusal = refusal_of(a_cluster(), event(kind, dataset="imagse"))
    assert isinstance(refusal, NotFound)
    assert "no dataset 'imagse' in job 'llm'; registered: images, texts" in str(refusal)


@pytest.mark.parametrize("number", [0, -1, 2, 2**62])
@pytest.mark.parametrize("kind", [kind for kind, fields in SOUND.items() if "attempt" in fields])
def test_an_unknown_attempt_is_not_found(kind: type[Event], number: int) -> None:
    refusal = refusal_of(a_cluster(), event(kind, attempt=number))
    assert isinstance(refusal, NotFound)
    assert f"job 'llm' has no attempt {number}" in str(refusal)


@pytest.mark.parametrize("number", [0, -1, 2])
def test_an_unknown_reference_is_not_found(number: int) -> None:
    cluster = Cluster()
    cluster.world(2)
    refusal = refusal_of(cluster, event(CheckpointBeginRequested, step=20, references=[number]))
    assert isinstance(refusal, NotFound)
    assert f"has no attempt {number}" in str(refusal)


# -- numbers, flags and texts ----------------------------------------------------------------------------------------

WRONG: list[tuple[Event, str]] = [
    # datasets
    (event(DatasetRegisterRequested, total_samples=-1), "total_samples must be at least 1, not -1"),
    (event(DatasetRegisterRequested, total_samples=0), "total_samples must be at least 1, not 0"),
    (event(DatasetRegisterRequested, total_samples=1e6), "total_samples must be an integer, not float"),
    (event(DatasetRegisterRequested, total_samples="100"), "total_samples must be an integer, not str"),
    (event(DatasetRegisterRequested, shard_size=0), "shard_size must be at least 1, not 0"),
    (event(DatasetRegisterRequested, shard_size=-10), "shard_size must be at least 1, not -10"),
    (event(DatasetRegisterRequested, shard_size=None), "shard_size must be an integer, not NoneType"),
    (event(DatasetRegisterRequested, shard_size=True), "shard_size must be an integer, not bool"),
    (event(DatasetRegisterRequested, total_samples=10**9, shard_size=1), "make 1000000000 shards; at most 10000000"),
    (event(DatasetRegisterRequested, seed="0"), "seed must be an integer, not str"),
    (event(DatasetRegisterRequested, seed=0.0), "seed must be an integer, not float"),
    (event(DatasetRegisterRequested, seed=None), "seed must be an integer, not NoneType"),
    (event(DatasetRegisterRequested, seed=True), "seed must be an integer, not bool"),
    (event(DatasetRegisterRequested, shuffle=1), "shuffle must be True or False, not int"),
    (event(DatasetRegisterRequested, path=None), "path must be a string, not NoneType"),
    (event(DatasetRegisterRequested, path="x" * 5000), "path has 5000 characters; at most 4096 are kept"),
    (event(DatasetRegisterRequested, path="/data/\udcff"), "path"),
    (event(DatasetRegisterRequested, format=b"csv"), "format must be a string, not bytes"),
    (event(DatasetRegisterRequested, strategy="slots"), "strategy must be one of slots-v1, ring-v1, not 'slots'"),
    (event(DatasetRegisterRequested, order="random"), "order must be one of elastic, affinity, not 'random'"),
    (event(EpochAdvanceRequested, from_epoch=-1), "from_epoch must be at least 0, not -1"),
    (event(EpochAdvanceRequested, from_epoch="0"), "from_epoch must be an integer, not str"),
    # registration
    (event(RegisterRequested, rank=-1), "rank must be between 0 and"),
    (event(RegisterRequested, rank=10**9), "rank must be between 0 and"),
    (event(RegisterRequested, rank="0"), "rank must be an integer, not str"),
    (event(RegisterRequested, rank=False), "rank must be an integer, not bool"),
    (event(RegisterRequested, world_size=0), "world_size must be between 1 and"),
    (event(RegisterRequested, world_size=2.0), "world_size must be an integer, not float"),
    (event(RegisterRequested, previous=-1), "previous incarnation must be at least 0, not -1"),
    (event(RegisterRequested, port=65536), "port must be between 0 and 65535, not 65536"),
    (event(RegisterRequested, gpu_count=-1), "gpu_count must be between 0 and 2147483647, not -1"),
    (event(RegisterRequested, ip=127), "ip must be a string, not int"),
    (event(RegisterRequested, metadata={str(n): "" for n in range(65)}), "metadata has 65 entries"),
    (
        event(RegisterRequested, metadata={"a": "x" * 3000, "b": "x" * 3000}),
        "metadata has 2 entries and 6002 characters",
    ),
    (event(RegisterRequested, metadata={"gpus": 8}), "metadata"),
    # barriers
    (event(BarrierArrived, incarnation=0), "incarnation is 0: say the one that 'w0' got when it registered"),
    (event(HeartbeatReceived, incarnation=0), "incarnation is 0: say the one that 'w0' got when it registered"),
    (event(DeregisterRequested, incarnation=0), "incarnation is 0: say the one that 'w0' got when it registered"),
    (event(BarrierArrived, arrival=0), "arrival must be at least 1, not 0"),
    (event(BarrierArrived, settled=1), "settled must be between 0 and 0, not 1"),
    (event(BarrierArrived, settled=-1), "settled must be between 0 and 0, not -1"),
    (event(BarrierArrived, expected=0), "expected_participants must be at least 1, not 0"),
    (event(BarrierArrived, expected=2.0), "expected_participants must be an integer, not float"),
    (event(BarrierArrived, timeout_seconds=-0.5), "timeout must be a number of seconds that is not negative, not -0.5"),
    (
        event(BarrierArrived, timeout_seconds=math.nan),
        "timeout must be a number of seconds that is not negative, not nan",
    ),
    (event(BarrierArrived, timeout_seconds="30"), "timeout must be a number"),
    # progress
    (event(ProgressReported, cursors={10: 1}), "shard must be between 0 and 9, not 10"),
    (event(ProgressReported, cursors={-1: 1}), "shard must be between 0 and 9, not -1"),
    (event(ProgressReported, cursors={"0": 1}), "must be an integer, not str"),
    (event(ProgressReported, cursors={0: 11}), "the cursor of shard 0 must be between 0 and 10, not 11"),
    (event(ProgressReported, cursors={0: -1}), "the cursor of shard 0 must be between 0 and 10, not -1"),
    (event(ProgressReported, cursors={0: 1.5}), "must be an integer, not float"),
    (event(BatchesReported, through=101), "through must be between 0 and 100, not 101"),
    (event(BatchesReported, through=-1), "through must be between 0 and 100, not -1"),
    (event(BatchesReported, through=32.0), "through must be an integer, not float"),
    # checkpoints
    (event(CheckpointBeginRequested, step=-1), "step must be at least 0, not -1"),
    (event(CheckpointBeginRequested, step="10"), "step must be an integer, not str"),
    (event(CheckpointBeginRequested, epoch=-1), "epoch must be at least 0, not -1"),
    (event(CheckpointAck, digest=""), "digest has 1 to 256 characters, not 0"),
    (event(CheckpointAck, digest="x" * 257), "digest has 1 to 256 characters, not 257"),
    (event(CheckpointAck, digest=None), "digest"),
    (event(CheckpointAck, part_bytes=-1), "part_bytes must be between 0 and 70368744177664, not -1"),
    (event(CheckpointAck, metrics={"loss": "low"}), "metric 'loss' must be a number, not 'low'"),
    (event(CheckpointAck, metrics={"loss": ""}), "metric 'loss' must be a number, not ''"),
    (event(CheckpointAck, metrics={"loss": None}), "'loss'"),
    (event(CheckpointAck, metrics={"loss": 0.5}), "'loss'"),
    (event(CheckpointAck, metrics={"my\nloss": "1"}), "the name of a metric must be 1 to 256 printable"),
    (event(CheckpointAck, metrics={f"m{n}": "1" for n in range(257)}), "at most 256 metrics"),
    (event(CheckpointAck, positions=position(0)), "position in dataset 'images' is not a list of ranges"),
    (event(CheckpointAck, positions=position(5, 0)), "position in dataset 'images' is not a list of ranges"),
    (event(CheckpointAck, positions=position(0, 5, 5, 9)), "position in dataset 'images' is not a list of ranges"),
    (event(CheckpointAck, positions=position(0, 5.0)), "'images'"),
    (event(CheckpointAck, positions=position("0", "5")), "'images'"),
    (event(CheckpointAck, positions=position(0, 101)), "position in dataset 'images' lies outside its 100 samples"),
    (event(CheckpointAck, positions=position(-5, 5)), "position in dataset 'images'"),
    (event(CheckpointAck, positions=position(0, 5, epoch=7)), "epoch 7 of dataset 'images'"),
    (event(CheckpointAck, positions=position(0, 5, version=2)), "in version 2"),
    (event(CheckpointAck, positions={"imagse": Position(1, 0, [])}), "no dataset 'imagse'"),
    (event(RollBackRequested, step=-1), "step must be at least 0, not -1"),
    (event(RollBackRequested, step=None), "step must be an integer, not NoneType"),
    # settings
    (event(JobConfigureRequested, settings=None), "settings must be JobSettings, not NoneType"),
    (event(JobConfigureRequested, settings={"saves": "skip"}), "settings must be JobSettings, not dict"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[message[:60] for _, message in WRONG])
def test_what_is_wrong_is_said(wrong: Event, message: str) -> None:
    assert message in str(refusal_of(a_cluster(), wrong))


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (DatasetRegisterRequested, "total_samples"),
        (DatasetRegisterRequested, "shard_size"),
        (DatasetRegisterRequested, "seed"),
        (RegisterRequested, "memory_bytes"),
        (RegisterRequested, "previous"),
        (BarrierArrived, "arrival"),
        (CheckpointBeginRequested, "step"),
        (CheckpointBeginRequested, "epoch"),
        (CheckpointAck, "part_bytes"),
        (RollBackRequested, "step"),
    ],
)
def test_a_number_beyond_64_bits_is_refused_for_that_reason(kind: type[Event], field: str) -> None:
    said = str(refusal_of(a_cluster(), event(kind, **{field: TOO_LARGE})))
    assert field in said
    assert "64 bits" in said or str(TOO_LARGE - 1) in said
    assert "at least" not in said


@pytest.mark.parametrize("kind", SOUND)
def test_the_events_are_sound_but_for_what_is_wrong(kind: type[Event]) -> None:
    """Else the tests here could pass for another reason than the one they name."""
    unfinished = (
        ManifestPut,
        DamageReported,
        PinRequested,
        ManifestRemoved,
        FilesRemoved,
        CheckpointRemoved,
        RollBackRequested,
    )
    cluster = a_cluster()
    if kind in unfinished:
        w0 = cluster.register("w0", nonce="process-1")
        cluster.save([w0, cluster.register("w1", nonce="process-2")], step=10)
        if kind in (ManifestRemoved, FilesRemoved):
            cluster.configure(keep_count=1)
            cluster.save([w0, cluster.register("w1", nonce="process-2")], step=20)
        if kind is FilesRemoved:
            cluster.send(event(ManifestRemoved))
            cluster.now += 2 * cluster.policy.lease_seconds
    assert cluster.send(event(kind)) is not None


def test_something_else_than_an_event_is_refused() -> None:
    with pytest.raises(InvalidInput, match="str is not an event"):
        Machine().handle("SweepDue", 0.0)  # type: ignore[arg-type]


# -- settings --------------------------------------------------------------------------------------------------------

SETTINGS: list[tuple[Callable[[], object], str]] = [
    (lambda: JobSettings(barriers="explode"), "barriers must be one of fail, shrink, not 'explode'"),  # type: ignore[arg-type]
    (lambda: JobSettings(recovery=""), "recovery must be one of rollback, carry_on, not ''"),  # type: ignore[arg-type]
    (lambda: JobSettings(saves=None), "saves must be one of skip, wait, not None"),  # type: ignore[arg-type]
    (lambda: JobSettings(retention={"keep_count": 3}), "retention must be"),  # type: ignore[arg-type]
    (lambda: Retention(keep_count=-1), "keep_count must be at least 0, not -1"),
    (lambda: Retention(keep_every=1.5), "keep_every must be an integer, not float"),  # type: ignore[arg-type]
    (lambda: Retention(best_count=0), "best_count must be at least 1, not 0"),
    (lambda: Retention(best_mode="least"), 'best_mode must be "min" or "max", not \'least\''),  # type: ignore[arg-type]
    (lambda: Retention(best_metric="a\nb"), "best_metric must be 1 to 256 printable characters"),
    (lambda: Policy(lease_seconds=0), "lease_seconds must be positive and below a year, not 0"),
    (lambda: Policy(sweep_seconds=-1.0), "sweep_seconds must be positive and below a year, not -1.0"),
    (lambda: Policy(lease_seconds=math.nan), "lease_seconds must be"),
    (lambda: Policy(attempt_seconds=math.nan), "attempt_seconds must be"),
    (lambda: Policy(lease_seconds=9.0, heartbeat_seconds=5.0), "lease_seconds (9.0) must be at least twice"),
    (lambda: Policy(gone_members_kept=-1), "gone_members_kept must be at least 0, not -1"),
]


@pytest.mark.parametrize(("build", "message"), SETTINGS, ids=[message[:60] for _, message in SETTINGS])
def test_settings_are_checked_when_they_are_made(build: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        build()
    assert message in str(refusal.value)


# -- whatever a field holds ------------------------------------------------------------------------------------------

ANYTHING: list[Any] = [
    None,
    True,
    -1,
    0,
    2**64,
    1.5,
    math.nan,
    "",
    "x",
    "\ud800",
    b"x",
    [],
    ["x"],
    [None],
    {},
    {"x": None},
]


@pytest.mark.parametrize("kind", SOUND)
def test_whatever_a_field_holds_it_is_refused_or_the_journal_can_be_replayed(kind: type[Event]) -> None:
    """A shell that passes on what it was sent must not be able to bring the machine down, now or at its next start."""
    poisoned: list[str] = []
    sound = a_cluster().machine.snapshot()
    for field in kind.__struct_fields__:
        for value in ANYTHING:
            cluster = a_cluster()
            try:
                cluster.send(event(kind, **{field: value}))
                cluster.replay()
            except StrataError:
                assert cluster.machine.snapshot() == sound
            except Exception as error:  # noqa: BLE001 - the point is that there is no such thing
                poisoned.append(f"{field}={value!r}: {type(error).__name__}: {error}")
    assert poisoned == []


def test_the_replay_above_reads_the_journals_bytes() -> None:
    cluster = a_cluster()
    assert [codec.decode_record(codec.encode_record(record)) for record in cluster.records] == cluster.records
