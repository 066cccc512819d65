"""Grants on the coordinator's real machine: each sample once, whoever comes, goes, is lost, or is heard late."""

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strata.core.events import DrainRequested, EpochAdvanceRequested, RollBackRequested
from strata.core.orders import ShardLayout
from strata.data.grants import Grants, Piece, Standing, Told
from strata.errors import StrataError
from tests.unit.core.cluster import JOB
from tests.unit.data.crew import DATASET, SEED, SHARD, TOTAL, Crew, Fate, Reader

FATES = st.sampled_from(["answered", "answered", "unanswered", "lost"])
SIZES = st.integers(1, 9)


class Anything(RuleBasedStateMachine):
    """Any history of a job: invariants hold at every step, and whatever happened, the epoch can be finished."""

    @initialize()
    def begin(self) -> None:
        self.crew = Crew()
        self.step = 0
        self.crew.join()

    def _any(self, index: int) -> Reader | None:
        readers = list(self.crew.readers.values())
        return readers[index % len(readers)] if readers else None

    @precondition(lambda self: len(self.crew.readers) < 5)
    @rule()
    def join(self) -> None:
        self.crew.join()

    @rule(index=st.integers(0, 4), count=st.integers(1, 4), size=SIZES)
    def take(self, index: int, count: int, size: int) -> None:
        if reader := self._any(index):
            for _ in range(count):
                self.crew.take(reader, size)

    @rule(index=st.integers(0, 4))
    def ask(self, index: int) -> None:
        if reader := self._any(index):
            self.crew.ask(reader)

    @rule(index=st.integers(0, 4), fate=FATES)
    def report(self, index: int, fate: Fate) -> None:
        if reader := self._any(index):
            self.crew.report(reader, fate)

    @rule(index=st.integers(0, 4), fate=FATES)
    def release(self, index: int, fate: Fate) -> None:
        if reader := self._any(index):
            self.crew.release(reader, fate)

    @rule(index=st.integers(0, 1000))
    def repeat(self, index: int) -> None:
        if self.crew.sent:
            self.crew.repeat(self.crew.sent[index % len(self.crew.sent)])

    @rule(index=st.integers(0, 4))
    def leave(self, index: int) -> None:
        if reader := self._any(index):
            self.crew.leave(reader)

    @rule()
    def restart(self) -> None:
        self.crew.restart()

    @invariant()
    def holds(self) -> None:
        self.crew.check()

    def teardown(self) -> None:
        if hasattr(self, "crew"):
            self.crew.finish(4)


class WithoutLosses(Anything):
    """Each sample is given out exactly once, in truth."""

    @invariant()
    def nothing_again(self) -> None:
        assert not self.crew.again


class Losing(Anything):
    """Processes die, or are given up and come back; operators interfere."""

    @rule(index=st.integers(0, 4))
    def kill(self, index: int) -> None:
        if reader := self._any(index):
            self.crew.kill(reader)

    @rule(index=st.integers(0, 4))
    def expire(self, index: int) -> None:
        if (reader := self._any(index)) and self.crew.is_live(reader):
            self.crew.expire(reader)

    @rule(index=st.integers(0, 4))
    def drain(self, index: int) -> None:
        if (reader := self._any(index)) and self.crew.is_live(reader):
            self.crew.cluster.send(DrainRequested(JOB, reader.name))

    @rule()
    def save(self) -> None:
        self.step += 1
        self.crew.save(self.step)

    @rule(back=st.integers(0, 3))
    def roll_back(self, back: int) -> None:
        cluster = self.crew.cluster
        try:
            cluster.send(RollBackRequested(JOB, max(0, self.step - back), cluster.generation))
        except StrataError:
            return  # there is no such checkpoint
        for reader in self.crew.readers.values():
            if self.crew.is_live(reader):
                cluster.recover(reader.who)
        self.crew.look()

    @rule()
    def advance(self) -> None:
        event = EpochAdvanceRequested(JOB, DATASET, self.crew.dataset.epoch)
        self.crew.cluster.send(event)
        self.crew.look()


TestWithoutLosses = WithoutLosses.TestCase
TestLosing = Losing.TestCase
TestWithoutLosses.settings = TestLosing.settings = settings(max_examples=150, stateful_step_count=40)


# -- by hand ---------------------------------------------------------------------------------------------------------


