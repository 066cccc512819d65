"""Progress: the ledger of what an epoch has consumed, kept for jobs that carry on without rolling back.

Positions are places in the epoch's order. In the affinity order a shard is read front to back (in its own permuted
order), so a cursor for each shard says it all; in the elastic order one number does, and one for each rank where ends
are evened out. All only grow, so a repeated or late report changes nothing. The law: a place is consumed once, reported
by the worker that held its shard then, or whose share it was; and an epoch in the elastic order is read in one way from
its first report on.
"""

from strata.core.datasets import MAX_SAMPLES, advance, check_point
from strata.core.effects import Done, LedgerNow
from strata.core.events import BatchesReported, Position, ProgressReported
from strata.core.ids import check_bool, check_id, check_int
from strata.core.levelling import newly_read
from strata.core.ranges import RangeSet
from strata.core.records import EpochProven, ProgressMade, RecoveryPointSet, ViewChanged, WorldDeclared
from strata.core.state import Dataset, Job, Proof, State
from strata.core.turn import Rules, Turn
from strata.core.volatile import Reached
from strata.errors import InvalidInput, Refused, StaleGeneration

MAX_READING_CHARS = 2048
MAX_LEFT_OUT_BATCHES = 4096
"""In one report."""

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
        ranges = consumed_ranges(dataset, event.cursors)
        _check_held(turn, job, dataset, event)
        if event.levelled is not None:
            ranges = ranges.union(newly_read(turn, job, dataset, member, event.levelled))
        make_progress(turn, job, dataset, member.worker, ranges)
    turn.reply(Done())


def _check_held(turn: Turn, job: Job, dataset: Dataset, event: ProgressReported) -> None:
    if not event.cursors:
        return
    owners = turn.volatile.ownerships.of(job.job, dataset, job.world.view).owners()
    for shard in sorted(event.cursors):
        holder = dataset.held.get(shard) or job.world.by_rank.get(int(owners[shard]))
        if holder != event.worker:
            raise Refused(
                f"worker {event.worker!r} reports shard {shard} of {event.dataset!r}, which "
                f"{holder or 'nobody'} holds: ask for the assignments again"
            )


@rules.handles(BatchesReported)
def on_batches(turn: Turn, event: BatchesReported) -> None:
    job = turn.state.job(event.job)
    member = job.member(event.worker, event.incarnation)
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
    check_reading(event.reading)
    check_bool(event.over, "over")
    check_bool(event.joins, "joins")
    check_left_out(event.left_out, event.through)
    absent = 0
    if check_in_force(job, dataset, event.version, event.epoch, event.point):
        reached = _reached(turn, job, dataset, event)
        _check_read_so(dataset, reached, event)
        if event.left_out:
            reached.note_left_out(member.rank, event.left_out, dataset.consumed.count)
        if reached.say(member.rank, None if event.joins else (event.through, event.over)):
            _count(turn, job, dataset, reached, all_have=reached.least, how=event.reading)
        absent = len(reached.unsaid)
    elif event.over and event.epoch in dataset.unproven:
        why = f"a checkpoint from behind it is gone on from, and worker {event.worker!r} reads as it was read"
        about = (dataset.dataset, dataset.version, event.epoch, event.through)
        turn.record(EpochProven(job.job, *about, why, event.reading))
    turn.reply(LedgerNow(dataset.epoch, absent, dataset.consumed.count))


def _reached(turn: Turn, job: Job, dataset: Dataset, event: BatchesReported) -> Reached:
    """How far all are. A step is consumed when every rank of the world completed it: one that is ahead speaks for
    itself alone."""
    volatile = turn.volatile.job(job.job)
    about, reached = (dataset.version, dataset.epoch, job.points), volatile.reached.get(dataset.dataset)
    if reached is None or reached.about != about:
        so_far = (dataset.consumed.count, False)
        reached = Reached(about, so_far, event.reading, set(job.world.roster()))
        volatile.reached[dataset.dataset] = reached
    return reached


def _check_read_so(dataset: Dataset, reached: Reached, event: BatchesReported) -> None:
    """All read an epoch in the same way. Who joins one that is begun is let in, and sees for itself how it is read."""
    is_begun = bool(dataset.consumed.count)
    known = dataset.reading if is_begun else reached.reading
    if event.reading != known and not (is_begun and event.joins):
        others = "it was begun" if is_begun else "others"
        raise Refused(
            f"worker {event.worker!r} reads epoch {dataset.epoch} of dataset {event.dataset!r} as "
            f"{event.reading or 'it likes'}, and {others} as {known or 'nobody said'}: within an epoch all read it in "
            "the same way"
        )


