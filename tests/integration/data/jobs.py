"""Jobs of several ranks in one process, each with its session, its loader and its checkpoint manager."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from strata.checkpoint import CheckpointManager
from strata.checkpoint.settings import CheckpointManagerConfig
from strata.data import Loader
from strata.data.registry import DatasetRegistry

T = TypeVar("T")
ROWS, BATCH = 230, 20
"""The last batch of an epoch is short of half its samples."""
QUICK = CheckpointManagerConfig(coordinator_seconds=3.0, ranks_seconds=20.0)


def write_rows(folder: Path, rows: int = ROWS) -> Path:
    """In files of different lengths, one of them empty."""
    folder.mkdir(parents=True)
    edges = [0, rows // 3, rows // 3, rows - 7, rows]
    for number, (start, end) in enumerate(pairwise(edges)):
        data = pa.table({"id": pa.array(range(start, end), pa.int64())})
        pq.write_table(data, folder / f"{number}.parquet", row_group_size=16)
    return folder


class Rank(NamedTuple):
    loader: Loader
    manager: CheckpointManager


class Crew:
    """All ranks of a job; each does what it is told in a thread of its own."""

    def __init__(self, ranks: Sequence[Rank], threads: ThreadPoolExecutor) -> None:
        self.ranks, self._threads = ranks, threads

    def each(self, work: Callable[[Rank], T]) -> list[T]:
        return [done.result(60) for done in [self._threads.submit(work, rank) for rank in self.ranks]]

    def read(self, batches: int | None = None) -> list[list[int]]:
        """The global batches, put together from all ranks' shares; None: to the end of the epoch."""
        shares = self.each(lambda rank: [batch["id"].tolist() for batch in taken(rank.loader, batches)])
        assert len({len(share) for share in shares}) == 1, "every rank takes the same number of steps"
        return [list(chain(*parts)) for parts in zip(*shares, strict=True)]

    def save(self, step: int) -> None:
        self.each(lambda rank: rank.manager.save({"step": np.array(step)}, step))

    def load(self) -> list[int]:
        return [int(state["step"]) for state in self.each(lambda rank: rank.manager.load())]


def taken(loader: Loader, count: int | None) -> Iterator[Any]:
    """So many, and then the one behind them is asked for in vain: they were worked on."""
    reading: Any = iter(loader)
    yield from islice(reading, count)
    loader.finish()
    reading.close()


@contextmanager
def crew(size: int, url: str, root: Path, run: str, **how: Any) -> Iterator[Crew]:
    """`run` is a name for this start of all ranks."""
    with ExitStack() as open_ones, ThreadPoolExecutor(size) as threads:

        def start(rank: int) -> Rank:
            place: dict[str, Any] = {"coordinator_url": url, "rank": rank, "world_size": size}
            manager = CheckpointManager(root, run_id=run, config=QUICK, **place)
            loader = Loader(dataset_id="rows", global_batch_size=BATCH, **{**place, **how})
            return Rank(loader, manager)

        started = list(threads.map(start, range(size)))
        for rank in started:
            open_ones.callback(rank.manager.close)
            open_ones.callback(rank.loader.close)
        yield Crew(started, threads)


def register(url: str, folder: Path, **how: Any) -> None:
    DatasetRegistry(url).register("rows", folder, "parquet", **{"shard_size": 16, "shuffle": True, "seed": 3, **how})


def all_batches(folder: Path, epoch: int = 0, **how: Any) -> list[list[int]]:
    """As one process reads them that is part of no job."""
    plain = {"format": "parquet", "shard_size": 16, "shuffle": True, "seed": 3, "epoch": epoch}
    with Loader(str(folder), BATCH, **{**plain, **how}) as loader:
        return [batch["id"].tolist() for batch in loader]
