"""Progress: the ledger of what an epoch has consumed, kept for jobs that carry on without rolling back.

Positions are places in the epoch's order. In the affinity order a shard is read front to back (in its own permuted
order), so a cursor for each shard says it all; in the elastic order one number does. Both only grow, so a repeated or
late report changes nothing. The law: a place is consumed once, reported by the worker that held its shard then.
"""

from strata.core.datasets import advance, check_point
from strata.core.effects import Done
from strata.core.events import BatchesReported, ProgressReported
from strata.core.ids import check_int
from strata.core.ranges import RangeSet
from strata.core.records import ProgressMade, RecoveryPointSet
from strata.core.state import Dataset, Job, State
from strata.core.turn import Rules, Turn
from strata.errors import InvalidInput, Refused, StaleGeneration

rules = Rules()


def check_in_force(job: Job, dataset: Dataset, version: int, epoch: int, point: int) -> bool:
    """Whether a report is about the epoch in force: False if that is over already, an error if it cannot be."""
    check_point(job, point)
    if version != dataset.version:
        raise Refused(
            f"dataset {dataset.dataset!r} is at version {dataset.version} now, the report is about version {version}: "
            "ask for the assignments again"
        )
    if epoch > dataset.epoch:
        raise Refused(f"dataset {dataset.dataset!r} is in epoch {dataset.epoch}, the report is about epoch {epoch}")
    return epoch == dataset.epoch


@rules.handles(ProgressReported)
def on_progress(turn: Turn, event: ProgressReported) -> None:
    job = turn.state.job(event.job)
    member = job.member(event.worker, event.incarnation)
    dataset = job.dataset(event.dataset)
    if dataset.order != "affinity":
        raise Refused(f"dataset {event.dataset!r} is read in the elastic order: report completed batches, not cursors")
    if check_in_force(job, dataset, event.version, event.epoch, event.point):
        owners = turn.volatile.ownerships.of(job.job, dataset, job.world.view).owners()
        ranges = consumed_ranges(dataset, event.cursors)
        for shard in sorted(event.cursors):
            holder = dataset.held.get(shard) or job.world.by_rank.get(int(owners[shard]))
            if holder != member.worker:
                raise Refused(
                    f"worker {event.worker!r} reports shard {shard} of {event.dataset!r}, which "
                    f"{holder or 'nobody'} holds: ask for the assignments again"
                )
        make_progress(turn, job, dataset, member.worker, ranges)
    turn.reply(Done())


@rules.handles(BatchesReported)
def on_batches(turn: Turn, event: BatchesReported) -> None:
    job = turn.state.job(event.job)
    job.member(event.worker, event.incarnation)
    dataset = job.dataset(event.dataset)
    if dataset.order != "elastic":
        raise Refused(f"dataset {event.dataset!r} is read in the affinity order: report cursors, not batches")
    check_int(event.through, "through", most=dataset.total_samples)
    if event.generation != job.world.generation:
        raise StaleGeneration(
            f"worker {event.worker!r} reports batches of generation {event.generation}, but it is generation "
            f"{job.world.generation} now: a step counts only when every rank of the world completed it",
            generation=job.world.generation,
        )
    if check_in_force(job, dataset, event.version, event.epoch, event.point):
        make_progress(turn, job, dataset, "", RangeSet.from_flat([0, event.through] if event.through else []))
    turn.reply(Done())


def consumed_ranges(dataset: Dataset, cursors: dict[int, int]) -> RangeSet:
    """The places that cursors speak for; InvalidInput where one points outside its shard."""
    ranges = RangeSet()
    for shard, cursor in cursors.items():
        check_int(shard, "shard", most=dataset.shard_count - 1)
        start, end = dataset.bounds(shard)
        check_int(cursor, f"the cursor of shard {shard}", most=end - start)
        if cursor:
            ranges.add(start, start + cursor)
    return ranges


def make_progress(turn: Turn, job: Job, dataset: Dataset, worker: str, ranges: RangeSet) -> None:
    """Count what is new of it, and begin the next epoch when nothing is left."""
    fresh = RangeSet()
    for start, end in ranges:
        for gap in dataset.consumed.missing(start, end):
            fresh.add(*gap)
    if fresh.count:
        turn.record(ProgressMade(job.job, dataset.dataset, dataset.epoch, worker, fresh.to_flat()))
        _advance_if_over(turn, job, dataset)


def _advance_if_over(turn: Turn, job: Job, dataset: Dataset) -> None:
    if dataset.consumed.count == dataset.total_samples:
        advance(turn, job, dataset, f"all {dataset.total_samples} samples are consumed")


@rules.reacts(RecoveryPointSet)
def on_rewound(turn: Turn, record: RecoveryPointSet) -> None:
    """A checkpoint from the very end of an epoch: nobody has anything left to report that would begin the next."""
    job = turn.state.jobs[record.job]
    for name in sorted(job.datasets):
        _advance_if_over(turn, job, job.datasets[name])


def remaining(dataset: Dataset, shards: list[int]) -> list[tuple[int, int]]:
    """The places of these shards that nobody reported yet: what a new owner must read."""
    left: list[tuple[int, int]] = []
    for shard in shards:
        left.extend(dataset.consumed.missing(*dataset.bounds(shard)))
    return left


def check_positions(job: Job, positions: dict[str, list[int]]) -> None:
    """Refuse flat ranges that no epoch of the dataset can have."""
    for name, consumed in positions.items():
        dataset = job.dataset(name)
        try:
            RangeSet.from_flat(consumed)
        except ValueError as error:
            raise InvalidInput(f"the position in dataset {name!r} is not a list of ranges: {error}") from None
        if consumed and (consumed[0] < 0 or consumed[-1] > dataset.total_samples):
            raise InvalidInput(f"the position in dataset {name!r} lies outside its {dataset.total_samples} samples")


# -- apply -----------------------------------------------------------------------------------------------------------


@rules.applies(ProgressMade)
def apply_progress(state: State, record: ProgressMade) -> None:
    dataset = state.jobs[record.job].datasets[record.dataset]
    whose = dataset.own.setdefault(record.worker, RangeSet()) if record.worker else dataset.departed
    for start, end in zip(record.consumed[::2], record.consumed[1::2], strict=True):
        dataset.consumed.add(start, end)
        whose.add(start, end)
