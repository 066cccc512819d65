"""Any history of a job: what its model has learned from is each batch of each epoch, once, in order."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from strata.core.orders import ElasticOrder, ShardLayout
from strata.data import DatasetIndex, Loader, index_dataset
from tests.unit.data.making import of_parquet, table
from tests.unit.data.simulated import SimulatedJob, simulated
from tests.unit.data.test_histories import AS_FOUND, examined, some_and_many
from tests.until import until

ROWS = 45
PARTS = (17, 0, 28)
BATCH, OF_EPOCH = 8, 6
"""So many samples, and so many of these."""
EVENTS = st.lists(
    st.one_of(
        st.just("step"),
        st.just("step"),
        st.just("save"),
        st.just("restart"),
        st.tuples(st.just("crash"), st.integers(1, 4)),
        st.tuples(st.just("lose"), st.integers(0, 3)),
        st.just("join"),
        st.tuples(st.just("away"), st.integers(1, 8)),
    ),
    max_size=14,
)

COME_AND_GO = st.permutations([("lose", 1), ("lose", 1), "join", "join", "save"]).map(
    lambda found: ["step", *(each for event in found for each in (event, "step"))]
)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> DatasetIndex:
    folder, start = tmp_path_factory.mktemp("rows"), 0
    for number, rows in enumerate(PARTS):
        (folder / f"{number}.parquet").write_bytes(of_parquet(table(rows, start).select(["id"]), row_group_size=6))
        start += rows
    return index_dataset(Path(folder), "parquet")


def wanted(index: DatasetIndex, count: int, batch: int, tail: Any) -> list[list[int]]:
    found: list[list[int]] = []
    with Loader(index, batch, shard_size=4, seed=3, tail=tail, threads=1) as loader:
        while len(found) < count:
            found.extend(given["id"].tolist() for given in loader)
    return found[:count]


def live(job: SimulatedJob, recovery: str, size: int, events: list[Any], report: str = "each") -> None:
    job.start(size)
    for event in events:
        name, *about = (event,) if isinstance(event, str) else event
        if recovery == "rollback" and name in ("lose", "join"):
            name, about = "crash", [size]  # the others go back, too
        if name == "lose" and job.size == 1:
            name, about = "crash", [2]
        if (name == "join" and job.size == 4) or (name == "away" and report == "each"):  # that waits for the ledger
            name, about = "step", []
        getattr(job, name)(*about)
    for _ in range(3):
        job.step()


@some_and_many(8, 200)
@pytest.mark.parametrize("recovery", ["rollback", "carry_on"])
def test_each_batch_is_learned_from_once(index: DatasetIndex, recovery: str, examples: int) -> None:
    @examined(examples, recovery)
    @given(
        size=st.integers(1, 4),
        events=EVENTS,
        batch=st.sampled_from([3, 8, 20]),
        tail=st.sampled_from(["drop", "short", "pad"]),
        report=st.sampled_from(["behind", "each"]),
        seed=st.integers(0, 2**32),
    )
    def lives(*, size: int, events: list[Any], batch: int, tail: Any, report: str, seed: int) -> None:
        note(f"{recovery} {size} {events} {batch} {tail} {report} {seed}")
        how = {"tail": tail, "report": report, "threads": 1}
        with simulated(index, batch, how, seed, recovery) as job:
            live(job, recovery, size, events, report)
            assert job.learned == wanted(index, len(job.learned), batch, tail)

    lives()


@pytest.mark.parametrize("recovery", ["rollback", "carry_on"])
@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, pytest.param(4, marks=pytest.mark.long)])
def test_from_each_step_of_an_epoch_on_reading_outlives_a_coordinator_that_is_away(
    index: DatasetIndex, size: int, recovery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.data.attendance.TELL_SECONDS", 0.005)
    expected = wanted(index, 6 * OF_EPOCH, BATCH, "short")
    for before in range(OF_EPOCH):
        steps = (1, OF_EPOCH - 1, OF_EPOCH, 2 * OF_EPOCH + 1)[(before + size) % 4]
        with simulated(index, BATCH, {"tail": "short", "threads": 1}, before, recovery) as job:
            job.start(size)
            for _ in range(before):
                job.step()
            for _ in range(2):
                job.away(steps)
                job.step()
            assert job.learned == expected[: len(job.learned)], f"away after {before + 1} steps for {steps}"
            check_ledger(job)
            job.crash(size)
            job.step()
            assert job.learned == expected[: len(job.learned)], "they go on behind what was saved last"


def check_ledger(job: SimulatedJob) -> None:
    """It knows all that was learned, or does soon."""
    job.finish()
    epoch, rest = divmod(len(job.learned), OF_EPOCH)

    def found() -> tuple[int, int, list[tuple[int, int]]]:
        dataset = job.cluster.dataset("rows")
        return dataset.epoch, dataset.consumed.count, [(proof.epoch, proof.consumed) for proof in dataset.proofs]

    until(lambda: found() == (epoch, BATCH * rest, [(each, ROWS) for each in range(epoch)]))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[DatasetIndex, frozenset[int]]:
    """An index, one of whose files was changed since, and the samples of that."""
    folder = tmp_path_factory.mktemp("damaged")
    for number, start in enumerate((0, 17, 31)):
        rows = table((17, 14, 14)[number], start).select(["id"])
        (folder / f"{number}.parquet").write_bytes(of_parquet(rows, row_group_size=6))
    index = index_dataset(folder, "parquet")
    os.truncate(folder / "1.parquet", 100)
    return index, frozenset(range(17, 31))


def left_out_of(index: DatasetIndex, lost: frozenset[int], epoch: int, consumed: int, batch: int) -> int:
    """How many of the first samples of an epoch are lost."""
    layout = ShardLayout(index.rows, 4)
    with Loader(index, batch, shard_size=4, seed=3, tail="short", on_damage="skip", threads=1) as loader:
        streams = loader.state_dict()["streams"]
    order = ElasticOrder(layout, 3, epoch, True, batch, streams=streams, tail="short")
    samples = [sample for number in range(order.batches) for sample in order.batch(number).tolist()]
    return len(lost.intersection(samples[:consumed]))


def check_left_out(job: SimulatedJob, index: DatasetIndex, lost: frozenset[int], batch: int) -> None:
    dataset = job.cluster.dataset("rows")
    assert dataset.left_out == left_out_of(index, lost, dataset.epoch, dataset.consumed.count, batch)
    for proof in dataset.proofs:
        assert proof.left_out == left_out_of(index, lost, proof.epoch, proof.consumed, batch)


@some_and_many(6, 200)
@pytest.mark.parametrize(("recovery", "report"), [("rollback", "behind"), ("rollback", "each"), ("carry_on", "each")])
def test_the_ledger_counts_what_was_damaged_and_left_out_through_any_history(
    damaged: tuple[DatasetIndex, frozenset[int]], recovery: str, report: str, examples: int
) -> None:
    index, lost = damaged

    @examined(examples, f"left out {recovery} {report}")
    @given(
        size=st.integers(1, 4),
        events=EVENTS,
        batch=st.sampled_from([3, 8, 20]),
        tail=st.sampled_from(["drop", "short", "pad"]),
        seed=st.integers(0, 2**32),
    )
    def lives(*, size: int, events: list[Any], batch: int, tail: Any, seed: int) -> None:
        note(f"{recovery} {size} {events} {batch} {tail} {report} {seed}")
        how = {"tail": tail, "report": report, "threads": 1, "on_damage": "skip"}
        with simulated(index, batch, how, seed, recovery) as job:
            live(job, recovery, size, events)  # what a lost rank had no time to tell is not counted
            check_left_out(job, index, lost, batch)

    lives()


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_checkpoint_right_behind_a_loss_counts_what_was_left_out_of_completed_batches(
    damaged: tuple[DatasetIndex, frozenset[int]], steps: int
) -> None:
    """Those who are left have given out a batch that nobody completes: its samples are to come again."""
    index, lost = damaged
    how = {"tail": "drop", "report": "each", "threads": 1, "on_damage": "skip"}
    with simulated(index, BATCH, how, 0, "carry_on") as job:
        live(job, "carry_on", 2, [*["step"] * steps, ("lose", 0), "save", ("crash", 1)])
        check_left_out(job, index, lost, BATCH)


@pytest.mark.parametrize("size", [1, 2])
def test_what_was_left_out_while_the_coordinator_was_away_is_counted(
    damaged: tuple[DatasetIndex, frozenset[int]], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.data.attendance.TELL_SECONDS", 0.005)
    index, lost = damaged
    with simulated(index, BATCH, {"tail": "short", "threads": 1, "on_damage": "skip"}, 0, "rollback") as job:
        job.start(size)
        job.away(2 * OF_EPOCH + 1)
        job.step()
        check_ledger(job)
        check_left_out(job, index, lost, BATCH)
        assert [proof.left_out for proof in job.cluster.dataset("rows").proofs] == [len(lost)] * 2


@pytest.mark.parametrize("tail", ["short", "pad"])
@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_data_loader_left_out_is_counted_when_it_is_given_out(
    damaged: tuple[DatasetIndex, frozenset[int]], tail: Any, workers: int
) -> None:
    pytest.importorskip("torch")
    index, lost = damaged
    how = {"tail": tail, "report": "each", "threads": 1, "on_damage": "skip"}
    with simulated(index, 8, how, 0, "rollback", workers=workers) as job:
        job.start(2)
        for _ in range(9):
            job.step()
            check_left_out(job, index, lost, 8)
        assert job.cluster.dataset("rows").proofs[0].left_out == len(lost)


@some_and_many(3, 30)
def test_workers_that_stay_take_the_share_of_those_who_are_there(index: DatasetIndex, examples: int) -> None:
    pytest.importorskip("torch")

    @examined(examples, phases=AS_FOUND)
    @given(workers=st.integers(1, 2), events=COME_AND_GO, tail=st.sampled_from(["drop", "short", "pad"]))
    def lives(workers: int, events: list[Any], tail: Any) -> None:
        note(f"{workers} {events} {tail}")
        how = {"tail": tail, "report": "each", "threads": 1}
        with simulated(index, 8, how, 0, "carry_on", workers=workers) as job:
            live(job, "carry_on", 2, events)
            assert job.learned == wanted(index, len(job.learned), 8, tail)

    lives()
