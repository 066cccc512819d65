"""Barriers: everybody waits until everybody has come, or all are told who is missing."""

import copy
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.core.barriers import MAX_OPEN_ROUNDS, MAX_UNHEARD
from strata.core.effects import BarrierVerdict, BreakBarrier, DismissArrival, Registered, ReleaseBarrier, Waiting
from strata.core.events import BarrierArrived, DrainRequested
from strata.core.records import BarrierBroken, BarrierReleased
from strata.core.settings import Policy
from strata.errors import InvalidInput, Refused, StaleGeneration, StrataError
from tests.unit.core.cluster import JOB, Cluster

LEASE = Policy().lease_seconds


# -- release ---------------------------------------------------------------------------------------------------------


def test_all_are_released_together_when_the_last_one_came() -> None:
    cluster = Cluster()
    w0, w1, w2 = cluster.world(3)
    assert cluster.arrive(w0, "epoch", expected=3, arrival=4) == Waiting(1, 3)
    assert cluster.arrive(w1, "epoch", expected=3, arrival=7) == Waiting(2, 3)
    verdict = cluster.arrive(w2, "epoch", expected=3, arrival=1)
    assert verdict == BarrierVerdict("epoch", 1, True, "all 3 arrived")
    assert cluster.effect(ReleaseBarrier).arrivals == {"w0": 4, "w1": 7, "w2": 1}
    assert cluster.recorded(BarrierReleased)[0].last == "w2"


def test_a_release_is_journaled_once() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    for _ in range(3):
        for who in workers:
            cluster.arrive(who, "epoch", expected=2)
    assert len(cluster.recorded(BarrierReleased)) == 1


def test_a_retried_arrival_counts_once() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    for _ in range(5):
        assert cluster.arrive(w0, "epoch", expected=2) == Waiting(1, 2)
    assert cluster.arrive(w1, "epoch", expected=2).released


def test_a_retry_gets_the_verdict_that_was_missed() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    cluster.arrive(w0, "epoch", expected=2)
    verdict = cluster.arrive(w1, "epoch", expected=2)
    assert cluster.arrive(w0, "epoch", expected=2) == verdict
    assert cluster.arrive(w1, "epoch", expected=2) == verdict


def test_a_retry_gets_the_verdict_that_was_missed_also_after_a_restart() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    cluster.arrive(w0, "epoch", expected=2)
    verdict = cluster.arrive(w1, "epoch", expected=2)
    cluster.restart()
    assert cluster.arrive(w0, "epoch", expected=2) == verdict
    assert cluster.decided == []


def test_a_retry_gets_its_verdict_though_the_world_changed_since() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    generation = cluster.generation
    cluster.arrive(w0, "epoch", expected=2, generation=generation)
    verdict = cluster.arrive(w1, "epoch", expected=2, generation=generation)
    cluster.leave(w1)
    assert cluster.arrive(w0, "epoch", expected=2, generation=generation) == verdict


def test_waiters_that_come_again_after_a_restart_are_released() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    cluster.arrive(w0, "epoch", expected=2)
    cluster.restart()
    assert cluster.arrive(w1, "epoch", expected=2) == Waiting(1, 2)
    assert cluster.arrive(w0, "epoch", expected=2).released


def test_a_name_is_used_again_for_the_next_round() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    for turn in range(1, 4):
        assert cluster.arrive(w0, "step", expected=2, arrival=turn) == Waiting(1, 2)
        assert cluster.arrive(w1, "step", expected=2, arrival=turn).round == turn


def test_two_barriers_do_not_mix() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    cluster.arrive(w0, "left", expected=2, arrival=1, settled=0)
    assert cluster.arrive(w1, "right", expected=2, arrival=1, settled=0) == Waiting(1, 2)
    assert cluster.arrive(w0, "right", expected=2, arrival=2, settled=0).released
    assert cluster.arrive(w1, "left", expected=2, arrival=2, settled=0).released


def test_a_barrier_of_some_is_released_by_as_many_as_it_expects() -> None:
    cluster = Cluster()
    w0, _, w2 = cluster.world(3)
    cluster.arrive(w0, "pair", expected=2)
    assert cluster.arrive(w2, "pair", expected=2).released


def test_one_alone_does_not_wait() -> None:
    cluster = Cluster()
    (w0,) = cluster.world(1)
    assert cluster.arrive(w0, "alone", expected=1).released


