"""Datasets and their epochs: which version is in force, and when the next epoch begins.

version:  registered ──▶ 1 ──new_version──▶ 2 …       never changed in place, never reshuffled silently
epoch:    0 ──consumed, or asked for──▶ 1 ──▶ 2 …     a compare-and-set on the epoch it starts from
"""

from strata.core.effects import DatasetInfo, Done, EpochNow
from strata.core.events import DatasetRegisterRequested, DatasetRemoveRequested, EpochAdvanceRequested, Position
from strata.core.ids import MAX_NUMBER, check_id, check_int, check_plain
from strata.core.ownership import STRATEGIES
from strata.core.paths import shown
from strata.core.records import DatasetRegistered, DatasetRemoved, EpochAdvanced
from strata.core.state import Dataset, Job, Proof, State, check_job_count
from strata.core.turn import Rules, Turn
from strata.errors import Conflict, InvalidInput, Refused, StaleGeneration

ORDERS = ("elastic", "affinity")
MAX_SHARDS = 10_000_000
MAX_SAMPLES = MAX_NUMBER
MAX_SEED = 2**63 - 1
MAX_FINGERPRINT_CHARS = 256
MAX_DATASETS = 1000

rules = Rules()


@rules.handles(DatasetRegisterRequested)
def on_register(turn: Turn, event: DatasetRegisterRequested) -> None:
    check_dataset(event)
    job = turn.state.jobs.get(event.job) or Job(event.job)
    known = job.datasets.get(event.dataset)
    differs = [] if known is None else _differences(known, event)
    if known is not None and differs and event.replaces != known.version:
        raise Conflict(
            f"dataset {event.dataset!r} is registered already as version {known.version} and differs: "
            f"{'; '.join(differs)}. Say that it replaces version {known.version} to start a new version at epoch 0, or "
            "register it under another id"
        )
    if known is None and len(job.datasets) >= MAX_DATASETS:
        raise Refused(f"job {event.job!r} has {MAX_DATASETS:,} datasets, which is the limit: unregister one")
    if known is None:
        check_job_count(turn.state, event.job)
    if known is None or differs:
        version = job.dataset_versions.get(event.dataset, job.versions_skipped) + 1
        turn.opened(event.job)
        turn.record(
            DatasetRegistered(
                event.job,
                event.dataset,
                version,
                event.total_samples,
                event.shard_size,
                event.shuffle,
                event.seed,
                event.path,
                event.format,
                event.strategy,
                event.order,
                f"replaces version {known.version}: {'; '.join(differs)}" if known else "registered",
                event.fingerprint,
                event.columns,
            )
        )
        turn.volatile.ownerships.forget(event.job, event.dataset)
    dataset = turn.state.job(event.job).datasets[event.dataset]
    turn.reply(DatasetInfo(dataset.dataset, dataset.version, dataset.epoch))


