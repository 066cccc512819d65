"""What takes part in a job and is dropped without `close()` leaves the job, and nothing of it behind."""

import gc
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strata import CheckpointManager, DatasetRegistry
from strata.data import AffinityLoader, Loader
from tests.servers.coordinator import Client, CoordinatorProcess
from tests.until import until

TIMES = 10


class Place:
    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.of: dict[str, Any] = {"coordinator_url": url, "rank": 0, "world_size": 1}

    def save(self) -> None:
        CheckpointManager(self.folder / "saved", **self.of).save(b"1", step=1)

    def read(self) -> None:
        next(iter(Loader(dataset_id="rows", global_batch_size=4, **self.of)))

    def read_own_shards(self) -> None:
        next(iter(AffinityLoader("shards", 4, **self.of)))

    def make(self) -> None:
        """Another can be made at once: the one that was dropped does not read the dataset any more."""
        Loader(dataset_id="rows", global_batch_size=4, **self.of)


@pytest.fixture
def place(tmp_path: Path, running: CoordinatorProcess, job: str) -> Place:
    (tmp_path / "rows").mkdir()
    pq.write_table(pa.table({"x": list(range(64))}), tmp_path / "rows" / "0.parquet")
    with DatasetRegistry(running.address) as registry:
        registry.register("rows", tmp_path / "rows", "parquet")
        registry.register("shards", tmp_path / "rows", "parquet", order="affinity")
    return Place(tmp_path, running.address)


def left() -> Counter[str]:
    """Threads, descriptors, and what Strata has in memory."""
    gc.collect()
    objects = Counter(type(each).__qualname__ for each in gc.get_objects() if _is_of_strata(each))
    return objects + Counter(threads=len(os.listdir("/proc/self/task")), descriptors=len(os.listdir("/proc/self/fd")))


def _is_of_strata(each: object) -> bool:
    return str(type(each).__module__).startswith("strata.") and not isinstance(each, type)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")
@pytest.mark.parametrize("drop", [Place.save, Place.make, Place.read, Place.read_own_shards])
def test_it_leaves_its_job_and_nothing_behind(place: Place, client: Client, drop: Callable[[Place], None]) -> None:
    def is_out() -> bool:
        return not client.call("GetWorld").peers

    drop(place)
    until(is_out)
    before = left()
    for _ in range(TIMES):
        drop(place)
        until(is_out)
    until(lambda: all(count < TIMES // 2 for count in (left() - before).values()))