# -- who takes part --------------------------------------------------------------------------------------------------


def test_differing_counts_are_an_error_that_names_the_others() -> None:
    cluster = Cluster()
    w0, w1, _ = cluster.world(3)
    cluster.arrive(w0, "epoch", expected=3)
    with pytest.raises(Refused, match="'w1' expects 2 participants at barrier 'epoch', but w0 came with 3"):
        cluster.arrive(w1, "epoch", expected=2)
    assert cluster.arrive(w1, "epoch", expected=3) == Waiting(2, 3)


def test_more_than_the_declared_world_can_never_come() -> None:
    cluster = Cluster()
    w0, _ = cluster.world(2)
    with pytest.raises(Refused, match="expects 3 participants, but the world has 2"):
        cluster.arrive(w0, "epoch", expected=3)


def test_a_newcomer_takes_no_part_in_a_round_that_began_before_it_came() -> None:
    cluster = Cluster()
    w0, w1 = cluster.open_world(2)
    cluster.arrive(w0, "epoch", expected=2)
    newcomer = cluster.register("newcomer")
    with pytest.raises(Refused, match=r"'newcomer'.*joined after this round") as refusal:
        cluster.arrive(newcomer, "epoch", expected=2)
    assert refusal.value.retry
    assert cluster.arrive(w1, "epoch", expected=2).released


def test_a_newcomer_takes_part_in_the_next_round() -> None:
    cluster = Cluster()
    w0, w1 = cluster.open_world(2)
    cluster.arrive(w0, "epoch", expected=2)
    newcomer = cluster.register("newcomer")
    cluster.arrive(w1, "epoch", expected=2)
    for who in (w0, w1):
        cluster.arrive(who, "epoch", expected=3, arrival=2)
    assert cluster.arrive(newcomer, "epoch", expected=3).released


def test_declared_ranks_take_part_before_they_join() -> None:
    cluster = Cluster()
    first = cluster.register("w0", rank=0, world_size=2)
    cluster.arrive(first, "start", expected=2)
    second = cluster.register("w1", rank=1, world_size=2)
    assert cluster.arrive(second, "start", expected=2).released


def test_with_a_generation_a_worker_is_refused_once_the_world_changed() -> None:
    cluster = Cluster()
    w0, _ = cluster.open_world(2)
    stale = cluster.generation
    cluster.register("newcomer")
    with pytest.raises(StaleGeneration, match=f"from generation {stale}.*Recover") as refusal:
        cluster.arrive(w0, "epoch", expected=2, generation=stale)
    assert refusal.value.generation == cluster.generation
    assert cluster.arrive(w0, "epoch", expected=3, generation=cluster.generation) == Waiting(1, 3)


def test_all_come_for_the_same_generation_or_all_for_any() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    cluster.arrive(w0, "epoch", expected=2)
    with pytest.raises(Refused, match="for generation 2 alone, the others came for any generation"):
        cluster.arrive(w1, "epoch", expected=2, generation=cluster.generation)


def bound_to_its_generation(**settings: Any) -> tuple[Cluster, list[Registered]]:
    """w0 waits for w1 in this generation alone; w2 has no part in it."""
    cluster = Cluster(**settings)
    workers = cluster.open_world(3)
    cluster.arrive(workers[0], "pair", expected=2, generation=cluster.generation)
    return cluster, workers


def test_a_round_for_one_generation_is_over_when_somebody_joins() -> None:
    cluster, (w0, *_) = bound_to_its_generation()
    cluster.register("newcomer")
    assert cluster.effect(BreakBarrier).arrivals == {"w0": 1}
    assert "the world changed" in cluster.arrive(w0, "pair", expected=2).reason


def test_a_round_for_one_generation_is_over_when_somebody_drains() -> None:
    cluster, _ = bound_to_its_generation()
    cluster.send(DrainRequested(JOB, "w2"))
    assert "the world changed" in cluster.effect(BreakBarrier).reason


@pytest.mark.parametrize("barriers", ["fail", "shrink"])
def test_a_round_for_one_generation_is_over_when_anybody_is_lost(barriers: str) -> None:
    cluster, (_, _, w2) = bound_to_its_generation(barriers=barriers)
    cluster.leave(w2)
    assert cluster.effect(BreakBarrier).missing == ("w2",)


