"""Recovery points and lineages: where everybody goes on after a loss, damage, or a rollback."""

import pytest

from strata.core.effects import AbandonAttempt, Begun, Done, Errand, FinishFirst, LineageNow, RecoveryPoint
from strata.core.events import BatchesReported, Found, Position
from strata.core.records import CheckpointAdopted, RecoveryPointSet
from strata.core.recovery import MAX_EARLIER
from strata.errors import Conflict, InvalidInput, NotFound, Refused, StaleGeneration
from tests.unit.core.cluster import Cluster
from tests.unit.core.saves import damage, roll_back, statuses

# -- recovery --------------------------------------------------------------------------------------------------------


def test_without_a_checkpoint_everybody_starts_at_the_beginning() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    point = cluster.recover(w0)
    assert (point.attempt, point.step, point.epoch, point.lineage) == (0, -1, 0, 0)
    assert cluster.recover(w1) == point


def test_those_of_the_start_before_are_not_counted_among_those_of_this_one() -> None:
    cluster = Cluster()
    cluster.world(3)
    cluster.now += 1.0  # all are killed, and rank 0 is the first that is started again
    w0 = cluster.register("w0", rank=0, world_size=3)
    with pytest.raises(Refused, match=r"'w1' \(rank 1\) was not heard since others joined") as refusal:
        cluster.recover(w0)
    assert refusal.value.retry
    cluster.now += 1.0
    w1 = cluster.register("w1", rank=1, world_size=3)
    w2 = cluster.register("w2", rank=2, world_size=3)
    assert {cluster.recover(who).generation for who in (w0, w1, w2)} == {cluster.generation}


def test_those_who_stay_count_as_soon_as_they_are_heard() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    cluster.now += 1.0
    w0 = cluster.register("w0", rank=0, world_size=2)
    with pytest.raises(Refused, match="was not heard since others joined"):
        cluster.recover(w0)
    cluster.heartbeat(w1)
    assert cluster.recover(w0) == cluster.recover(w1)


def test_everybody_in_a_generation_is_given_the_same_point() -> None:
    cluster = Cluster()
    workers = cluster.world(3)
    cluster.save(workers, step=10, epoch=2)
    expected = RecoveryPoint(3, 0, 1, 10, 2, "generation 3: w1 was the first to ask", (0, 1, 2), 1)
    assert [cluster.recover(workers[rank]) for rank in (1, 0, 2)] == [expected] * 3
    cluster.restart()
    assert cluster.recover(workers[0]) == expected
    assert len(cluster.recorded(RecoveryPointSet)) == 1


def test_an_open_attempt_is_no_recovery_point_and_is_abandoned() -> None:
    cluster = Cluster()
    w0, w1 = workers = cluster.world(2)
    cluster.save(workers, step=10)
    cluster.begin(w0, step=20)
    cluster.ack(w0, 2)
    assert cluster.recover(w1).step == 10
    assert statuses(cluster) == {1: "committed"}


def test_a_decided_attempt_is_finished_first() -> None:
    cluster = Cluster()
    workers = w0, w1 = cluster.world(2)
    attempt = cluster.decide(workers, step=10)
    for who in workers:
        assert cluster.recover(who) == FinishFirst(Errand("put_manifest", attempt, step=10))
    cluster.put(w1, attempt)
    assert cluster.recover(w0).step == 10


def test_an_incomplete_world_waits_for_its_ranks() -> None:
    cluster = Cluster()
    w0 = cluster.register("w0", rank=0, world_size=3)
    with pytest.raises(Refused, match="nobody is registered for ranks 1, 2") as refusal:
        cluster.recover(w0)
    assert refusal.value.retry
    cluster.register("w1", rank=1, world_size=3)
    with pytest.raises(Refused, match="nobody is registered for rank 2"):
        cluster.recover(w0)
    cluster.register("w2", rank=2, world_size=3)
    assert cluster.recover(w0).ranks == (0, 1, 2)


