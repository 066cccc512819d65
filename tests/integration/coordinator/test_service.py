"""The service as foreign clients see it, on both gRPC servers."""

import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

from strata.errors import (
    BarrierFailed,
    Conflict,
    Expired,
    InvalidInput,
    NotFound,
    NotRegistered,
    Refused,
    StaleGeneration,
    Superseded,
)
from strata.rpc import RpcError
from strata.v1 import coordinator_pb2 as pb
from tests.servers.coordinator import Client, CoordinatorProcess, coordinator
from tests.until import until


def arrive(client: Client, who: Any, barrier: str, expected: int, arrival: int = 1, **fields: Any) -> Any:
    return client.start(
        "WaitBarrier",
        worker_id=who.worker_id,
        incarnation=who.incarnation,
        barrier_id=barrier,
        arrival=arrival,
        settled=arrival - 1,
        expected_participants=expected,
        **fields,
    )


def from_(who: Any, **fields: Any) -> dict[str, Any]:
    return {"worker_id": who.worker_id, "incarnation": who.incarnation, **fields}


# -- workers -----------------------------------------------------------------------------------------------------------


def test_a_worker_registers_reports_and_leaves(client: Client) -> None:
    who = client.register("w0", ip="10.0.0.1", port=8080, gpu_count=8, memory_bytes=1 << 40, metadata={"zone": "b"})
    assert (who.rank, who.world_size, who.heartbeat_seconds, who.lease_seconds) == (0, 1, 1.0, 600.0)
    assert who.term >= 1
    alive = client.heartbeat(who, state=pb.WorkerState.WORKER_STATE_TRAINING, step=5, epoch=1, resources={"gpu": 0.9})
    assert alive.generation == who.generation
    client.call("Deregister", **from_(who, reason="done"))
    client.call("Deregister", **from_(who))
    with pytest.raises(Expired, match="done"):
        client.heartbeat(who)


def test_a_repeated_registration_is_the_same_one_and_another_process_supersedes_it(client: Client) -> None:
    first = client.register("w0", rank=0, world_size=2)
    assert client.register("w0", rank=0, world_size=2) == first
    second = client.register("w0", nonce="another-process", rank=0, world_size=2)
    assert second.incarnation > first.incarnation
    with pytest.raises(Superseded):
        client.heartbeat(first)
    with pytest.raises(Superseded):
        client.register("w0", rank=0, world_size=2)


def test_a_rank_is_honoured_or_refused_with_the_reason(client: Client) -> None:
    client.register("w0", rank=0, world_size=2)
    with pytest.raises(Refused, match="rank 0 is held by worker 'w0'") as error:
        client.register("w1", rank=0, world_size=2)
    assert error.value.retry
    with pytest.raises(Refused, match="ranks 0 to 1"):
        client.register("w1", rank=2, world_size=2)
    with pytest.raises(Refused, match="declared size of 2"):
        client.register("w1", rank=1, world_size=3)


@pytest.mark.parametrize("worker", ["", "-w", "w" * 129, "a b", "../etc", "wörker"])
def test_ids_are_validated(client: Client, worker: str) -> None:
    with pytest.raises(InvalidInput, match="worker_id"):
        client.register(worker, nonce="n")


def test_a_job_that_is_not_there_is_told_so(client: Client) -> None:
    for method, fields in (
        ("Heartbeat", {"worker_id": "w", "incarnation": 1}),
        ("ListDatasets", {}),
        ("LatestCheckpoint", {}),
        ("GetShards", {"dataset_id": "d"}),
        ("GetLedger", {"dataset_id": "d"}),
        ("GetWorld", {}),
        ("RequestCheckpoint", {}),
    ):
        with pytest.raises(NotFound, match="no job"):
            client.call(method, **fields)


