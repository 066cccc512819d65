"""Shares with evened ends in a job: fixed by the recovery point, counted once, and told to whom they belong."""

from itertools import pairwise
from typing import Any

import pytest

from strata.core.effects import Levelled, Registered
from strata.core.events import AssignmentsRequested, DrainRequested, EpochAdvanceRequested, Position, ProgressReported
from strata.core.records import ProgressMade
from strata.errors import InvalidInput, Refused, StaleGeneration
from tests.unit.core.cluster import JOB, Cluster

LEVEL = "batch_size=4, tail=short"


def world(size: int, **more: Any) -> tuple[Cluster, list[Registered]]:
    """103 samples in 11 shards, in their natural order; everybody has come and recovered."""
    cluster = Cluster(recovery="rollback")
    workers = cluster.world(size)
    cluster.add_dataset(total_samples=103, **more)
    begin(cluster, workers)
    return cluster, workers


def begin(cluster: Cluster, workers: list[Registered]) -> None:
    for who in workers:
        cluster.heartbeat(who)
    for who in workers:
        cluster.recover(who)


def ask(cluster: Cluster, who: Registered, level: str = LEVEL) -> Any:
    return cluster.from_worker(AssignmentsRequested, who, dataset="images", level=level)


def share(cluster: Cluster, who: Registered) -> Levelled:
    found = ask(cluster, who).levelled
    assert isinstance(found, Levelled)
    return found


def report(cluster: Cluster, who: Registered, samples: int, **more: Any) -> None:
    about = {"version": 1, "epoch": cluster.dataset().epoch, "point": cluster.job.points, "cursors": {}, **more}
    cluster.from_worker(ProgressReported, who, dataset="images", levelled=samples, **about)


def places(found: Levelled) -> list[int]:
    pairs = zip(found.stretches[::2], found.stretches[1::2], strict=True)
    return [place for start, end in pairs for place in range(start, end)]


def test_shares_are_the_epoch_and_when_all_are_read_it_is_over() -> None:
    cluster, workers = world(3)
    shares = [share(cluster, who) for who in workers]
    assert sorted(len(places(each)) for each in shares) == [34, 34, 35]
    assert sorted(place for each in shares for place in places(each)) == list(range(103))
    assert {(each.ranks, each.left, each.read) for each in shares} == {(3, 103, 0)}
    answer = ask(cluster, workers[0])
    assert (answer.granted, answer.awaited, answer.revoked, answer.cursors) == ([], [], [], {})
    for who, its in zip(workers, shares, strict=True):
        assert cluster.dataset().epoch == 0
        report(cluster, who, len(places(its)))
    assert cluster.dataset().epoch == 1
    assert cluster.dataset().proofs[-1].consumed == 103
    assert share(cluster, workers[0]).left == 103
    cluster.replay()


def test_a_share_is_counted_front_to_back_and_a_repeat_changes_nothing() -> None:
    cluster, (one, two) = world(2)
    mine = places(share(cluster, one))
    report(cluster, one, 7)
    report(cluster, one, 12)
    assert [record.consumed for record in cluster.recorded(ProgressMade)] == [
        _flat(mine[:7]),
        _flat(mine[7:12]),
    ]
    for repeated in (12, 7, 0):
        report(cluster, one, repeated)
        assert cluster.decided == []
    assert share(cluster, one).read == 12
    assert share(cluster, two).read == 0
    assert cluster.dataset().own["w0"].count == 12
    with pytest.raises(InvalidInput, match="how far worker 'w0' is in its share"):
        report(cluster, one, len(mine) + 1)


def _flat(found: list[int]) -> list[int]:
    edges = [found[0]]
    for left, right in pairwise(found):
        if right != left + 1:
            edges += [left + 1, right]
    return [*edges, found[-1] + 1]


@pytest.mark.parametrize("what", ["restart", "expire", "leave", "drain", "come back"])
def test_shares_stay_whatever_becomes_of_the_world_until_all_recover(what: str) -> None:
    cluster, (one, two, three) = world(3, shuffle=True, seed=5)
    before = [share(cluster, who) for who in (one, two)]
    report(cluster, one, 9)
    match what:
        case "restart":
            cluster.restart()
        case "expire":
            cluster.expire(three)
        case "leave":
            cluster.leave(three)
        case "drain":
            cluster.send(DrainRequested(JOB, "w2"))
            cluster.restart()
        case "come back":
            cluster.expire(two, three)
            cluster.register("w2", rank=2, world_size=3)  # in the slot that was vacated last, which was not its own
            two = cluster.register("w1", rank=1, world_size=3)
    assert share(cluster, one).stretches == before[0].stretches
    assert share(cluster, one).read == 9
    report(cluster, one, 20)
    assert cluster.dataset().own["w0"].count == 20
    if what != "come back":
        assert share(cluster, two) == before[1]


def test_who_came_after_the_point_has_no_share_before_it_has_recovered() -> None:
    cluster, (one, _) = world(2)
    report(cluster, one, 5)
    again = cluster.register("w1", rank=1, world_size=2)
    with pytest.raises(Refused, match="was not there when all ranks last went on together") as told:
        ask(cluster, again)
    assert told.value.retry
    with pytest.raises(Refused, match="was not there"):
        report(cluster, again, 5)
    cluster.heartbeat(one)
    cluster.recover(again)
    assert share(cluster, again).read == 0
    assert share(cluster, one).read == 0, "nothing was saved"
    with pytest.raises(StaleGeneration, match="recovery point 1"):
        report(cluster, one, 5, point=1)


