"""Loaders as parts of a job, with a real coordinator: what was consumed and what was saved are never apart."""

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strata import background
from strata.config import Config
from strata.data import Loader
from strata.data.ledger import Ledger, judge, read_ledger
from strata.errors import Conflict, DataChanged, InvalidInput, NotFound, StaleGeneration
from strata.wire.asking import Asker
from tests.integration.data.jobs import ROWS, all_batches, crew, register, taken, write_rows
from tests.servers.coordinator import Client, CoordinatorProcess
from tests.until import until


@pytest.fixture
def rows(tmp_path: Path, running: CoordinatorProcess, job: str) -> Path:
    folder = write_rows(tmp_path / "rows")
    register(running.address, folder)
    return folder


def ledger_of(url: str, dataset: str = "rows") -> Ledger:
    asker = Asker(Config({"coordinator_url": url}, os.environ), 20.0)
    try:
        return background.run(read_ledger(asker, dataset))
    finally:
        background.run(asker.close())


@pytest.mark.parametrize("size", [1, 3])
def test_an_epoch_is_proven_by_the_ledger(rows: Path, running: CoordinatorProcess, size: int, tmp_path: Path) -> None:
    with crew(size, running.address, tmp_path / "saved", "one", tail="short") as job:
        assert job.read() == all_batches(rows, tail="short")
        assert job.read(4) == all_batches(rows, epoch=1, tail="short")[:4]
    found = ledger_of(running.address)
    verdict = judge(found, 0)
    assert (verdict.whole, verdict.consumed, verdict.state) == (True, ROWS, "over")
    assert (found.dataset.epoch, found.consumed.to_flat()) == (1, [0, 80])


def test_a_dropped_tail_is_told_as_such(rows: Path, running: CoordinatorProcess, tmp_path: Path) -> None:
    with crew(2, running.address, tmp_path / "saved", "one") as job:
        assert job.read() == all_batches(rows)
    assert (ledger_of(running.address).dataset.epoch, judge(ledger_of(running.address), 0).consumed) == (1, 220)


def test_what_was_damaged_and_left_out_is_no_part_of_the_proof(
    tmp_path: Path, running: CoordinatorProcess, job: str
) -> None:
    """Counted once, also where a job goes back to a checkpoint and reads on with other ranks."""
    folder = write_rows(tmp_path / "rows")
    with (folder / "0.parquet").open("r+b") as file:  # a row group; the index is in the footer
        file.seek(4)
        file.write(bytes(64))
    register(running.address, folder)
    how = {"tail": "short", "on_damage": "skip"}
    with crew(2, running.address, tmp_path / "saved", "one", **how) as ranks:
        read = ranks.read(4)
        ranks.save(4)
        ranks.read(5)  # which come to nothing
    with crew(3, running.address, tmp_path / "saved", "two", **how) as ranks:
        assert ranks.load() == [4] * 3
        read += ranks.read()
        ranks.read(1)
        until(lambda: ledger_of(running.address).finished)
        found = ledger_of(running.address)
    given = {row for batch in read for row in batch}
    assert 0 < ROWS - len(given) <= 16
    verdict = judge(found, 0)
    assert (verdict.whole, verdict.missing_samples, verdict.consumed) == (False, 0, ROWS)
    assert (verdict.given_out, verdict.left_out) == (len(given), ROWS - len(given))