def test_the_survivors_recover_without_the_lost() -> None:
    cluster = Cluster()
    workers = w0, w1, w2 = cluster.world(3)
    cluster.save(workers, step=10)
    cluster.recover(w0)
    cluster.leave(w1)
    point = cluster.recover(w2)
    assert (point.step, point.ranks, point.generation) == (10, (0, 2), cluster.generation)
    assert cluster.recover(w0) == point


def test_asking_again_takes_everybody_back() -> None:
    cluster = Cluster()
    w0, w1 = workers = cluster.world(2)
    first = cluster.recover(w0)
    cluster.recover(w1)
    cluster.save(workers, step=10)
    again = cluster.recover(w0, generation=first.generation)
    assert again.generation == first.generation + 1
    assert again.step == 10
    assert cluster.recover(w1, generation=first.generation) == again


def test_a_retried_question_takes_nobody_back_twice() -> None:
    cluster = Cluster()
    w0, _ = cluster.world(2)
    first = cluster.recover(w0)
    again = cluster.recover(w0, generation=first.generation)
    assert cluster.recover(w0, generation=first.generation) == again
    assert cluster.generation == again.generation


def test_a_new_process_that_asks_twice_takes_nobody_back() -> None:
    cluster = Cluster()
    w0, _ = cluster.world(2)
    assert cluster.recover(w0) == cluster.recover(w0)


# -- damage ----------------------------------------------------------------------------------------------------------


def test_damage_of_the_recovery_point_yields_a_new_point_and_lineage_for_all() -> None:
    cluster = Cluster()
    workers = w0, w1 = cluster.world(2)
    cluster.save(workers, step=10)
    broken = cluster.save(workers, step=20)
    stale = cluster.recover(w0)
    assert stale.attempt == broken
    assert damage(cluster, w0, broken) == Done()
    assert cluster.heartbeat(w1).generation == stale.generation + 1
    point = cluster.recover(w1, generation=stale.generation)
    assert (point.step, point.attempt, point.lineage) == (10, 1, 1)
    assert cluster.recover(w0, generation=stale.generation) == point


def test_damage_found_twice_is_one_damage() -> None:
    cluster = Cluster()
    workers = w0, w1 = cluster.world(2)
    cluster.save(workers, step=10)
    cluster.recover(w0)
    damage(cluster, w0, 1)
    generation = cluster.generation
    damage(cluster, w1, 1)
    assert cluster.generation == generation


def test_damage_of_everything_leads_back_to_the_beginning() -> None:
    cluster = Cluster()
    workers = w0, w1 = cluster.world(2)
    for step in (10, 20):
        damage(cluster, w1, cluster.save(workers, step=step))
    point = cluster.recover(w0)
    assert (point.step, point.attempt, point.lineage) == (-1, 0, 1)
    assert cluster.begin(w0, step=10) == Begun(3, 1, 10, "open")


def test_damage_of_a_checkpoint_that_is_not_the_point_disturbs_nobody() -> None:
    cluster = Cluster()
    workers = w0, w1 = cluster.world(2)
    cluster.recover(w0)
    attempt = cluster.save(workers, step=10)
    generation = cluster.generation
    damage(cluster, w1, attempt)
    assert cluster.generation == generation
    assert cluster.begin(w0, step=20).attempt == 2


def test_an_open_attempt_cannot_be_damaged() -> None:
    cluster = Cluster()
    w0, _ = cluster.world(2)
    cluster.begin(w0, step=10)
    with pytest.raises(Refused, match="attempt 1 is still being written"):
        damage(cluster, w0, 1)


def test_the_step_of_a_damaged_checkpoint_is_not_begun_again_in_its_lineage() -> None:
    cluster = Cluster()
    workers = w0, w1 = cluster.world(2)
    damage(cluster, w0, cluster.save(workers, step=10))
    with pytest.raises(Refused):
        cluster.begin(w1, step=10)


