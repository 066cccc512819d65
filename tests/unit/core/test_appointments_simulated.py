"""Appointments in a small world of their own: ranks at different paces, late and lost messages, crashes, restarts.

The promise: all ranks that save for a request save at one and the same step; nobody passes that step without saving;
and once the trouble is over, whoever holds is let go.
"""

from dataclasses import dataclass, field
from random import Random

import pytest

from strata.core.effects import Alive, Errand, Registered
from strata.core.events import SaveRequested
from strata.core.records import SaveAgreed
from strata.core.settings import Policy
from strata.errors import StrataError
from tests.unit.core.cluster import JOB, Cluster

POLICY = Policy(lease_seconds=60.0, heartbeat_seconds=2.0)


@dataclass
class Rank:
    """A worker as the protocol asks it to be: it promises only what it can keep, and keeps it."""

    who: Registered
    pace: float
    done: float = 0.0
    promised: tuple[int, int] = (0, -1)
    save_at: int = -1
    saved: set[int] = field(default_factory=set)

    @property
    def step(self) -> int:
        return int(self.done)

    def train(self, seconds: float) -> None:
        """Go on, but not beyond a step that was promised and of which nothing was heard."""
        target = self.done + self.pace * seconds
        stop = self.promised[1]
        if stop >= 0 and self.step <= stop:
            target = min(target, stop + 0.5)
        if 0 <= self.save_at < int(target):
            target = self.save_at + 0.5
        self.done = target
        self.save_if_there()

    def save_if_there(self) -> None:
        if self.step == self.save_at:
            self.saved.add(self.step)

    def hear(self, errands: tuple[Errand, ...], sent_promise: tuple[int, int]) -> None:
        told = next((errand for errand in errands if errand.kind in ("propose_save", "save_at")), None)
        if told is None:
            if sent_promise == self.promised:  # the answer was computed with this promise known, and says nothing
                self.promised = (0, -1)
        elif told.kind == "save_at":
            if told.step >= self.step:
                self.save_at = told.step
                self.promised = (0, -1)
                self.save_if_there()
        elif told.step > self.step or (told.step == self.step and self.promised == (told.request, told.step)):
            self.promised = (told.request, told.step)


@pytest.mark.parametrize("seed", range(60))
def test_everybody_saves_at_one_step_and_nobody_holds_for_ever(seed: int) -> None:
    random = Random(seed)
    cluster = Cluster(POLICY, recovery="carry_on")
    size = random.randint(1, 6)
    ranks = [Rank(who, random.uniform(0.2, 40.0)) for who in cluster.world(size)]
    asked = False
    trouble = True
    for tick in range(3000):
        cluster.now += random.uniform(0.0, 0.4)
        trouble = tick < 1500
        if not asked and tick > 20:
            cluster.send(SaveRequested(JOB, "maintenance"))
            asked = True
        for rank in ranks:
            rank.train(0.2 if trouble else 2.0)  # the slow ones get there, too
        _someone_reports(cluster, random, ranks, lossy=trouble)
        if trouble and random.random() < 0.004:
            cluster.restart()
        if trouble and random.random() < 0.003:
            _replace(cluster, random, ranks)
        if cluster.recorded(SaveAgreed) and all(rank.step >= rank.save_at >= 0 for rank in ranks):
            break
    agreed = cluster.recorded(SaveAgreed)
    assert agreed, "the ranks never agreed"
    assert {rank.save_at for rank in ranks} == {agreed[-1].step}
    assert all(agreed[-1].step in rank.saved for rank in ranks)


def _someone_reports(cluster: Cluster, random: Random, ranks: list[Rank], *, lossy: bool) -> None:
    rank = random.choice(ranks)
    request, step = sent = rank.promised
    try:
        answer = cluster.heartbeat(rank.who, step=rank.step, promised_request=request, promised_step=step)
    except StrataError:
        return
    assert isinstance(answer, Alive)
    if not lossy or random.random() > 0.3:
        rank.hear(answer.errands, sent)


def _replace(cluster: Cluster, random: Random, ranks: list[Rank]) -> None:
    """A process dies and another takes its name; it goes on from where the others are, and has promised nothing."""
    if cluster.recorded(SaveAgreed):
        return
    number = random.randrange(len(ranks))
    who = cluster.register(f"w{number}", rank=number, world_size=len(ranks))
    ranks[number] = Rank(who, random.uniform(0.2, 40.0), min(rank.done for rank in ranks))
