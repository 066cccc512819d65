"""The loader inside of a DataLoader's workers: the loader's own batches in its own order, and exact resume."""

import multiprocessing
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata.data.index import DatasetIndex
from strata.data.indexing import index_dataset
from strata.data.loader import Loader
from strata.data.making import Making
from strata.data.output import Finish
from strata.data.remembering import Remembered
from strata.data.runs import PLAN_SAMPLES, Share
from strata.errors import InvalidInput

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
data = pytest.importorskip("torch.utils.data")

# Of more workers than there are processors.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")]

ROWS, SIZE = 103, 10


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> DatasetIndex:
    folder = tmp_path_factory.mktemp("data")
    rows = pa.table({"id": np.arange(ROWS), "text": [f"sample {each}" for each in range(ROWS)]})
    pq.write_table(rows, folder / "a.parquet", row_group_size=7)
    return index_dataset(folder, "parquet")


def loader(index: DatasetIndex, **given: Any) -> Loader:
    return Loader(index, SIZE, **{"shard_size": 9, "window_shards": 2, "seed": 5, "tail": "short", **given})


def workers(loader: Loader, count: int, start: str = "fork", **given: Any) -> Any:
    context = start if count else None
    return data.DataLoader(
        loader.dataset(), batch_size=None, num_workers=count, multiprocessing_context=context, **given
    )


def ids(batches: Iterable[Any]) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def taken(batches: Iterator[Any], count: int) -> list[list[int]]:
    """So many; then nobody wants more."""
    found = []
    for batch in batches:
        found += ids([batch])
        if len(found) == count:
            break
    return found


def fails(batch: Any) -> Any:
    if 50 in batch["id"]:
        raise ValueError("not this one")
    return batch


@pytest.fixture(scope="module")
def epochs(index: DatasetIndex) -> list[list[list[int]]]:
    """What the loader itself gives, of two epochs."""
    with loader(index) as plain:
        return [ids(plain), ids(plain)]


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_two_epochs_are_those_of_the_loader(index: DatasetIndex, epochs: list[Any], count: int) -> None:
    with loader(index) as one:
        batches = workers(one, count)
        assert len(batches) == len(epochs[0])
        assert [ids(one.over(batches)), ids(one.over(batches))] == epochs
        assert (one.epoch, one.batch) == (2, 0)


@pytest.fixture(scope="module")
def long_epoch(tmp_path_factory: pytest.TempPathFactory) -> DatasetIndex:
    """Each of four workers has runs of more samples than are planned at once."""
    folder = tmp_path_factory.mktemp("long")
    pq.write_table(pa.table({"id": np.arange(5 * PLAN_SAMPLES + 7)}), folder / "a.parquet", row_group_size=1000)
    return index_dataset(folder, "parquet")


@pytest.mark.parametrize(
    ("start", "count"),
    [("fork", 2), ("fork", 3), ("fork", 4), pytest.param("spawn", 2, marks=pytest.mark.long), ("spawn", 3)],
)
def test_an_epoch_of_long_runs_is_that_of_the_loader(long_epoch: DatasetIndex, start: str, count: int) -> None:
    with Loader(long_epoch, 247, tail="short") as plain, Loader(long_epoch, 247, tail="short") as one:
        assert len(plain) % count, "workers have different numbers of batches"
        assert ids(one.over(workers(one, count, start))) == ids(plain)
        assert (one.epoch, one.batch) == (1, 0)


@pytest.mark.parametrize("count", [1, 3])
def test_workers_that_stay_begin_where_the_loader_stands(index: DatasetIndex, epochs: list[Any], count: int) -> None:
    with loader(index) as one:
        batches = workers(one, count, persistent_workers=True)
        seen = taken(one.over(batches), 4)
        assert one.state_dict()["batch"] == 4
        seen += taken(one.over(batches), 1)
        assert seen + ids(one.over(batches)) == epochs[0]
        assert ids(one.over(batches)) == epochs[1]
        one.set_epoch(0)
        assert taken(one.over(batches), 2) == epochs[0][:2]
        assert ids(one) == epochs[0][2:]
        assert ids(one.over(batches)) == epochs[1]