def test_that_an_epoch_is_over_is_told_at_once_so_that_who_joins_then_finds_its_proof(
    rows: Path, running: CoordinatorProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.data.attendance.TELL_SECONDS", 3600.0)
    with crew(2, running.address, tmp_path / "saved", "one", tail="short") as job:
        job.read()
        job.read(1)
        until(lambda: ledger_of(running.address).finished)
        assert judge(ledger_of(running.address), 0).whole


def test_who_leaves_an_epoch_ahead_of_others_waits_till_the_ledger_is_there_too(
    rows: Path, running: CoordinatorProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.data.attendance.TELL_SECONDS", 3600.0)
    with crew(2, running.address, tmp_path / "saved", "one", tail="short") as job:
        job.read(1)
        ahead, behind = (rank.loader for rank in job.ranks)
        for batches in (None, 1):
            list(taken(ahead, batches))
        leaving = Thread(target=ahead.close)
        leaving.start()
        for batches in (None, 1):
            list(taken(behind, batches))
        leaving.join(30)
    found = ledger_of(running.address)
    assert (found.dataset.epoch, found.consumed.to_flat()) == (1, [0, 20])


def test_who_has_to_go_back_does_not_wait_for_others_who_wait_for_it(
    rows: Path, running: CoordinatorProcess, tmp_path: Path
) -> None:
    """They recover, and only then begin to read: it must recover with them."""
    with crew(2, running.address, tmp_path / "saved", "one", tail="short") as job:
        job.read(1)
        loader = job.ranks[0].loader
        loader.rejoin()
        loader.goes_back_if(lambda: True)
        with pytest.raises(StaleGeneration):
            loader.settle()


@pytest.mark.parametrize(("before", "after"), [(1, 2), (3, 2), (2, 2)])
def test_a_job_goes_on_at_any_number_of_ranks(
    rows: Path, running: CoordinatorProcess, tmp_path: Path, before: int, after: int
) -> None:
    """The state has nothing of the loader in it."""
    wanted = all_batches(rows)
    with crew(before, running.address, tmp_path / "saved", "one") as job:
        assert job.read(4) == wanted[:4]
        job.save(4)
        assert job.read(3) == wanted[4:7]  # which come to nothing
    with crew(after, running.address, tmp_path / "saved", "two") as job:
        assert job.load() == [4] * after
        assert job.read(2) == wanted[4:6]
        job.save(6)
    with crew(before, running.address, tmp_path / "saved", "three") as job:
        job.load()
        assert job.read() == wanted[6:]
        job.save(11)  # at the end of an epoch, which is the beginning of the next
    with crew(after, running.address, tmp_path / "saved", "four") as job:
        job.load()
        assert job.read() == all_batches(rows, epoch=1)


def test_a_checkpoint_says_itself_where_it_is_in_the_data(
    rows: Path, running: CoordinatorProcess, tmp_path: Path
) -> None:
    with crew(2, running.address, tmp_path / "saved", "one") as job:
        job.read(4)
        job.save(4)
        found = job.ranks[0].manager.describe(4).data
    assert list(found) == ["rows"]
    assert (found["rows"].version, found["rows"].epoch, found["rows"].consumed) == (1, 0, [0, 80])
    assert "global_batch_size=20" in found["rows"].reading


def test_a_save_is_of_the_batch_it_was_asked_for_at_however_long_it_takes(
    rows: Path, running: CoordinatorProcess, tmp_path: Path
) -> None:
    """The next epoch begins while the last step of this one is being written."""
    with crew(2, running.address, tmp_path / "saved", "one") as job:
        job.read(10)
        saves = job.each(lambda rank: rank.manager.save_async({"step": np.array(10)}, 10))
        job.read()
        job.read(2)
        for save in saves:
            save.result()
    with crew(2, running.address, tmp_path / "saved", "two") as job:
        assert job.load() == [10, 10]
        assert job.read() == all_batches(rows)[10:]


def test_ranks_that_are_not_at_the_same_batch_save_nothing(
    rows: Path, running: CoordinatorProcess, tmp_path: Path
) -> None:
    with crew(2, running.address, tmp_path / "saved", "one") as job:
        job.read(1)
        list(taken(job.ranks[1].loader, 1))

        def save(rank: Any) -> str:
            with pytest.raises(Exception, match=r"nothing is saved, since at step 1 rank 0 is at sample 20 of epoch 0"):
                rank.manager.save({"step": np.array(1)}, 1)
            return ""

        job.each(save)


def test_a_job_that_is_rolled_back_is_told_so_and_goes_on_from_there(
    rows: Path, running: CoordinatorProcess, client: Client, tmp_path: Path
) -> None:
    wanted = all_batches(rows)
    with crew(2, running.address, tmp_path / "saved", "one", report="each") as job:
        for step in (2, 4):
            job.read(2)
            job.save(step)
        reading: dict[int, Any] = {rank.loader.share.position: iter(rank.loader) for rank in job.ranks}
        job.each(lambda rank: next(reading[rank.loader.share.position]))
        client.call("RollBack", step=2, generation=client.call("GetLedger", dataset_id="rows").generation)

        def read_on(rank: Any) -> None:
            with pytest.raises(StaleGeneration, match="iterate again"):
                list(reading[rank.loader.share.position])

        job.each(read_on)
        assert job.load() == [2, 2]
        assert job.read(3) == wanted[2:5]


def test_within_an_epoch_all_read_in_the_same_way(rows: Path, running: CoordinatorProcess, tmp_path: Path) -> None:
    with crew(1, running.address, tmp_path / "saved", "one") as job:
        job.read(3)
        job.save(3)
    other: dict[str, Any] = {"coordinator_url": running.address, "rank": 0, "world_size": 1}
    with Loader(dataset_id="rows", global_batch_size=10, **other) as loader, pytest.raises(InvalidInput) as told:
        next(iter(loader))
    assert "was begun with global_batch_size=20, and" in str(told.value)
    assert "this loader has global_batch_size=10: an epoch" in str(told.value), "and not what is the same"


def test_files_that_are_others_than_were_registered_are_found_before_they_are_read(
    rows: Path, running: CoordinatorProcess, tmp_path: Path
) -> None:
    shutil.rmtree(rows)
    write_rows(rows, 240)
    with pytest.raises(DataChanged, match=r"0.parquet, which has samples 0 to 79, is not what was there"):
        Loader(dataset_id="rows", global_batch_size=20, coordinator_url=running.address)


def test_what_is_registered_is_not_said_again(rows: Path, running: CoordinatorProcess) -> None:
    with pytest.raises(InvalidInput, match=r"registered with seed=3, not 4: leave that out"):
        Loader(dataset_id="rows", global_batch_size=20, coordinator_url=running.address, seed=4)
    with pytest.raises(NotFound, match="no dataset 'others'"):
        Loader(dataset_id="others", global_batch_size=20, coordinator_url=running.address)
    register(running.address, rows, order="affinity", replace=True)
    with pytest.raises(InvalidInput, match="AffinityLoader"):
        Loader(dataset_id="rows", global_batch_size=20, coordinator_url=running.address)


def test_a_dataset_is_read_by_one_loader_of_a_process_at_a_time(rows: Path, running: CoordinatorProcess) -> None:
    with (
        Loader(dataset_id="rows", global_batch_size=20, coordinator_url=running.address),
        pytest.raises(InvalidInput, match="reads dataset 'rows' already"),
    ):
        Loader(dataset_id="rows", global_batch_size=20, coordinator_url=running.address)
    with Loader(dataset_id="rows", global_batch_size=20, coordinator_url=running.address) as loader:
        assert next(iter(loader))["id"].tolist() == all_batches(rows)[0]


def test_each_batch_is_in_the_ledger_before_the_next_is_given_out(rows: Path, running: CoordinatorProcess) -> None:
    how: dict[str, Any] = {"dataset_id": "rows", "global_batch_size": 20, "coordinator_url": running.address}
    with Loader(**how, report="each") as loader:
        for number, _ in enumerate(loader):
            assert ledger_of(running.address).consumed.count == 20 * number


def test_the_loaders_state_may_be_ahead_of_the_ledger_and_never_behind(rows: Path, running: CoordinatorProcess) -> None:
    how: dict[str, Any] = {"dataset_id": "rows", "global_batch_size": 20, "coordinator_url": running.address}
    with Loader(**how, report="each") as loader:
        begun = loader.state_dict()
        reading = iter(loader)
        for _ in range(5):
            next(reading)
        ahead = loader.state_dict() | {"epoch": 2}
    with Loader(**how, report="each") as loader:
        loader.load_state_dict(ahead)
        assert next(iter(loader))["id"].tolist() == all_batches(rows, epoch=2)[5]
        found = ledger_of(running.address)
        assert (found.dataset.epoch, found.consumed.to_flat()) == (2, [0, 100])
        loader.load_state_dict(begun)
        with pytest.raises(InvalidInput, match=r"says batch 0 of epoch 0, and the job is at batch 5 of epoch 2"):
            next(iter(loader))
    with Loader(**how) as loader, pytest.raises(InvalidInput, match="all its ranks go on from there"):
        loader.set_epoch(1)


# -- a coordinator that goes away ------------------------------------------------------------------------------------


@pytest.fixture
def own(own_coordinator: CoordinatorProcess, job: str) -> CoordinatorProcess:
    return own_coordinator


def test_reading_goes_on_without_the_coordinator_and_it_learns_of_it(own: CoordinatorProcess, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows")
    register(own.address, rows, shuffle=False)
    with crew(2, own.address, tmp_path / "saved", "one") as job:
        wanted = all_batches(rows, shuffle=False)
        assert job.read(3) == wanted[:3]
        own.kill()
        assert job.read() == wanted[3:]
        assert job.read(2) == wanted[:2]
        own.start()
        until(lambda: ledger_of(own.address).consumed.to_flat() == [0, 40])  # once a second they say it again
        found = ledger_of(own.address)
        assert (found.dataset.epoch, judge(found, 0).consumed) == (1, 220)


@pytest.mark.parametrize("size", [1, 2])
def test_nobody_goes_back_for_what_was_saved_while_the_coordinator_was_away(
    own: CoordinatorProcess, tmp_path: Path, job: str, size: int
) -> None:
    rows = write_rows(tmp_path / "rows")
    register(own.address, rows)
    with crew(size, own.address, tmp_path / "saved", "one") as ranks:
        reading: dict[int, Any] = {id(rank): iter(rank.loader) for rank in ranks.ranks}

        def read(count: int) -> list[list[int]]:
            shares = ranks.each(lambda rank: [next(reading[id(rank)])["id"].tolist() for _ in range(count)])
            return [list(chain(*parts)) for parts in zip(*shares, strict=True)]

        found = read(2)
        ranks.save(2)
        own.kill()
        found += read(2)
        ranks.save(4)
        own.start()
        for rank in ranks.ranks:
            assert rank.manager.session is not None
            background.run(rank.manager.session.be_heard())
        ranks.save(5)
        assert found + read(3) == all_batches(rows)[:7]
        with Client(own.address, job) as client:
            assert client.call("GetLedger", dataset_id="rows").point == 1


def test_what_is_saved_without_the_coordinator_says_where_it_is_in_the_data(
    own: CoordinatorProcess, tmp_path: Path
) -> None:
    rows = write_rows(tmp_path / "rows")
    register(own.address, rows)
    wanted = all_batches(rows)
    with crew(2, own.address, tmp_path / "saved", "one") as job:
        job.read(2)
        job.save(2)
        own.kill()
        assert job.read(3) == wanted[2:5]
        job.save(5)
    own.start()
    with crew(2, own.address, tmp_path / "saved", "two") as job:
        assert job.load() == [5, 5]
        assert job.read() == wanted[5:]


def test_an_epoch_that_ended_while_the_coordinator_was_away_is_proven_when_all_go_on_behind_it(
    own: CoordinatorProcess, tmp_path: Path
) -> None:
    """None of the processes that saw its end is left."""
    rows = write_rows(tmp_path / "rows")
    register(own.address, rows)
    with crew(2, own.address, tmp_path / "saved", "one") as job:
        job.read(2)
        job.save(2)
        own.kill()
        job.read()
        job.read(3)
        job.save(14)
    own.start()
    assert judge(ledger_of(own.address), 0).state != "over"
    with crew(2, own.address, tmp_path / "saved", "two") as job:
        assert job.load() == [14, 14]
        assert job.read() == all_batches(rows, epoch=1)[3:]
    found = ledger_of(own.address)
    assert [judge(found, epoch).consumed for epoch in range(2)] == [220, 220]


def test_a_coordinator_that_has_lost_its_journal_learns_all_from_the_storage(
    own: CoordinatorProcess, tmp_path: Path
) -> None:
    rows = write_rows(tmp_path / "rows")
    register(own.address, rows)
    with crew(2, own.address, tmp_path / "saved", "one") as job:
        job.read(4)
        job.save(4)
    own.kill()
    shutil.rmtree(own.state_dir)
    own.start()
    register(own.address, rows)
    with crew(2, own.address, tmp_path / "saved", "two") as job:
        assert job.load() == [4, 4]
        assert job.read(3) == all_batches(rows)[4:7]


# -- ranks that come and go, in a job that carries on ------------------------------------------------------------------


class Lockstep:
    """Ranks that take each step together, as those with collectives do. Rank 0 reads with so many workers of a
    DataLoader, which stay."""

    def __init__(self, url: str, workers: int = 0) -> None:
        self._url, self._workers = url, workers
        self.loaders: dict[int, Loader] = {}
        self._begin: dict[int, Callable[[], Iterator[Any]]] = {}
        self._reading: dict[int, Any] = {}

    def start(self, *ranks: int) -> None:
        for rank in ranks:
            place: dict[str, Any] = {"rank": rank, "world_size": 3, "coordinator_url": self._url}
            made = self.loaders[rank] = Loader(dataset_id="rows", global_batch_size=20, report="each", **place)
            self._begin[rank] = made.__iter__ if rank or not self._workers else self._from_workers(made)

    def _from_workers(self, loader: Loader) -> Callable[[], Iterator[Any]]:
        how = {"num_workers": self._workers, "persistent_workers": True, "multiprocessing_context": "fork"}
        data = pytest.importorskip("torch.utils.data")
        return partial(loader.over, data.DataLoader(loader.dataset(), batch_size=None, **how))

    def rejoin(self) -> None:
        """After a step that not all of them have completed."""
        for loader in self.loaders.values():
            loader.rejoin()
        self._reading = {rank: self._begin[rank]() for rank in sorted(self.loaders)}

    def step(self) -> list[int]:
        """The global batch, if all of them get it."""
        first, *others = self._reading.values()
        none: dict[str, Any] = {"id": np.empty(0)}
        with ThreadPoolExecutor(len(self._reading)) as threads:
            asked = [threads.submit(next, reading, none) for reading in others]
            own = next(first, none)  # by this thread: workers that a pool's forks cannot end well
            shares = [own, *(each.result() for each in asked)]
        return [number for share in shares for number in share["id"].tolist()]

    def lose(self, rank: int) -> None:
        """Its process dies, and what it had not reported with it."""
        loader = self.loaders.pop(rank)
        del self._reading[rank]
        assert loader.session is not None
        background.run(loader.session.close("killed", died=True))
        loader.close()

    def close(self) -> None:
        for loader in self.loaders.values():
            loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_those_who_are_left_go_on_in_the_middle_of_an_epoch_and_who_joins_shares_in(
    rows: Path, running: CoordinatorProcess, client: Client, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    client.call("ConfigureJob", recovery="carry_on")
    wanted, ranks = all_batches(rows), Lockstep(running.address, workers)
    ranks.start(0, 1, 2)
    ranks.rejoin()
    seen = [ranks.step() for _ in range(4)]
    ranks.lose(2)
    with suppress(StaleGeneration):
        ranks.step()  # which does not complete without the third: what it gives is of no use
    ranks.rejoin()
    seen += [ranks.step() for _ in range(3)]
    monkeypatch.setenv("WORKER_ID", "newcomer")
    ranks.start(2)
    with pytest.raises(StaleGeneration, match="the job has ranks 0, 1, 2 now, and had 0, 1"):
        ranks.step()
    ranks.rejoin()
    seen += [ranks.step() for _ in range(len(wanted) - len(seen))]
    assert ranks.step() == []
    ranks.close()
    assert seen == wanted
    assert judge(ledger_of(running.address), 0).consumed == 220


def test_files_with_as_many_rows_but_others_are_told_too(running: CoordinatorProcess, job: str, tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows")
    register(running.address, rows)
    (rows / "3.parquet").rename(rows / "9.parquet")
    with pytest.raises(DataChanged, match=r"were others: .*9.parquet, which has samples 223 to 229, is not") as told:
        Loader(dataset_id="rows", global_batch_size=20, coordinator_url=running.address)
    assert (told.value.file, told.value.samples) == (str(rows / "9.parquet"), (223, 230))
    with pytest.raises(Conflict, match="fingerprint was"):
        register(running.address, rows)
    register(running.address, rows, total_samples=ROWS)  # whoever has not looked says nothing of that


def rewrite(file: Path, kind: pa.DataType, add: int = 0) -> None:
    """As many rows of something else."""
    data = pa.array([number + add for number in pq.read_table(file)["id"].to_pylist()], kind)
    pq.write_table(pa.table({"id": data}), file, row_group_size=16)


def test_what_was_written_again_after_it_was_registered_is_told_with_file_and_samples(
    running: CoordinatorProcess, job: str, tmp_path: Path
) -> None:
    rows = write_rows(tmp_path / "rows")
    register(running.address, rows)
    rewrite(rows / "2.parquet", pa.int64(), 1000)
    with pytest.raises(DataChanged, match=r"2.parquet, which has samples 76 to 222, is not what was there") as told:
        Loader(dataset_id="rows", global_batch_size=20, coordinator_url=running.address)
    assert (told.value.file, told.value.samples) == (str(rows / "2.parquet"), (76, 223))


def test_columns_that_are_others_than_were_registered_are_named(
    running: CoordinatorProcess, job: str, tmp_path: Path
) -> None:
    rows = write_rows(tmp_path / "rows")
    register(running.address, rows)
    for file in rows.iterdir():
        rewrite(file, pa.int32())
    with pytest.raises(DataChanged, match=r"their columns differ: 'id' \(int64 / int32\)"):
        Loader(dataset_id="rows", global_batch_size=20, coordinator_url=running.address)


def test_an_epoch_that_ends_with_its_job_while_the_coordinator_is_away_is_proven(
    tmp_path: Path, own: CoordinatorProcess
) -> None:
    register(own.address, write_rows(tmp_path / "rows"))
    with Loader(dataset_id="rows", global_batch_size=20, tail="short", coordinator_url=own.address) as loader:
        batches = iter(loader)
        next(batches)
        own.kill()
        assert len(list(batches)) == 11
        until(lambda: loader.session is not None and loader.session.is_silent)
        starting = Thread(target=own.start)
        starting.start()
    starting.join()
    verdict = judge(ledger_of(own.address), 0)
    assert (verdict.whole, verdict.consumed) == (True, ROWS)


def test_a_loader_whose_process_has_left_its_job_is_closed_at_once(
    rows: Path, running: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.data.attendance.CLOSE_SECONDS", 3600.0)
    with Loader(dataset_id="rows", global_batch_size=20, coordinator_url=running.address) as loader:
        next(iter(loader))
        assert loader.session is not None
        background.run(loader.session.close())
