"""Handing shards over: a moved shard is granted only when its old owner gave it up, or was fenced.

    owned ──view gives it to another──▶ held by the old owner ──acknowledged with a cursor──▶ granted to the new one
      └───────────────────────────────old owner lost────────────────────────────────────────────▶┘

The law: at any time a shard has at most one live holder. That is the worker in `held`, else the view's owner. This is
for the affinity order; in the elastic order nobody owns a shard.
"""

from collections.abc import Iterable

import numpy as np

from strata.core.effects import Assignments, Done
from strata.core.events import AssignmentsRequested, RevocationAcknowledged
from strata.core.levelling import check_read_so, share_of
from strata.core.progress import check_in_force, check_reading, consumed_ranges, make_progress, remaining
from strata.core.ranges import RangeSet
from strata.core.records import ShardsReissued, ShardsReleased, ShardsRevoked, ViewChanged, WorkerLost
from strata.core.state import Dataset, Job, Member, State
from strata.core.turn import Rules, Turn
from strata.core.views import View
from strata.core.volatile import Volatile
from strata.errors import Refused

rules = Rules()


@rules.handles(AssignmentsRequested)
def on_assignments(turn: Turn, event: AssignmentsRequested) -> None:
    job = turn.state.job(event.job)
    member = job.member(event.worker, event.incarnation)
    dataset = job.dataset(event.dataset)
    check_reading(event.level)
    if event.level and dataset.order != "affinity":
        raise Refused(f"dataset {event.dataset!r} is read in the elastic order: its ends are even")
    check_read_so(turn, job, dataset, member, event.level)
    if event.level:
        turn.reply(share_of(turn, job, dataset, member))
    else:
        turn.reply(assignments(turn.volatile, job, dataset, member))


def assignments(volatile: Volatile, job: Job, dataset: Dataset, member: Member) -> Assignments:
    """What this worker holds under the view in force."""
    owned = volatile.ownerships.of(job.job, dataset, job.world.view).shards_of(member.rank)
    held, worker = dataset.held, member.worker
    revoked = sorted(set(dataset.owing.get(worker, ())).difference(owned))
    granted = [shard for shard in owned if held.get(shard, worker) == worker]
    awaited = [shard for shard in owned if held.get(shard, worker) != worker] if held else []
    cursors: dict[int, int] = {}
    beyond: dict[int, list[int]] = {}
    for shard in [*granted, *revoked]:
        cursor, rest = _read_of(dataset, shard)
        if cursor:
            cursors[shard] = cursor
        if rest:
            beyond[shard] = rest
    return Assignments(
        dataset.version,
        dataset.epoch,
        job.world.generation,
        job.points,
        granted,
        awaited,
        revoked,
        cursors,
        beyond,
    )


def _read_of(dataset: Dataset, shard: int) -> tuple[int, list[int]]:
    """How far the shard is read from its beginning, and what is read beyond that, counted from its beginning."""
    start, end = dataset.bounds(shard)
    missing = dataset.consumed.missing(start, end)
    if not missing:
        return end - start, []
    edges = [edge - start for gap in missing for edge in gap]
    rest = [*edges[1:], end - start]
    ranges = [(left, right) for left, right in zip(rest[::2], rest[1::2], strict=True) if left < right]
    return edges[0], [edge for pair in ranges for edge in pair]


@rules.reacts(ViewChanged)
def on_view_changed(turn: Turn, record: ViewChanged) -> None:
    """Shards that moved away from a live worker stay with it until it says how far it got."""
    job = turn.state.jobs[record.job]
    divided = [dataset for _, dataset in sorted(job.datasets.items()) if dataset.order == "affinity"]
    if not divided:
        return
    after = job.world.view
    before = after.leave(record.rank) if record.joined else after.join(record.rank)
    for dataset in divided:
        _revoke(turn, job, dataset, before, after)


def _revoke(turn: Turn, job: Job, dataset: Dataset, before: View, after: View) -> None:
    ownerships = turn.volatile.ownerships
    old = ownerships.of(job.job, dataset, before).owners()
    new = ownerships.of(job.job, dataset, after).owners()
    moved = np.flatnonzero(old != new)
    held = dict(dataset.held)  # whoever only awaited a shard has nothing to give up
    _give_back(turn, job, dataset, {shard: int(new[shard]) for shard in moved.tolist() if shard in held})
    for rank in np.unique(old[moved]).tolist():
        holder = job.world.at_rank(rank)
        if holder is not None:
            shards = _unfinished(dataset, moved[old[moved] == rank].tolist())
            revoked = [shard for shard in shards if shard not in held]
            if revoked:
                turn.record(ShardsRevoked(job.job, dataset.dataset, holder.worker, flat(revoked)))