def test_a_round_for_one_generation_is_over_when_somebody_goes_back() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    for who in (w0, w1):
        cluster.recover(who)
    cluster.arrive(w0, "epoch", expected=2, generation=cluster.generation)
    cluster.recover(w1, generation=cluster.generation)
    assert "the world changed: w1 went back" in cluster.effect(BreakBarrier).reason


def test_too_many_open_rounds_are_refused() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    for number in range(1, MAX_OPEN_ROUNDS + 1):
        cluster.arrive(w0, f"b{number}", expected=2, arrival=number, settled=0)
    with pytest.raises(Refused, match="at once, which is the limit"):
        cluster.arrive(w0, "one-more", expected=2, arrival=MAX_OPEN_ROUNDS + 1, settled=0)
    assert cluster.arrive(w1, "b7", expected=2).released


# -- time ------------------------------------------------------------------------------------------------------------


def test_a_timeout_ends_the_wait_for_everyone_and_names_who_is_missing() -> None:
    cluster = Cluster()
    w0, _, w2, _ = workers = cluster.world(4)
    cluster.arrive(w0, "epoch", expected=4, timeout_seconds=30.0)
    cluster.arrive(w2, "epoch", expected=4, arrival=5)
    cluster.pass_time(29.0, alive=workers)
    assert cluster.recorded(BarrierBroken) == []
    cluster.pass_time(1.0, alive=workers)
    broken = cluster.effect(BreakBarrier)
    assert broken.missing == ("w1", "w3")
    assert broken.arrivals == {"w0": 1, "w2": 5}
    assert "timed out after 30.0 s with 2 of 4; missing: w1, w3" in broken.reason
    assert cluster.arrive(w2, "epoch", expected=4, arrival=5) == BarrierVerdict(
        "epoch", 1, False, broken.reason, ("w1", "w3")
    )


@pytest.mark.parametrize("timeouts", [(500.0, 3.0), (3.0, 500.0), (3.0, None)])
def test_the_shortest_timeout_holds_for_all(timeouts: tuple[float, float | None]) -> None:
    cluster = Cluster()
    w0, w1, _ = workers = cluster.world(3)
    for who, seconds in zip((w0, w1), timeouts, strict=True):
        cluster.arrive(who, "epoch", expected=3, timeout_seconds=seconds)
    cluster.pass_time(3.0, alive=workers)
    assert cluster.effect(BreakBarrier).missing == ("w2",)


def test_a_retry_does_not_buy_more_time() -> None:
    cluster = Cluster()
    w0, _ = workers = cluster.world(2)
    for _ in range(3):
        cluster.arrive(w0, "epoch", expected=2, timeout_seconds=3.0)
        cluster.pass_time(1.0, alive=workers)
    assert cluster.effect(BreakBarrier).missing == ("w1",)


def test_a_timeout_names_ranks_that_never_registered_and_workers_that_are_out() -> None:
    cluster = Cluster()
    w0 = cluster.register("w0", rank=0, world_size=3)
    w1 = cluster.register("w1", rank=1, world_size=3)
    cluster.leave(w1, reason="it went home")
    cluster.arrive(w0, "start", expected=3, timeout_seconds=1.0)
    cluster.pass_time(1.0, alive=[w0])
    assert cluster.effect(BreakBarrier).missing == (
        "w1 (rank 1, out: it went home)",
        "rank 2 (never registered)",
    )


def test_more_than_there_are_is_told_by_names_and_a_number() -> None:
    cluster = Cluster()
    w0, *_ = cluster.open_world(3)
    cluster.arrive(w0, "start", expected=9, timeout_seconds=1.0)
    cluster.pass_time(1.0, alive=[w0])
    assert cluster.effect(BreakBarrier).missing == ("w1", "w2", "6 not registered yet")


def test_fewer_than_there_are_is_told_as_so_many_of_them() -> None:
    cluster = Cluster()
    w0, *_ = cluster.open_world(4)
    cluster.arrive(w0, "start", expected=2, timeout_seconds=1.0)
    cluster.pass_time(1.0, alive=[w0])
    assert cluster.effect(BreakBarrier).missing == ("1 of: w1, w2, w3",)


def test_a_paused_coordinator_does_not_time_out_its_waiters() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    cluster.arrive(w0, "epoch", expected=2, timeout_seconds=10.0)
    cluster.sweep(at=1.0)
    cluster.sweep(at=500.0)
    assert cluster.arrive(w1, "epoch", expected=2).released