def test_a_batch_has_an_outcome_for_each(client: Client) -> None:
    first, second = client.world(2)
    answer = client.call(
        "HeartbeatBatch",
        heartbeats=[
            pb.HeartbeatRequest(worker_id="w0", incarnation=first.incarnation, step=3),
            pb.HeartbeatRequest(worker_id="w1", incarnation=second.incarnation + 7),
            pb.HeartbeatRequest(worker_id="w1", incarnation=second.incarnation),
        ],
    )
    kinds = [(each.worker_id, each.WhichOneof("outcome")) for each in answer.outcomes]
    assert kinds == [("w0", "alive"), ("w1", "refused"), ("w1", "alive")]
    assert answer.outcomes[1].refused.reason == "NOT_REGISTERED"
    with pytest.raises(InvalidInput, match="at most 1024"):
        client.call("HeartbeatBatch", heartbeats=[pb.HeartbeatRequest(worker_id="w0")] * 1025)


def test_a_batch_renews_nothing_in_another_job(client: Client) -> None:
    (own,) = client.world(1)
    other = client.call("Register", job_id=f"{client.job}-2", worker_id="w0", nonce="another", rank=0, world_size=1)
    beats = [
        pb.HeartbeatRequest(job_id=job, worker_id="w0", incarnation=who.incarnation, step=3)
        for job, who in ((client.job, own), (f"{client.job}-2", other), ("", own))
    ]
    outcomes = client.call("HeartbeatBatch", heartbeats=beats).outcomes
    assert [each.WhichOneof("outcome") for each in outcomes] == ["alive", "refused", "alive"]
    assert (outcomes[1].refused.reason, "one batch, one job" in outcomes[1].refused.message) == ("INVALID_INPUT", True)
    nameless = client.call("HeartbeatBatch", job_id="", heartbeats=beats[:1]).outcomes
    assert [each.WhichOneof("outcome") for each in nameless] == ["refused"]


def test_a_heartbeat_cannot_say_that_its_sender_failed(client: Client) -> None:
    who = client.register("w0")
    with pytest.raises(InvalidInput, match=r"cannot say state 7; it may say none \(0\), initializing \(1\)"):
        client.heartbeat(who, state=pb.WorkerState.WORKER_STATE_FAILED)


def test_a_silent_worker_is_given_up_and_may_come_back_as_another(hasty: CoordinatorProcess, job: str) -> None:
    with Client(hasty.address, job) as client:
        first = client.register("w0", rank=0, world_size=1)
        request, watch = client.prepared("WatchEvents", after="0-0")
        stream = watch(request, timeout=60)
        lost = next(event for event in stream if event.kind == "worker_lost")
        assert lost.worker_id == "w0"
        assert "its lease ran out" in lost.message
        stream.cancel()
        with pytest.raises(Expired, match="lease ran out"):
            client.heartbeat(first)
        again = client.register("w0", nonce="again", rank=0, world_size=1, previous_incarnation=first.incarnation)
        assert again.incarnation > first.incarnation


def test_workers_find_each_other(client: Client) -> None:
    second = client.register("w1", rank=1, world_size=3, ip="10.0.0.2", port=7001, gpu_count=8, metadata={"zone": "b"})
    first = client.register("w0", rank=0, world_size=3, ip="10.0.0.1", port=7000)
    world = client.call("GetWorld")
    assert (world.generation, world.declared_size, world.term) == (first.generation, 3, first.term)
    assert not world.HasField("next_rank")
    assert list(world.peers) == [
        pb.Peer(rank=0, worker_id="w0", incarnation=first.incarnation, ip="10.0.0.1", port=7000),
        pb.Peer(
            rank=1,
            worker_id="w1",
            incarnation=second.incarnation,
            ip="10.0.0.2",
            port=7001,
            gpu_count=8,
            metadata={"zone": "b"},
        ),
    ]
    assert [each.rank for each in client.call("GetWorld", from_rank=1).peers] == [1]
    assert client.call("GetWorld", generation=world.generation) == world
    client.call("DrainWorker", worker_id="w1")
    with pytest.raises(StaleGeneration, match="look again") as error:
        client.call("GetWorld", generation=world.generation, from_rank=1)
    now = client.call("GetWorld", generation=error.value.generation)
    assert [(each.worker_id, each.draining) for each in now.peers] == [("w0", False), ("w1", True)]
    client.call("Deregister", **from_(first))
    assert [each.worker_id for each in client.call("GetWorld").peers] == ["w1"]
    with pytest.raises(InvalidInput, match="from_rank must be at least 0"):
        client.call("GetWorld", from_rank=-1)