def check_dataset(event: DatasetRegisterRequested) -> None:
    """Refuse what is wrong in itself; that the fields have their types was seen to."""
    check_id(event.job, "job_id")
    check_id(event.dataset, "dataset_id")
    check_int(event.total_samples, "total_samples", least=1)
    check_int(event.shard_size, "shard_size", least=1)
    check_int(event.seed, "seed", least=-MAX_SEED - 1, most=MAX_SEED)
    if event.strategy not in STRATEGIES:
        raise InvalidInput(f"strategy must be one of {', '.join(STRATEGIES)}, not {event.strategy!r}")
    if len(event.fingerprint) > MAX_FINGERPRINT_CHARS:
        raise InvalidInput(f"a fingerprint has at most {MAX_FINGERPRINT_CHARS} characters")
    for path in event.path.split("\n"):  # of several paths, each is a line
        check_plain(path, "path")
    check_plain(event.format, "format")
    check_plain(event.fingerprint, "fingerprint")
    if event.order not in ORDERS:
        raise InvalidInput(f"order must be one of {', '.join(ORDERS)}, not {event.order!r}")
    shards = -(-event.total_samples // event.shard_size)
    if shards > MAX_SHARDS:
        raise InvalidInput(
            f"{event.total_samples} samples in shards of {event.shard_size} make {shards} shards; at most {MAX_SHARDS} "
            "can be shared out: use a larger shard_size"
        )


def _differences(known: Dataset, event: DatasetRegisterRequested) -> list[str]:
    names = ["total_samples", "shard_size", "shuffle", "seed", "path", "format", "strategy", "order"]
    names += ["fingerprint"] if known.fingerprint and event.fingerprint else []  # both have looked
    return [
        f"{name} was {_told(name, known)}, is {_told(name, event)}"
        for name in names
        if getattr(known, name) != getattr(event, name)
    ]


def _told(name: str, of: Dataset | DatasetRegisterRequested) -> str:
    """Whoever is told may write it into a log."""
    return repr(shown(of.path) if name == "path" else getattr(of, name))


@rules.handles(DatasetRemoveRequested)
def on_remove(turn: Turn, event: DatasetRemoveRequested) -> None:
    job = turn.state.job(event.job)
    there = job.datasets.get(event.dataset)
    if there is not None and event.version not in (None, there.version):
        raise Refused(f"dataset {event.dataset!r} is at version {there.version} now, not {event.version}")
    if there is not None or event.dataset not in job.dataset_versions:
        job.dataset(event.dataset)
        turn.record(DatasetRemoved(event.job, event.dataset))
        turn.volatile.ownerships.forget(event.job, event.dataset)
    turn.reply(Done())


@rules.handles(EpochAdvanceRequested)
def on_advance(turn: Turn, event: EpochAdvanceRequested) -> None:
    job = turn.state.job(event.job)
    dataset = job.dataset(event.dataset)
    check_int(event.from_epoch, "from_epoch")
    check_plain(event.asked_by, "asked_by")
    if event.point is not None:
        check_point(job, event.point)
    if event.from_epoch > dataset.epoch:
        raise Refused(
            f"dataset {event.dataset!r} is in epoch {dataset.epoch}: it cannot advance from epoch {event.from_epoch}"
        )
    if event.from_epoch == dataset.epoch:
        left = dataset.total_samples - dataset.consumed.count
        who = event.asked_by or "a caller"
        advance(turn, job, dataset, f"{who} asked" + (f"; {left} samples not reported as consumed" if left else ""))
    turn.reply(EpochNow(dataset.epoch))


def advance(turn: Turn, job: Job, dataset: Dataset, reason: str) -> None:
    """The next epoch begins."""
    turn.record(
        EpochAdvanced(job.job, dataset.dataset, dataset.version, dataset.epoch + 1, dataset.consumed.count, reason)
    )


def check_point(job: Job, point: int) -> None:
    """Refuse what was done before the job was last taken back, and anything between a rollback and the recovery."""
    if point != job.points or job.rolled_back:
        raise StaleGeneration(
            f"this goes on from recovery point {point}, but the job was rolled back since: recover, then go on from "
            f"where everybody does (point {job.points} at present)",
            generation=job.world.generation,
        )


# -- apply -----------------------------------------------------------------------------------------------------------


@rules.applies(DatasetRegistered)
def apply_registered(state: State, record: DatasetRegistered) -> None:
    job = state.jobs[record.job]
    former = job.datasets.get(record.dataset)
    job.dataset_versions[record.dataset] = record.version
    dataset = job.datasets[record.dataset] = Dataset(
        record.dataset,
        record.version,
        record.total_samples,
        record.shard_size,
        record.shuffle,
        record.seed,
        record.path,
        record.format,
        record.strategy,
        record.order,
        record.fingerprint,
        columns=record.columns,
        proofs=[] if former is None else former.proofs,
    )
    point = None if job.point is None else job.attempts.get(job.point.attempt)
    if point is not None and record.dataset in point.positions:  # of a journal that was lost since
        dataset.rewind(point.positions[record.dataset])


@rules.applies(DatasetRemoved)
def apply_removed(state: State, record: DatasetRemoved) -> None:
    del state.jobs[record.job].datasets[record.dataset]


@rules.applies(EpochAdvanced)
def apply_advanced(state: State, record: EpochAdvanced) -> None:
    dataset = state.jobs[record.job].datasets[record.dataset]
    counts = dataset.total_samples, record.consumed, dataset.reissued
    dataset.prove(Proof(record.version, record.epoch - 1, *counts, dataset.reading, dataset.left_out))
    former = Position(record.version, record.epoch - 1, dataset.departed.to_flat())
    dataset.begin_epoch(record.epoch, [])
    dataset.former = former if dataset.order == "affinity" else None