def test_a_broken_round_leaves_the_name_free() -> None:
    cluster = Cluster()
    w0, w1 = workers = cluster.world(2)
    cluster.arrive(w0, "epoch", expected=2, timeout_seconds=1.0)
    cluster.pass_time(1.0, alive=workers)
    assert cluster.arrive(w1, "epoch", expected=2) == Waiting(1, 2)
    assert cluster.arrive(w0, "epoch", expected=2, arrival=2).released


# -- losses ----------------------------------------------------------------------------------------------------------


def test_a_participant_lost_before_it_came_ends_the_wait_at_once() -> None:
    cluster = Cluster()
    w0, w1, w2 = cluster.world(3)
    cluster.arrive(w0, "epoch", expected=3)
    cluster.arrive(w1, "epoch", expected=3)
    cluster.leave(w2, reason="killed")
    broken = cluster.effect(BreakBarrier)
    assert broken.missing == ("w2",)
    assert broken.reason == "w2 was lost before it came: killed"
    assert broken.arrivals == {"w0": 1, "w1": 1}
    assert not cluster.arrive(w0, "epoch", expected=3).released


def test_a_participant_lost_after_it_came_ends_the_wait_at_once() -> None:
    cluster = Cluster()
    w0, w1, w2 = cluster.world(3)
    cluster.arrive(w0, "epoch", expected=3)
    cluster.arrive(w2, "epoch", expected=3)
    cluster.expire(w2)
    (broken,) = cluster.recorded(BarrierBroken)
    assert broken.missing == ["w2"]
    assert "w2 was lost after it had come: its lease ran out" in broken.reason
    assert broken.arrivals == {"w0": (1, 0)}
    assert cluster.arrive(w1, "epoch", expected=3) == Waiting(1, 3)


def test_an_expiry_breaks_the_barrier_in_the_same_sweep() -> None:
    cluster = Cluster()
    w0, _ = cluster.world(2)
    cluster.arrive(w0, "epoch", expected=2)
    cluster.pass_time(LEASE, alive=[w0])
    assert cluster.effect(BreakBarrier).missing == ("w1",)


def test_a_participant_replaced_before_it_came_may_still_come() -> None:
    cluster = Cluster()
    w0, _ = cluster.world(2)
    cluster.arrive(w0, "epoch", expected=2)
    again = cluster.register("w1", rank=1, world_size=2)
    assert cluster.recorded(BarrierBroken) == []
    assert cluster.arrive(again, "epoch", expected=2).released


def test_a_participant_that_moves_to_another_rank_before_it_came_is_lost_to_the_round() -> None:
    cluster = Cluster()
    w0, _ = cluster.open_world(2)
    cluster.arrive(w0, "epoch", expected=2)
    cluster.register("w1", rank=5)
    assert cluster.effect(BreakBarrier).missing == ("w1",)


def test_a_participant_replaced_after_it_came_is_lost() -> None:
    cluster = Cluster()
    w0, w1, _ = cluster.world(3)
    cluster.arrive(w0, "epoch", expected=3)
    cluster.arrive(w1, "epoch", expected=3)
    cluster.register("w1", rank=1, world_size=3)
    assert cluster.effect(BreakBarrier).missing == ("w1",)
    assert "w1 was lost after it had come: superseded by a new process" in cluster.effect(BreakBarrier).reason


def test_a_new_process_does_not_get_the_verdict_of_the_one_it_replaced() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    cluster.arrive(w0, "epoch", expected=2)
    cluster.arrive(w1, "epoch", expected=2)
    again = cluster.register("w1", rank=1, world_size=2)
    assert cluster.arrive(again, "epoch", expected=2) == Waiting(1, 2)


def test_the_loss_of_a_bystander_ends_no_wait() -> None:
    cluster = Cluster()
    w0, w1, w2 = cluster.world(3)
    cluster.arrive(w0, "pair", expected=2)
    cluster.leave(w2)
    assert cluster.recorded(BarrierBroken) == []
    assert cluster.arrive(w1, "pair", expected=2).released


def test_one_loss_breaks_every_barrier_it_was_awaited_at() -> None:
    cluster = Cluster()
    w0, w1, w2 = cluster.world(3)
    cluster.arrive(w0, "first", expected=3)
    cluster.arrive(w1, "second", expected=3)
    cluster.leave(w2)
    assert [broken.barrier for broken in cluster.recorded(BarrierBroken)] == ["first", "second"]


