"""The shares with evened ends that are in force, and who may read them.

    recovery point ──▶ who was there, whose which shard was, what was consumed ──▶ shares of the epoch, and of those
                                                                                   that begin until the next point

The law: under one recovery point a share is one process's, from the point on, whoever is lost or joins since: who came
later has to recover, which sets another point. All ranks read an epoch in the same way. This is for jobs that roll
back, where the world is fixed from one point to the next; one that carries on shares out whole shards.
"""

from strata.core.consumption import Consumption
from strata.core.effects import Assignments, Levelled
from strata.core.ids import check_int
from strata.core.levels import Levels
from strata.core.orders import EpochOrder, ShardLayout
from strata.core.ranges import RangeSet
from strata.core.state import Dataset, Job, Member
from strata.core.turn import Turn
from strata.core.volatile import Shared
from strata.errors import Refused


def check_read_so(turn: Turn, job: Job, dataset: Dataset, member: Member, level: str) -> None:
    """Whoever asks first says how. What a coordinator has forgotten, the next who asks says."""
    if job.settings.recovery != "rollback":
        if level:
            raise Refused(
                f"job {job.job!r} carries on without those that it loses, so the ends of dataset {dataset.dataset!r} "
                "cannot be evened out: leave the tail out, or read it in the elastic order"
            )
        return
    read_as, about = turn.volatile.job(job.job).read_as, _about(job, dataset)
    known = read_as.get(dataset.dataset)
    if known is None or known[0] != about:
        known = read_as[dataset.dataset] = (about, level)
    if known[1] != level:
        raise Refused(
            f"worker {member.worker!r} reads epoch {dataset.epoch} of dataset {dataset.dataset!r} with "
            f"{level or 'ends that differ'}, and others with {known[1] or 'ends that differ'}: ranks that take their "
            "steps together all read it in the same way"
        )


def share_of(turn: Turn, job: Job, dataset: Dataset, member: Member) -> Assignments:
    """What this process reads of the epoch."""
    shared = _in_force(turn, job, dataset, member)
    levels = shared.levels
    stretches = levels.share(member.rank).to_flat()
    levelled = Levelled(len(levels.ranks), levels.left, stretches, _read(shared, dataset, member.rank))
    world = job.world.generation
    return Assignments(dataset.version, dataset.epoch, world, job.points, [], [], [], {}, levelled=levelled)


def newly_read(turn: Turn, job: Job, dataset: Dataset, member: Member, samples: int) -> RangeSet:
    """So many samples of its share a process has consumed: the places of those that are not counted yet."""
    shared = _in_force(turn, job, dataset, member)
    share = shared.levels.share(member.rank)
    check_int(samples, f"how far worker {member.worker!r} is in its share", most=share.count)
    read = _read(shared, dataset, member.rank)
    shared.read[member.rank] = max(read, samples)
    return share.part(read, samples).places()


def _in_force(turn: Turn, job: Job, dataset: Dataset, member: Member) -> Shared:
    point = job.point
    if point is None or member.incarnation >= point.newcomers or member.rank not in point.ranks:
        raise Refused(
            f"worker {member.worker!r} (rank {member.rank}, incarnation {member.incarnation}) was not there when all "
            "ranks last went on together, and has no share of what is left: recover, then ask again",
            retry=True,
        )
    shares, about = turn.volatile.job(job.job).shared, _about(job, dataset)
    shared = shares.get(dataset.dataset)
    if shared is None or shared.about != about:
        owners = turn.volatile.ownerships.of(job.job, dataset, point.view).owners()
        layout = ShardLayout(dataset.total_samples, dataset.shard_size)
        order = EpochOrder(layout, dataset.seed, dataset.epoch, dataset.shuffle)
        shared = shares[dataset.dataset] = Shared(about, Levels(order, owners, point.ranks, dataset.begun_with))
    return shared


def _about(job: Job, dataset: Dataset) -> tuple[int, int, int]:
    return dataset.version, dataset.epoch, job.points


def _read(shared: Shared, dataset: Dataset, rank: int) -> int:
    """How much of a share is consumed. Nobody else reads of it."""
    if rank not in shared.read:
        share = shared.levels.share(rank)
        shared.read[rank] = int(Consumption(dataset.consumed).within(share.starts, share.ends).sum())
    return shared.read[rank]