def _count(turn: Turn, job: Job, dataset: Dataset, reached: Reached, *, all_have: tuple[int, bool], how: str) -> None:
    """Invariant: `left_out` counts what ranks left out of the consumed places, and of no others. So what is consumed
    again after a rollback is counted again, and what a rank ahead of the others left out is counted with its place."""
    through, is_over = all_have
    epoch, left_out = dataset.epoch, reached.left_out_between(dataset.consumed.count, through)
    places = RangeSet.from_flat([0, through] if through else [])
    make_progress(turn, job, dataset, "", places, reading=how, left_out=left_out)
    if is_over and dataset.epoch == epoch:
        left = dataset.total_samples - dataset.consumed.count
        advance(turn, job, dataset, f"every rank is through; {left} samples fill no batch")


@rules.reacts(ViewChanged)
def on_view_changed(turn: Turn, record: ViewChanged) -> None:
    """Those who are left have completed what all of them said: a rank that is gone cannot say so any more. Whoever goes
    on begins there, and says anew how far it is. In a job that rolls back the shares are the same until all do: there
    what was said holds, and when all leave one after the other, nobody need say it again before it does."""
    job, volatile = turn.state.jobs[record.job], turn.volatile.job(record.job)
    roster, kept = job.world.roster(), {}
    for name, reached in sorted(volatile.reached.items()):
        dataset = job.datasets.get(name)
        in_force = dataset is not None and reached.about == (dataset.version, dataset.epoch, job.points)
        if dataset is not None and in_force and not record.joined and all(rank in reached.ranks for rank in roster):
            all_have = min((reached.ranks[rank] for rank in roster), default=reached.least)
            _count(turn, job, dataset, reached, all_have=all_have, how=dataset.reading)
        if in_force and not record.joined and job.settings.recovery == "rollback":
            kept[name] = reached.of(roster)
    volatile.reached = kept


@rules.reacts(WorldDeclared)
def on_declared(turn: Turn, record: WorldDeclared) -> None:
    turn.volatile.job(record.job).reached.clear()


def check_reading(reading: str) -> None:
    if len(reading) > MAX_READING_CHARS:
        raise InvalidInput(f"how a dataset is read takes at most {MAX_READING_CHARS} characters, not {len(reading)}")


def check_left_out(left_out: dict[int, int], through: int) -> None:
    """Refuse counts that no batches up to `through` can have."""
    if len(left_out) > MAX_LEFT_OUT_BATCHES:
        raise InvalidInput(f"left_out names {len(left_out)} batches; at most {MAX_LEFT_OUT_BATCHES} go into one report")
    for place, count in left_out.items():
        check_int(place, "a key of left_out", least=1, most=through)
        check_int(count, f"left_out[{place}]", least=1, most=place)


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


def make_progress(
    turn: Turn,
    job: Job,
    dataset: Dataset,
    worker: str,
    ranges: RangeSet,
    *,
    reading: str = "",
    left_out: int = 0,
) -> None:
    """Count what is new of it, and begin the next epoch when nothing is left. `left_out` is of what is new."""
    fresh = RangeSet()
    for start, end in ranges:
        for gap in dataset.consumed.missing(start, end):
            fresh.add(*gap)
    if fresh.count:
        made = min(left_out, fresh.count)
        turn.record(ProgressMade(job.job, dataset.dataset, dataset.epoch, worker, fresh.to_flat(), reading, made))
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


def check_positions(job: Job, positions: dict[str, Position]) -> None:
    """Refuse what no epoch can have; of a dataset that is not there, as far as can be said."""
    for name, position in positions.items():
        check_id(name, "dataset")
        check_reading(position.reading)
        check_int(position.version, f"the version of the position in dataset {name!r}")
        check_int(position.epoch, "epoch")
        try:
            RangeSet.from_flat(position.consumed)
        except ValueError as error:
            raise InvalidInput(f"the position in dataset {name!r} is not a list of ranges: {error}") from None
        dataset = job.datasets.get(name)
        most = MAX_SAMPLES if dataset is None else dataset.total_samples
        if position.consumed and (position.consumed[0] < 0 or position.consumed[-1] > most):
            raise InvalidInput(f"the position in dataset {name!r} lies outside its {most} samples")
        count = sum(position.consumed[1::2]) - sum(position.consumed[::2])
        check_int(position.left_out, f"left_out of the position in dataset {name!r}", most=count)


# -- apply -----------------------------------------------------------------------------------------------------------


@rules.applies(EpochProven)
def apply_proven(state: State, record: EpochProven) -> None:
    dataset = state.jobs[record.job].datasets[record.dataset]
    dataset.prove(Proof(record.version, record.epoch, dataset.total_samples, record.consumed, 0, record.reading))


@rules.applies(ProgressMade)
def apply_progress(state: State, record: ProgressMade) -> None:
    dataset = state.jobs[record.job].datasets[record.dataset]
    whose = dataset.own.setdefault(record.worker, RangeSet()) if record.worker else dataset.departed
    dataset.reading = record.reading
    dataset.left_out += record.left_out
    for start, end in zip(record.consumed[::2], record.consumed[1::2], strict=True):
        dataset.consumed.add(start, end)
        whose.add(start, end)