@pytest.mark.parametrize("server", ["strata", "grpcio"])
def test_a_large_world_is_told_in_pages_of_one_generation(server: str, tmp_path: Path) -> None:
    """On a coordinator of its own, whose leases are longer than it takes to register so many."""
    with coordinator(tmp_path, "--rpc", server, "--lease-seconds", "600") as alone, Client(alone.address) as client:
        for start in range(0, 1200, 100):
            calls = [
                client.start("Register", worker_id=f"w{rank}", nonce="n", rank=rank, world_size=1200, port=rank)
                for rank in range(start, start + 100)
            ]
            for call in calls:
                client.result(call)
        first = client.call("GetWorld")
        second = client.call("GetWorld", from_rank=first.next_rank, generation=first.generation)
        assert (len(first.peers), first.next_rank, len(second.peers)) == (1000, 1000, 200)
        told = [(each.rank, each.port) for each in [*first.peers, *second.peers]]
        assert told == [(rank, rank) for rank in range(1200)]
        assert not second.HasField("next_rank")


# -- streams -----------------------------------------------------------------------------------------------------------


class Stream:
    """Heartbeats on a stream, by hand."""

    def __init__(self, client: Client) -> None:
        self._requests: list[Any] = []
        self._more = threading.Condition()
        self._over = False
        _, call = client.prepared("HeartbeatStream")
        self.answers = call(self._each(), timeout=20)

    def _each(self) -> Any:
        while True:
            with self._more:
                while not self._requests and not self._over:
                    self._more.wait()
                if not self._requests:
                    return
                request = self._requests.pop(0)
            yield request

    def send(self, **fields: Any) -> None:
        with self._more:
            self._requests.append(pb.HeartbeatRequest(**fields))
            self._more.notify()

    def end(self) -> None:
        with self._more:
            self._over = True
            self._more.notify()


def test_commands_come_on_the_stream_without_being_asked_for(client: Client) -> None:
    who = client.register("w0")
    stream = Stream(client)
    stream.send(job_id=client.job, **from_(who, step=7))
    assert not next(stream.answers).commands
    client.call("DrainWorker", worker_id="w0", reason="maintenance")
    told = next(stream.answers)
    assert [command.kind for command in told.commands] == [pb.Command.KIND_DRAIN]
    assert told.generation > who.generation
    stream.send(job_id=client.job, **from_(who))
    assert [command.kind for command in next(stream.answers).commands] == [pb.Command.KIND_DRAIN]
    stream.end()
    assert list(stream.answers) == []


def test_a_stream_ends_when_its_process_is_replaced(client: Client) -> None:
    who = client.register("w0")
    stream = Stream(client)
    stream.send(job_id=client.job, **from_(who))
    next(stream.answers)
    client.register("w0", nonce="another")
    with pytest.raises(grpc.RpcError) as error:
        next(stream.answers)
    assert "superseded" in error.value.details()
    stream.end()


def test_a_stream_is_for_one_process(client: Client) -> None:
    first, second = client.world(2)
    stream = Stream(client)
    stream.send(job_id=client.job, **from_(first))
    next(stream.answers)
    stream.send(job_id=client.job, **from_(second))
    with pytest.raises(grpc.RpcError) as error:
        next(stream.answers)
    assert "one process" in error.value.details()
    stream.end()


