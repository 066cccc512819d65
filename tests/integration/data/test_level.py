"""Ranks that meet in every step and read their own shards: all take the same steps, each sample is learned from once,
and the ledger proves it, wherever in the epoch a rank is lost."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from strata import CheckpointManager, background
from strata.data import AffinityLoader
from strata.data.ledger import judge, read_ledger
from strata.errors import InvalidInput, RankFailed, Refused, StaleGeneration
from strata.testing.manager_seam import ManagerSeam, Point
from tests.integration.data.jobs import QUICK, ROWS, register, write_rows
from tests.servers.coordinator import CoordinatorProcess

T = TypeVar("T")
SIZE = 8
EVERYTHING = list(range(ROWS))


class Rank:
    """One of a world, in a thread of its own; its model is what it has learned from."""

    def __init__(self, url: str, root: Path, rank: int, size: int, **more: Any) -> None:
        place: dict[str, Any] = {"coordinator_url": url, "rank": rank, "world_size": size}
        more = {"tail": "short", "report_seconds": 0.05, "wait_seconds": 30.0, **more}
        self.loader = AffinityLoader("rows", SIZE, **place, **more)
        self.manager = CheckpointManager(root, config=QUICK, **place)
        self.batches: Iterator[Any] = iter(())
        self.rank = rank

    def begin(self) -> None:
        self.batches = iter(self.loader)

    def next(self) -> list[int] | None:
        batch = next(self.batches, None)
        found: list[int] | None = None if batch is None else batch["id"].tolist()
        return found

    def save(self, step: int) -> None:
        self.manager.save({"step": np.array(step)}, step)

    def load(self) -> int:
        return int(self.manager.load()["step"])

    def close(self) -> None:
        self.loader.close()
        self.manager.close()


class World:
    """Ranks that take each step together."""

    def __init__(self, url: str, root: Path, threads: ThreadPoolExecutor) -> None:
        self.url, self.root, self._threads = url, root, threads
        self.ranks: list[Rank] = []

    def start(self, *places: int, size: int, **more: Any) -> None:
        made = self._threads.map(lambda rank: Rank(self.url, self.root, rank, size, **more), places)
        self.ranks = sorted([*self.ranks, *made], key=lambda rank: rank.rank)

    def each(self, work: Callable[[Rank], T]) -> list[T]:
        return [done.result(60) for done in [self._threads.submit(work, rank) for rank in self.ranks]]

    def step(self) -> list[list[int]] | None:
        """What each learns from, or None at the end of the epoch, which all of them are at."""
        shares = self.each(Rank.next)
        assert len({share is None for share in shares}) == 1, "all ranks take the same number of steps"
        return None if shares[0] is None else [share for share in shares if share is not None]

    def steps(self, most: int = 1000) -> list[list[list[int]]]:
        found: list[list[list[int]]] = []
        while len(found) < most and (step := self.step()) is not None:
            found.append(step)
        return found

    def close(self) -> None:
        self.each(Rank.close)
        self.ranks = []


@pytest.fixture
def world(tmp_path: Path, running: CoordinatorProcess, job: str) -> Iterator[World]:
    register(running.address, write_rows(tmp_path / "rows"), order="affinity")
    with ThreadPoolExecutor(4) as threads, ExitStack() as stack:
        made = World(running.address, tmp_path / "saved", threads)
        stack.callback(made.close)
        yield made


def learned(steps: list[list[list[int]]]) -> list[int]:
    return list(chain(*chain(*steps)))


def whole(rank: Rank, epoch: int) -> bool:
    return judge(background.run(read_ledger(rank.loader.session, "rows")), epoch).whole


@pytest.mark.parametrize("size", [1, 3])
def test_all_ranks_take_the_same_steps_epoch_after_epoch(world: World, size: int) -> None:
    world.start(*range(size), size=size)
    for epoch in range(2):
        world.each(Rank.begin)
        steps = world.steps()
        assert len(steps) == world.ranks[0].loader.steps_per_epoch
        assert sorted(learned(steps)) == EVERYTHING
        assert all(len(share) == SIZE for step in steps[:-1] for share in step)
        last = [len(share) for share in steps[-1]]
        assert max(last) - min(last) <= 1
        assert [rank.loader.epoch for rank in world.ranks] == [epoch + 1] * size
        assert whole(world.ranks[0], epoch)


@pytest.mark.parametrize("behind", [1, 2])
def test_a_rank_is_lost_at_the_end_and_all_go_back(world: World, behind: int) -> None:
    """In the last step but one or the last, where samples are read that others have lent."""
    world.start(0, 1, 2, size=3)
    world.each(Rank.begin)
    per_epoch = world.ranks[0].loader.steps_per_epoch
    kept = world.steps(per_epoch - behind - 1)
    world.each(lambda rank: rank.save(len(kept)))
    assert world.steps(behind)  # which come to nothing
    lost = world.ranks.pop()
    lost.close()
    world.start(2, size=3)
    assert world.each(Rank.load) == [len(kept)] * 3
    for rank in world.ranks[:2]:
        with pytest.raises(StaleGeneration, match="then iterate again"):
            list(rank.batches)
    world.each(Rank.begin)
    kept += world.steps()
    assert len(kept) == per_epoch
    assert sorted(learned(kept)) == EVERYTHING
    assert whole(world.ranks[0], 0)


def test_a_job_goes_on_from_the_middle_and_from_the_last_step_at_any_number_of_ranks(world: World) -> None:
    world.start(0, 1, 2, size=3)
    world.each(Rank.begin)
    kept = world.steps(4)
    world.each(lambda rank: rank.save(4))
    world.steps(2)
    world.close()
    world.start(0, 1, size=2)
    assert world.each(Rank.load) == [4, 4]
    world.each(Rank.begin)
    left = -(-(ROWS - len(learned(kept))) // (2 * SIZE))
    kept += world.steps(left - 1)
    last = world.step()
    assert last is not None
    kept.append(last)
    world.each(lambda rank: rank.save(100))  # in the last step, which nobody has said to be over yet
    world.close()
    world.start(0, 1, 2, size=3)
    assert world.each(Rank.load) == [100] * 3
    assert sorted(learned(kept)) == EVERYTHING
    assert [rank.loader.epoch for rank in world.ranks] == [1] * 3
    assert whole(world.ranks[0], 0)
    world.each(Rank.begin)
    assert sorted(learned(world.steps())) == EVERYTHING


def test_the_last_step_is_saved_behind_the_training_while_the_next_epoch_begins(world: World) -> None:
    world.start(0, 1, size=2)
    world.each(Rank.begin)
    per_epoch = world.ranks[0].loader.steps_per_epoch
    kept = world.steps(per_epoch)
    held = [ManagerSeam(rank.manager).hold(Point.WRITE) for rank in world.ranks]
    try:
        saves = world.each(lambda rank: rank.manager.save_async({"step": np.array(per_epoch)}, per_epoch))
        assert all(each.reached.wait(20) for each in held)
        assert world.step() is None
        assert [rank.loader.epoch for rank in world.ranks] == [1, 1]
        assert not any(save.done() for save in saves)
    finally:
        for each in held:
            each.let_go.set()
    for save in saves:
        save.result()
    world.close()
    world.start(0, 1, size=2)
    assert world.each(Rank.load) == [per_epoch] * 2
    assert [rank.loader.epoch for rank in world.ranks] == [1, 1]
    assert sorted(learned(kept)) == EVERYTHING
    assert whole(world.ranks[0], 0)


def test_a_rank_that_is_lost_is_waited_for_and_told_of(world: World) -> None:
    world.start(0, size=2, wait_seconds=0.5)
    rank = world.ranks[0]
    other = Rank(world.url, world.root, 1, 2)
    with pytest.raises(RankFailed, match=r"samples of epoch 0 are not reported yet: they were shared out to 2 ranks"):
        for _ in rank.loader:
            pass
    other.close()


def test_ranks_that_would_not_take_the_same_steps_are_told(world: World, running: CoordinatorProcess) -> None:
    world.start(0, 1, size=2)
    assert [rank.loader.steps_per_epoch for rank in world.ranks] == [-(-ROWS // (2 * SIZE))] * 2
    world.ranks[1].loader.close()
    other = AffinityLoader("rows", SIZE, coordinator_url=running.address, rank=1, world_size=2)
    with other, pytest.raises(Refused, match=r"and others with batch_size=8, tail=short"):
        next(iter(other))
    with pytest.raises(InvalidInput, match="differ in their steps"):
        assert other.steps_per_epoch


def test_what_a_tail_cannot_be(running: CoordinatorProcess, job: str) -> None:
    with pytest.raises(InvalidInput, match='tail must be "short"'):
        AffinityLoader("rows", SIZE, tail="pad", coordinator_url=running.address)  # type: ignore[arg-type]  # so it is
    with pytest.raises(InvalidInput, match="carries on"):
        AffinityLoader("rows", SIZE, tail="short", carry_on=True, coordinator_url=running.address)