def test_damaged_checkpoints_go_too_and_their_step_is_not_used_again() -> None:
    cluster = Cluster()
    cluster.configure(keep_count=1)
    workers = w0, _ = cluster.world(2)
    broken = cluster.save(workers, step=10)
    damage(cluster, w0, broken)
    cluster.save(workers, step=20)
    assert cluster.job.attempts[broken].status == "doomed"
    assert cluster.job.lineages[0].tip == 20


# -- lineages --------------------------------------------------------------------------------------------------------


def test_rolling_back_starts_a_lineage_and_a_generation() -> None:
    cluster = Cluster()
    workers = w0, _ = cluster.world(2)
    for step in (10, 20, 30):
        cluster.save(workers, step=step)
    generation = cluster.generation
    assert roll_back(cluster, 10) == LineageNow(1, generation + 1, 10)
    point = cluster.recover(w0)
    assert (point.step, point.lineage, point.attempt) == (10, 1, 1)


def test_rolling_back_twice_is_rolling_back_once() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    cluster.save(workers, step=10)
    generation = cluster.generation
    answer = roll_back(cluster, 10, generation)
    before = cluster.machine.snapshot()
    assert roll_back(cluster, 10, generation) == answer
    assert cluster.machine.snapshot() == before


def test_rolling_back_from_another_generation_is_stale() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    cluster.save(workers, step=10)
    with pytest.raises(StaleGeneration, match="look again, then decide"):
        roll_back(cluster, 10, cluster.generation - 1)


def test_only_a_committed_step_can_be_rolled_back_to() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    cluster.save(workers, step=10)
    cluster.begin(workers[0], step=20)
    with pytest.raises(NotFound, match=r"no committed checkpoint of step 20 to roll back to; there are \[10\]"):
        roll_back(cluster, 20)


def test_rolling_back_waits_for_a_decided_checkpoint_and_abandons_an_open_one() -> None:
    cluster = Cluster(saves="skip")
    workers = w0, _ = cluster.world(2)
    cluster.save(workers, step=10)
    attempt = cluster.decide(workers, step=20)
    with pytest.raises(Refused, match="once it is committed") as refusal:
        roll_back(cluster, 10)
    assert refusal.value.retry
    cluster.put(w0, attempt)
    cluster.begin(w0, step=30)
    roll_back(cluster, 10)
    assert cluster.effect(AbandonAttempt).reason == "rolled back to step 10"


def test_the_latest_follows_the_lineage_and_not_the_largest_step() -> None:
    cluster = Cluster()
    workers = w0, w1 = cluster.world(2)
    for step in (10, 20, 30):
        cluster.save(workers, step=step)
    roll_back(cluster, 10)
    cluster.recover(w0)
    retrained = cluster.save(workers, step=20)
    cluster.leave(w1)
    point = cluster.recover(w0)
    assert (point.step, point.attempt, point.lineage) == (20, retrained, 1)


def test_a_step_occurs_once_in_each_lineage() -> None:
    cluster = Cluster()
    workers = w0, _ = cluster.world(2)
    for step in (10, 20):
        cluster.save(workers, step=step)
    for _ in range(3):
        roll_back(cluster, 10)
        cluster.recover(w0)
        cluster.save(workers, step=20)
    places = [(attempt.lineage, attempt.step) for attempt in cluster.job.attempts.values()]
    assert sorted(places) == [(0, 10), (0, 20), (1, 20), (2, 20), (3, 20)]


def test_what_a_lineage_left_behind_is_invisible_to_it() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    for step in (10, 20, 30):
        cluster.save(workers, step=step)
    roll_back(cluster, 10)
    for hidden in (20, 30):
        with pytest.raises(NotFound, match=f"no committed checkpoint of step {hidden}"):
            roll_back(cluster, hidden)
    assert roll_back(cluster, 10).lineage == 2