def test_events_are_watched_from_any_point_on(client: Client) -> None:
    client.register("w0")
    request, watch = client.prepared("WatchEvents", after="0-0")
    stream = watch(request, timeout=20)
    first = [next(stream) for _ in range(3)]
    assert [event.kind for event in first] == ["job_opened", "world_declared", "worker_joined"]
    client.register("w1")
    assert next(stream).worker_id == "w1"
    stream.cancel()
    request, watch = client.prepared("WatchEvents", after=first[1].id)
    stream = watch(request, timeout=20)
    assert [next(stream).worker_id for _ in range(2)] == ["w0", "w1"]
    stream.cancel()


# -- barriers ----------------------------------------------------------------------------------------------------------


def test_a_barrier_holds_everyone_until_all_have_come(running: CoordinatorProcess, client: Client) -> None:
    workers = client.world(3)
    waits = [arrive(client, who, "epoch_0", 3) for who in workers[:2]]
    until_waiting(running, client, 2)
    assert not any(wait.done() for wait in waits)
    waits.append(arrive(client, workers[2], "epoch_0", 3))
    rounds = {client.result(wait).round for wait in waits}
    assert len(rounds) == 1
    again = [arrive(client, who, "epoch_0", 3, arrival=2) for who in workers]
    assert {client.result(wait).round for wait in again} != rounds, "a name can be used again"


def test_a_retried_arrival_counts_once_and_both_tries_are_answered(running: CoordinatorProcess, client: Client) -> None:
    workers = client.world(2)
    tries = [arrive(client, workers[0], "sync", 2) for _ in range(3)]
    until_waiting(running, client, 1)
    assert not any(wait.done() for wait in tries)
    other = arrive(client, workers[1], "sync", 2)
    assert len({client.result(wait).round for wait in [*tries, other]}) == 1
    late = arrive(client, workers[0], "sync", 2)
    assert client.result(late).round == client.result(other).round, "the verdict that was missed"


def test_who_goes_away_while_it_waits_may_come_back(running: CoordinatorProcess, client: Client) -> None:
    workers = client.world(2)
    first = arrive(client, workers[0], "sync", 2)
    until_waiting(running, client, 1)
    first.cancel()
    second = arrive(client, workers[0], "sync", 2)
    other = arrive(client, workers[1], "sync", 2)
    assert client.result(second).round == client.result(other).round


def test_a_timeout_names_who_is_missing(client: Client) -> None:
    workers = client.world(3)
    wait = arrive(client, workers[0], "sync", 3, timeout_seconds=0.5)
    with pytest.raises(BarrierFailed, match="timed out") as error:
        client.result(wait)
    assert error.value.missing == ("w1", "w2")


def until_waiting(running: CoordinatorProcess, client: Client, count: int) -> None:
    """So many have come to the barrier."""
    until(lambda: [each["arrived"] for each in running.get(f"/api/v1/barriers?job={client.job}")["open"]] == [count])


def test_a_participant_that_leaves_ends_the_wait_for_everyone_at_once(
    running: CoordinatorProcess, client: Client
) -> None:
    workers = client.world(3)
    waits = [arrive(client, who, "sync", 3) for who in workers[:2]]
    until_waiting(running, client, 2)
    client.call("Deregister", **from_(workers[2], reason="out of memory"))
    for wait in waits:
        with pytest.raises(BarrierFailed, match="w2 was lost before it came: out of memory") as error:
            client.result(wait)
        assert error.value.missing == ("w2",)


def test_those_who_expect_different_numbers_are_told(running: CoordinatorProcess, client: Client) -> None:
    workers = client.world(3)
    first = arrive(client, workers[0], "sync", 3)  # kept: grpcio cancels a call whose future nobody has
    until_waiting(running, client, 1)
    with pytest.raises(Refused, match="all must say the same"):
        client.result(arrive(client, workers[1], "sync", 2))
    assert not first.done()


# -- datasets ----------------------------------------------------------------------------------------------------------


def dataset(client: Client, **fields: Any) -> Any:
    usual: dict[str, Any] = {"total_samples": 1000, "shard_size": 10, "path": "/data", "format": "parquet"}
    return client.call("RegisterDataset", **{"dataset_id": "images", **usual, **fields})