def test_what_a_checkpoint_has_left_is_shared_out_anew() -> None:
    cluster, workers = world(3)
    positions = {}
    for who in workers:
        given = places(share(cluster, who))[:20]
        positions[who.worker] = {"images": Position(1, 0, _flat(sorted(given)))}
        report(cluster, who, 24)
    cluster.save(workers, 1, positions)
    cluster.expire(workers[2])
    left = workers[:2]
    again = cluster.register("w2", rank=2, world_size=3)
    begin(cluster, [*left, again])
    shares = [share(cluster, who) for who in (*left, again)]
    assert [(each.left, each.read) for each in shares] == [(43, 0)] * 3
    assert sorted(len(places(each)) for each in shares) == [14, 14, 15]
    seen = {place for who in workers for place in range(103) if _has(positions[who.worker]["images"], place)}
    assert sorted(place for each in shares for place in places(each)) == sorted(set(range(103)) - seen)


def _has(position: Position, place: int) -> bool:
    return any(start <= place < end for start, end in zip(position.consumed[::2], position.consumed[1::2], strict=True))


def test_a_rank_that_is_draining_takes_its_steps_too() -> None:
    cluster, workers = world(2)
    cluster.send(DrainRequested(JOB, "w1"))
    begin(cluster, workers)
    assert [len(places(share(cluster, who))) for who in workers] == [52, 51]


def test_all_read_an_epoch_in_the_same_way() -> None:
    cluster, (one, two) = world(2)
    ask(cluster, one)
    for other in ("batch_size=8, tail=short", ""):
        with pytest.raises(Refused, match=f"with {other or 'ends that differ'}, and others with {LEVEL}"):
            ask(cluster, two, other)
    cluster.send(EpochAdvanceRequested(JOB, "images", 0))
    ask(cluster, two, "")
    with pytest.raises(Refused, match="and others with ends that differ"):
        ask(cluster, one)


def test_what_cannot_be_evened_out_is_refused() -> None:
    cluster = Cluster(recovery="carry_on")
    (who,) = cluster.open_world(1)
    cluster.add_dataset()
    cluster.recover(who)
    with pytest.raises(Refused, match="carries on without those that it loses"):
        ask(cluster, who)
    assert ask(cluster, who, "").levelled is None
    cluster, (who,) = world(1)
    cluster.add_dataset("lines", order="elastic")
    with pytest.raises(Refused, match="read in the elastic order: its ends are even"):
        cluster.from_worker(AssignmentsRequested, who, dataset="lines", level=LEVEL)
    with pytest.raises(InvalidInput, match="at most 2048 characters"):
        ask(cluster, who, "x" * 2049)
    other = Cluster(recovery="rollback")
    (newcomer,) = other.world(1)
    other.add_dataset()
    with pytest.raises(Refused, match="was not there"):
        ask(other, newcomer)


def test_the_last_step_of_an_epoch_is_saved_when_the_next_has_begun() -> None:
    cluster, workers = world(2)
    told = [places(share(cluster, who)) for who in workers]
    positions = {
        who.worker: {"images": Position(1, 0, _flat(sorted(its[:40])))} for who, its in zip(workers, told, strict=True)
    }
    cluster.save(workers, 1, positions)
    begin(cluster, [cluster.register(f"w{rank}", rank=rank, world_size=2) for rank in (0, 1)])
    workers = [_known(cluster, f"w{rank}") for rank in (0, 1)]
    told = [places(share(cluster, who)) for who in workers]
    for who, its in zip(workers, told, strict=True):
        report(cluster, who, len(its))
    assert cluster.dataset().epoch == 1
    attempt = cluster.begin(workers[0], 2).attempt
    one, two = (Position(1, 0, _flat(sorted(its))) for its in told)
    cluster.ack(workers[0], attempt, positions={"images": one})
    for other in (Position(1, 1, []), Position(1, 1, [0, 4])):
        with pytest.raises(Refused, match="rank 0 is in epoch 0 of dataset 'images' and another in epoch 1"):
            cluster.ack(workers[1], attempt, positions={"images": other})
    cluster.ack(workers[1], attempt, positions={"images": two})
    assert cluster.job.attempts[attempt].positions["images"] == Position(1, 0, [0, 103])
    cluster.put(workers[0], attempt)
    begin(cluster, [cluster.register(f"w{rank}", rank=rank, world_size=2) for rank in (0, 1)])
    assert (cluster.dataset().epoch, cluster.dataset().consumed.count) == (1, 0)
    assert cluster.dataset().proofs[-1].consumed == 103
    cluster.replay()


def test_a_save_of_an_epoch_long_over_is_refused() -> None:
    cluster, workers = world(1)
    for _ in range(2):
        report(cluster, workers[0], 103)
    attempt = cluster.begin(workers[0], 1).attempt
    with pytest.raises(Refused, match="the save began in version 1, epoch 2"):
        cluster.ack(workers[0], attempt, positions={"images": Position(1, 0, [0, 4])})
    cluster.ack(workers[0], attempt, positions={"images": Position(1, 1, [0, 4])})
    assert cluster.job.attempts[attempt].positions["images"] == Position(1, 1, [0, 4])


def _known(cluster: Cluster, name: str) -> Registered:
    member = cluster.job.world.members[name]
    return Registered(member.worker, member.incarnation, member.rank, 0, 0, 0, 0.0, 0.0, "")
