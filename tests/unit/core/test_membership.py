"""Who is in a job: registration, ranks, leases, fencing, draining, generations."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from strata.core import codec, events
from strata.core.effects import BreakBarrier, Done, Registered
from strata.core.events import DrainRequested, Event, ProgressReported, SaveRequested, WorkerEvent
from strata.core.ids import MAX_COUNT
from strata.core.machine import Machine
from strata.core.records import BarrierReleased, HistoryLost, WorkerLost
from strata.core.settings import JobSettings, Policy
from strata.core.views import View
from strata.errors import Expired, InvalidInput, NotFound, Refused, StaleGeneration, Superseded
from tests.unit.core.cluster import JOB, Cluster

LEASE = Policy().lease_seconds
SWEEP = Policy().sweep_seconds


def drain(cluster: Cluster, worker: str, reason: str = "") -> None:
    assert cluster.send(DrainRequested(JOB, worker, reason)) == Done()


# -- registration ----------------------------------------------------------------------------------------------------


def test_a_registration_answers_with_rank_world_size_heartbeat_and_generation() -> None:
    cluster = Cluster()
    assert cluster.register("a", rank=1, world_size=4) == Registered(
        worker="a",
        incarnation=1,
        rank=1,
        world_size=4,
        generation=1,
        term=1,
        heartbeat_seconds=Policy().heartbeat_seconds,
        lease_seconds=LEASE,
        reason="rank 1 as the launcher said",
    )


def test_a_repeated_registration_gets_the_same_answer_and_changes_nothing() -> None:
    cluster = Cluster()
    first = cluster.register("a", nonce="n", rank=0, world_size=2)
    before = cluster.machine.snapshot()
    assert cluster.register("a", nonce="n", rank=0, world_size=2) == first
    assert cluster.machine.snapshot() == before
    assert cluster.decided == []


def test_a_repeated_registration_renews_the_lease() -> None:
    cluster = Cluster()
    a = cluster.register("a", nonce="n")
    cluster.pass_time(LEASE - SWEEP)
    cluster.register("a", nonce="n")
    cluster.pass_time(LEASE - SWEEP)
    assert cluster.heartbeat(a).generation == 1


def test_a_repeated_registration_is_recognised_after_a_restart() -> None:
    cluster = Cluster()
    first = cluster.register("a", nonce="n")
    cluster.restart()
    again = cluster.register("a", nonce="n")
    assert (again.incarnation, again.rank, again.generation) == (first.incarnation, first.rank, first.generation)
    assert again.term == first.term + 1


def test_what_a_worker_says_of_itself_is_kept() -> None:
    cluster = Cluster()
    cluster.register("a", ip="10.0.0.7", port=8080, gpu_count=8, memory_bytes=2**40, metadata={"zone": "b"})
    member = cluster.replay().state.jobs[JOB].world.members["a"]
    assert (member.ip, member.port, member.gpu_count, member.memory_bytes) == ("10.0.0.7", 8080, 8, 2**40)
    assert member.metadata == {"zone": "b"}


def test_what_a_worker_says_of_itself_later_is_kept_and_makes_no_other_world() -> None:
    """Whoever of its process came first may have known nothing of it."""
    cluster = Cluster()
    first = cluster.register("a", nonce="n")
    about: dict[str, Any] = {"ip": "10.0.0.1", "port": 8080, "gpu_count": 8, "memory_bytes": 64, "metadata": {"k": "v"}}
    assert cluster.register("a", nonce="n", **about) == first
    assert len(cluster.decided) == 1
    cluster.register("a", nonce="n", **about)
    cluster.register("a", nonce="n")
    assert cluster.decided == [], "it said nothing new"
    cluster.restart()
    member = cluster.machine.state.job(JOB).world.members["a"]
    found = (member.ip, member.port, member.gpu_count, member.memory_bytes, member.metadata)
    assert found == tuple(about.values())


def test_jobs_know_nothing_of_each_other() -> None:
    cluster = Cluster()
    cluster.register("a", rank=0, world_size=1)
    other = cluster.send(events.RegisterRequested("other", "a", "another-nonce", rank=0, world_size=3))
    assert (other.rank, other.world_size, other.generation, other.incarnation) == (0, 3, 1, 1)
    assert cluster.generation == 1


# -- ranks -----------------------------------------------------------------------------------------------------------


def test_the_launchers_ranks_are_honoured_whatever_the_order_of_registration() -> None:
    cluster = Cluster()
    for worker, rank in [("a", 2), ("b", 0), ("c", 1)]:
        assert cluster.register(worker, rank=rank, world_size=3).rank == rank
    assert cluster.job.world.by_rank == {0: "b", 1: "c", 2: "a"}


def test_a_rank_that_is_taken_is_refused_naming_its_holder() -> None:
    cluster = Cluster()
    cluster.register("a", rank=0, world_size=2)
    with pytest.raises(Refused, match=r"rank 0 is held by worker 'a'") as refusal:
        cluster.register("b", rank=0, world_size=2)
    assert refusal.value.retry


def test_a_refused_rank_can_be_had_once_its_holder_is_gone() -> None:
    cluster = Cluster()
    a, b = cluster.world(2)
    with pytest.raises(Refused):
        cluster.register("c", rank=0, world_size=2)
    cluster.leave(a)
    assert cluster.register("c", rank=0, world_size=2).rank == 0
    assert cluster.heartbeat(b).generation == cluster.generation


def test_a_rank_out_of_range_is_refused_for_good() -> None:
    with pytest.raises(Refused, match="rank=2, but the world has ranks 0 to 1") as refusal:
        Cluster().register("a", rank=2, world_size=2)
    assert not refusal.value.retry


@pytest.mark.parametrize(("declared", "said"), [(2, 3), (None, 3), (3, 2)])
def test_a_differing_world_size_is_refused_naming_those_who_are_there(declared: int | None, said: int) -> None:
    cluster = Cluster()
    cluster.register("a", world_size=declared)
    with pytest.raises(Refused, match=rf"world_size={said}.*\(a\)") as refusal:
        cluster.register("b", world_size=said)
    assert refusal.value.retry


def test_a_worker_that_says_no_world_size_joins_the_declared_world() -> None:
    cluster = Cluster()
    cluster.register("a", rank=0, world_size=2)
    assert cluster.register("b").world_size == 2


def test_a_refused_registration_opens_no_job() -> None:
    cluster = Cluster()
    before = cluster.machine.snapshot()
    with pytest.raises(Refused):
        cluster.register("a", rank=5, world_size=2)
    assert cluster.machine.snapshot() == before
    assert cluster.machine.state.jobs == {}


def test_without_a_rank_the_lowest_free_one_is_assigned() -> None:
    cluster = Cluster()
    cluster.register("a", rank=1, world_size=4)
    assert [cluster.register(worker).rank for worker in "bcd"] == [0, 2, 3]


def test_a_worker_that_comes_back_gets_the_rank_it_had() -> None:
    cluster = Cluster()
    a, b, _ = cluster.open_world(3)
    cluster.leave(a)
    cluster.leave(b)
    assert cluster.register("w1").rank == b.rank
    assert cluster.register("new").rank == a.rank


def test_a_worker_whose_former_rank_was_given_away_gets_the_lowest_free_one() -> None:
    cluster = Cluster()
    a, *_ = cluster.open_world(3)
    cluster.leave(a)
    assert cluster.register("new").rank == 0
    assert cluster.register("w0").rank == 3


def test_a_full_world_takes_nobody_in() -> None:
    cluster = Cluster()
    cluster.world(2)
    with pytest.raises(Refused, match="all 2 ranks of the world are taken") as refusal:
        cluster.register("late")
    assert refusal.value.retry


# -- fencing ---------------------------------------------------------------------------------------------------------


def worker_events(who: Registered) -> list[Event]:
    """One event of each kind that a registered worker can send; all of it would be sound if it came from a live one."""
    more: dict[str, dict[str, Any]] = {
        "HeartbeatReceived": {},
        "DeregisterRequested": {},
        "BarrierArrived": {"barrier": "b", "arrival": 1, "settled": 0, "expected": 2},
        "AssignmentsRequested": {"dataset": "images"},
        "ProgressReported": {"dataset": "images", "version": 1, "epoch": 0, "point": 0, "cursors": {}},
        "BatchesReported": {"dataset": "texts", "version": 1, "epoch": 0, "generation": 0, "point": 0, "through": 0},
        "RevocationAcknowledged": {
            "dataset": "images",
            "version": 1,
            "epoch": 0,
            "point": 0,
            "generation": 9,
            "shards": [],
            "cursors": {},
        },
        "CheckpointBeginRequested": {"step": 1},
        "CheckpointAck": {"attempt": 1, "digest": "d", "part_bytes": 1},
        "PartFailed": {"attempt": 1, "reason": "disk full"},
        "ManifestPut": {"attempt": 1},
        "DamageReported": {"attempt": 1, "reason": "bad digest"},
        "ManifestRemoved": {"attempt": 1},
        "FilesRemoved": {"attempt": 1},
        "CheckpointRemoved": {"attempt": 1},
        "RecoverRequested": {},
    }
    kinds = {kind.__name__: kind for kind in WorkerEvent.__subclasses__()}
    assert more.keys() == kinds.keys(), "a new kind of worker event must be fenced, and tested, too"
    return [kinds[name](JOB, who.worker, who.incarnation, **fields) for name, fields in more.items()]


def a_working_pair() -> tuple[Cluster, Registered, Registered]:
    cluster = Cluster()
    ghost, other = cluster.open_world(2)
    cluster.add_dataset("images")
    cluster.add_dataset("texts", order="elastic")
    cluster.begin(ghost, step=1)
    return cluster, ghost, other


def supersede(cluster: Cluster, ghost: Registered) -> None:
    cluster.register(ghost.worker)


def supersede_and_lose_both(cluster: Cluster, ghost: Registered) -> None:
    cluster.expire(cluster.register(ghost.worker))


@pytest.mark.parametrize("how", [supersede, supersede_and_lose_both])
def test_a_superseded_process_is_told_to_stop_whatever_it_sends(how: Callable[[Cluster, Registered], None]) -> None:
    cluster, ghost, _ = a_working_pair()
    how(cluster, ghost)
    before = cluster.machine.snapshot()
    for event in worker_events(ghost):
        with pytest.raises(Superseded, match=r"'w0'.*superseded by incarnation 3.*must stop"):
            cluster.send(event)
    assert cluster.machine.snapshot() == before


def test_an_expired_process_is_told_so_whatever_it_sends() -> None:
    cluster, ghost, _ = a_working_pair()
    cluster.expire(ghost)
    before = cluster.machine.snapshot()
    for event in worker_events(ghost):
        with pytest.raises(Expired, match=r"'w0'.*lease ran out.*Register again"):
            cluster.send(event)
    assert cluster.machine.snapshot() == before


def test_a_process_that_left_is_told_so_whatever_it_sends_but_a_repeated_farewell() -> None:
    cluster, ghost, _ = a_working_pair()
    cluster.leave(ghost, reason="done training")
    before = cluster.machine.snapshot()
    for event in worker_events(ghost):
        if isinstance(event, events.DeregisterRequested):
            assert cluster.send(event) == Done()
            continue
        with pytest.raises(Expired, match=r"'w0'.*done training"):
            cluster.send(event)
    assert cluster.machine.snapshot() == before


def test_a_worker_never_registered_is_not_known_whatever_it_sends() -> None:
    cluster, ghost, _ = a_working_pair()
    before = cluster.machine.snapshot()
    stranger = Registered("stranger", 1, 0, 2, 2, 1, 5.0, 15.0, "")
    from_the_future = Registered(ghost.worker, ghost.incarnation + 9, 0, 2, 2, 1, 5.0, 15.0, "")
    for event in [*worker_events(stranger), *worker_events(from_the_future)]:
        with pytest.raises(NotFound, match="is not known in job 'llm': register it again"):
            cluster.send(event)
    assert cluster.machine.snapshot() == before


def test_one_process_supersedes_another_in_the_journal() -> None:
    cluster = Cluster()
    cluster.register("a")
    cluster.register("a")
    assert [(lost.worker, lost.incarnation, lost.cause) for lost in cluster.recorded(WorkerLost)] == [
        ("a", 1, "superseded")
    ]


def test_a_late_repeat_of_a_superseded_registration_does_not_come_back() -> None:
    cluster = Cluster()
    cluster.register("a", nonce="old")
    new = cluster.register("a", nonce="new")
    with pytest.raises(Superseded, match="superseded by incarnation 2"):
        cluster.register("a", nonce="old")
    assert cluster.heartbeat(new).generation == cluster.generation


def test_a_late_repeat_of_a_registration_that_is_over_does_not_come_back() -> None:
    cluster = Cluster()
    a = cluster.register("a", nonce="n")
    cluster.expire(a)
    with pytest.raises(Expired, match="this registration is over"):
        cluster.register("a", nonce="n")


def test_an_expired_process_may_rejoin_as_a_new_incarnation() -> None:
    cluster = Cluster()
    a, _ = cluster.world(2)
    cluster.expire(a)
    again = cluster.register("w0", previous=a.incarnation)
    assert again.rank == a.rank
    assert again.incarnation > a.incarnation


def test_an_expired_process_whose_name_was_taken_meanwhile_must_stop() -> None:
    cluster = Cluster()
    a, _ = cluster.world(2)
    cluster.expire(a)
    cluster.register("w0")
    with pytest.raises(Superseded):
        cluster.register("w0", previous=a.incarnation)


def test_incarnations_go_on_from_one_that_a_forgetful_coordinator_does_not_know() -> None:
    cluster = Cluster()
    assert cluster.register("a", previous=41).incarnation == 42
    assert cluster.register("b").incarnation == 43


def test_no_claimed_incarnation_drives_the_next_one_out_of_64_bits() -> None:
    cluster = Cluster()
    with pytest.raises(InvalidInput, match="previous incarnation"):
        cluster.register("a", previous=MAX_COUNT)


# -- leases ----------------------------------------------------------------------------------------------------------


def test_a_silent_worker_expires_within_its_lease_and_one_sweep() -> None:
    cluster = Cluster()
    silent, heard = cluster.open_world(2)
    cluster.pass_time(LEASE - 0.1, alive=[heard])
    assert not cluster.job.world.members["w0"].gone
    cluster.pass_time(SWEEP, alive=[heard])
    assert cluster.job.world.members["w0"].status == "expired"
    assert cluster.job.world.members["w1"].status == "live"
    assert "not heard for 15" in cluster.recorded(WorkerLost)[0].reason
    assert silent.worker not in cluster.job.world.by_rank.values()


@pytest.mark.parametrize("heartbeat", [0.25, 1.0, 5.0])
def test_a_silent_worker_expires_within_its_lease_and_one_heartbeat(heartbeat: float) -> None:
    cluster = Cluster(Policy(lease_seconds=10.0, heartbeat_seconds=heartbeat))
    cluster.sweep(at=heartbeat / 2)
    cluster.register("a")
    cluster.now += heartbeat / 8  # and now it is silent, and the sweeps go on
    until = cluster.now + 10.0 + heartbeat
    while cluster.now + cluster.policy.sweep_seconds <= until:
        cluster.sweep(at=cluster.now + cluster.policy.sweep_seconds)
    assert cluster.job.world.members["a"].status == "expired"


def test_with_the_usual_heartbeats_there_is_a_sweep_a_second() -> None:
    assert Policy().sweep_seconds == 1.0
    assert Policy(lease_seconds=2.0, heartbeat_seconds=0.25).sweep_seconds == 0.25
    assert Policy(sweep_seconds=0.5).sweep_seconds == 0.5


def test_an_expiry_is_not_repeated() -> None:
    cluster = Cluster()
    cluster.expire(cluster.register("a"))
    generation = cluster.generation
    cluster.pass_time(5 * LEASE)
    assert cluster.generation == generation


def test_a_late_sweep_extends_everyones_lease_by_the_time_the_coordinator_was_paused() -> None:
    cluster = Cluster()
    cluster.open_world(2)
    cluster.sweep(at=SWEEP)
    cluster.sweep(at=1000.0)
    assert cluster.recorded(WorkerLost) == []
    cluster.pass_time(LEASE - 3 * SWEEP)
    assert cluster.recorded(WorkerLost) == []
    cluster.pass_time(3 * SWEEP)
    assert len(cluster.recorded(WorkerLost)) == 2


def test_who_is_heard_right_after_a_pause_is_silent_since_then_and_not_since_the_future() -> None:
    cluster = Cluster()
    a = cluster.register("a")
    cluster.sweep(at=SWEEP)
    cluster.now = 1000.0
    cluster.heartbeat(a)
    cluster.sweep()
    cluster.pass_time(LEASE)
    assert cluster.recorded(WorkerLost)[0].reason == f"its lease ran out: not heard for {LEASE:.1f} s"


def test_a_sweep_that_is_hardly_late_extends_nothing() -> None:
    cluster = Cluster()
    cluster.register("a")
    cluster.pass_time(LEASE - 0.5)
    cluster.sweep(at=LEASE - 0.5 + 1.9 * SWEEP)
    assert len(cluster.recorded(WorkerLost)) == 1


def test_after_a_restart_everybody_gets_one_full_lease() -> None:
    cluster = Cluster()
    a = cluster.register("a")
    cluster.now = 10_000.0
    cluster.restart()
    cluster.pass_time(LEASE - SWEEP)
    assert cluster.heartbeat(a).generation == 1
    cluster.pass_time(LEASE)
    with pytest.raises(Expired):
        cluster.heartbeat(a)


def test_those_lost_in_one_sweep_go_in_rank_order() -> None:
    cluster = Cluster()
    for worker, rank in [("a", 2), ("b", 0), ("c", 1)]:
        cluster.register(worker, rank=rank, world_size=3)
    cluster.pass_time(LEASE)
    assert [lost.worker for lost in cluster.recorded(WorkerLost)] == ["b", "c", "a"]


def test_who_comes_to_a_job_that_was_over_is_failed_when_it_goes_silent() -> None:
    cluster = Cluster()
    cluster.leave(cluster.register("a"))
    cluster.pass_time(30.0)
    b = cluster.register("b")
    cluster.pass_time(30.0, alive=[b])
    cluster.expire(b)
    assert cluster.job.world.members["b"].status == "expired"


# -- leaving and draining --------------------------------------------------------------------------------------------


def test_leaving_twice_is_leaving_once() -> None:
    cluster = Cluster()
    a = cluster.register("a")
    assert cluster.leave(a) == Done()
    generation = cluster.generation
    assert cluster.leave(a) == Done()
    assert cluster.generation == generation
    assert [lost.cause for lost in cluster.recorded(WorkerLost)] == ["left"]


@pytest.mark.parametrize("died", [False, True])
def test_a_late_farewell_does_not_end_the_next_process(died: bool) -> None:
    cluster = Cluster()
    old = cluster.register("a")
    new = cluster.register("a")
    with pytest.raises(Superseded):
        cluster.leave(old, died=died)
    assert cluster.heartbeat(new).generation == cluster.generation


@pytest.mark.parametrize(
    ("reason", "told"), [("", "its process died"), ("process 7 is gone", "its process died: process 7 is gone")]
)
def test_a_process_that_died_has_not_left(reason: str, told: str) -> None:
    cluster = Cluster()
    a, b = cluster.world(2)
    cluster.arrive(b, "epoch", expected=2)
    assert cluster.leave(a, died=True, reason=reason) == Done()
    (lost,) = cluster.recorded(WorkerLost)
    assert (lost.worker, lost.cause, lost.reason) == ("w0", "died", told)
    broken = cluster.effect(BreakBarrier)
    assert broken.missing == ("w0",)
    assert told in broken.reason
    with pytest.raises(Expired, match="its process died"):
        cluster.heartbeat(a)


@pytest.mark.parametrize("first", [False, True])
def test_of_a_farewell_and_a_death_the_first_one_counts(first: bool) -> None:
    cluster = Cluster()
    a = cluster.register("a")
    cluster.leave(a, died=first)
    for died in (first, not first):
        assert cluster.leave(a, died=died) == Done()
    assert [lost.cause for lost in cluster.recorded(WorkerLost)] == ["died" if first else "left"]


def test_a_process_that_died_may_be_replaced_at_once() -> None:
    cluster = Cluster()
    a, _ = cluster.world(2)
    cluster.leave(a, died=True)
    again = cluster.register("w0", rank=0, world_size=2)
    assert (again.rank, again.incarnation) == (0, a.incarnation + 2)


# -- who cannot speak for itself -------------------------------------------------------------------------------------


def vitals(cluster: Cluster, worker: str = "w0") -> tuple[str, int, int]:
    known = cluster.machine.volatile.job(JOB).vitals[worker]
    return known.state, known.step, known.epoch


def test_one_who_is_vouched_for_keeps_its_lease() -> None:
    cluster = Cluster()
    a = cluster.register("w0")
    for _ in range(3):
        cluster.pass_time(LEASE - SWEEP)
        cluster.heartbeat(a, vouched=True)
    assert cluster.recorded(WorkerLost) == []
    cluster.expire(a)
    with pytest.raises(Expired):
        cluster.heartbeat(a, vouched=True)


def test_who_vouches_for_a_worker_takes_back_nothing_that_it_said() -> None:
    cluster = Cluster()
    a = cluster.register("w0")
    cluster.heartbeat(a, state="training", step=7, epoch=1)
    cluster.heartbeat(a, state="loading", step=3, epoch=0, vouched=True)
    assert vitals(cluster) == ("training", 7, 1)
    cluster.heartbeat(a, vouched=True)
    assert vitals(cluster) == ("training", 7, 1)


def test_after_a_restart_it_is_known_of_a_worker_what_it_said_before() -> None:
    cluster = Cluster()
    a = cluster.register("w0")
    cluster.heartbeat(a, state="training", step=7, epoch=1)
    cluster.restart()
    cluster.heartbeat(a, state="training", step=7, epoch=1, vouched=True)
    assert vitals(cluster) == ("training", 7, 1)


def test_who_vouches_for_a_worker_breaks_no_promise_of_it() -> None:
    """It stands at the step that it promised, and waits: to be there without a promise would be to have passed it."""
    cluster = Cluster()
    a, b = cluster.world(2)
    cluster.send(SaveRequested(JOB))
    (proposed,) = cluster.heartbeat(a, state="training", step=0).errands
    promise = {"promised_request": proposed.request, "promised_step": proposed.step}
    cluster.heartbeat(a, state="training", step=proposed.step, **promise)
    cluster.heartbeat(a, state="training", step=proposed.step, vouched=True)
    (agreed,) = cluster.heartbeat(b, state="training", step=0, **promise).errands
    assert (agreed.kind, agreed.step) == ("save_at", proposed.step)


def test_a_draining_worker_hears_of_it_with_every_heartbeat_and_is_still_there() -> None:
    cluster = Cluster()
    a, b = cluster.world(2)
    drain(cluster, "w0", "the node goes down")
    assert cluster.heartbeat(a).draining
    assert not cluster.heartbeat(b).draining
    assert cluster.job.world.roster() == [0, 1]
    assert cluster.job.world.view.ranks == (1,)


def test_draining_twice_is_draining_once() -> None:
    cluster = Cluster()
    cluster.world(2)
    drain(cluster, "w0")
    generation = cluster.generation
    drain(cluster, "w0")
    assert cluster.generation == generation


@pytest.mark.parametrize("worker", ["w0", "stranger"])
def test_only_who_is_there_can_be_drained(worker: str) -> None:
    cluster = Cluster()
    a, _ = cluster.world(2)
    cluster.leave(a)
    with pytest.raises(NotFound, match=f"no live worker '{worker}'"):
        cluster.send(DrainRequested(JOB, worker))


def test_a_drained_worker_that_starts_again_is_live_again() -> None:
    cluster = Cluster()
    cluster.world(2)
    drain(cluster, "w0")
    again = cluster.register("w0", rank=0, world_size=2)
    assert not cluster.heartbeat(again).draining
    assert cluster.job.world.view.ranks == (0, 1)


# -- generations -----------------------------------------------------------------------------------------------------


def test_every_change_of_who_is_there_has_a_generation_of_its_own() -> None:
    cluster = Cluster()
    seen = [0]

    def grew() -> bool:
        seen.append(cluster.generation)
        return seen[-1] > seen[-2]

    _, b, c = (cluster.register(worker) for worker in "abc")
    assert grew()
    cluster.register("a")
    assert grew()
    drain(cluster, "b")
    assert grew()
    cluster.leave(b)
    assert grew()
    cluster.expire(c)
    assert grew()
    generations = [record.generation for record in cluster.records if hasattr(record, "generation")]
    assert generations == sorted(set(generations))
    assert cluster.heartbeat(cluster.register("d")).generation == cluster.generation


def test_heartbeats_change_no_generation_and_write_no_journal() -> None:
    cluster = Cluster()
    a, b = cluster.world(2)
    before = cluster.machine.snapshot()
    for step in range(10):
        assert cluster.heartbeat(a, state="training", step=step).generation == b.generation
        assert cluster.decided == []
    assert cluster.machine.snapshot() == before


# -- gone members ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 1, 2, 5])
def test_gone_members_are_forgotten_oldest_first_beyond_a_limit(kept: int) -> None:
    cluster = Cluster(Policy(gone_members_kept=kept))
    stays = cluster.register("stays")
    passed: list[str] = []
    for number in range(20):
        passed.append(f"passer-by-{number}")
        cluster.leave(cluster.register(passed[-1]))
        gone = [name for name, member in cluster.job.world.members.items() if member.gone]
        assert len(gone) <= kept
        assert gone == passed[len(passed) - len(gone) :]
    assert cluster.heartbeat(stays).generation == cluster.generation
    cluster.replay()


def test_a_forgotten_worker_may_register_again() -> None:
    cluster = Cluster(Policy(gone_members_kept=1))
    cluster.register("stays")
    former = cluster.register("former")
    cluster.leave(former)
    cluster.leave(cluster.register("another"))
    with pytest.raises(NotFound):
        cluster.heartbeat(former)
    assert cluster.register("former", previous=former.incarnation).incarnation > former.incarnation


# -- worlds ----------------------------------------------------------------------------------------------------------


def test_a_declared_world_divides_over_its_ranks_before_they_join() -> None:
    cluster = Cluster()
    cluster.register("a", rank=2, world_size=4)
    assert cluster.job.world.view == View.declared(4)


def test_the_view_of_a_declared_world_does_not_depend_on_who_came_first() -> None:
    views = []
    for order in [(0, 1, 2, 3), (3, 1, 0, 2)]:
        cluster = Cluster()
        for rank in order:
            cluster.register(f"w{rank}", rank=rank, world_size=4)
        views.append(cluster.job.world.view)
    assert views[0] == views[1] == View.declared(4)


def test_a_fresh_world_after_all_have_left_is_canonical() -> None:
    cluster = Cluster()
    w0, w1, w2 = cluster.world(3)
    for who in (w1, w0, w2):
        cluster.leave(who)
    cluster.world(2)
    assert cluster.job.world.view == View.declared(2)
    assert cluster.job.world.declared == 2


def test_a_lone_worker_that_starts_again_may_declare_another_size() -> None:
    cluster = Cluster()
    cluster.register("a", rank=0, world_size=4)
    assert cluster.register("a", rank=0, world_size=2).world_size == 2
    assert cluster.job.world.view == View.declared(2)


def test_a_lost_rank_leaves_the_view_and_its_successor_takes_the_same_slot() -> None:
    cluster = Cluster()
    _, w1, _ = cluster.world(3)
    cluster.expire(w1)
    assert cluster.job.world.view.ranks == (0, 2)
    cluster.register("spare", rank=1, world_size=3)
    assert cluster.job.world.view == View.declared(3)


def test_an_open_world_is_whoever_joins() -> None:
    cluster = Cluster()
    assert [cluster.register(worker).world_size for worker in "abc"] == [1, 2, 3]
    assert cluster.job.world.view.ranks == (0, 1, 2)


def test_a_worker_that_moves_to_another_rank_leaves_nothing_behind() -> None:
    cluster = Cluster()
    cluster.open_world(2)
    cluster.register("w1", rank=5)
    assert cluster.job.world.by_rank == {0: "w0", 5: "w1"}
    assert cluster.job.world.view.ranks == (0, 5)


# -- settings --------------------------------------------------------------------------------------------------------


def test_configuring_a_job_as_it_is_changes_nothing() -> None:
    cluster = Cluster(barriers="shrink", keep_count=3)
    before = cluster.machine.snapshot()
    cluster.configure(barriers="shrink", keep_count=3)
    assert cluster.machine.snapshot() == before
    cluster.configure(barriers="fail")
    assert cluster.replay().state.jobs[JOB].settings == JobSettings()


# -- a history that was lost -----------------------------------------------------------------------------------------


def go_back(cluster: Cluster, kept: int) -> None:
    """The coordinator comes back with the journal as it was after so many records."""
    cluster.records = [*cluster.records[:kept], HistoryLost(JOB, 1000, "restored", 1000)]
    cluster.machine = Machine(cluster.policy)
    for record in cluster.records:
        cluster.machine.apply(record)
    cluster.restart()


def test_no_number_of_a_lost_history_is_given_again() -> None:
    cluster = Cluster()
    (w0,) = cluster.world(1)
    cluster.add_dataset()
    point = cluster.recover(w0)
    kept = len(cluster.records)
    lost = numbers(cluster, w0, point.generation)
    go_back(cluster, kept)
    found = numbers(cluster, w0, None)
    assert all(1000 < now > then for then, now in zip(lost, found, strict=True)), (lost, found)


def numbers(cluster: Cluster, who: Registered, generation: int | None) -> list[int]:
    """One of each kind that others are told, as they are given now."""
    point = cluster.recover(who, generation)
    request = cluster.send(SaveRequested(JOB, "before the night")).request
    replaced = cluster.add_dataset(seed=1, replaces=1).version
    added = cluster.add_dataset("sounds").version
    attempt = cluster.begin(who, 1).attempt
    cluster.arrive(who, "sync", expected=1)
    (released,) = cluster.decided
    assert isinstance(released, BarrierReleased)
    newcomer = cluster.register("w0", rank=0, world_size=1)
    versions = [replaced, added]
    return [point.point, point.generation, request, *versions, attempt, released.round, newcomer.incarnation]


def test_what_was_read_in_a_lost_history_is_not_taken_for_what_was_read_in_this_one() -> None:
    cluster = Cluster()
    (w0,) = cluster.world(1)
    cluster.add_dataset()
    first = cluster.recover(w0)
    kept = len(cluster.records)
    lost = cluster.recover(w0, first.generation)
    go_back(cluster, kept)
    cluster.recover(w0)
    report: dict[str, Any] = {"dataset": "images", "version": 1, "epoch": 0, "cursors": {0: 10}}
    with pytest.raises(StaleGeneration):
        cluster.from_worker(ProgressReported, w0, point=lost.point, **report)
    assert not cluster.dataset().consumed.count


def test_a_journal_from_before_skips_what_it_skipped_then() -> None:
    record = codec.decode_record(
        msgspec.msgpack.encode({"type": "HistoryLost", "job": JOB, "skipped": 1000, "reason": "restored"})
    )
    cluster = Cluster()
    (w0,) = cluster.world(1)
    cluster.add_dataset()
    cluster.recover(w0)
    before = msgspec.to_builtins(cluster.job, enc_hook=repr)
    cluster.machine.apply(record)
    after = msgspec.to_builtins(cluster.job, enc_hook=repr)
    changed = {name for name in after if before[name] != after[name]}
    assert changed == {"world", "next_attempt", "next_round"}