def _give_back(turn: Turn, job: Job, dataset: Dataset, owners: dict[int, int]) -> None:
    """Shards that return to the worker which still holds them need not be given up any more."""
    back: dict[str, list[int]] = {}
    for shard, rank in owners.items():
        if job.world.by_rank.get(rank) == dataset.held[shard]:
            back.setdefault(dataset.held[shard], []).append(shard)
    for worker, shards in sorted(back.items()):
        turn.record(ShardsReleased(job.job, dataset.dataset, worker, flat(shards)))


def _unfinished(dataset: Dataset, shards: Iterable[int]) -> list[int]:
    return [shard for shard in shards if not dataset.consumed.covers(*dataset.bounds(shard))]


@rules.reacts(WorkerLost)
def on_lost(turn: Turn, record: WorkerLost) -> None:
    """What a lost process held and had not reported is granted again, and counted."""
    job = turn.state.jobs[record.job]
    for name in sorted(job.datasets):
        dataset = job.datasets[name]
        if dataset.order != "affinity":
            continue
        owned = turn.volatile.ownerships.of(job.job, dataset, job.world.view).shards_of(record.rank)
        owing = dataset.owing.get(record.worker, [])
        shards = _unfinished(dataset, [*(shard for shard in owned if shard not in dataset.held), *owing])
        if shards or owing:
            samples = sum(end - start for start, end in remaining(dataset, shards))
            turn.record(ShardsReissued(job.job, name, record.worker, len(shards), samples))


@rules.handles(RevocationAcknowledged)
def on_acknowledged(turn: Turn, event: RevocationAcknowledged) -> None:
    job = turn.state.job(event.job)
    member = job.member(event.worker, event.incarnation)
    dataset = job.dataset(event.dataset)
    if not check_in_force(job, dataset, event.version, event.epoch, event.point):
        turn.reply(Done())  # that epoch is over, and with it every claim to its shards
        return
    if event.generation < dataset.revoked_in.get(member.worker, 0):
        turn.reply(Done())  # it answers an older revocation; the worker will be asked again
        return
    mine = [shard for shard in sorted(set(event.shards)) if dataset.held.get(shard) == member.worker]
    strangers = sorted(set(event.cursors) - set(event.shards))
    if strangers:
        raise Refused(f"worker {event.worker!r} gives a cursor for shards {strangers[:5]} that it does not give up")
    ranges = consumed_ranges(dataset, {shard: event.cursors[shard] for shard in mine if shard in event.cursors})
    make_progress(turn, job, dataset, member.worker, ranges)
    if mine and dataset.epoch == event.epoch:
        turn.record(ShardsReleased(job.job, dataset.dataset, member.worker, flat(mine)))
    turn.reply(Done())


def flat(shards: Iterable[int]) -> list[int]:
    """Shard ids as flat half-open ranges, as records carry them."""
    ranges = RangeSet()
    for shard in shards:
        ranges.add(shard, shard + 1)
    return ranges.to_flat()


def _each(ranges: list[int]) -> Iterable[int]:
    for start, end in zip(ranges[::2], ranges[1::2], strict=True):
        yield from range(start, end)


# -- apply -----------------------------------------------------------------------------------------------------------


@rules.applies(ShardsRevoked)
def apply_revoked(state: State, record: ShardsRevoked) -> None:
    job = state.jobs[record.job]
    job.datasets[record.dataset].revoke(record.worker, list(_each(record.shards)), job.world.generation)


@rules.applies(ShardsReleased)
def apply_released(state: State, record: ShardsReleased) -> None:
    state.jobs[record.job].datasets[record.dataset].release(record.worker, set(_each(record.shards)))


@rules.applies(ShardsReissued)
def apply_reissued(state: State, record: ShardsReissued) -> None:
    dataset = state.jobs[record.job].datasets[record.dataset]
    dataset.reissued += record.samples
    dataset.release(record.worker, set(dataset.owing.get(record.worker, ())))