def test_what_workers_had_prepared_is_not_lost_at_another_number_of_workers_or_ranks(
    index: DatasetIndex, epochs: list[Any]
) -> None:
    state: Any = None
    seen: list[list[int]] = []
    for count, world, batches in [(2, 1, 3), (0, 2, 2), (3, 2, 3), (1, 1, 2), (2, 1, 1)]:
        parts, states = [], []
        for rank in range(world):
            with loader(index, rank=rank, world_size=world) as one:
                if state is not None:
                    one.load_state_dict(state)
                parts.append(taken(one.over(workers(one, count)), batches))
                states.append(one.state_dict())
        assert all(each == states[0] for each in states)
        state = states[0]
        seen += [list(chain(*shares)) for shares in zip(*parts, strict=True)]
    assert seen == epochs[0]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_workers_that_stay_take_the_share_that_the_loader_has(
    index: DatasetIndex, epochs: list[Any], count: int
) -> None:
    with loader(index) as one:
        batches = workers(one, count, persistent_workers=count > 0)
        for begins, share in ((0, Share(0, 1)), (2, Share(1, 3)), (4, Share(0, 2)), (6, Share(0, 1))):
            one.share = share
            places = slice(share.position * SIZE // share.world, (share.position + 1) * SIZE // share.world)
            assert taken(one.over(batches), 2) == [batch[places] for batch in epochs[0][begins : begins + 2]]


def test_spawned_workers_are_given_all_they_need(index: DatasetIndex, epochs: list[Any]) -> None:
    with loader(index, map=itemgetter("id")) as one:
        batches = workers(one, 2, "spawn", persistent_workers=True)
        seen = [*islice(one.over(batches), 3), *islice(one.over(batches), 4)]
        state = one.state_dict()
        next(iter(batches))
        with pytest.raises(InvalidInput, match=r"loader\.over\(data_loader\)"):
            one.state_dict()
    with loader(index, map=itemgetter("id")) as again:
        again.load_state_dict(state)
        seen += again.over(workers(again, 3))
    assert [batch.tolist() for batch in seen] == epochs[0]


def test_a_loader_that_holds_blocks_and_threads_is_pickled_without_them(index: DatasetIndex) -> None:
    with loader(index, output="torch") as one:
        next(iter(one))
        copy = pickle.loads(pickle.dumps(one))
        assert (copy.epoch, copy.batch) == (0, 1)
        with copy:
            assert ids(copy) == ids(one)


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("stays", [False, True])
def test_who_iterates_the_dataloader_itself_has_no_state(
    index: DatasetIndex, epochs: list[Any], count: int, stays: bool
) -> None:
    with loader(index) as one:
        batches = workers(one, count, persistent_workers=stays and count > 0)
        assert one.state_dict()["batch"] == 0
        assert ids(batches) == epochs[0]
        with pytest.raises(InvalidInput, match=r"loader\.over\(data_loader\)"):
            one.state_dict()
        one.set_epoch(0)
        assert taken(one.over(batches), 3) == epochs[0][:3]
        assert one.state_dict()["batch"] == 3
        assert ids(batches) == epochs[0][3:]
        with pytest.raises(InvalidInput, match=r"loader\.over\(data_loader\)"):
            one.state_dict()
        one.set_epoch(1)
        assert one.state_dict()["epoch"] == 1
        assert ids(batches) == epochs[1]


def test_an_error_in_a_worker_leaves_the_loader_where_its_batch_is(index: DatasetIndex, epochs: list[Any]) -> None:
    bad = next(number for number, batch in enumerate(epochs[0]) if 50 in batch)
    with loader(index, map=fails) as one, loader(index) as again:
        seen: list[Any] = []
        with pytest.raises(ValueError, match="not this one"):
            seen.extend(one.over(workers(one, 2)))
        assert one.state_dict()["batch"] == bad
        again.load_state_dict(one.state_dict())
        assert ids(seen) + ids(again) == epochs[0]


def test_workers_are_forked_while_another_loader_reads(index: DatasetIndex, epochs: list[Any]) -> None:
    with loader(index) as busy, loader(index) as one:
        plain = iter(busy)
        next(plain)
        assert ids(one.over(workers(one, 2))) == epochs[0]
        assert ids(plain) == epochs[0][1:]


def test_threads_that_read_blocks_are_each_process_s_own(index: DatasetIndex, epochs: list[Any]) -> None:
    with loader(index, memory_bytes=1) as one:
        assert taken(iter(one), 3) == epochs[0][:3]
        assert ids(one.over(workers(one, 2, timeout=30))) == epochs[0][3:]


class Forked:
    """A process with a copy of a loader, as a DataLoader's worker has one."""

    def __init__(self, loader: Loader) -> None:
        self._asking, served = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(target=self._serve, args=(loader, served))
        self._process.start()

    @staticmethod
    def _serve(loader: Loader, asked: Any) -> None:
        while asked.recv():
            asked.send(ids(loader.batches_of_worker(0, 1)))

    def iterates(self) -> list[list[int]]:
        self._asking.send(True)
        found: list[list[int]] = self._asking.recv()
        return found

    def close(self) -> None:
        self._asking.send(False)
        self._process.join(20)


@pytest.fixture
def forked() -> Iterator[Callable[[Loader], Forked]]:
    with ExitStack() as stack:
        yield lambda loader: stack.enter_context(closing(Forked(loader)))


def test_a_worker_that_begins_late_begins_where_its_iteration_did(
    index: DatasetIndex, epochs: list[Any], forked: Callable[[Loader], Forked]
) -> None:
    with loader(index) as one:
        one.dataset()
        late: list[Forked] = []

        class Started:
            """A DataLoader with workers that stay, whose second worker is slow."""

            def __iter__(self) -> Iterator[Any]:
                late[:] = late or [forked(one)]
                return ({"id": np.array(batch)} for batch in epochs[0][one.batch :])

        for begins in (0, 3, 6):
            assert taken(one.over(Started()), 2) == epochs[0][begins : begins + 2]
            giving: Any = one.over(Started())
            next(giving)
            assert late[0].iterates() == epochs[0][begins + 2 if begins else 0 :]
            giving.close()
            assert one.state_dict()["batch"] == begins + 3


def test_a_worker_that_begins_late_is_not_sent_elsewhere(
    index: DatasetIndex, epochs: list[Any], forked: Callable[[Loader], Forked]
) -> None:
    with loader(index) as one:
        one.dataset()
        worker = forked(one)
        one.set_epoch(1)
        assert worker.iterates() == epochs[0]
        with pytest.raises(InvalidInput, match=r"loader\.over"):
            one.state_dict()
        assert worker.iterates() == epochs[1]


def test_a_lock_that_a_thread_had_at_the_fork_is_free_in_the_child() -> None:
    remembered: Remembered[int] = Remembered(100)
    inside, go = threading.Event(), threading.Event()

    class Key:
        def __hash__(self) -> int:
            inside.set()  # keys are looked up under the lock
            go.wait()
            return 1

    thread = threading.Thread(target=remembered.get, args=(Key(), lambda: (1, 1)))
    thread.start()
    inside.wait()
    child = multiprocessing.get_context("fork").Process(target=remembered.get, args=("key", lambda: (1, 1)))
    child.start()
    child.join(20)
    go.set()
    thread.join()
    assert child.exitcode == 0
    child.close()


@pytest.mark.parametrize(("given", "told"), [({"batch_size": 2}, "batch_size=None"), ({"in_order": False}, "in_order")])
def test_a_dataloader_that_would_give_other_batches_is_refused(
    index: DatasetIndex, given: dict[str, Any], told: str
) -> None:
    with loader(index) as one:
        batches = data.DataLoader(one.dataset(), **{"batch_size": None, "num_workers": 0, **given})
        with pytest.raises(InvalidInput, match=told):
            next(iter(one.over(batches)))


def test_a_dataloader_of_something_else_is_noticed(index: DatasetIndex) -> None:
    with loader(index) as one:
        with pytest.raises(InvalidInput, match="ended after batch 3 of 11"):
            list(one.over([1, 2, 3]))
        one.set_epoch(0)
        with pytest.raises(InvalidInput, match="more than the 11 batches"):
            list(one.over(range(12)))


def test_workers_share_the_memory(index: DatasetIndex) -> None:
    making = Making(index, Share(0, 1), None, Finish("numpy", None), memory_bytes=900, threads=4)
    with closing(making):
        assert (making.held(3).budget_bytes, making.held(3).threads) == (300, 1)


def test_an_empty_dataset_has_no_batches_in_workers_either(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    with Loader(index_dataset(tmp_path, "parquet"), 10) as one:
        assert list(one.over(workers(one, 2))) == []
        assert one.epoch == 1