def test_a_dataset_is_divided_over_the_declared_world(client: Client) -> None:
    client.register("w0", rank=0, world_size=4)
    assert dataset(client).version == 1
    assert dataset(client).version == 1, "registering an equal dataset is a success"
    with pytest.raises(Conflict, match="shard_size was 10, is 20"):
        dataset(client, shard_size=20)
    shares = [client.call("GetShards", dataset_id="images", rank=rank, epoch=0) for rank in range(4)]
    assert sorted(shard for share in shares for shard in share.shard_ids) == list(range(100))
    assert {len(share.shard_ids) for share in shares} == {25}
    assert (shares[0].path, shares[0].format) == ("/data", "parquet")
    with pytest.raises(NotFound, match=r"4 ranks, 0 to 3"):
        client.call("GetShards", dataset_id="images", rank=4)
    with pytest.raises(NotFound, match="no dataset"):
        client.call("GetShards", dataset_id="texts", rank=0)
    with pytest.raises(InvalidInput, match="epoch"):
        client.call("GetShards", dataset_id="images", rank=0, epoch=-1)


def test_each_epoch_has_its_own_order_and_any_can_be_asked_for(client: Client) -> None:
    client.register("w0", rank=0, world_size=2)
    dataset(client, shuffle=True, seed=7)
    orders = [client.call("GetShards", dataset_id="images", rank=1, epoch=epoch).shard_ids for epoch in (0, 1, 10**9)]
    assert len({tuple(order) for order in orders}) == 3
    assert len({tuple(sorted(order)) for order in orders}) == 1
    assert client.call("GetShards", dataset_id="images", rank=1, epoch=1).shard_ids == orders[1]


def test_an_epoch_advances_once_however_many_ask(client: Client) -> None:
    client.register("w0")
    dataset(client)
    for _ in range(3):
        assert client.call("AdvanceEpoch", dataset_id="images", from_epoch=0, asked_by="w0").epoch == 1
    (listed,) = client.call("ListDatasets").datasets
    assert (listed.dataset_id, listed.epoch) == ("images", 1)
    client.call("UnregisterDataset", dataset_id="images")
    assert not client.call("ListDatasets").datasets


def test_progress_is_reported_and_shards_are_handed_over(client: Client) -> None:
    client.call("ConfigureJob", recovery="carry_on")
    first = client.register("w0")
    client.call("Recover", **from_(first))
    dataset(client, order="affinity")
    mine = client.call("GetAssignments", **from_(first, dataset_id="images"))
    assert len(mine.granted) == 100
    report = {"dataset_id": "images", "version": 1, "epoch": 0, "point": mine.point}
    client.call("ReportProgress", **from_(first, **report, cursors={0: 10, 1: 4}))
    second = client.register("w1")
    now = client.call("GetAssignments", **from_(first, dataset_id="images"))
    assert len(now.granted) + len(now.revoked) == 100 - 1 * (0 not in now.granted)
    theirs = client.call("GetAssignments", **from_(second, dataset_id="images"))
    assert list(theirs.awaited) == sorted(now.revoked)
    client.call(
        "AcknowledgeRevocation",
        **from_(first, **report, generation=now.generation, shards=list(now.revoked), cursors={}),
    )
    theirs = client.call("GetAssignments", **from_(second, dataset_id="images"))
    assert not theirs.awaited
    with pytest.raises(Refused, match="which w1 holds"):
        client.call("ReportProgress", **from_(first, **report, cursors={theirs.granted[0]: 1}))


# -- checkpoints -------------------------------------------------------------------------------------------------------


def save(client: Client, workers: list[Any], step: int) -> int:
    attempt = decide(client, workers, step)
    client.call("CommitCheckpoint", **from_(workers[0], attempt=attempt))
    return attempt


def decide(client: Client, workers: list[Any], step: int) -> int:
    attempt, status = client.call("BeginCheckpoint", **from_(workers[0], step=step)).attempt, None
    for who in workers:
        part = from_(who, attempt=attempt, digest=f"xxh3-128:{who.rank}", part_bytes=1000)
        status = client.call("AckCheckpoint", **part).status
    assert status == pb.AttemptStatus.ATTEMPT_STATUS_DECIDED
    return int(attempt)