def test_a_lineage_sees_what_its_ancestors_had_before_it_began() -> None:
    cluster = Cluster()
    workers = w0, _ = cluster.world(2)
    for step in (10, 20, 30):
        cluster.save(workers, step=step)
    roll_back(cluster, 20)
    for who in workers:
        cluster.recover(who)
    cluster.save(workers, step=25)
    roll_back(cluster, 25)
    assert roll_back(cluster, 10).lineage == 3
    assert cluster.recover(w0).step == 10


def test_an_operator_may_roll_back_to_where_damage_led_before() -> None:
    cluster = Cluster()
    workers = w0, w1 = cluster.world(2)
    cluster.save(workers, step=10)
    broken = cluster.save(workers, step=20)
    cluster.recover(w0)
    damage(cluster, w0, broken)
    for who in (w0, w1):
        assert cluster.recover(who).lineage == 1
    cluster.save(workers, step=30)
    assert roll_back(cluster, 10).lineage == 2
    assert cluster.recover(w0).step == 10


def test_a_thousand_rollbacks_are_as_sound_as_one() -> None:
    cluster = Cluster()
    workers = w0, _ = cluster.world(2)
    cluster.save(workers, step=10)
    for number in range(1, 1101):
        assert roll_back(cluster, 10).lineage == number
    assert cluster.recover(w0).step == 10


def test_nobody_saves_between_a_rollback_and_the_recovery() -> None:
    cluster = Cluster()
    workers = w0, _ = cluster.world(2)
    for step in (10, 20):
        cluster.save(workers, step=step)
    roll_back(cluster, 10)
    with pytest.raises(StaleGeneration, match="must recover before it saves again"):
        cluster.begin(w0, step=30)
    assert cluster.recover(w0).step == 10


# -- what is found in the storage ------------------------------------------------------------------------------------


def test_a_checkpoint_that_was_saved_without_the_coordinator_is_taken_on() -> None:
    cluster = Cluster()
    w0, w1 = workers = cluster.world(2)
    point = cluster.recover(w0, found=Found(900, 3, "step_900 of a run before"))
    assert (point.step, point.epoch, point.place) == (900, 3, "step_900 of a run before")
    assert cluster.recover(w1, found=Found(900, 3, "step_900 of a run before")) == point
    assert len(cluster.recorded(CheckpointAdopted)) == 1
    assert cluster.begin(w0, step=1000, place="step_1000").status == "open"
    cluster.restart()
    assert cluster.recover(w0) == point
    assert statuses(cluster) == {1: "committed", 2: "open"}
    assert len(workers) == 2


def test_whoever_asks_later_gets_the_point_that_was_set_whatever_it_finds() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    point = cluster.recover(w0, found=Found(900, 0, "a"))
    assert cluster.recover(w1, found=Found(1000, 0, "b")) == point


@pytest.mark.parametrize("found", [Found(-1), Found(10, 0, "step_10"), Found(30, 0, "step_30")])
def test_what_is_new_in_the_storage_is_for_the_first_rank_to_say(found: Found) -> None:
    """Another may look into a folder that is not the job's."""
    cluster = Cluster()
    w0, w1 = workers = cluster.world(2)
    for step in (10, 20):
        cluster.save(workers, step=step, place=f"step_{step}")
    with pytest.raises(Refused, match="rank 0 has to say what there is") as refusal:
        cluster.recover(w1, found=found)
    assert refusal.value.retry
    point = cluster.recover(w0, found=Found(20, 0, "step_20"))
    assert cluster.recover(w1, found=found) == point


def test_any_rank_may_say_that_the_latest_that_is_known_is_there() -> None:
    cluster = Cluster()
    _, w1 = workers = cluster.world(2)
    cluster.save(workers, step=10, place="step_10")
    assert cluster.recover(w1, found=Found(10, 0, "step_10")).step == 10


