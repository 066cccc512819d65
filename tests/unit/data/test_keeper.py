"""Rounds of a keeper on the coordinator's real machine, with calls that are lost, unanswered, late or refused."""

import asyncio
from typing import Any

import pytest

from strata.coordinator import translate
from strata.core.effects import Registered
from strata.core.events import Position, RollBackRequested
from strata.core.orders import ShardLayout
from strata.data.grants import Grants, Piece
from strata.data.keeper import REFUSALS, Keeper
from strata.errors import NotFound, StaleGeneration, Superseded
from strata.rpc import RpcError, Status
from strata.v1 import coordinator_pb2 as pb
from tests.unit.core.cluster import JOB, Cluster

CALLS: dict[str, Any] = {
    "GetAssignments": (pb.GetAssignmentsRequest, translate.get_assignments, translate.assignments),
    "Recover": (pb.RecoverRequest, translate.recover, translate.recovery_point),
    "ReportProgress": (pb.ReportProgressRequest, translate.report_progress, lambda _: None),
    "AcknowledgeRevocation": (pb.AcknowledgeRevocationRequest, translate.acknowledge_revocation, lambda _: None),
}


class Wire:
    """One worker's way to the machine. `fates` say what becomes of the next calls: "lost" or "unanswered"."""

    is_silent = False

    def __init__(self, cluster: Cluster, who: Registered) -> None:
        self.cluster, self.who = cluster, who
        self.fates: list[str] = []
        self.made: list[str] = []

    @property
    def incarnation(self) -> int:
        return self.who.incarnation

    @property
    def generation(self) -> int:
        return self.cluster.generation

    async def call(self, method: str, *, within: float = 1.0, **fields: Any) -> Any:
        self.made.append(method)
        fate = self.fates.pop(0) if self.fates else ""
        if fate == "lost":
            raise RpcError(Status.UNAVAILABLE, "lost on the way")
        if method == "GetLedger":
            dataset = self.cluster.dataset(fields["dataset_id"])
            owned = self.cluster.machine.volatile.ownerships.of(JOB, dataset, self.cluster.job.world.view)
            return translate.ledger(self.cluster.job, dataset, fields["from_place"], 10, owned)
        request, to_event, to_response = CALLS[method]
        made = request(job_id=JOB, worker_id=self.who.worker, incarnation=self.who.incarnation, **fields)
        answer = to_response(self.cluster.send(to_event(made)))
        if fate == "unanswered":
            raise RpcError(Status.UNAVAILABLE, "the answer was lost")
        return answer


class Scene:
    """A worker of a job with 100 samples in 10 shards, in their natural order."""

    def __init__(
        self, report_seconds: float = 0.0, recovery: str = "carry_on", *, dataset: str = "images", **place: int
    ) -> None:
        self.cluster = Cluster(recovery=recovery)
        self.wire = Wire(self.cluster, self.cluster.register("w0", **place))
        self.cluster.add_dataset()
        self.grants = Grants(ShardLayout(100, 10), 0, False)
        self.keeper = Keeper(self.wire, dataset, self.grants, report_seconds)
        self.keeper.is_reading = True
        self.rounds()

    def rounds(self, count: int = 1) -> list[str]:
        """The calls that were made."""
        self.wire.made = []
        for _ in range(count):
            asyncio.run(self.keeper.round())
        return self.wire.made

    def train(self, *pieces: Piece) -> None:
        self.grants.give(pieces)
        self.grants.consume()

    @property
    def consumed(self) -> int:
        return self.cluster.dataset().consumed.count


def test_what_is_consumed_is_reported_once() -> None:
    scene = Scene()
    assert scene.rounds() == []
    scene.grants.give([Piece(0, 0, 4)])
    assert scene.rounds() == []
    scene.grants.consume()
    assert scene.rounds(3) == ["ReportProgress"]
    assert scene.consumed == 4


def test_reports_are_not_made_more_often_than_they_may_be_but_at_once_where_nothing_is_left() -> None:
    scene = Scene(report_seconds=1000.0)
    scene.train(Piece(0, 0, 4))
    assert scene.rounds() == ["ReportProgress"]
    scene.train(Piece(0, 4, 8))
    assert scene.rounds() == []
    scene.keeper.is_idle = True
    assert scene.rounds() == ["GetLedger", "ReportProgress"]
    assert scene.consumed == 8


def test_whoever_comes_recovers_before_it_reads() -> None:
    scene = Scene()
    assert scene.cluster.job.points == 1
    who = scene.wire.who
    scene.train(Piece(0, 0, 4))
    scene.rounds()
    scene.cluster.save([who], 1, {"w0": {"images": Position(1, 0, [0, 2])}})
    scene.cluster.leave(who)  # nobody is left, and what was consumed after the checkpoint is not part of it
    scene.wire.who = scene.cluster.register("w0", previous=who.incarnation)
    assert scene.rounds() == ["Recover", "GetAssignments"]
    assert scene.grants.left()[0] == Piece(0, 2, 10)
    assert scene.rounds() == []