def test_a_step_is_saved_by_all_or_by_none(client: Client) -> None:
    workers = client.world(2)
    assert not client.call("LatestCheckpoint").HasField("checkpoint")
    begun = client.call("BeginCheckpoint", **from_(workers[0], step=100))
    assert client.call("BeginCheckpoint", **from_(workers[1], step=100)) == begun
    ack = from_(workers[0], attempt=begun.attempt, digest="d", part_bytes=10, metrics={"loss": "0.5"})
    answer = client.call("AckCheckpoint", **ack)
    assert answer.status == pb.AttemptStatus.ATTEMPT_STATUS_OPEN
    with pytest.raises(Refused, match="not decided"):
        client.call("CommitCheckpoint", **from_(workers[0], attempt=begun.attempt))
    with pytest.raises(Conflict, match="written once"):
        client.call("AckCheckpoint", **ack | {"digest": "another"})
    attempt = decide(client, workers[1:], 100)
    assert attempt == begun.attempt
    with pytest.raises(Refused, match="must not be removed"):
        client.call("ReportRemoved", **from_(workers[0], attempt=attempt, what="WHAT_MANIFEST"))
    commands = client.heartbeat(workers[0]).commands
    assert [command.kind for command in commands] == [pb.Command.KIND_PUT_MANIFEST]
    client.call("CommitCheckpoint", **from_(workers[0], attempt=attempt))
    latest = client.call("LatestCheckpoint").checkpoint
    assert (latest.step, latest.total_bytes, latest.participants) == (100, 1010, 2)
    whole = client.call("GetCheckpoint", attempt=attempt).checkpoint
    assert [(part.rank, part.digest) for part in whole.parts] == [(0, "d"), (1, "xxh3-128:1")]
    assert whole.parts[0].metrics == {"loss": "0.5"}


def test_checkpoints_are_listed_in_pages_the_newest_first(client: Client) -> None:
    (only,) = client.world(1)
    for step in range(1, 6):
        save(client, [only], step)
    page = client.call("ListCheckpoints", page_size=2)
    assert [each.step for each in page.checkpoints] == [5, 4]
    page = client.call("ListCheckpoints", page_size=2, page_token=page.next_page_token)
    assert [each.step for each in page.checkpoints] == [3, 2]
    page = client.call("ListCheckpoints", page_size=2, page_token=page.next_page_token)
    assert [each.step for each in page.checkpoints] == [1]
    assert not page.next_page_token
    with pytest.raises(InvalidInput, match="page_token"):
        client.call("ListCheckpoints", page_token="x")
    with pytest.raises(InvalidInput, match="page_size"):
        client.call("ListCheckpoints", page_size=100_000)


def test_a_failed_part_ends_the_attempt_for_everyone(client: Client) -> None:
    workers = client.world(2)
    attempt = client.call("BeginCheckpoint", **from_(workers[0], step=1)).attempt
    client.call("FailCheckpoint", **from_(workers[1], attempt=attempt, reason="disk full"))
    with pytest.raises(Refused, match="abandoned"):
        client.call("AckCheckpoint", **from_(workers[0], attempt=attempt, digest="d", part_bytes=1))
    answer = client.call("BeginCheckpoint", **from_(workers[0], step=1))
    assert answer.skipped
    assert "disk full" in answer.reason


