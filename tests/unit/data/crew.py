"""Workers that read in the affinity order, on the coordinator's real state machine, and what they really read.

Messages are sent by hand: each may be lost, go unanswered, or come again much later.
"""

from collections import Counter
from typing import Any, Literal

from strata.core.effects import Assignments, Registered
from strata.core.events import (
    AssignmentsRequested,
    Event,
    Position,
    ProgressReported,
    RevocationAcknowledged,
)
from strata.core.orders import ShardLayout
from strata.core.state import Dataset, Proof
from strata.data.grants import Grants, Piece, Standing, Told
from strata.data.ownbatches import Stretches
from strata.errors import Fenced, StrataError
from tests.unit.core.cluster import JOB, Cluster

TOTAL, SHARD, SEED = 47, 5, 3
DATASET = "images"
Fate = Literal["answered", "unanswered", "lost"]


def told(answer: Assignments, incarnation: int) -> Told:
    standing = Standing(incarnation, answer.version, answer.point, answer.epoch)
    return Told(
        standing, answer.generation, answer.granted, answer.awaited, answer.revoked, answer.cursors, answer.beyond
    )


class Reader:
    """A process: what it was granted, and the batch that it trains on."""

    def __init__(self, name: str, who: Registered) -> None:
        self.name, self.who = name, who
        self.grants = Grants(ShardLayout(TOTAL, SHARD), SEED, True)
        self.in_hand: list[Piece] = []


