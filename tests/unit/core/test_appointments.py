"""A checkpoint that was asked for: one step, the same for every rank, promised by all before anyone is told."""

import pytest

from strata.core.effects import Errand, Registered
from strata.core.events import HeartbeatReceived, PartFailed, SaveRequested, StopRequested
from strata.core.records import SaveAgreed, SaveDropped, SaveReopened
from strata.errors import InvalidInput, NotFound, Refused
from tests.unit.core.cluster import JOB, Cluster


def ask(cluster: Cluster, reason: str = "maintenance") -> int:
    request: int = cluster.send(SaveRequested(JOB, reason)).request
    return request


def proposed(cluster: Cluster, who: Registered, **heartbeat: int) -> Errand | None:
    """What this worker is told about saving."""
    errands = cluster.heartbeat(who, state="training", **heartbeat).errands
    return next((errand for errand in errands if errand.kind in ("propose_save", "save_at")), None)


def agreed(cluster: Cluster, workers: list[Registered], step: int = 10) -> int:
    """The step that all promised."""
    request = ask(cluster)
    offer = proposed(cluster, workers[0], step=step)
    assert offer is not None
    for who in workers:
        cluster.heartbeat(who, step=step, promised_request=request, promised_step=offer.step)
    return offer.step


def test_nobody_is_told_to_save_before_everybody_promised() -> None:
    cluster = Cluster()
    workers = cluster.world(3)
    request = ask(cluster)
    offers = [proposed(cluster, who, step=10) for who in workers]
    assert offers == [Errand("propose_save", step=11, request=request, reason="maintenance")] * 3
    for who in workers[:2]:
        told = proposed(cluster, who, step=10, promised_request=request, promised_step=11)
        assert told is not None
        assert told.kind == "propose_save"
    assert not cluster.recorded(SaveAgreed)
    told = proposed(cluster, workers[2], step=10, promised_request=request, promised_step=11)
    assert told == Errand("save_at", step=11, request=request, reason="maintenance")
    assert proposed(cluster, workers[0], step=10) == told


def test_the_step_lies_so_far_ahead_that_everybody_hears_of_it_in_time() -> None:
    cluster = Cluster()
    fast, slow = cluster.world(2)
    cluster.heartbeat(fast, step=0)
    cluster.heartbeat(slow, step=0)
    cluster.now += 4.0
    cluster.heartbeat(fast, step=400)
    cluster.heartbeat(slow, step=40)
    cluster.send(SaveRequested(JOB, "maintenance"))
    offer = proposed(cluster, slow, step=40)
    assert offer is not None
    assert offer.step == 400 + 4 * 5 * 100 + 1


def test_a_step_that_somebody_passed_is_proposed_no_more() -> None:
    cluster = Cluster()
    first, second = cluster.world(2)
    request = ask(cluster)
    assert proposed(cluster, first, step=10) is not None
    cluster.heartbeat(first, step=10, promised_request=request, promised_step=11)
    offer = proposed(cluster, second, step=11)
    assert offer is not None
    assert offer.step == 12
    late = proposed(cluster, first, step=10, promised_request=request, promised_step=11)
    assert late is not None
    assert (late.kind, late.step) == ("propose_save", 12)


def test_one_who_holds_at_the_very_step_has_not_passed_it() -> None:
    cluster = Cluster()
    first, second = cluster.world(2)
    request = ask(cluster)
    proposed(cluster, first, step=10)
    cluster.heartbeat(first, step=10, promised_request=request, promised_step=11)
    told = proposed(cluster, second, step=11, promised_request=request, promised_step=11)
    assert told is not None
    assert (told.kind, told.step) == ("save_at", 11)


def test_asking_twice_is_asking_once() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    assert ask(cluster) == ask(cluster, "another reason")
    step = agreed(cluster, workers)
    assert cluster.send(SaveRequested(JOB)).step == step


def test_it_is_kept_when_the_save_is_committed_and_the_next_one_is_another() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    first = ask(cluster)
    step = agreed(cluster, workers)
    attempt = cluster.begin(workers[0], step).attempt
    assert proposed(cluster, workers[1], step=step) is None
    assert ask(cluster) == first, "it is under way"
    for who in workers:
        cluster.ack(who, attempt)
    assert ask(cluster) == first, "its manifest is still to be written"
    cluster.put(workers[0], attempt)
    assert ask(cluster) != first


def test_a_save_that_comes_to_nothing_is_tried_again_at_another_step_but_not_for_ever() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    ask(cluster)
    for _ in range(3):
        step = agreed(cluster, workers, step=cluster.job.next_attempt * 10)
        attempt = cluster.begin(workers[0], step).attempt
        cluster.from_worker(PartFailed, workers[1], attempt=attempt, reason="disk full")
    assert cluster.job.appointment is None
    assert "3 saves came to nothing" in cluster.recorded(SaveDropped)[0].reason