def test_an_operator_s_rollback_is_not_undone_by_what_is_in_the_storage() -> None:
    cluster = Cluster()
    w0, _ = workers = cluster.world(2)
    for step in (10, 20, 30):
        cluster.save(workers, step=step, place=f"step_{step}")
    roll_back(cluster, 10)
    assert cluster.recover(w0, found=Found(30, 0, "step_30")).step == 10


def test_a_return_behind_the_base_of_a_lineage_is_one_of_its_own() -> None:
    """Also if nothing was saved since the last return."""
    cluster = Cluster()
    w0, _ = workers = cluster.world(2)
    for step in (10, 20, 30):
        cluster.save(workers, step=step, place=f"step_{step}")
    cluster.recover(w0, found=Found(20, 0, "step_20"), insist=True)
    cluster.recover(w0, found=Found(10, 0, "step_10"), insist=True)
    assert cluster.begin(w0, step=15, place="step_15").status == "open"


def test_to_insist_on_where_everybody_is_rewinds_nothing() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    point = cluster.recover(w0, found=Found(-1))
    cluster.leave(w1)
    cluster.register("w1", rank=1, world_size=2)
    assert cluster.generation > point.generation
    assert cluster.recover(w0, found=Found(-1), insist=True) == point
    assert len(cluster.recorded(RecoveryPointSet)) == 1


def test_a_known_checkpoint_that_is_found_is_not_taken_on_again() -> None:
    cluster = Cluster()
    w0, _ = workers = cluster.world(2)
    attempt = cluster.save(workers, step=10, place="step_10")
    point = cluster.recover(w0, found=Found(10, 0, "step_10"))
    assert (point.attempt, point.lineage) == (attempt, 0)
    assert not cluster.recorded(CheckpointAdopted)


def test_what_the_storage_has_lost_is_left_behind() -> None:
    cluster = Cluster()
    w0, _ = workers = cluster.world(2)
    cluster.save(workers, step=10, place="step_10")
    cluster.save(workers, step=20, place="step_20")
    with pytest.raises(Conflict, match="look again"):  # it may have been committed since that was looked for
        cluster.recover(w0, found=Found(10, 0, "step_10"))
    point = cluster.recover(w0, found=Found(10, 0, "step_10"), insist=True)
    assert (point.step, point.lineage) == (10, 1)
    assert cluster.begin(w0, step=20, place="step_20 again") == Begun(3, 1, 20, "open")


def test_another_checkpoint_of_a_known_step_takes_its_place() -> None:
    cluster = Cluster()
    w0, _ = workers = cluster.world(2)
    cluster.save(workers, step=10, place="step_10")
    point = cluster.recover(w0, found=Found(10, 0, "step_10 of another run"))
    assert (point.step, point.place) == (10, "step_10 of another run")
    assert statuses(cluster) == {1: "damaged", 2: "committed"}


def test_a_damaged_checkpoint_that_is_found_is_not_the_point() -> None:
    cluster = Cluster()
    w0, _ = workers = cluster.world(2)
    cluster.save(workers, step=10, place="step_10")
    damaged = cluster.save(workers, step=20, place="step_20")
    damage(cluster, w0, damaged)
    assert cluster.recover(w0, found=Found(20, 0, "step_20")).step == 10


def test_nothing_in_the_storage_is_the_beginning() -> None:
    cluster = Cluster()
    w0, _ = workers = cluster.world(2)
    cluster.save(workers, step=10, place="step_10")
    with pytest.raises(Conflict, match="step 10 was committed"):
        cluster.recover(w0, found=Found(-1))
    point = cluster.recover(w0, found=Found(-1), insist=True)
    assert (point.step, point.attempt, point.lineage) == (-1, 0, 1)
    assert cluster.begin(w0, step=5).status == "open"