def test_one_that_has_not_begun_to_read_gives_up_what_others_wait_for() -> None:
    scene = Scene()
    keeper = scene.keeper = Keeper(scene.wire, "images", scene.grants, 0.0)
    scene.cluster.register("w1")
    assert len(scene.cluster.dataset().held) == 5
    assert scene.rounds() == ["GetAssignments", "AcknowledgeRevocation"]
    assert scene.cluster.dataset().held == {}
    points = scene.cluster.job.points
    keeper.ask()
    assert scene.rounds() == ["Recover", "GetAssignments"]
    assert scene.cluster.job.points == points


def test_where_all_ranks_go_back_together_they_are_waited_for() -> None:
    scene = Scene(recovery="rollback", rank=0, world_size=2)
    assert scene.rounds(2) == ["Recover", "Recover"]
    assert scene.keeper.trouble is None
    assert "nobody is registered for rank 1" in str(scene.keeper.last_error)
    scene.cluster.register("w1", rank=1, world_size=2)
    scene.cluster.heartbeat(scene.wire.who)
    assert scene.rounds() == ["Recover", "GetAssignments"]
    assert scene.keeper.last_error is None


@pytest.mark.parametrize("fate", ["lost", "unanswered"])
def test_a_report_without_an_answer_is_made_again(fate: str) -> None:
    scene = Scene()
    scene.train(Piece(0, 0, 4))
    scene.wire.fates = [fate] * 3
    scene.rounds(3)
    assert scene.keeper.is_silent
    assert scene.keeper.trouble is None
    report = ["ReportProgress"] if fate == "lost" else []  # else the shards are told with what was reported
    assert scene.rounds(2) == ["GetAssignments", *report]
    assert scene.consumed == 4
    assert not scene.keeper.is_silent


@pytest.mark.parametrize("fate", ["", "lost", "unanswered"])
def test_what_was_revoked_is_given_up_when_it_is_not_in_hand_any_more(fate: str) -> None:
    scene = Scene()
    scene.grants.give([Piece(shard, 0, 2) for shard in range(10)])
    other = scene.cluster.register("w1")
    held = scene.cluster.dataset().held
    assert len(held) == 5
    assert scene.rounds() == ["GetAssignments"]
    assert len(scene.cluster.dataset().held) == 5, "all of it is trained on"
    scene.grants.consume()
    scene.wire.fates = [fate]
    calls = scene.rounds(3)
    assert scene.cluster.dataset().held == {}
    assert scene.consumed == 20
    assert calls.count("ReportProgress") == 1, "of what it kept"
    assert scene.keeper.last_error is None
    assert other.rank == 1


def test_between_an_operators_rollback_and_the_recovery_nothing_counts_and_the_loop_is_told() -> None:
    scene = Scene()
    who = scene.wire.who
    scene.cluster.recover(who)
    scene.rounds()
    scene.cluster.save([who], 1, {"w0": {"images": Position(1, 0, [0, 2])}})
    scene.cluster.send(RollBackRequested(JOB, 1, scene.cluster.generation))
    scene.rounds()
    scene.train(Piece(0, 0, 4))
    scene.rounds(REFUSALS - 1)
    assert scene.keeper.trouble is None
    scene.rounds()
    assert isinstance(scene.keeper.trouble, StaleGeneration)
    scene.cluster.recover(who)
    scene.rounds(2)
    assert scene.consumed == 2
    assert scene.grants.left()[0] == Piece(0, 2, 10)


def test_one_that_was_given_up_reads_on_as_another(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.cluster.register("w1")
    scene.rounds(2)
    mine = scene.grants.left()[0]
    scene.train(mine)
    scene.cluster.expire(scene.wire.who)
    scene.rounds()
    assert scene.keeper.trouble is None
    scene.wire.who = scene.cluster.register("w0", previous=scene.wire.who.incarnation)
    scene.rounds(2)
    assert "reads dataset images on as incarnation 3" in caplog.text
    assert scene.consumed == 0, "what it had not reported is anybody's"
    assert mine in scene.grants.left() or mine.shard in scene.grants.awaited


def test_what_time_does_not_mend_is_told_at_once() -> None:
    scene = Scene()
    scene.cluster.register("w0")
    scene.train(Piece(0, 0, 4))
    scene.rounds()
    assert isinstance(scene.keeper.trouble, Superseded)
    other = Scene(dataset="texts")
    assert isinstance(other.keeper.trouble, NotFound)


def test_others_are_looked_at_while_there_is_nothing_to_read() -> None:
    scene = Scene()
    scene.keeper.is_idle = True
    assert scene.rounds() == ["GetLedger"]
    moved = scene.keeper.moved
    scene.rounds()
    assert scene.keeper.moved == moved
    scene.train(Piece(0, 0, 4))
    scene.rounds(2)
    assert scene.keeper.moved > moved
    scene.train(*scene.grants.left())
    assert scene.rounds(2) == ["GetLedger", "ReportProgress", "GetLedger", "GetAssignments"]
    assert scene.grants.standing is not None
    assert scene.grants.standing.epoch == 1
