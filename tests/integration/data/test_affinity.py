"""The loader of the affinity order with a real coordinator: one process as several workers, step by step."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata import CheckpointManager, DatasetRegistry, background
from strata.core.orders import AffinityOrder, EpochOrder, ShardLayout
from strata.core.ranges import RangeSet
from strata.data import AffinityLoader, index_dataset
from strata.data.ledger import judge, read_ledger
from strata.errors import (
    DataChanged,
    InvalidInput,
    NotFound,
    RankFailed,
    Refused,
    StaleGeneration,
    Superseded,
)
from tests.servers.coordinator import Client, CoordinatorProcess
from tests.until import until

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS, SHARD, SIZE, SEED = 203, 10, 4, 5
LAYOUT = ShardLayout(ROWS, SHARD)
Make = Callable[..., AffinityLoader]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("affinity")
    pq.write_table(pa.table({"id": range(ROWS), "twice": range(0, 2 * ROWS, 2)}), made / "a.parquet", row_group_size=17)
    return made


@pytest.fixture
def registry(running: CoordinatorProcess, job: str, folder: Path) -> Iterator[DatasetRegistry]:
    with DatasetRegistry(running.address) as made:
        made.register("d", folder, "parquet", shard_size=SHARD, shuffle=True, seed=SEED, order="affinity")
        yield made


@pytest.fixture
def worker(running: CoordinatorProcess, registry: DatasetRegistry) -> Iterator[Make]:
    with ExitStack() as stack:

        def make(name: str, batch_size: int = SIZE, **more: Any) -> AffinityLoader:
            said = {"coordinator_url": running.address, "worker_id": name, "report_seconds": 0.05, "wait_seconds": 60.0}
            said["carry_on"] = "rank" not in more  # whoever joins one that does not takes all back
            return stack.enter_context(AffinityLoader("d", batch_size, **{**said, **more}))

        yield make


def ids(batch: Any) -> list[int]:
    found: list[int] = batch["id"].tolist()
    return found


def rest(batches: Any) -> list[int]:
    return [each for batch in batches for each in ids(batch)]


def together(*works: Callable[[], list[int]]) -> list[list[int]]:
    """Each in a thread of its own."""
    found: dict[int, list[int]] = {}

    def do(number: int) -> None:
        found[number] = works[number]()

    threads = [threading.Thread(target=do, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    return [found[number] for number in range(len(works))]


def whole(loader: AffinityLoader, epoch: int) -> bool:
    return judge(background.run(read_ledger(loader.session, "d")), epoch).whole


def call(loader: AffinityLoader, method: str, **fields: Any) -> Any:
    return background.run(loader.session.call(method, **fields))


def giving_up(loader: AffinityLoader) -> int:
    """How many shards are another's, and not given up yet."""
    return sum(each.giving_up for each in call(loader, "GetLedger", dataset_id="d").holders)


def places(samples: list[int], epoch: int = 0) -> set[int]:
    """Where samples stand in their shards' orders, counted over all shards."""
    order, found = EpochOrder(LAYOUT, SEED, epoch, True), {}
    for shard in range(LAYOUT.shard_count):
        start, end = LAYOUT.bounds(shard)
        at = order.samples_in(np.full(end - start, shard), np.arange(end - start))
        found.update({int(sample): start + place for place, sample in enumerate(at)})
    return {found[sample] for sample in samples}


def told(loader: AffinityLoader) -> set[int]:
    return {place for start, end in RangeSet.from_flat(loader.data_position()[3]) for place in range(start, end)}


# -- whole epochs ----------------------------------------------------------------------------------------------------


def test_alone_a_worker_reads_all_in_the_affinity_order_epoch_after_epoch(worker: Make) -> None:
    loader = worker("w0")
    for epoch in range(3):
        assert loader.epoch == epoch
        batches = [ids(batch) for batch in loader]
        assert [len(each) for each in batches] == [SIZE] * 50 + [3]
        owned = AffinityOrder(EpochOrder(LAYOUT, SEED, epoch, True), np.arange(LAYOUT.shard_count))
        assert list(chain(*batches)) == owned.samples(0, owned.count).tolist()
        assert whole(loader, epoch)