def test_an_earlier_save_does_not_undo_what_was_agreed() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    step = agreed(cluster, workers)
    cluster.save(workers, step - 1)
    told = proposed(cluster, workers[1], step=step - 1)
    assert told is not None
    assert (told.kind, told.step) == ("save_at", step)


def test_while_nothing_is_agreed_any_checkpoint_will_do() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    ask(cluster)
    proposed(cluster, workers[0], step=10)
    cluster.save(workers, 10)
    assert cluster.job.appointment is None
    assert proposed(cluster, workers[1], step=10) is None


def test_a_step_that_is_skipped_after_all_is_replaced() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    step = agreed(cluster, workers)
    cluster.begin(workers[0], step - 1)
    cluster.begin(workers[0], step)  # skipped: the one before is still under way
    told = proposed(cluster, workers[0], step=step)
    assert told is not None
    assert (told.kind, told.step) == ("propose_save", step + 1)


def test_one_that_is_seen_beyond_the_step_does_not_undo_it_for_the_others() -> None:
    """Its save may have begun, and the word of that still be on its way."""
    cluster = Cluster()
    workers = cluster.world(2)
    step = agreed(cluster, workers)
    told = proposed(cluster, workers[1], step=step + 1)
    assert told is not None
    assert (told.kind, told.step) == ("save_at", step)
    cluster.pass_time(2.0)
    assert not cluster.recorded(SaveReopened)
    cluster.begin(workers[1], step)
    kinds = [errand.kind for errand in cluster.heartbeat(workers[0], step=step).errands]
    assert kinds == ["save"]


def test_a_step_that_everybody_passed_is_replaced() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    step = agreed(cluster, workers)
    for who in workers:
        cluster.heartbeat(who, step=step + 3)
    cluster.pass_time(2.0)
    assert [record.reason for record in cluster.recorded(SaveReopened)] == [f"everybody is beyond step {step}"]
    told = proposed(cluster, workers[1], step=step + 3)
    assert told is None or told.kind == "propose_save"


def test_nobody_holds_for_ever_for_one_that_never_answers() -> None:
    cluster = Cluster()
    first, second = cluster.world(2)
    request = ask(cluster)
    steps = set()
    for _ in range(200):
        cluster.pass_time(2.0, alive=[second])
        told = proposed(cluster, first, step=10)
        if told is None:
            break
        steps.add(told.step)
        cluster.heartbeat(first, step=10, promised_request=request, promised_step=told.step)
    (dropped,) = cluster.recorded(SaveDropped)
    assert "w1 did not answer 5 proposals" in dropped.reason
    assert cluster.job.appointment is None


def test_a_lost_worker_is_not_waited_for() -> None:
    cluster = Cluster(recovery="carry_on")
    workers = cluster.world(3)
    request = ask(cluster)
    proposed(cluster, workers[0], step=10)
    for who in workers[:2]:
        cluster.heartbeat(who, step=10, promised_request=request, promised_step=11)
    cluster.leave(workers[2])
    cluster.pass_time(2.0, alive=workers[:2])
    told = proposed(cluster, workers[0], step=10)
    assert told is not None
    assert told.kind == "save_at"


def test_the_promise_of_a_process_does_not_bind_its_successor() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    request = ask(cluster)
    proposed(cluster, workers[0], step=10)
    cluster.heartbeat(workers[0], step=10, promised_request=request, promised_step=11)
    again = cluster.register("w0", rank=0, world_size=2)
    cluster.heartbeat(workers[1], step=10, promised_request=request, promised_step=11)
    assert not cluster.recorded(SaveAgreed)
    cluster.heartbeat(again, step=10, promised_request=request, promised_step=11)
    assert cluster.recorded(SaveAgreed)


def test_going_back_opens_what_was_agreed_again() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    cluster.recover(workers[0])
    cluster.recover(workers[1])
    cluster.save(workers, 5)
    step = agreed(cluster, workers)
    workers[1] = cluster.register("w1", rank=1, world_size=2)
    cluster.recover(workers[0])
    told = proposed(cluster, workers[0], step=5)
    assert told is not None
    assert told.kind == "propose_save"
    assert told.step < step


def test_what_was_asked_and_agreed_outlives_the_coordinator() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    ask(cluster)
    cluster.restart()
    offer = proposed(cluster, workers[0], step=10)
    assert offer is not None
    assert offer.kind == "propose_save"
    step = agreed(cluster, workers)
    cluster.restart()
    told = proposed(cluster, workers[0], step=10)
    assert told is not None
    assert (told.kind, told.step) == ("save_at", step)