def test_who_waits_for_a_save_is_told_of_each_thing_that_becomes_of_it(client: Client) -> None:
    first, second = workers = client.world(2)
    waits = [client.start("AwaitCheckpoint", **from_(who, step=100)) for who in workers]
    attempt = client.call("BeginCheckpoint", **from_(first, step=100, place="step_100")).attempt
    told = [client.result(each).checkpoint for each in waits]
    assert {(each.attempt, each.place, each.participants) for each in told} == {(attempt, "step_100", 2)}
    known = {"step": 100, "attempt": attempt, "known": "ATTEMPT_STATUS_OPEN"}
    outcome = client.start("AwaitCheckpoint", **from_(second, **known))
    others = client.start("AwaitCheckpoint", **from_(first, **known, but_mine=True))
    client.call("AckCheckpoint", **from_(second, attempt=attempt, digest="d", part_bytes=1, place="step_100/part-1"))
    assert client.result(others).but_mine
    assert not outcome.done()
    client.call("AckCheckpoint", **from_(first, attempt=attempt, digest="d", part_bytes=1))
    assert client.result(outcome).checkpoint.status == pb.AttemptStatus.ATTEMPT_STATUS_DECIDED
    committed = client.start("AwaitCheckpoint", **from_(second, **known | {"known": "ATTEMPT_STATUS_DECIDED"}))
    client.call("CommitCheckpoint", **from_(first, attempt=attempt))
    assert client.result(committed).checkpoint.status == pb.AttemptStatus.ATTEMPT_STATUS_COMMITTED
    assert [each.place for each in client.call("GetCheckpoint", attempt=attempt).checkpoint.parts][1:] == [
        "step_100/part-1"
    ]


def test_who_waits_for_a_save_that_is_not_made_is_told_why(client: Client) -> None:
    first, second = client.world(2)
    skipped = client.start("AwaitCheckpoint", **from_(second, step=10))
    client.call("BeginCheckpoint", **from_(first, step=10, skip="step 5 is still being written"))
    told = client.result(skipped)
    assert (told.skipped, told.abandoned, told.reason) == (True, False, "step 5 is still being written")
    attempt = client.call("BeginCheckpoint", **from_(first, step=20)).attempt
    known = {"attempt": attempt, "known": "ATTEMPT_STATUS_OPEN"}
    waits = client.start("AwaitCheckpoint", **from_(second, step=20, **known))
    client.call("FailCheckpoint", **from_(first, attempt=attempt, reason="disk full"))
    told = client.result(waits)
    assert (told.skipped, told.abandoned, told.reason) == (False, True, "w0 could not save its part: disk full")
    assert client.call("AwaitCheckpoint", **from_(second, step=20)).abandoned


def test_who_waits_in_vain_is_told_so_in_time(client: Client) -> None:
    (only,) = client.world(1)
    told = client.call("AwaitCheckpoint", **from_(only, step=10, timeout_seconds=0.05))
    assert told == pb.AwaitCheckpointResponse()
    with pytest.raises(InvalidInput, match="at most 60"):
        client.call("AwaitCheckpoint", **from_(only, step=10, timeout_seconds=61))
    with pytest.raises(InvalidInput, match="no attempt 7"):
        client.call("AwaitCheckpoint", **from_(only, step=10, attempt=7))
    with pytest.raises(NotRegistered):
        client.call("AwaitCheckpoint", worker_id="w0", incarnation=only.incarnation + 5, step=10)
    waits = client.start("AwaitCheckpoint", **from_(only, step=10))
    client.call("Deregister", **from_(only, reason="done"))
    with pytest.raises(Expired, match="done"):
        client.result(waits)


def test_everybody_recovers_to_the_same_point_and_a_rollback_starts_a_lineage(client: Client) -> None:
    workers = client.world(2)
    first = client.call("Recover", **from_(workers[0])).point
    assert (first.step, first.attempt, list(first.ranks)) == (-1, 0, [0, 1])
    for step in (10, 20):
        save(client, workers, step)
    client.call("PinCheckpoint", attempt=1, name="paper")
    answer = client.call("RollBack", step=10, generation=first.generation)
    assert answer.lineage == 1
    points = [client.call("Recover", **from_(who)).point for who in workers]
    assert points[0] == points[1]
    assert (points[0].step, points[0].lineage) == (10, 1)
    with pytest.raises(StaleGeneration) as error:
        client.call("BeginCheckpoint", **from_(workers[0], step=30, generation=first.generation))
    assert error.value.generation == points[0].generation
    client.call("ReportDamage", **from_(workers[0], attempt=1, reason="digest differs"))
    assert client.call("Recover", **from_(workers[0])).point.step == -1