def test_batches_are_as_the_loader_was_told(worker: Make, folder: Path) -> None:
    doubled = worker("w0", dataset=index_dataset(folder, "parquet"), columns=["twice"], map=lambda batch: {**batch})
    batches = list(doubled)
    assert {name for batch in batches for name in batch} == {"twice"}
    assert sorted(each for batch in batches for each in batch["twice"].tolist()) == list(range(0, 2 * ROWS, 2))


def test_two_workers_share_each_epoch(worker: Make) -> None:
    first, second = worker("w0"), worker("w1")
    for epoch in range(2):
        one, two = together(lambda: rest(first), lambda: rest(second))
        assert sorted(one + two) == list(range(ROWS))
        assert abs(len(one) - len(two)) < 2 * SHARD  # by a shard, and the last one is short
        assert (first.epoch, second.epoch) == (epoch + 1, epoch + 1)


def test_more_workers_than_shards_have_every_epoch_too(worker: Make, registry: DatasetRegistry, folder: Path) -> None:
    registry.register("d", folder, "parquet", shard_size=ROWS, order="affinity", replace=True)
    loaders = [worker(f"w{number}") for number in range(3)]
    for epoch in range(3):
        found = together(*(lambda loader=loader: rest(loader) for loader in loaders))
        assert sorted(chain(*found)) == list(range(ROWS))
        assert [loader.epoch for loader in loaders] == [epoch + 1] * 3


def test_an_epoch_that_is_over_before_it_is_begun_has_its_turn(worker: Make, registry: DatasetRegistry) -> None:
    loader = worker("w0")
    assert loader.epoch == 0
    registry.advance_epoch("d", from_epoch=0)
    registry.advance_epoch("d", from_epoch=1)
    for epoch in range(2):
        assert loader.epoch == epoch
        assert rest(loader) == []
    assert loader.epoch == 2
    assert sorted(rest(loader)) == list(range(ROWS))


# -- coming and going ------------------------------------------------------------------------------------------------


def test_what_is_in_hand_stays_with_the_one_that_trains_on_it(worker: Make) -> None:
    first = worker("w0")
    batches = iter(first)
    before = rest(islice(batches, 5))
    second = worker("w1")
    until(lambda: giving_up(first) > 1)
    until(lambda: giving_up(first) <= 1)  # all but what it trains on
    one, two = together(lambda: rest(batches), lambda: rest(second))
    assert sorted(before + one + two) == list(range(ROWS))
    assert two


def test_one_that_leaves_hands_over_the_rest(worker: Make) -> None:
    first, second = worker("w0"), worker("w1")
    some = rest(islice(second, 7))
    second.close()
    assert sorted(some + rest(first)) == list(range(ROWS))
    assert whole(first, 0)
    with pytest.raises(InvalidInput, match="closed"):
        next(iter(second))


def test_where_a_job_rolls_back_a_newcomer_takes_everybody_back(worker: Make) -> None:
    first = worker("w0", carry_on=False)
    batches = iter(first)
    next(batches)
    second = worker("w1", carry_on=False)
    assert second.epoch == 0
    with pytest.raises(StaleGeneration, match="load the checkpoint, then iterate again"):
        until_raised(batches)
    one, two = together(lambda: rest(first), lambda: rest(second))
    assert sorted(one + two) == list(range(ROWS))


def test_leaving_the_loop_and_going_on(worker: Make) -> None:
    loader = worker("w0")
    found = [each for _ in range(6) for each in rest(islice(loader, 3))]
    assert told(loader) == places(found)
    assert sorted(found + rest(loader)) == list(range(ROWS))


def test_a_new_iteration_ends_the_one_before(worker: Make) -> None:
    loader = worker("w0")
    old = iter(loader)
    found = ids(next(old))
    new = iter(loader)
    found += ids(next(new))
    assert next(old, None) is None
    assert sorted(found + rest(new)) == list(range(ROWS))


# -- where it stands -------------------------------------------------------------------------------------------------