def test_who_insists_takes_everybody_back_and_once() -> None:
    cluster = Cluster()
    w0, w1 = workers = cluster.world(2)
    first = cluster.recover(w0, found=Found(-1))
    cluster.save(workers, step=10, place="step_10")
    cluster.save(workers, step=20, place="step_20")
    back = cluster.recover(w0, found=Found(10, 0, "step_10"), insist=True)
    assert (back.step, back.lineage, back.generation) == (10, 1, first.generation + 1)
    assert cluster.recover(w0, found=Found(10, 0, "step_10"), insist=True) == back
    assert cluster.recover(w1, first.generation) == back
    assert cluster.begin(w0, step=20, place="step_20 again").status == "open"


def test_a_late_copy_of_a_request_that_insists_takes_nobody_back() -> None:
    cluster = Cluster()
    w0, _ = workers = cluster.world(2)
    start = cluster.recover(w0, found=Found(-1), insist=True, known_attempt=0)
    attempt = cluster.save(workers, step=10, place="step_10")
    with pytest.raises(Conflict, match="step 10 was committed"):
        cluster.recover(w0, found=Found(-1), insist=True, known_attempt=0)
    assert (cluster.generation, cluster.job.points) == (start.generation, start.point)
    assert cluster.recover(w0, found=Found(-1), insist=True, known_attempt=attempt).lineage == 1


def test_who_insists_on_where_everybody_is_changes_nothing() -> None:
    cluster = Cluster()
    w0, _ = cluster.world(2)
    point = cluster.recover(w0, found=Found(900, 0, "step_900"))
    assert cluster.recover(w0, point.generation, found=Found(900, 0, "step_900"), insist=True) == point


def test_who_insists_in_a_new_generation_sets_its_point_and_nobody_sets_another() -> None:
    """All ranks were started again, and go on from where the ones before did: what is begun then is not given up."""
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    found = Found(900, 0, "step_900")
    cluster.recover(w0, found=found)
    cluster.add_dataset("texts", order="elastic")
    for who in (w0, w1):
        now = {"generation": cluster.generation, "point": cluster.job.points}
        cluster.from_worker(BatchesReported, who, dataset="texts", version=1, epoch=0, through=50, **now)
    assert cluster.dataset("texts").consumed.count == 50
    w0, w1 = cluster.world(2)
    for who in (w0, w1):
        cluster.heartbeat(who)
    point = cluster.recover(w0, found=found, insist=True)
    assert (point.step, point.generation) == (900, cluster.generation)
    assert cluster.dataset("texts").consumed.count == 0  # the ones before have read that
    assert cluster.begin(w0, step=1000, place="step_1000").status == "open"
    assert cluster.recover(w1) == point
    assert cluster.job.attempts[cluster.job.next_attempt - 1].status == "open"


def test_a_job_that_carries_on_takes_on_what_is_ahead_and_leaves_nothing_behind() -> None:
    cluster = Cluster(recovery="carry_on")
    w0, _ = workers = cluster.world(2)
    cluster.recover(w0, found=Found(900, 0, "step_900"))
    cluster.save(workers, step=1000, place="step_1000")
    assert cluster.recover(w0, found=Found(900, 0, "step_900")).place == "step_1000"
    assert cluster.recover(w0, found=Found(1100, 0, "step_1100")).place == "step_1100"


def test_what_was_saved_while_the_coordinator_was_away_is_taken_on_and_nobody_goes_back() -> None:
    cluster = Cluster()
    cluster.add_dataset("texts", order="elastic")
    w0, w1 = workers = cluster.world(2)
    point = cluster.recover(w0, found=Found(-1))
    cluster.save(workers, step=10, place="step_10")
    for who in workers:
        now = {"generation": cluster.generation, "point": point.point}
        cluster.from_worker(BatchesReported, who, dataset="texts", version=1, epoch=0, through=50, **now)
    cluster.begin(w0, step=20, place="step_20 of that try")
    cluster.restart()
    found = Found(30, 0, "step_30", {"texts": Position(1, 0, [0, 70])})
    assert [cluster.recover(w0, found=found, since=point.point) for _ in range(2)] == [point, point]
    assert statuses(cluster) == {1: "committed", 3: "committed"}, "nobody saves the step that was begun then"
    assert cluster.dataset("texts").consumed.count == 50
    assert len(cluster.recorded(RecoveryPointSet)) == len(cluster.recorded(CheckpointAdopted)) == 1
    cluster.leave(w1)
    after = cluster.recover(w0)
    assert (after.step, cluster.dataset("texts").consumed.count) == (30, 70)