def test_an_operator_asks_for_a_checkpoint_and_every_rank_saves_at_the_same_step(client: Client) -> None:
    workers = client.world(2)
    request = client.call("RequestCheckpoint", reason="maintenance").request
    told = [client.heartbeat(who, step=10).commands for who in workers]
    assert [[command.kind for command in commands] for commands in told] == [[pb.Command.KIND_PROPOSE_SAVE]] * 2
    step = told[0][0].step
    for who in workers:
        client.heartbeat(who, step=10, promised_request=request, promised_step=step)
    told = [client.heartbeat(who, step=10).commands for who in workers]
    assert [[(command.kind, command.step) for command in commands] for commands in told] == [
        [(pb.Command.KIND_SAVE_AT, step)]
    ] * 2
    save(client, workers, step)
    assert not client.heartbeat(workers[0], step=step).commands


def test_an_operator_stops_the_job_and_every_rank_saves_at_the_same_step_before(client: Client) -> None:
    workers = client.world(2)
    client.call("StopJob", reason="budget spent")
    (offer,) = client.heartbeat(workers[0], step=10).commands
    assert (offer.kind, offer.last, offer.reason) == (
        pb.Command.KIND_PROPOSE_SAVE,
        True,
        "the job stops: budget spent",
    )
    for who in workers:
        client.heartbeat(who, step=10, promised_request=offer.request, promised_step=offer.step)
    save(client, workers, offer.step)
    (stop,) = client.heartbeat(workers[0], step=offer.step).commands
    assert (stop.kind, stop.reason) == (pb.Command.KIND_STOP, "budget spent")


# -- what is wrong -----------------------------------------------------------------------------------------------------


def test_settings_that_make_no_sense_are_refused(client: Client) -> None:
    with pytest.raises(InvalidInput, match="barriers must be one of fail, shrink"):
        client.call("ConfigureJob", barriers="perhaps")
    client.call("ConfigureJob", retention=pb.Retention(keep_count=3, best_metric="loss", best_mode="max"))


def test_what_is_too_long_is_refused_and_nothing_of_it_kept(client: Client) -> None:
    client.register("w0")
    with pytest.raises(InvalidInput, match="4096"):
        client.call("RequestCheckpoint", reason="x" * 5000)
    with pytest.raises(InvalidInput, match="metadata has"):
        client.register("w1", metadata={f"key-{number}": "x" * 100 for number in range(60)})
    with pytest.raises(RpcError, match="RESOURCE_EXHAUSTED"):
        client.call("RequestCheckpoint", reason="x" * (5 << 20))


def test_an_unknown_method_and_service_are_told_so(running: CoordinatorProcess) -> None:
    with grpc.insecure_channel(running.address) as channel:
        for path in ("/strata.v1.Coordinator/Explode", "/strata.v2.Coordinator/Register", "/x/y"):
            with pytest.raises(grpc.RpcError) as error:
                channel.unary_unary(path)(b"", timeout=10)
            assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.RpcError) as error:
            channel.unary_unary("/strata.v1.Coordinator/Register")(b"\xff\xff garbage", timeout=10)
        assert error.value.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT)


def test_health_and_reflection_work_with_the_ordinary_tools(running: CoordinatorProcess) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    with grpc.insecure_channel(running.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "strata.v1.Coordinator"):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflected = ProtoReflectionDescriptorDatabase(channel)
        assert "strata.v1.Coordinator" in reflected.get_services()
        file = reflected.FindFileContainingSymbol("strata.v1.Coordinator")
        assert any(message.name == "CheckpointAck" for message in file.message_type)


def test_a_process_that_is_not_known_is_told_to_register(client: Client) -> None:
    client.register("w0")
    with pytest.raises(NotRegistered):
        client.call("Heartbeat", worker_id="w9", incarnation=3)