def test_a_job_stops_when_one_more_checkpoint_is_committed() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    cluster.send(StopRequested(JOB, "budget spent"))
    cluster.send(StopRequested(JOB, "budget spent"))
    kinds = {errand.kind for errand in cluster.heartbeat(workers[0], step=10).errands}
    assert kinds == {"propose_save"}
    step = agreed(cluster, workers)
    attempt = cluster.begin(workers[0], step).attempt
    assert [errand.kind for errand in cluster.heartbeat(workers[1], step=step).errands] == ["save"]
    for who in workers:
        cluster.ack(who, attempt)
    assert cluster.heartbeat(workers[1], step=step).errands == ()
    cluster.put(workers[0], attempt)
    told = cluster.heartbeat(workers[1], step=step).errands
    assert [errand.kind for errand in told] == ["stop"]
    assert told[0].reason == "budget spent"


def test_a_job_stops_at_the_step_that_is_agreed_for_that_whatever_is_saved_before() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    cluster.send(StopRequested(JOB, "budget spent"))
    cluster.save(workers, 9)  # while nothing is agreed
    assert [errand.kind for errand in cluster.heartbeat(workers[0], step=10).errands] == ["propose_save"]
    step = agreed(cluster, workers)
    cluster.save(workers, step - 1)
    told = cluster.heartbeat(workers[1], step=step - 1).errands
    assert [(errand.kind, errand.step, errand.last) for errand in told] == [("save_at", step, True)]
    cluster.save(workers, step)
    assert [errand.kind for errand in cluster.heartbeat(workers[1], step=step).errands] == ["stop"]


@pytest.mark.parametrize("is_begun", [False, True])
def test_what_others_agreed_on_before_is_not_where_it_stops(is_begun: bool) -> None:
    """Who passed that step did not know that it is the last."""
    cluster = Cluster()
    workers = cluster.world(2)
    first = ask(cluster)
    step = agreed(cluster, workers)
    attempt = cluster.begin(workers[0], step).attempt if is_begun else 0
    cluster.send(StopRequested(JOB, "budget spent"))
    for who in workers if is_begun else ():
        cluster.ack(who, attempt)
    if is_begun:
        cluster.put(workers[0], attempt)
    told = proposed(cluster, workers[1], step=step)
    assert told is not None
    assert (told.kind, told.last) == ("propose_save", True)
    assert told.request > first
    assert told.step > step


def test_who_stops_again_in_a_greater_hurry_is_given_a_nearer_step() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    paced(cluster, workers)
    for within, ahead in ((0.0, 20), (30.0, 3), (120.0, 3)):
        cluster.send(StopRequested(JOB, "preempted", within=within))
        offer = proposed(cluster, workers[0], step=40)
        assert offer is not None
        assert offer.step == 40 + 10 * ahead + 1


@pytest.mark.parametrize("before", ["nothing", "asked", "agreed", "stopping", "stopping and agreed"])
def test_or_at_once_whatever_was_asked_before(before: str) -> None:
    cluster = Cluster()
    (only,) = workers = cluster.world(1)
    if "stopping" in before:
        cluster.send(StopRequested(JOB))
    if "asked" in before:
        ask(cluster)
    if "agreed" in before:
        agreed(cluster, workers)
    cluster.send(StopRequested(JOB, save=False))
    assert [errand.kind for errand in cluster.heartbeat(only).errands] == ["stop"]


def test_a_world_that_begins_anew_is_not_stopped() -> None:
    cluster = Cluster()
    (only,) = cluster.world(1)
    cluster.send(StopRequested(JOB, save=False))
    cluster.leave(only)
    again = cluster.register("w0", rank=0, world_size=1)
    assert cluster.heartbeat(again).errands == ()


@pytest.mark.parametrize("event", [SaveRequested(JOB), StopRequested(JOB)])
def test_there_must_be_somebody_to_ask(event: SaveRequested | StopRequested) -> None:
    cluster = Cluster()
    with pytest.raises(NotFound, match="no job"):
        cluster.send(event)
    (only,) = cluster.world(1)
    cluster.leave(only)
    with pytest.raises(Refused, match="no workers"):
        cluster.send(event)


def test_a_request_lapses_when_nobody_is_left() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    ask(cluster)
    for who in workers:
        cluster.leave(who)
    cluster.pass_time(2.0)
    assert not cluster.recorded(SaveAgreed)
    assert [record.reason for record in cluster.recorded(SaveDropped)] == ["nobody is left to save"]


def test_a_recovery_is_no_pace_to_go_by() -> None:
    cluster = Cluster()
    (only,) = workers = cluster.world(1)
    cluster.recover(only)
    cluster.heartbeat(only, step=10)
    cluster.now += 1.0
    cluster.heartbeat(only, step=900)
    cluster.save(workers, 950)
    again = cluster.register("w0", rank=0, world_size=1)
    cluster.recover(again)
    cluster.heartbeat(again, step=950)
    ask(cluster)
    offer = proposed(cluster, again, step=950)
    assert offer is not None
    assert offer.step == 951


