"""Any history of a job: what its model has learned from is each batch of each epoch, once, in order."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from strata.data import DatasetIndex, Loader, index_dataset
from tests.unit.data.making import of_parquet, table
from tests.unit.data.simulated import SimulatedJob, simulated
from tests.unit.data.test_histories import AS_FOUND, examined, some_and_many

ROWS = 45
PARTS = (17, 0, 28)
EVENTS = st.lists(
    st.one_of(
        st.just("step"),
        st.just("step"),
        st.just("save"),
        st.just("restart"),
        st.tuples(st.just("crash"), st.integers(1, 4)),
        st.tuples(st.just("lose"), st.integers(0, 3)),
        st.just("join"),
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


def live(job: SimulatedJob, recovery: str, size: int, events: list[Any]) -> None:
    job.start(size)
    for event in events:
        name, *about = (event,) if isinstance(event, str) else event
        if recovery == "rollback" and name in ("lose", "join"):
            name, about = "crash", [size]  # the others go back, too
        if name == "lose" and job.size == 1:
            name, about = "crash", [2]
        if name == "join" and job.size == 4:
            name = "step"
        getattr(job, name)(*about)
    for _ in range(3):
        job.step()


@some_and_many(12, 200)
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
            live(job, recovery, size, events)
            assert job.learned == wanted(index, len(job.learned), batch, tail)

    lives()


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