def test_what_was_saved_by_those_who_others_have_gone_back_without_is_not_taken_on() -> None:
    cluster = Cluster()
    w0, w1 = cluster.world(2)
    point = cluster.recover(w0, found=Found(-1))
    cluster.recover(w1, point.generation)
    with pytest.raises(StaleGeneration):
        cluster.recover(w0, found=Found(30, 0, "step_30"), since=point.point)
    assert statuses(cluster) == {}


def test_that_something_was_saved_without_the_coordinator_is_no_news_when_it_is_heard_late() -> None:
    cluster = Cluster()
    w0, _ = cluster.world(2)
    point = cluster.recover(w0, found=Found(-1))
    cluster.begin(w0, step=40, place="step_40")
    for step in (30, 20):
        cluster.recover(w0, found=Found(step, 0, f"step_{step}"), since=point.point)
    assert statuses(cluster) == {1: "open", 2: "committed"}


@pytest.mark.parametrize("recovery", ["rollback", "carry_on"])
def test_all_that_was_saved_while_the_coordinator_was_away_is_taken_on(recovery: str) -> None:
    cluster = Cluster(recovery=recovery)
    cluster.add_dataset("texts", order="elastic")
    w0, w1 = workers = cluster.world(2)
    point = cluster.recover(w0, found=Found(-1))
    cluster.save(workers, step=10, place="step_10")
    cluster.restart()
    places = {"texts": Position(1, 0, [0, 20])}
    earlier = [Found(10, 0, "step_10"), Found(20, 0, "step_20", places), Found(30, 0, "step_30")]
    told = {"found": Found(40, 0, "step_40"), "earlier": earlier, "since": point.point}
    answers = [cluster.recover(w0, **told) for _ in range(2)]
    assert {(answer.generation, answer.point) for answer in answers} == {(point.generation, point.point)}
    assert statuses(cluster) == dict.fromkeys((1, 2, 3, 4), "committed")
    assert [each.step for each in cluster.recorded(CheckpointAdopted)] == [20, 30, 40]
    roll_back(cluster, 20)
    assert (cluster.recover(w1).step, cluster.dataset("texts").consumed.count) == (20, 20)


def test_how_much_was_saved_while_the_coordinator_was_away_is_told_in_pieces() -> None:
    cluster = Cluster()
    w0, _ = cluster.world(2)
    point = cluster.recover(w0, found=Found(-1))
    steps = [Found(step, 0, f"step_{step}") for step in range(MAX_EARLIER + 2)]
    with pytest.raises(InvalidInput, match="at most 100 earlier checkpoints can be told at once, not 101"):
        cluster.recover(w0, found=steps[-1], earlier=steps[:-1], since=point.point)
    with pytest.raises(InvalidInput, match="say `since`, too"):
        cluster.recover(w0, found=steps[1], earlier=steps[:1])
    assert statuses(cluster) == {}
    cluster.recover(w0, found=steps[-2], earlier=steps[:-2], since=point.point)
    assert len(statuses(cluster)) == MAX_EARLIER + 1


@pytest.mark.parametrize("wrong", [Found(-2), Found(1, -1), Found(1, 0, "x" * 3000)])
def test_nonsense_is_found_nowhere(wrong: Found) -> None:
    cluster = Cluster()
    (w0,) = cluster.world(1)
    with pytest.raises(InvalidInput):
        cluster.recover(w0, found=wrong)
    point = cluster.recover(w0)
    with pytest.raises(InvalidInput):
        cluster.recover(w0, found=Found(9), earlier=[wrong], since=point.point)
    assert statuses(cluster) == {}