@pytest.mark.parametrize("later", [0, 1])
def test_heartbeats_that_come_together_are_no_pace_to_go_by(later: int) -> None:
    """A rank that passes what was proposed says so at once, and is a step further a moment later."""
    cluster = Cluster()
    (only,) = cluster.world(1)
    cluster.heartbeat(only, step=7)
    if later:  # the pace is known by then: one step a second
        cluster.now += 5.0
        cluster.heartbeat(only, step=12)
    step = 7 + 5 * later
    for _ in range(3):
        step += 1
        cluster.now += 0.004
        cluster.heartbeat(only, step=step)
    ask(cluster)
    offer = proposed(cluster, only, step=step)
    assert offer is not None
    assert offer.step <= step + 60, "at a few steps a second, not at 250"


def test_a_step_that_no_run_can_have_is_refused() -> None:
    cluster = Cluster()
    (only,) = cluster.world(1)
    with pytest.raises(InvalidInput, match="step"):
        cluster.heartbeat(only, step=2**63 - 1)
    with pytest.raises(InvalidInput, match="step"):
        cluster.heartbeat(only, step=-2)
    event = HeartbeatReceived(JOB, only.worker, only.incarnation, step=2**63 - 1)
    assert cluster.machine.renew_lease(event, cluster.now) is None


def paced(cluster: Cluster, workers: list[Registered]) -> None:
    """They take ten steps a second, and are at step 40."""
    for step in (0, 40):
        for who in workers:
            cluster.heartbeat(who, step=step)
        cluster.now += 4.0 if step == 0 else 0.0


@pytest.mark.parametrize(("within", "ahead"), [(0.0, 4 * 5), (30.0, 3), (1000.0, 4 * 5)])
def test_who_is_in_a_hurry_is_given_a_step_that_is_near(within: float, ahead: int) -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    paced(cluster, workers)
    cluster.send(SaveRequested(JOB, "preempted", within))
    offer = proposed(cluster, workers[0], step=40)
    assert offer is not None
    assert offer.step == 40 + 10 * ahead + 1


def test_a_hurry_brings_what_was_proposed_nearer_and_nothing_takes_it_further() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    paced(cluster, workers)
    for within, ahead in ((0.0, 20), (30.0, 3), (120.0, 3), (0.0, 3)):
        cluster.send(SaveRequested(JOB, "preempted", within))
        offer = proposed(cluster, workers[0], step=40)
        assert offer is not None
        assert offer.step == 40 + 10 * ahead + 1


def test_a_hurry_is_over_with_the_save_that_it_was_for() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    paced(cluster, workers)
    request = cluster.send(SaveRequested(JOB, "preempted", 30.0)).request
    for who in workers:
        cluster.heartbeat(who, step=40, promised_request=request, promised_step=71)
    cluster.save(workers, 71)
    cluster.send(SaveRequested(JOB, "maintenance"))
    offer = proposed(cluster, workers[0], step=40)
    assert offer is not None
    assert offer.step == 40 + 10 * 20 + 1


@pytest.mark.parametrize("within", [-1.0, float("inf"), float("nan")])
@pytest.mark.parametrize("event", [SaveRequested, StopRequested])
def test_a_hurry_is_a_number(event: type[SaveRequested | StopRequested], within: float) -> None:
    cluster = Cluster()
    cluster.world(2)
    with pytest.raises(InvalidInput, match="within_seconds"):
        cluster.send(event(JOB, within=within))


def test_who_saves_last_is_told_so() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    cluster.send(StopRequested(JOB, "the night is over"))
    offer = proposed(cluster, workers[0], step=10)
    assert offer is not None
    assert offer.last
    for who in workers:
        cluster.heartbeat(who, step=10, promised_request=offer.request, promised_step=offer.step)
    told = proposed(cluster, workers[0], step=10)
    assert told == Errand("save_at", step=offer.step, request=offer.request, reason=offer.reason, last=True)


def test_a_checkpoint_takes_no_stop_back() -> None:
    cluster = Cluster()
    workers = cluster.world(2)
    cluster.send(StopRequested(JOB, "maintenance", save=False))
    with pytest.raises(Refused, match=r"is stopping \(maintenance\) and saves no more"):
        ask(cluster)
    assert [errand.kind for errand in cluster.heartbeat(workers[0], step=3).errands] == ["stop"]


def test_a_checkpoint_that_a_stop_waits_for_is_the_one_that_is_asked_for() -> None:
    cluster = Cluster()
    cluster.world(2)
    cluster.send(StopRequested(JOB, "maintenance"))
    assert cluster.job.appointment is not None
    assert ask(cluster) == cluster.job.appointment.request
