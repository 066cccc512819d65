"""One sentence on any job: what it does, or what holds it back, and whom to look at."""

from strata.core.effects import Registered
from strata.core.events import DrainRequested, SaveRequested, StopRequested
from strata.core.explanations import Explanation, explain
from strata.core.records import SituationChanged
from tests.unit.core.cluster import JOB, Cluster


def of(cluster: Cluster) -> Explanation:
    return explain(cluster.job, cluster.machine.volatile.job(JOB), cluster.policy, cluster.now)


def training(cluster: Cluster, workers: list[Registered], step: int = 5) -> None:
    for who in workers:
        cluster.heartbeat(who, state="training", step=step, epoch=2)


def ready(size: int) -> tuple[Cluster, list[Registered]]:
    """A world that recovered and trains."""
    cluster = Cluster()
    workers = cluster.world(size)
    for who in workers:
        cluster.recover(who)
    training(cluster, workers)
    return cluster, workers


def test_a_job_without_workers() -> None:
    cluster = Cluster(recovery="rollback")
    assert of(cluster) == Explanation("empty", "waits for its first worker")
    (only,) = cluster.world(1)
    cluster.leave(only, reason="done")
    assert of(cluster).sentence == "has no workers any more; the last one, w0, is out: done"
    assert not of(cluster).held_back


def test_a_job_that_lost_everybody() -> None:
    cluster = Cluster()
    cluster.world(1)
    cluster.pass_time(20.0)
    told = of(cluster)
    assert told.situation == "lost"
    assert told.held_back
    assert told.culprits == ("w0",)
    assert "its lease ran out" in told.sentence


def test_the_last_to_go_says_how_it_ended() -> None:
    """Not the last who came."""
    cluster, workers = ready(2)
    cluster.leave(workers[1], reason="done")
    cluster.leave(workers[0], reason="CUDA out of memory", died=True)
    told = of(cluster)
    assert told.sentence == "has lost all its workers; the last one, w0, is out: its process died: CUDA out of memory"
    assert (told.situation, told.held_back, told.culprits) == ("lost", True, ("w0",))
    cluster, workers = ready(2)
    cluster.leave(workers[1], reason="CUDA out of memory", died=True)
    cluster.leave(workers[0], reason="done")
    assert of(cluster).sentence == "has no workers any more; the last one, w0, is out: done"


def test_an_ordinary_day() -> None:
    cluster, workers = ready(3)
    assert of(cluster) == Explanation("training", "is training: 3 of 3 workers, step 5, epoch 2")
    cluster.heartbeat(workers[1], state="training", step=9, epoch=2)
    assert of(cluster).sentence == "is training: 3 of 3 workers, step 9 (the slowest at 5), epoch 2"


def test_workers_that_said_nothing_yet() -> None:
    cluster = Cluster()
    cluster.open_world(2)
    assert of(cluster).sentence == "is initializing: 2 of 2 workers"


def test_who_said_nothing_since_the_coordinator_started_is_not_said_to_do_anything() -> None:
    cluster, workers = ready(2)
    cluster.restart()
    assert of(cluster).sentence == "is initializing: 2 of 2 workers"
    cluster.heartbeat(workers[0], state="training", step=60, epoch=2)
    assert of(cluster).sentence == "is training: 1 of 2 workers, step 60, epoch 2"
    cluster.pass_time(4.0, alive=workers[:1])
    cluster.heartbeat(workers[0], state="training", step=64)
    assert of(cluster).sentence == "is training: 1 of 2 workers, step 64"