class Crew:
    """A job without collectives, or one that goes back; and the truth about every place of its epoch."""

    def __init__(self) -> None:
        self.cluster = Cluster(recovery="carry_on")
        self.cluster.add_dataset(DATASET, total_samples=TOTAL, shard_size=SHARD, shuffle=True, seed=SEED)
        self.readers: dict[str, Reader] = {}
        self.given: Counter[int] = Counter()
        """How often each place of the epoch was given out to somebody who was not lost with it."""
        self.trained: set[int] = set()
        self.given_by: dict[tuple[str, int], set[int]] = {}
        self.sent: list[Event] = []
        self.again = 0
        """Places that were given out again, since a worker was lost before it had reported them."""
        self._now = (0, 0)
        self._joined = 0

    @property
    def dataset(self) -> Dataset:
        return self.cluster.dataset(DATASET)

    # -- coming and going --------------------------------------------------------------------------------------------

    def join(self) -> Reader:
        self._joined += 1
        name = f"w{self._joined}"
        reader = self.readers[name] = Reader(name, self.cluster.register(name))
        self.cluster.recover(reader.who)
        self.look()
        return reader

    def come_back(self, reader: Reader) -> None:
        """It finds that it was given up, and registers as another incarnation."""
        reader.who = self.cluster.register(reader.name, previous=reader.who.incarnation)
        self.cluster.recover(reader.who)
        self.look()

    def expire(self, reader: Reader) -> None:
        self._forget(reader)
        self.cluster.expire(reader.who)
        self.look()

    def kill(self, reader: Reader) -> None:
        del self.readers[reader.name]
        if self.is_live(reader):
            self.expire(reader)

    def leave(self, reader: Reader) -> None:
        """In good order: it says how far it got."""
        del self.readers[reader.name]
        self.consume(reader)
        if not self.is_live(reader):
            return
        self.ask(reader)
        self.report(reader, "answered")
        self._forget(reader)
        self.cluster.leave(reader.who)
        self.look()

    def is_live(self, reader: Reader) -> bool:
        return self.status(reader) in ("live", "draining")

    def status(self, reader: Reader) -> str:
        member = self.cluster.job.world.members.get(reader.name)
        is_it = member is not None and member.incarnation == reader.who.incarnation
        return member.status if member is not None and is_it else "gone"

    def _forget(self, reader: Reader) -> None:
        """What it gave out and the ledger does not have will be given out again, and that is right."""
        for place in self.given_by.pop((reader.name, reader.who.incarnation), set()):
            if not self.dataset.consumed.covers(place, place + 1):
                self.given[place] -= 1
                self.again += 1

    # -- reading -----------------------------------------------------------------------------------------------------

    def take(self, reader: Reader, batch_size: int) -> bool:
        """The next batch is asked for."""
        self.consume(reader)
        reading = Stretches(reader.grants.order, reader.grants.left(), batch_size)
        if not reading.batches:
            return False
        reader.in_hand = reading.pieces(0)
        reader.grants.give(reader.in_hand)
        if self._counts(reader):
            places = set(_places(reader.in_hand))
            self.given.update(places)
            self.given_by.setdefault((reader.name, reader.who.incarnation), set()).update(places)
        return True

    def consume(self, reader: Reader) -> None:
        """It has trained on what is in its hands."""
        if self._counts(reader):
            self.trained.update(_places(reader.in_hand))
        reader.in_hand = []
        reader.grants.consume()

    def _counts(self, reader: Reader) -> bool:
        """What a fenced process reads, or one that has yet to hear that the job went elsewhere, does not."""
        standing = reader.grants.standing
        return (
            standing is not None
            and (standing.point, standing.epoch) == self._now
            and standing.incarnation == reader.who.incarnation
            and self.is_live(reader)
        )

    # -- messages ----------------------------------------------------------------------------------------------------

    def ask(self, reader: Reader) -> None:
        answer = self._call(reader, AssignmentsRequested, "answered")
        if answer is not None:
            reader.grants.told(told(answer, reader.who.incarnation))
            if not self._counts(reader) or reader.grants.standing is None:
                reader.in_hand = []

    def report(self, reader: Reader, fate: Fate) -> None:
        news, standing = reader.grants.news(), reader.grants.standing
        if news and standing is not None and self._call(reader, ProgressReported, fate, **news) is not None:
            reader.grants.reported(standing, news)

    def release(self, reader: Reader, fate: Fate) -> None:
        release, standing = reader.grants.release(), reader.grants.standing
        if release is None or standing is None:
            return
        if self._call(reader, RevocationAcknowledged, fate, **release._asdict()) is not None:
            reader.grants.released(standing, release)

    def _call(self, reader: Reader, kind: type[Event], fate: Fate, **fields: Any) -> Any:
        """The answer, if it comes. A worker that is told that it was given up comes back, and one that is refused
        asks what it holds."""
        standing = reader.grants.standing
        if kind is not AssignmentsRequested and standing is not None:
            fields |= {"version": standing.version, "epoch": standing.epoch, "point": standing.point}
        event = kind(job=JOB, worker=reader.name, incarnation=reader.who.incarnation, dataset=DATASET, **fields)
        if kind is not AssignmentsRequested:
            self.sent.append(event)
        if fate == "lost":
            return None
        try:
            answer = self.cluster.send(event)
        except Fenced:
            self.come_back(reader)
            return None
        except StrataError:
            if kind is not AssignmentsRequested:
                self.ask(reader)
            return None
        self.look()
        return answer if fate == "answered" else None

    def repeat(self, event: Event) -> None:
        """It comes once more, however late."""
        try:
            self.cluster.send(event)
        except StrataError:
            return
        self.look()

    # -- the job -----------------------------------------------------------------------------------------------------

    def save(self, step: int) -> None:
        live = [reader for reader in self.readers.values() if self.is_live(reader)]
        if not live or any(not self._counts(reader) for reader in live):
            return  # somebody has yet to hear of an epoch, and could not be part of it
        version, epoch = self.dataset.version, self.dataset.epoch
        positions = {each.name: {DATASET: Position(version, epoch, each.grants.own)} for each in live}
        self.cluster.save([reader.who for reader in live], step, positions)

    def restart(self) -> None:
        self.cluster.restart()

    def look(self) -> None:
        """What the machine has done by itself."""
        now = (self.cluster.job.points, self.dataset.epoch)
        if now == self._now:
            return
        if now[0] == self._now[0] and self.proofs[-1].consumed == TOTAL:
            assert self.given == Counter(range(TOTAL)), "an epoch is over: each of its places was given out once"
            assert self.trained == set(range(TOTAL))
        self._now = now
        consumed = [place for start, end in self.dataset.consumed for place in range(start, end)]
        self.given, self.trained, self.given_by = Counter(consumed), set(consumed), {}
        for reader in self.readers.values():
            reader.in_hand = []  # it was of another epoch, or of what is taken back

    @property
    def proofs(self) -> list[Proof]:
        return self.dataset.proofs

    def check(self) -> None:
        assert all(count <= 1 for count in self.given.values()), "a place was given out twice"
        for start, end in self.dataset.consumed:
            assert self.trained.issuperset(range(start, end)), "the ledger has what nobody trained on"

    def finish(self, batch_size: int) -> None:
        """Those that are to go do, and everybody reads on until the epoch is over."""
        before = self._now
        for reader in [each for each in self.readers.values() if self.status(each) == "draining"]:
            self.leave(reader)
        if self._now != before:
            return
        for _ in range(100):
            for reader in list(self.readers.values()) or [self.join()]:
                self.ask(reader)
                self.release(reader, "answered")
                while self.take(reader, batch_size):
                    self.check()
                self.report(reader, "answered")
                self.release(reader, "answered")
                if self._now != before:
                    return
        raise AssertionError(f"epoch {before[1]} does not end: {self.dataset}")


def _places(pieces: list[Piece]) -> list[int]:
    return [SHARD * shard + place for shard, start, end in pieces for place in range(start, end)]