# -- shrinking -------------------------------------------------------------------------------------------------------


def shrinking(size: int) -> tuple[Cluster, list[Registered]]:
    cluster = Cluster(barriers="shrink")
    return cluster, cluster.world(size)


@pytest.mark.parametrize("came", [True, False])
def test_a_shrinking_barrier_goes_on_with_the_survivors(came: bool) -> None:
    cluster, (w0, w1, w2) = shrinking(3)
    if came:
        cluster.arrive(w2, "epoch", expected=3)
    cluster.arrive(w0, "epoch", expected=3)
    cluster.leave(w2)
    assert cluster.recorded(BarrierBroken) == []
    assert cluster.arrive(w1, "epoch", expected=3).released


def test_a_shrinking_barrier_is_released_by_the_loss_of_the_last_one_missing() -> None:
    cluster, (w0, w1, w2) = shrinking(3)
    cluster.arrive(w0, "epoch", expected=3)
    cluster.arrive(w1, "epoch", expected=3)
    cluster.leave(w2, reason="killed")
    release = cluster.effect(ReleaseBarrier)
    assert release.arrivals == {"w0": 1, "w1": 1}
    assert release.reason == "all 2 survivors arrived; w2 was lost: killed"


def test_a_shrinking_barrier_waits_for_who_replaces_a_participant() -> None:
    cluster, (w0, w1, w2) = shrinking(3)
    for who in (w0, w2):
        cluster.arrive(who, "epoch", expected=3)
    again = cluster.register("w2", rank=2, world_size=3)
    assert cluster.arrive(w1, "epoch", expected=3) == Waiting(2, 3)
    assert cluster.arrive(again, "epoch", expected=3).released


def test_a_shrinking_barrier_survives_the_loss_of_the_only_one_who_came() -> None:
    cluster, (w0, w1, w2) = shrinking(3)
    cluster.arrive(w0, "epoch", expected=3)
    cluster.leave(w0)
    cluster.arrive(w1, "epoch", expected=3)
    assert cluster.arrive(w2, "epoch", expected=3).released


def test_a_shrinking_barrier_does_not_depend_on_whether_the_loss_or_the_first_arrival_came_first() -> None:
    cluster, (w0, w1, w2) = shrinking(3)
    cluster.leave(w2)
    cluster.arrive(w0, "epoch", expected=3)
    assert cluster.arrive(w1, "epoch", expected=3).released


# -- moving on -------------------------------------------------------------------------------------------------------


def meet(cluster: Cluster, workers: list[Registered], barrier: str, arrival: int) -> None:
    for who in workers[:-1]:
        assert isinstance(cluster.arrive(who, barrier, expected=len(workers), arrival=arrival), Waiting)
    assert cluster.arrive(workers[-1], barrier, expected=len(workers), arrival=arrival).released


def test_verdicts_are_dropped_once_all_have_moved_on() -> None:
    cluster = Cluster()
    workers = cluster.world(3)
    meet(cluster, workers, "round-1", 1)
    meet(cluster, workers, "round-2", 2)
    size = len(cluster.machine.snapshot())
    for number in range(3, 100):
        meet(cluster, workers, f"round-{number}", number)
        assert list(cluster.job.rounds) == [number]
    assert len(cluster.machine.snapshot()) < size + 32
    assert cluster.machine.volatile.job(cluster.job.job).rounds == {}


def test_a_verdict_is_kept_while_one_of_them_may_still_ask() -> None:
    cluster = Cluster()
    w0, w1 = workers = cluster.world(2)
    meet(cluster, workers, "first", 1)
    cluster.arrive(w0, "second", expected=2, arrival=2, settled=1)
    assert cluster.arrive(w1, "second", expected=2, arrival=2, settled=0).released
    assert cluster.arrive(w1, "first", expected=2, arrival=1).barrier == "first"


def test_a_late_duplicate_of_a_settled_arrival_never_counts() -> None:
    cluster = Cluster()
    w0, w1 = workers = cluster.world(2)
    meet(cluster, workers, "epoch", 1)
    meet(cluster, workers, "other", 2)
    with pytest.raises(Refused, match="arrival 1 of 'w0' at barrier 'epoch' was answered long ago"):
        cluster.arrive(w0, "epoch", expected=2, arrival=1)
    assert cluster.arrive(w1, "epoch", expected=2, arrival=3) == Waiting(1, 2)