def test_who_is_silent_is_named_before_it_is_given_up() -> None:
    cluster, workers = ready(3)
    cluster.pass_time(10.0, alive=workers[:2])
    training(cluster, workers[:2])
    assert of(cluster).sentence == "is training: 3 of 3 workers, step 5, epoch 2", "one late heartbeat is nothing"
    cluster.pass_time(2.0, alive=workers[:1])
    told = of(cluster)
    assert told.sentence.endswith(", epoch 2; w2 has been silent for 12 s, and is given up in 3 s")
    assert not told.held_back
    cluster.arrive(workers[0], "epoch_2", expected=3)
    cluster.pass_time(2.0, alive=workers[:1])
    cluster.now += 5.0
    assert "; w1 is alive (heard 9 s ago), training" in of(cluster).sentence
    cluster.now += 2.0
    assert of(cluster).sentence.endswith("; w1 has been silent for 11 s, and is given up in 4 s")


def test_several_who_are_silent_and_those_who_drain() -> None:
    cluster = Cluster(recovery="carry_on")
    training(cluster, cluster.world(3))
    cluster.send(DrainRequested(JOB, "w0", "maintenance"))
    assert "; w0 is draining" in of(cluster).sentence
    cluster.send(DrainRequested(JOB, "w1", "maintenance"))
    cluster.now += 11.0
    told = of(cluster).sentence
    assert told.endswith(
        "; w0, w1 are draining; w0 has been silent for 11 s, and is given up in 4 s; 2 more are silent"
    )


def test_ranks_that_never_came_and_ranks_that_went() -> None:
    cluster = Cluster()
    workers = [cluster.register(f"w{rank}", rank=rank, world_size=4) for rank in (0, 2)]
    cluster.leave(workers[1], reason="out of memory")
    told = of(cluster)
    assert told.sentence == (
        "waits for 3 of 4 workers: rank 1 (never came), rank 2 (w2: out of memory), rank 3 (never came)"
    )
    assert told.culprits == ("w2",)


def test_a_world_that_has_to_recover() -> None:
    cluster, _ = ready(2)
    cluster.register("w1", rank=1, world_size=2)
    assert of(cluster).situation == "recovering"


def test_a_barrier_names_who_is_missing_and_what_it_does() -> None:
    cluster, workers = ready(3)
    for who in workers[:2]:
        cluster.arrive(who, "epoch_2", expected=3)
    assert of(cluster).situation == "training", "a short wait is the ordinary course of things"
    cluster.pass_time(12.0, alive=workers[:2])
    cluster.heartbeat(workers[2], state="loading", step=5)
    told = of(cluster)
    assert told.culprits == ("w2",)
    assert told.sentence == (
        "waits at barrier 'epoch_2' for w2: 2 of 3 have been waiting for up to 12 s; "
        "w2 is alive (heard 0 s ago), loading at step 5 for 12 s"
    )


def test_who_acknowledges_last_keeps_nobody_waiting() -> None:
    cluster, workers = ready(2)
    cluster.begin(workers[0], 6, place="step_6 1-a")
    cluster.pass_time(8.0, alive=workers)
    told = of(cluster)
    assert told.sentence == "saves step 6: 0 of 2 parts are durable after 8 s; w1 still to come"
    assert told.culprits == ("w1",)


def test_a_slow_part_is_named() -> None:
    cluster, workers = ready(2)
    attempt = cluster.begin(workers[0], 6).attempt
    cluster.ack(workers[0], attempt)
    cluster.pass_time(8.0, alive=workers)
    assert of(cluster).sentence == "saves step 6: 1 of 2 parts are durable after 8 s; w1 still to come"


def test_a_manifest_that_nobody_writes() -> None:
    cluster, workers = ready(2)
    cluster.decide(workers, 6)
    cluster.pass_time(16.0, alive=workers)
    told = of(cluster)
    assert told.situation == "uncommitted"
    assert told.culprits == ("w0",)


def test_a_checkpoint_that_is_being_agreed() -> None:
    cluster, workers = ready(2)
    request = cluster.send(SaveRequested(JOB, "maintenance")).request
    cluster.heartbeat(workers[0], step=5)
    cluster.heartbeat(workers[0], step=5, promised_request=request, promised_step=6)
    assert of(cluster).sentence == ("looks for a step at which all can save (maintenance); w1 did not answer yet")
    cluster.heartbeat(workers[1], step=5, promised_request=request, promised_step=6)
    assert of(cluster).sentence == "saves at step 6 (maintenance)"


