"""Any history of ranks that take their steps together and read their own shards, on the coordinator's real machine,
with reports that are lost, repeated and late: the model has learned from every sample of an epoch once."""

from collections import Counter
from random import Random
from typing import Any

from hypothesis import example, given, note, settings
from hypothesis import strategies as st

from strata.core.effects import Registered
from strata.core.events import AssignmentsRequested, Event, Position, ProgressReported
from strata.core.orders import ShardLayout
from strata.data.grants import Share, Standing, Told
from strata.data.levelled import Levelled, steps_of
from strata.data.ownbatches import Stretches
from strata.errors import Fenced, StaleGeneration
from tests.unit.core.cluster import JOB, Cluster

TOTAL, SHARD, SEED = 47, 5, 3
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(1, 4)),
        st.tuples(st.just("save")),
        st.tuples(st.just("restart")),
        st.tuples(st.just("lose"), st.integers(0, 3)),
        st.tuples(st.just("crash"), st.integers(1, 4)),
    ),
    max_size=14,
)


class Job:
    """Its model is what it has learned from: epochs and places, once for each time."""

    def __init__(self, size: int, batch_size: int, seed: int) -> None:
        self.cluster = Cluster(recovery="rollback")
        self._batch_size, self._fates, self._step = batch_size, Random(seed), 0
        self.ranks: list[tuple[Registered, Levelled]] = []
        self.learned: Counter[tuple[int, int]] = Counter()
        self._saved: Counter[tuple[int, int]] = Counter()
        self._sent: list[Event] = []
        self.crash(size)
        self.cluster.add_dataset("rows", total_samples=TOTAL, shard_size=SHARD, shuffle=True, seed=SEED)
        self._begin()

    @property
    def epoch(self) -> int:
        return self.cluster.dataset("rows").epoch

    def crash(self, size: int) -> None:
        """All are killed, and as many start as may be."""
        if self.ranks:
            self.cluster.expire(*(who for who, _ in self.ranks))
        self.ranks = [(who, self._reader()) for who in self.cluster.world(size)]
        if "rows" in self.cluster.job.datasets:
            self._begin()

    def lose(self, which: int) -> None:
        """One is killed, and comes back; the others keep what they were told until they hear of it."""
        place = which % len(self.ranks)
        gone, _ = self.ranks[place]
        self.cluster.expire(gone)
        who = self.cluster.register(gone.worker, rank=gone.rank, world_size=len(self.ranks))
        self.ranks[place] = who, self._reader()
        self._begin()

    def _reader(self) -> Levelled:
        return Levelled(ShardLayout(TOTAL, SHARD), SEED, True, self._batch_size)

    def _begin(self) -> None:
        """Where the last checkpoint is."""
        for who, _ in self.ranks:
            self.cluster.heartbeat(who)
        for who, _ in self.ranks:
            self.cluster.recover(who)
        self.learned = self._saved.copy()
        for who, reader in self.ranks:
            self._ask(who, reader)
        shares = [sum(piece.end - piece.start for piece in reader.left()) for _, reader in self.ranks]
        assert max(shares) - min(shares) <= 1

    def _ask(self, who: Registered, reader: Levelled) -> None:
        answer = self.cluster.from_worker(AssignmentsRequested, who, dataset="rows", level=reader.level)
        its, standing = answer.levelled, Standing(who.incarnation, answer.version, answer.point, answer.epoch)
        share = Share(its.ranks, its.left, its.stretches, its.read)
        reader.told(Told(standing, answer.generation, [], [], [], {}, {}, share))

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self._take()

    def _take(self) -> None:
        left = {reader.steps_left for _, reader in self.ranks}
        assert len(left) == 1, "all ranks take the same number of steps"
        if left == {0}:
            self._end_epoch()
        for who, reader in self.ranks:
            pieces = Stretches(reader.order, reader.left(), self._batch_size, reader.steps_left).pieces(0)
            reader.give(pieces)
            assert reader.standing is not None
            for shard, start, end in pieces:
                self.learned.update((reader.standing.epoch, shard * SHARD + place) for place in range(start, end))
            self._report(who, reader, self._fates.choice(["answered", "unanswered", "lost", "late"]))

    def _end_epoch(self) -> None:
        standing = self.ranks[0][1].standing
        assert standing is not None
        epoch = standing.epoch
        for who, reader in self.ranks:
            reader.consume()
            self._report(who, reader, "answered")
        assert self.epoch == epoch + 1
        assert self.cluster.dataset("rows").proofs[-1].consumed == TOTAL
        for who, reader in self.ranks:
            self._ask(who, reader)
            assert reader.steps_left == steps_of(TOTAL, len(self.ranks), self._batch_size)

    def _report(self, who: Registered, reader: Levelled, fate: str) -> None:
        news, standing = reader.news(), reader.standing
        if news and standing is not None and fate != "lost":
            about: Any = {"version": standing.version, "epoch": standing.epoch, "point": standing.point, "cursors": {}}
            event = ProgressReported(JOB, who.worker, who.incarnation, "rows", **about, **news)
            self._sent.append(event)
            self._send(event)
            if fate == "answered":
                reader.reported(standing, news)
        if fate == "late" and self._sent:
            self._send(self._fates.choice(self._sent))

    def _send(self, event: Any) -> None:
        """What is of the past is refused, or changes nothing."""
        try:
            self.cluster.send(event)
        except StaleGeneration:
            assert event.point < self.cluster.job.points
        except Fenced:
            assert (event.worker, event.incarnation) not in {(who.worker, who.incarnation) for who, _ in self.ranks}

    def save(self) -> None:
        """Begun before anybody asks for the next batch."""
        self._step += 1
        positions = {who.worker: {"rows": self._position(reader)} for who, reader in self.ranks}
        self.cluster.save([who for who, _ in self.ranks], self._step, positions)
        self._saved = self.learned.copy()

    @staticmethod
    def _position(reader: Levelled) -> Position:
        assert reader.standing is not None
        return Position(reader.standing.version, reader.standing.epoch, reader.own)

    def restart(self) -> None:
        self.cluster.restart()


@given(st.integers(1, 4), EVENTS, st.sampled_from([1, 3, 4, 12, 60]), st.integers(0, 2**32))
@example(2, [("step", 3), ("restart",), ("step", 2), ("save",), ("step", 1), ("lose", 1), ("crash", 3)], 4, 1)
@settings(deadline=None)
def test_every_sample_is_learned_from_once(size: int, events: list[Any], batch_size: int, seed: int) -> None:
    note(f"{size} {events} {batch_size} {seed}")
    job = Job(size, batch_size, seed)
    for name, *about in events:
        getattr(job, name)(*about)
    epoch = job.epoch
    while job.epoch == epoch:
        job.step()
    learned = Counter(epoch for epoch, _ in job.learned)
    assert all(job.learned[began, place] == 1 for began in range(epoch + 1) for place in range(TOTAL))
    assert set(job.learned.values()) == {1}
    assert learned[epoch] == TOTAL
    job.cluster.replay()