def test_a_late_duplicate_of_a_settled_arrival_never_counts_also_after_a_restart() -> None:
    cluster = Cluster()
    w0, w1 = workers = cluster.world(2)
    meet(cluster, workers, "epoch", 1)
    meet(cluster, workers, "other", 2)
    cluster.restart()
    with pytest.raises(Refused):
        cluster.arrive(w0, "epoch", expected=2, arrival=1)
    assert cluster.arrive(w1, "epoch", expected=2, arrival=3) == Waiting(1, 2)


def test_a_waiter_that_gave_up_is_not_counted_any_more() -> None:
    cluster = Cluster()
    w0, w1, w2 = cluster.world(3)
    cluster.arrive(w0, "epoch", expected=3, arrival=1)
    cluster.arrive(w1, "epoch", expected=3, arrival=1)
    cluster.arrive(w0, "another", expected=3, arrival=2, settled=1)
    assert cluster.arrive(w2, "epoch", expected=3) == Waiting(2, 3)


def test_a_waiter_that_comes_again_is_released_under_its_newest_number() -> None:
    cluster = Cluster()
    w0, w1, w2 = cluster.world(3)
    cluster.arrive(w1, "epoch", expected=3)
    cluster.arrive(w0, "epoch", expected=3, arrival=1, settled=0)
    cluster.arrive(w0, "epoch", expected=3, arrival=2, settled=0)
    with pytest.raises(Refused, match="arrival 1 of 'w0' is older than 2"):
        cluster.arrive(w0, "epoch", expected=3, arrival=1, settled=0)
    cluster.arrive(w2, "epoch", expected=3)
    assert cluster.effect(ReleaseBarrier).arrivals == {"w0": 2, "w1": 1, "w2": 1}


def test_an_older_arrival_takes_no_newer_ones_place_also_when_nobody_else_waits() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    cluster.arrive(w0, "epoch", expected=2, arrival=1, settled=0)
    cluster.arrive(w0, "epoch", expected=2, arrival=2, settled=0)
    with pytest.raises(Refused, match="arrival 1 of 'w0' is older than 2"):
        cluster.arrive(w0, "epoch", expected=2, arrival=1, settled=0)
    cluster.arrive(w1, "epoch", expected=2)
    assert cluster.effect(ReleaseBarrier).arrivals == {"w0": 2, "w1": 1}


# -- what the review of the protocol found ---------------------------------------------------------------------------


def test_a_draining_participant_replaced_at_another_rank_is_lost_to_the_round() -> None:
    cluster = Cluster()
    w0, _, _ = cluster.open_world(3)
    cluster.send(DrainRequested(JOB, "w2"))
    cluster.arrive(w0, "epoch", expected=3)
    cluster.register("w2", rank=5)
    assert cluster.effect(BreakBarrier).missing == ("w2",)


def test_a_loss_ends_the_wait_also_where_another_was_out_before() -> None:
    cluster = Cluster()
    w0, w1, w2 = cluster.world(3)
    cluster.expire(w2)
    cluster.arrive(w0, "epoch", expected=3)
    cluster.leave(w1)
    assert cluster.effect(BreakBarrier).missing == ("w1",)


def test_a_number_stands_for_one_barrier() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    for who in (w0, w1):
        cluster.arrive(who, "x", expected=2, arrival=1, settled=0)
    with pytest.raises(Refused, match="was made at another barrier"):
        cluster.arrive(w0, "y", expected=2, arrival=1, settled=0)
    cluster.arrive(w0, "y", expected=2, arrival=2, settled=1)
    with pytest.raises(Refused, match="was made at another barrier"):
        cluster.arrive(w0, "z", expected=2, arrival=2, settled=1)


def test_verdicts_that_nobody_settles_have_an_end() -> None:
    cluster = Cluster()
    w0 = cluster.world(1)[0]
    for arrival in range(1, MAX_UNHEARD + 1):
        cluster.arrive(w0, f"b{arrival}", expected=1, arrival=arrival, settled=0)
    with pytest.raises(Refused, match="never said it heard"):
        cluster.arrive(w0, "one-more", expected=1, arrival=MAX_UNHEARD + 1, settled=0)