def test_a_position_is_what_was_given_out_while_reports_are_of_what_was_consumed(worker: Make) -> None:
    loader = worker("w0")
    assert loader.data_position() == ("d", 1, 0, [])
    found: list[int] = []
    for batch in loader:
        found += ids(batch)
        assert told(loader) == places(found)
        consumed = call(loader, "GetLedger", dataset_id="d").dataset.consumed_samples
        assert consumed <= len(found) - len(ids(batch)), "what is trained on is not consumed yet"
    assert loader.data_position() == ("d", 1, 1, [])


def test_what_cannot_be_made_is_the_next_one_still(worker: Make) -> None:
    fails = [3, 3]

    def fail(batch: Any) -> Any:
        fails[0] -= 1
        if fails[0] == 0:
            fails[0] = 10**6
            raise ValueError("bad luck")
        return batch

    loader = worker("w0", map=fail)
    found: list[int] = []
    with pytest.raises(ValueError, match="bad luck"):
        found.extend(each for batch in loader for each in _noted(found, batch))
    assert sorted(found + rest(loader)) == list(range(ROWS))


def _noted(found: list[int], batch: Any) -> list[int]:
    found.extend(ids(batch))
    return []


def save(loader: AffinityLoader, step: int) -> Any:
    """A checkpoint of this worker alone, as a manager would make one; the loader's state goes with it."""
    name, version, epoch, consumed = loader.data_position()
    attempt = call(loader, "BeginCheckpoint", step=step).attempt
    position = {"version": version, "epoch": epoch, "consumed": {"edges": consumed}}
    call(loader, "AckCheckpoint", attempt=attempt, digest=f"d{step}", part_bytes=1, positions={name: position})
    call(loader, "CommitCheckpoint", attempt=attempt)
    return loader.state_dict()


def test_after_a_rollback_the_loop_is_told_and_then_goes_on_from_the_checkpoint(worker: Make) -> None:
    loader = worker("w0", rank=0, world_size=1)
    generation = call(loader, "Recover").point.generation
    batches = iter(loader)
    kept = rest(islice(batches, 9))
    state = save(loader, step=9)
    lost = rest(islice(batches, 10))
    call(loader, "Recover", generation=generation)
    with pytest.raises(StaleGeneration, match="load the checkpoint, then iterate again"):
        lost += rest(batches)
    loader.load_state_dict(state)
    assert lost
    assert sorted(kept + rest(loader)) == list(range(ROWS))
    assert whole(loader, 0)


def test_where_an_operator_rolled_back_the_loop_is_told_until_somebody_recovers(worker: Make, client: Client) -> None:
    loader = worker("w0", rank=0, world_size=1)
    generation = call(loader, "Recover").point.generation
    batches = iter(loader)
    kept = rest(islice(batches, 9))
    state = save(loader, step=9)
    next(batches)
    client.call("RollBack", step=9, generation=generation)
    with pytest.raises(StaleGeneration, match="rolled back"):
        until_raised(batches)
    with pytest.raises(StaleGeneration, match="rolled back"):
        until_raised(iter(loader))
    call(loader, "Recover")
    loader.load_state_dict(state)
    assert sorted(kept + rest(loader)) == list(range(ROWS))


def until_raised(batches: Iterator[Any]) -> None:
    """Slowly, so that what was consumed is reported while there is more."""
    until(lambda: next(batches, None) is None, every=0.1)


def test_what_is_left_of_a_checkpoint_is_read_by_any_number_of_workers(worker: Make) -> None:
    first = worker("w0")
    kept = rest(islice(first, 11))
    state = save(first, step=11)
    rest(islice(first, 4))
    first.close()
    again = [worker(f"again-{number}") for number in range(3)]
    for loader in again:
        loader.load_state_dict(state)
    found = together(*(lambda loader=loader: rest(loader) for loader in again))
    assert sorted(chain(kept, *found)) == list(range(ROWS))


