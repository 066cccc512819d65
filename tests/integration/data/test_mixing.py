"""A mix of a job's datasets, with a real coordinator: all ranks get the same mix, also who joins later."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pytest

from strata.checkpoint import CheckpointManager
from strata.data import Loader, Mix
from strata.data.registry import DatasetRegistry
from strata.errors import InvalidInput, StaleGeneration
from tests.integration.data.jobs import BATCH, QUICK, write_rows
from tests.servers.coordinator import Client, CoordinatorProcess

T = TypeVar("T")
WEIGHTS = {"much": 0.7, "little": 0.3}
CUT: dict[str, Any] = {"shuffle": True, "seed": 3, "shard_size": 16}


@pytest.fixture
def folders(tmp_path: Path, running: CoordinatorProcess, job: str) -> dict[str, Path]:
    """Two datasets, of which one has more epochs than the other by the end of a test."""
    found = {"much": write_rows(tmp_path / "much", 150), "little": write_rows(tmp_path / "little", 50)}
    for name, folder in found.items():
        DatasetRegistry(running.address).register(name, folder, "parquet", **CUT)
    return found


class Rank(NamedTuple):
    mix: Mix
    manager: CheckpointManager


class Crew:
    """Each rank does what it is told in a thread of its own."""

    def __init__(self, ranks: list[Rank], threads: ThreadPoolExecutor) -> None:
        self.ranks, self._threads = ranks, threads

    def each(self, work: Callable[[Rank], T]) -> list[T]:
        return [done.result(60) for done in [self._threads.submit(work, rank) for rank in self.ranks]]

    def read(self, batches: int) -> list[list[int]]:
        shares = self.each(lambda rank: ids(rank.mix, batches))
        return [list(chain(*parts)) for parts in zip(*shares, strict=True)]

    def save(self, step: int) -> None:
        self.each(lambda rank: rank.manager.save({"step": np.array(step)}, step))

    def load(self) -> None:
        self.each(lambda rank: rank.manager.load())


def ids(mix: Mix, count: int) -> list[list[int]]:
    """As they are in each dataset: which one's batch it is says the whole of them."""
    return [batch["id"].tolist() for batch in islice(mix, count)]


@contextmanager
def crew(size: int, url: str, root: Path, run: str, **how: Any) -> Iterator[Crew]:
    """`run` is a name for this start of all ranks."""
    with ExitStack() as open_ones, ThreadPoolExecutor(size) as threads:

        def start(rank: int) -> Rank:
            place: dict[str, Any] = {"coordinator_url": url, "rank": rank, "world_size": size}
            manager = CheckpointManager(root, run_id=run, config=QUICK, **place)
            open_ones.callback(manager.close)
            return Rank(mixed(open_ones, [{"dataset_id": name} for name in WEIGHTS], **place, **how), manager)

        yield Crew(list(threads.map(start, range(size))), threads)


def mixed(stack: ExitStack, datasets: list[dict[str, Any]], **how: Any) -> Mix:
    loaders = [stack.enter_context(Loader(global_batch_size=BATCH, **each, **how)) for each in datasets]
    return Mix(dict(zip(loaders, WEIGHTS.values(), strict=True)), BATCH, seed=7)


def plain(folders: dict[str, Path], count: int, **how: Any) -> list[list[int]]:
    """As one process has it that is part of no job."""
    with ExitStack() as stack:
        datasets = [{"dataset": str(folder), "format": "parquet", **CUT} for folder in folders.values()]
        return ids(mixed(stack, datasets, **how), count)


@pytest.mark.parametrize("tail", ["drop", "short", "pad"])
@pytest.mark.parametrize("sizes", [(1, 2), (2, 1), (2, 2)])
def test_who_is_started_anew_goes_on_with_the_mix_of_the_checkpoint(
    folders: dict[str, Path], running: CoordinatorProcess, tmp_path: Path, sizes: tuple[int, int], tail: str
) -> None:
    """The state has nothing of the mix in it."""
    before, after = sizes
    wanted = plain(folders, 40, tail=tail)
    with crew(before, running.address, tmp_path / "saved", "one", tail=tail) as job:
        assert job.read(17) == wanted[:17]
        job.save(17)
        assert job.read(5) == wanted[17:22]  # which come to nothing
    with crew(after, running.address, tmp_path / "saved", "two", tail=tail) as job:
        job.load()
        assert job.read(13) == wanted[17:30]
        job.save(30)
        assert len({rank.mix.given for rank in job.ranks}) == 1
        assert sum(job.ranks[0].mix.given) == 30
    with crew(before, running.address, tmp_path / "saved", "three", tail=tail) as job:
        job.load()
        assert job.read(10) == wanted[30:]


def test_who_stays_goes_back_with_the_job(
    folders: dict[str, Path], running: CoordinatorProcess, client: Client, tmp_path: Path
) -> None:
    wanted = plain(folders, 20)
    with crew(2, running.address, tmp_path / "saved", "one", report="each") as job:
        for step in (4, 8):
            job.read(4)
            job.save(step)
        client.call("RollBack", step=4, generation=client.call("GetLedger", dataset_id="much").generation)

        def read_on(rank: Rank) -> None:
            with pytest.raises(StaleGeneration, match="iterate again"):
                ids(rank.mix, 20)

        job.each(read_on)
        job.load()
        assert job.read(16) == wanted[4:]


def test_a_job_that_carries_on_has_no_mix(
    folders: dict[str, Path], running: CoordinatorProcess, client: Client, tmp_path: Path
) -> None:
    client.call("ConfigureJob", recovery="carry_on")
    with crew(1, running.address, tmp_path / "saved", "one") as job, pytest.raises(InvalidInput, match="carries on"):
        job.read(1)


def test_all_loaders_of_a_mix_are_part_of_the_job_or_none_is(
    folders: dict[str, Path], running: CoordinatorProcess
) -> None:
    datasets = [
        {"dataset_id": "much", "coordinator_url": running.address},
        {"dataset": str(folders["little"]), "format": "parquet"},
    ]
    with ExitStack() as stack, pytest.raises(InvalidInput, match="some are not"):
        mixed(stack, datasets)