def test_alive_without_progress_is_told_apart_from_dead() -> None:
    cluster, workers = ready(3)
    for _ in range(20):
        cluster.pass_time(5.0)
        training(cluster, workers[1:], step=6)
        cluster.heartbeat(workers[0], state="training", step=5)
    told = of(cluster)
    assert told.situation == "stalled"
    assert told.culprits == ("w0",)
    assert "w0 is alive, but at step 5 for 100 s; 2 others wait at a later step" in told.sentence


def test_only_those_who_go_on_are_said_to() -> None:
    cluster, workers = ready(3)
    for _ in range(20):
        cluster.pass_time(5.0)
        cluster.heartbeat(workers[0], state="training", step=5)
        cluster.heartbeat(workers[1], state="loading")
        cluster.heartbeat(workers[2], state="training", step=6)
    assert of(cluster).sentence == (
        "makes no progress: w0 is alive, but at step 5 for 100 s; 1 other waits at a later step. "
        "Look at that process first"
    )


def test_what_holds_back_the_last_checkpoint_holds_back_the_stop() -> None:
    cluster = Cluster()
    cluster.register("w0", rank=0, world_size=2)
    cluster.send(StopRequested(JOB, "budget spent"))
    told = of(cluster)
    assert told.sentence == (
        "is to stop (budget spent) after a last checkpoint, but waits for 1 of 2 workers: rank 1 (never came)"
    )
    assert (told.situation, told.held_back) == ("incomplete", True)
    cluster.send(StopRequested(JOB, "now", save=False))
    assert of(cluster).sentence == "is stopping (now): 1 still there (w0)"


def test_a_job_that_stops() -> None:
    cluster, _ = ready(2)
    cluster.send(StopRequested(JOB, "budget spent", save=False))
    assert of(cluster).sentence == "is stopping (budget spent): 2 still there (w0, w1)"


def test_the_story_is_told_in_records_and_short_waits_are_not_part_of_it() -> None:
    cluster, workers = ready(2)
    cluster.pass_time(10.0, alive=workers)
    training(cluster, workers)
    cluster.pass_time(10.0, alive=workers)
    cluster.arrive(workers[0], "sync", expected=2)
    cluster.pass_time(3.0, alive=workers)
    cluster.arrive(workers[1], "sync", expected=2)
    before = len(cluster.recorded(SituationChanged))
    cluster.arrive(workers[0], "sync", expected=2, arrival=2)
    for _ in range(12):
        cluster.pass_time(2.0)
        training(cluster, workers)
    told = cluster.recorded(SituationChanged)[before:]
    assert [record.situation for record in told] == ["at_barrier w1"]
    assert told[0].reason.startswith("waits at barrier 'sync' for w1")


def test_a_job_that_is_over_is_swept_until_that_is_told_and_then_no_more() -> None:
    cluster, (only,) = ready(1)
    cluster.leave(only, reason="done")
    cluster.sweep()
    assert cluster.machine.volatile.astir == {JOB}, "what became of it is not recorded yet"
    cluster.pass_time(10.0)
    assert cluster.recorded(SituationChanged)[-1].situation == "over"
    assert not cluster.machine.volatile.astir
    cluster.restart()
    cluster.sweep()
    assert not cluster.machine.volatile.astir, "one look after a restart is enough"


def test_a_job_that_waits_for_its_first_worker_is_not_swept_for_ever() -> None:
    cluster = Cluster()
    cluster.add_dataset()
    cluster.pass_time(10.0)
    assert cluster.job.situation == "empty"
    assert not cluster.machine.volatile.astir


def test_a_job_in_which_somebody_is_never_rests() -> None:
    cluster, workers = ready(1)
    cluster.pass_time(30.0, alive=workers)
    assert cluster.machine.volatile.astir == {JOB}