def test_a_ledger_that_was_not_taken_back_to_the_checkpoint_is_refused(worker: Make) -> None:
    loader = worker("w0", rank=0, world_size=1)
    rest(islice(loader, 11))
    state, generation = loader.state_dict(), call(loader, "Recover").point.generation
    call(loader, "Recover", generation=generation)  # to the beginning: nothing was saved
    loader.load_state_dict(state)
    with pytest.raises(Refused, match="lacks 44 samples of that: they would be read again"):
        next(iter(loader))


def test_another_datasets_state_is_refused(worker: Make) -> None:
    loader = worker("w0")
    with pytest.raises(InvalidInput, match="'other'"):
        loader.load_state_dict(loader.state_dict() | {"dataset_id": "other"})
    with pytest.raises(InvalidInput, match="no state of a loader"):
        loader.load_state_dict({"epoch": 1})


# -- what is wrong ---------------------------------------------------------------------------------------------------


def test_who_has_nothing_left_says_whom_it_waits_for(worker: Make, client: Client) -> None:
    loader = worker("w0", wait_seconds=1.0)
    client.register("idler")
    with pytest.raises(RankFailed, match=r"idler \(rank 1\) has \d+ samples left"):
        rest(loader)


def test_one_that_was_superseded_stops(worker: Make, client: Client) -> None:
    loader = worker("w0")
    batches = iter(loader)
    next(batches)
    client.register("w0", nonce="another-process")
    with pytest.raises(Superseded, match="another process took its name"):
        rest(batches)


def test_two_loaders_do_not_read_as_one_worker(worker: Make) -> None:
    first = worker("w0")
    with pytest.raises(InvalidInput, match="reads dataset 'd' already"):
        worker("w0")
    first.close()
    assert sorted(rest(worker("w0"))) == list(range(ROWS))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_not_the_worker(worker: Make) -> None:
    loader = worker("w0")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            loader.close()  # which is not its own to close
            next(iter(loader))
        except InvalidInput as error:
            code = 0 if "made in another process" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert sorted(rest(loader)) == list(range(ROWS))


def test_a_version_that_was_replaced_is_not_read_on(worker: Make, registry: DatasetRegistry, folder: Path) -> None:
    loader = worker("w0")
    batches = iter(loader)
    next(batches)
    registry.register("d", folder, "parquet", shard_size=50, order="affinity", replace=True)
    with pytest.raises(Refused, match="was replaced by version 2"):
        rest(batches)


def test_an_epoch_that_somebody_ends_is_over(worker: Make, registry: DatasetRegistry) -> None:
    loader = worker("w0")
    batches = iter(loader)
    next(batches)
    assert registry.advance_epoch("d", from_epoch=0) == 1
    assert len(rest(batches)) < ROWS
    assert loader.epoch == 1
    assert sorted(rest(loader)) == list(range(ROWS))


def test_datasets_that_are_not_for_it(worker: Make, registry: DatasetRegistry, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="batch_size"):
        worker("w0", batch_size=0)
    pq.write_table(pa.table({"id": range(5)}), tmp_path / "few.parquet")
    with pytest.raises(
        DataChanged, match=r"was registered when the files in .* were others: their columns differ: 'twice'"
    ):
        worker("w0", dataset=tmp_path)
    registry.register("d", folder, "parquet", shard_size=SHARD, replace=True)
    with pytest.raises(InvalidInput, match=r"elastic order: read it with strata\.data\.Loader"):
        worker("w0")
    registry.unregister("d")
    with pytest.raises(NotFound, match="no dataset 'd'"):
        worker("w0")


def test_a_checkpoint_manager_of_the_process_is_the_same_worker(
    worker: Make, running: CoordinatorProcess, job: str, tmp_path: Path
) -> None:
    loader = worker("", rank=0, world_size=1, worker_id=None)
    with CheckpointManager(tmp_path, coordinator_url=running.address, rank=0, world_size=1) as manager:
        found = rest(islice(loader, 5))
        manager.save({"loader": loader.state_dict()}, step=5)
        found += rest(loader)
        workers = [each for each in running.get("/api/v1/workers")["items"] if each["job_id"] == job]
        assert [each["worker_id"] for each in workers] == ["rank-0"]
    assert sorted(found) == list(range(ROWS))