def grants(**fields: Any) -> Grants:
    made = Grants(ShardLayout(TOTAL, SHARD), SEED, False)
    made.told(telling(**fields))
    return made


def telling(**fields: Any) -> Told:
    said = {"epoch": 0, "point": 1, "generation": 4, "granted": [], "awaited": [], "revoked": [], **fields}
    standing = Standing(fields.get("incarnation", 1), 1, said["point"], said["epoch"])
    return Told(
        standing,
        said["generation"],
        said["granted"],
        said["awaited"],
        said["revoked"],
        fields.get("cursors", {}),
        fields.get("beyond", {}),
    )


def test_what_others_read_is_left_out() -> None:
    made = grants(granted=[2, 0, 9], cursors={0: 3, 9: 2}, beyond={2: [1, 3]})
    assert made.left() == [Piece(0, 3, 5), Piece(2, 0, 1), Piece(2, 3, 5)]  # the last shard has two samples


def test_what_is_in_hand_is_neither_reported_nor_given_up() -> None:
    made = grants(granted=[0, 1])
    made.give([Piece(0, 0, 4)])
    assert made.news() == {}
    made.told(telling(granted=[1], revoked=[0], generation=5))
    assert made.release() is None
    assert made.left() == [Piece(1, 0, 5)]
    made.give([Piece(1, 0, 4)])
    assert made.news() == {"cursors": {0: 4}}
    release = made.release()
    assert release == (5, [0], {0: 4})
    assert made.standing is not None
    made.released(made.standing, release)
    assert made.release() is None
    assert made.news() == {}, "what was given up is not this worker's to report of"


def test_an_answer_to_an_older_revocation_does_not_count() -> None:
    made = grants(granted=[1], revoked=[0])
    release, standing = made.release(), made.standing
    assert release is not None
    assert standing is not None
    made.told(telling(granted=[1], revoked=[0], generation=5))
    made.released(standing, release)
    assert made.release() == (5, [0], {})


def test_a_shard_that_comes_back_goes_on_where_this_worker_was() -> None:
    made = grants(granted=[0])
    made.give([Piece(0, 0, 3)])
    made.consume()
    made.told(telling(revoked=[0], generation=5))
    made.told(telling(granted=[0], generation=6))
    assert made.left() == [Piece(0, 3, 5)]
    assert made.news() == {"cursors": {0: 3}}


def test_a_cursor_leaps_over_what_others_read() -> None:
    made = grants(granted=[0], beyond={0: [2, 4]})
    made.give([Piece(0, 0, 2)])
    made.consume()
    assert made.news() == {"cursors": {0: 4}}
    assert made.own == [0, 2]


def test_another_point_or_incarnation_begins_anew() -> None:
    for other in ({"point": 2}, {"incarnation": 2}, {"epoch": 1}):
        made = grants(granted=[0])
        made.give([Piece(0, 0, 3)])
        changes, standing = made.changes, made.standing
        assert standing is not None
        made.told(telling(granted=[0], cursors={0: 1}, **other))
        assert made.changes > changes
        assert made.left() == [Piece(0, 1, 5)]
        assert (made.own, made.news(), made.release()) == ([], {}, None)
        made.reported(standing, {"cursors": {0: 3}})  # of the past
        made.give([Piece(0, 1, 2)])
        made.consume()
        assert made.news() == {"cursors": {0: 2}}


def test_what_is_told_twice_changes_nothing() -> None:
    made = grants(granted=[0, 3], awaited=[4])
    changes = made.changes
    made.give([Piece(0, 0, 3)])
    made.told(telling(granted=[0, 3], awaited=[4], generation=5))
    assert made.changes == changes
    made.told(telling(granted=[0, 3, 4], generation=5))
    assert made.changes == changes + 1


def test_each_epoch_has_its_own_order_and_every_sample() -> None:
    orders = set()
    for epoch in range(4):
        made = Grants(ShardLayout(TOTAL, SHARD), SEED, True)
        made.told(telling(granted=range(10), epoch=epoch))
        orders.add(tuple(piece.shard for piece in made.left()))
        samples = [made.order.samples_in(*_columns(piece)) for piece in made.left()]
        assert Counter(int(each) for found in samples for each in found) == Counter(range(TOTAL))
    assert len(orders) == 4


def _columns(piece: Piece) -> Any:
    places = np.arange(piece.start, piece.end)
    return np.full(len(places), piece.shard), places