def test_a_timeout_beyond_every_clock_is_refused_and_the_arrival_does_not_count() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    with pytest.raises(InvalidInput, match="timeout must fit 64 bits"):
        cluster.arrive(w0, "epoch", expected=2, timeout_seconds=10**400)
    assert cluster.arrive(w1, "epoch", expected=2) == Waiting(1, 2)


# -- the short way -----------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32))
def test_the_short_way_to_a_barrier_leads_where_the_long_one_does(seed: int) -> None:
    """Or it says that it does not know the way, and has done nothing."""
    random = Random(seed)
    short, long = (_waiting_room(seed) for _ in range(2))
    for _ in range(30):
        event = BarrierArrived(
            JOB,
            f"w{random.randrange(6)}",
            random.choice([1, 2, 3, 4, 5, 6, 7]),
            random.choice(["epoch", "epoch", "epoch", "sync"]),
            arrival=random.randrange(0, 6),
            settled=random.randrange(-1, 5),
            expected=random.choice([6, 6, 6, 3]),
            timeout_seconds=random.choice([None, None, None, 5.0]),
            generation=random.choice([None, None, None, short.generation]),
        )
        before = copy.deepcopy(short.machine.volatile.jobs[JOB])
        joined = short.machine.join_barrier(event, short.now)
        if not joined:
            assert short.machine.volatile.jobs[JOB] == before
            outcomes = [_outcome(cluster, event) for cluster in (short, long)]
            assert outcomes[0] == outcomes[1]
        else:
            decision = long.machine.handle(event, long.now)
            assert decision.records == []
            effects: list[Any] = decision.effects
            assert [type(effect.answer) for effect in effects] == [Waiting]
        assert short.machine.volatile.jobs[JOB].rounds == long.machine.volatile.jobs[JOB].rounds
        assert short.machine.volatile.jobs[JOB].settled == long.machine.volatile.jobs[JOB].settled
    assert short.machine.digest() == long.machine.digest()


def test_the_short_way_knows_what_was_settled_before_a_restart() -> None:
    cluster = Cluster()
    w0, w1, _ = workers = cluster.world(3)
    for arrival, barrier in enumerate(("epoch", "other"), 1):
        meet(cluster, workers, barrier, arrival)
    cluster.restart()
    cluster.arrive(w0, "epoch", expected=3, arrival=3)

    def joins(arrival: int) -> bool:
        late = BarrierArrived(JOB, "w1", w1.incarnation, "epoch", arrival=arrival, settled=0, expected=3)
        return cluster.machine.join_barrier(late, cluster.now)

    assert [joins(arrival) for arrival in (1, 3)] == [False, True]


def _waiting_room(seed: int) -> Cluster:
    random = Random(seed)
    cluster = Cluster(barriers=random.choice(["fail", "shrink"]))
    workers = cluster.world(6)
    arrival = 1
    if random.random() < 0.5:
        for arrival in (1, 2):
            for who in workers:
                cluster.arrive(who, "epoch", expected=6, arrival=arrival)
        if random.random() < 0.5:
            cluster.restart()
    if random.random() < 0.3:
        cluster.leave(workers[5])
    if random.random() < 0.8:
        cluster.arrive(workers[0], "epoch", expected=6, arrival=arrival + 1)
    return cluster


def _outcome(cluster: Cluster, event: BarrierArrived) -> object:
    try:
        return cluster.send(event)
    except StrataError as error:
        return str(error)


def test_the_short_way_is_the_usual_one() -> None:
    """That it is taken at all: by everybody but the first, who is there already, and the last."""
    cluster = Cluster()
    workers = cluster.world(6)
    cluster.arrive(workers[0], "epoch", expected=6)
    joined = [
        cluster.machine.join_barrier(BarrierArrived(JOB, who.worker, who.incarnation, "epoch", 1, 0, 6), cluster.now)
        for who in workers
    ]
    assert joined == [False, True, True, True, True, False]


def test_whoever_waits_no_more_without_a_verdict_is_dismissed() -> None:
    cluster = Cluster()
    first, _ = cluster.world(2)
    cluster.arrive(first, "epoch", expected=2)
    cluster.register("w0", rank=0, world_size=2)
    told = cluster.effect(DismissArrival)
    assert (told.worker, told.arrival, told.cause) == ("w0", 1, "superseded")
