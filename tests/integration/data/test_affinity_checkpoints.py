"""Ranks that read their own shards and save together: the ledger goes back with the model, at any number of ranks."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest

from strata import CheckpointManager, PerRank, background
from strata.checkpoint.settings import CheckpointManagerConfig
from strata.data import AffinityLoader
from strata.data.ledger import judge, read_ledger
from strata.errors import Refused, StaleGeneration
from tests.integration.data.jobs import QUICK, ROWS, register, write_rows
from tests.servers.coordinator import CoordinatorProcess

T = TypeVar("T")
EVERYTHING = list(range(ROWS))


class Rank(NamedTuple):
    loader: AffinityLoader
    manager: CheckpointManager

    def read(self, batches: int | None = None) -> list[int]:
        return list(chain(*(batch["id"].tolist() for batch in islice(self.loader, batches))))

    def save(self, step: int) -> None:
        self.manager.save({"step": np.array(step)}, step)

    def load(self) -> int:
        return int(self.manager.load()["step"])


class Crew:
    """Each rank does what it is told in a thread of its own."""

    def __init__(self, ranks: list[Rank], threads: ThreadPoolExecutor) -> None:
        self.ranks, self._threads = ranks, threads

    def each(self, work: Callable[[Rank], T]) -> list[T]:
        return [done.result(60) for done in [self._threads.submit(work, rank) for rank in self.ranks]]

    def read(self, batches: int | None = None) -> list[int]:
        return list(chain(*self.each(lambda rank: rank.read(batches))))


@contextmanager
def crew(size: int, url: str, root: Path, run: str, config: CheckpointManagerConfig = QUICK) -> Iterator[Crew]:
    with ExitStack() as open_ones, ThreadPoolExecutor(size) as threads:

        def start(rank: int) -> Rank:
            place: dict[str, Any] = {"coordinator_url": url, "rank": rank, "world_size": size}
            loader = AffinityLoader("rows", 8, report_seconds=0.05, wait_seconds=30.0, **place)
            return Rank(loader, CheckpointManager(root, run_id=run, config=config, **place))

        started = list(threads.map(start, range(size)))
        for rank in started:
            open_ones.callback(rank.manager.close)
            open_ones.callback(rank.loader.close)
        yield Crew(started, threads)


@pytest.fixture
def url(tmp_path: Path, running: CoordinatorProcess, job: str) -> str:
    register(running.address, write_rows(tmp_path / "rows"), order="affinity")
    return running.address


def whole(loader: AffinityLoader, epoch: int) -> bool:
    return judge(background.run(read_ledger(loader.session, "rows")), epoch).whole


@pytest.mark.parametrize(("before", "after"), [(1, 2), (3, 2), (2, 2)])
def test_a_job_goes_on_from_its_checkpoint_at_any_number_of_ranks(
    url: str, tmp_path: Path, before: int, after: int
) -> None:
    with crew(before, url, tmp_path / "saved", "one") as job:
        kept = job.read(4)
        job.each(lambda rank: rank.save(4))
        assert job.read(3)  # which come to nothing
    with crew(after, url, tmp_path / "saved", "two") as job:
        assert job.each(Rank.load) == [4] * after
        kept += job.read(2)
        job.each(lambda rank: rank.save(6))
    with crew(before, url, tmp_path / "saved", "three") as job:
        assert job.each(Rank.load) == [6] * before
        assert sorted(kept + job.read()) == EVERYTHING
        job.each(lambda rank: rank.save(100))  # at the end of an epoch, which is the beginning of the next
    with crew(after, url, tmp_path / "saved", "four") as job:
        assert job.each(Rank.load) == [100] * after
        assert [rank.loader.epoch for rank in job.ranks] == [1] * after
        assert sorted(job.read()) == EVERYTHING
        assert whole(job.ranks[0].loader, 1)


def test_the_loaders_state_may_be_part_of_the_checkpoint(url: str, tmp_path: Path) -> None:
    def save(rank: Rank) -> None:
        rank.manager.save({"loader": PerRank(rank.loader.state_dict())}, 4)

    def load(rank: Rank) -> None:
        rank.loader.load_state_dict(rank.manager.load()["loader"])

    with crew(2, url, tmp_path / "saved", "one") as job:
        kept = job.read(4)
        job.each(save)
        job.read(3)
        job.each(load)  # but nobody was lost, and the job did not go back
        for rank in job.ranks:
            with pytest.raises(
                Refused, match="what this worker gave out of dataset 'rows' since then would be missing"
            ):
                rank.read()
    with crew(2, url, tmp_path / "saved", "two") as job:
        job.each(load)
        assert sorted(kept + job.read()) == EVERYTHING


def test_what_a_lost_rank_had_not_saved_goes_to_the_others_from_the_checkpoint_on(url: str, tmp_path: Path) -> None:
    brief = replace(QUICK, ranks_seconds=5.0)  # those who are left wait so long for the lost one to load with them
    with crew(3, url, tmp_path / "saved", "one", brief) as job:
        kept = job.read(4)
        job.each(lambda rank: rank.save(4))
        loops = {rank.loader: iter(rank.loader) for rank in job.ranks}
        job.each(lambda rank: list(islice(loops[rank.loader], 2)))
        lost = job.ranks.pop()
        lost.loader.close()
        lost.manager.close()
        first, second = job.ranks
        assert job.each(Rank.load) == [4, 4]
        for rank in (first, second):
            with pytest.raises(StaleGeneration, match="then iterate again"):
                list(loops[rank.loader])
        assert sorted(kept + job.read()) == EVERYTHING
        assert whole(first.loader, 0)
