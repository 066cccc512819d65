"""Batches from files: every sample once, the same at every world size, resumed exactly."""

import threading
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.core.events import Position
from strata.data.index import DatasetIndex
from strata.data.indexing import index_dataset
from strata.data.loader import Loader
from strata.errors import DataChanged, InvalidInput
from tests.unit.data.making import KINDS, written

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

ROWS = 103
SIZE = 10


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> DatasetIndex:
    """103 samples in files of 40, 0, 1 and 62, in row groups of 7."""
    folder = tmp_path_factory.mktemp("data")
    start = 0
    for number, count in enumerate((40, 0, 1, 62)):
        ids = np.arange(start, start + count)
        table = pa.table(
            {
                "id": ids,
                "vector": pa.FixedSizeListArray.from_arrays(np.repeat(ids, 3).astype(np.float32), 3),
                "text": pa.array([f"sample {each}" for each in ids], pa.string()),
            }
        )
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=7)
        start += count
    return index_dataset(folder, "parquet")


def loader(dataset: DatasetIndex, **given: Any) -> Loader:
    return Loader(dataset, SIZE, **{"shard_size": 9, "window_shards": 2, "seed": 5, "tail": "short", **given})


def ids(batches: Iterable[Any]) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def taken(from_: Loader, count: int) -> list[Any]:
    found = []
    for batch in from_:
        found.append(batch)
        if len(found) == count:
            break
    return found


@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_has_every_sample_once_with_all_that_belongs_to_it(dataset: DatasetIndex, shuffle: bool) -> None:
    with loader(dataset, shuffle=shuffle) as batches:
        assert len(batches) == 11
        epoch = list(batches)
    assert [len(batch["id"]) for batch in epoch] == [10] * 10 + [3]
    seen = list(chain(*ids(epoch)))
    assert sorted(seen) == list(range(ROWS))
    assert (seen == list(range(ROWS))) == (not shuffle)
    for batch in epoch:
        assert batch["vector"].dtype == np.float32
        assert batch["vector"].tolist() == [[each] * 3 for each in batch["id"].tolist()]
        assert batch["text"].tolist() == [f"sample {each}" for each in batch["id"].tolist()]


def test_batches_are_those_of_the_order(dataset: DatasetIndex) -> None:
    with loader(dataset, rank=1, world_size=3) as batches:
        expected = [batches.samples(number).tolist() for number in range(len(batches))]
        assert ids(batches) == expected


@pytest.mark.parametrize("world", [2, 3, 4, 8])
def test_every_world_size_has_the_same_global_batches(dataset: DatasetIndex, world: int) -> None:
    with loader(dataset) as alone:
        expected = ids(alone)
    parts = []
    for rank in range(world):
        with loader(dataset, rank=rank, world_size=world) as one:
            parts.append(ids(one))
    assert [list(chain(*shares)) for shares in zip(*parts, strict=True)] == expected


@pytest.mark.slow
@settings(max_examples=20)
@given(data=st.data())
def test_an_epoch_that_is_stopped_goes_on_at_any_world_size(dataset: DatasetIndex, data: st.DataObject) -> None:
    with loader(dataset) as alone:
        expected = ids(alone)
    state: Any = None
    seen: list[list[int]] = []
    while len(seen) < len(expected):
        world, count = data.draw(st.sampled_from([1, 2, 3])), data.draw(st.integers(1, 6))
        parts, states = [], []
        for rank in range(world):
            with loader(dataset, rank=rank, world_size=world) as one:
                if state is not None:
                    one.load_state_dict(state)
                parts.append(ids(taken(one, count)))
                states.append(one.state_dict())
        assert all(each == states[0] for each in states)
        state = states[0]
        seen += [list(chain(*shares)) for shares in zip(*parts, strict=True)]
    assert seen == expected


def test_it_goes_on_where_it_was_left_and_then_with_the_next_epoch(dataset: DatasetIndex) -> None:
    with loader(dataset) as batches:
        first = [*ids(taken(batches, 4)), *ids(batches)]
        assert (batches.epoch, batches.batch) == (1, 0)
        second = ids(batches)
        batches.set_epoch(0)
        assert ids(batches) == first
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(ROWS))
    assert first != second


def test_who_is_sent_elsewhere_while_it_iterates_stops(dataset: DatasetIndex) -> None:
    with loader(dataset) as batches:
        for _ in batches:
            batches.set_epoch(7)
        assert (batches.epoch, batches.batch) == (7, 0)


def test_an_iterator_that_was_left_gives_nothing_beside_a_newer_one(dataset: DatasetIndex) -> None:
    with loader(dataset) as batches, loader(dataset) as plain:
        left = iter(batches)
        seen = [next(left)]
        newer = iter(batches)
        seen += [next(newer), *left]
        assert (batches.epoch, batches.batch) == (0, 2)
        assert ids([*seen, *newer]) == ids(plain)


@pytest.mark.parametrize("columns", [None, ["vector"], []])
def test_a_rank_without_a_sample_of_a_batch_has_all_its_columns(
    dataset: DatasetIndex, columns: list[str] | None
) -> None:
    """The last batch is of three, for four ranks."""

    def last(rank: int) -> dict[str, Any]:
        with loader(dataset, rank=rank, world_size=4, columns=columns) as one:
            one.load_state_dict({**one.state_dict(), "batch": 10})
            return next(iter(one))

    without, beside = last(0), last(1)
    assert [*without] == [*beside] == (["id", "vector", "text"] if columns is None else columns)
    for name, values in without.items():
        assert (values.dtype, values.shape[1:], len(values)) == (beside[name].dtype, beside[name].shape[1:], 0)


def test_only_what_is_wanted_is_read(dataset: DatasetIndex) -> None:
    with loader(dataset, columns=["id"]) as batches:
        assert all(list(batch) == ["id"] for batch in batches)
    with pytest.raises(InvalidInput, match="no columns"):
        loader(dataset, columns=["nothing"])


def test_the_epoch_is_the_same_with_hardly_any_memory(dataset: DatasetIndex) -> None:
    with loader(dataset) as roomy, loader(dataset, memory_bytes=1, threads=1) as narrow:
        assert ids(roomy) == ids(narrow)
        assert narrow.blocks_read > roomy.blocks_read == dataset.blocks


def test_what_is_mapped_is_given(dataset: DatasetIndex) -> None:
    def double(batch: Any) -> Any:
        assert threading.current_thread() is not threading.main_thread()
        return {"id": batch["id"] * 2}

    with loader(dataset) as plain, loader(dataset, map=double) as mapped:
        assert ids(mapped) == [[2 * each for each in batch] for batch in ids(plain)]


def test_an_error_in_map_comes_with_its_batch_and_loses_none(dataset: DatasetIndex) -> None:
    broken = [True]

    def fails_once(batch: Any) -> Any:
        if broken[0] and 50 in batch["id"]:
            raise ValueError("not this one")
        return batch

    with loader(dataset, map=fails_once) as batches, loader(dataset) as plain:
        seen: list[Any] = []
        with pytest.raises(ValueError, match="not this one"):
            seen.extend(batches)
        broken[0] = False
        assert ids(seen) + ids(batches) == ids(plain)


def test_batches_as_tensors_and_as_tables(dataset: DatasetIndex) -> None:
    torch = pytest.importorskip("torch")
    with (
        loader(dataset) as plain,
        loader(dataset, output="torch") as tensors,
        loader(dataset, output="arrow") as tables,
    ):
        for arrays, batch, table in zip(plain, tensors, tables, strict=True):
            assert isinstance(batch["vector"], torch.Tensor)
            assert batch["vector"].tolist() == arrays["vector"].tolist() == table["vector"].to_pylist()
            assert batch["text"] == arrays["text"].tolist() == table["text"].to_pylist()
    with pytest.raises(InvalidInput, match="output"):
        loader(dataset, output="pandas")


@pytest.mark.parametrize(
    "kind", ["parquet", "feather", "csv-small-blocks", "jsonl-small-blocks", "webdataset", "tfrecord", "tfexample"]
)
def test_tables_have_the_same_columns_on_every_rank_and_in_every_batch(kind: str, tmp_path: Path) -> None:
    """Also where a share has no row, or a column nothing but missing values."""
    expected = written(KINDS[kind], tmp_path, [11, 0, 18])
    index = index_dataset(tmp_path, KINDS[kind].format)
    shares = []
    for rank in range(3):
        with Loader(index, 2, rank=rank, world_size=3, shuffle=False, tail="short", output="arrow") as one:
            shares.append(list(one))
    for batch in chain(*shares):
        assert batch.schema.equals(expected.schema)
    whole = pa.concat_tables(chain(*zip(*shares, strict=True)))
    assert whole.columns[-1].to_pylist() == expected.columns[-1].to_pylist()


def test_a_file_that_changes_while_it_is_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": np.arange(100)}), path, row_group_size=10)
    index = index_dataset(path, "parquet")
    with Loader(index, 10, shuffle=False, memory_bytes=1) as batches:
        seen = taken(batches, 1)
        pq.write_table(pa.table({"id": np.arange(50)}), path, row_group_size=10)
        with pytest.raises(DataChanged, match=r"a\.parquet changed"):
            list(batches)
    assert ids(seen) == [list(range(10))]


def test_the_state_is_small_and_of_other_data_refused(dataset: DatasetIndex, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": np.arange(ROWS)}), tmp_path / "a.parquet")
    with loader(dataset) as batches, loader(index_dataset(tmp_path, "parquet")) as other:
        taken(batches, 3)
        state = batches.state_dict()
        assert len(repr(state)) < 600
        with pytest.raises(InvalidInput, match="the data is not what it was"):
            other.load_state_dict(state)


def test_an_epoch_does_not_go_on_with_a_file_that_was_written_again(tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(pa.table({"id": np.arange(20)}), tmp_path / f"{number}.parquet")
    with loader(index_dataset(tmp_path, "parquet")) as batches:
        taken(batches, 2)
        state = batches.state_dict()
    pq.write_table(pa.table({"id": np.arange(20) + 1000}), tmp_path / "1.parquet")
    with (
        loader(index_dataset(tmp_path, "parquet")) as other,
        pytest.raises(InvalidInput, match=r"1.parquet, which has samples 20 to 39, is not what was there"),
    ):
        other.load_state_dict(state)


def test_an_epoch_does_not_go_on_in_another_order_and_it_is_said_what_differs(
    dataset: DatasetIndex, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"id": np.arange(ROWS)}), tmp_path / "a.parquet")
    with (
        loader(dataset) as batches,
        loader(dataset, tail="drop") as shorter,
        loader(index_dataset(tmp_path, "parquet")) as other,
    ):
        taken(batches, 3)
        where = batches.data_position()
        with pytest.raises(InvalidInput, match=r"has tail=drop: an epoch cannot go on .* began\. Go on with"):
            shorter.go_on_from(where)
        with pytest.raises(InvalidInput, match=r"this loader has data=\w+: .* The data is not the same"):
            other.go_on_from(where)


@pytest.mark.parametrize("wrong", [5, None, {}, np.zeros(2), Position(0, "1", [])])  # type: ignore[arg-type]
def test_nothing_goes_on_from_what_is_no_position(dataset: DatasetIndex, wrong: Any) -> None:
    with loader(dataset) as batches, pytest.raises(InvalidInput, match="where must be a position in a dataset"):
        batches.go_on_from(wrong)


def test_an_empty_dataset_has_no_batches(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    with Loader(index_dataset(tmp_path, "parquet"), 10) as batches:
        assert len(batches) == 0
        assert list(batches) == []


def test_a_dataset_that_fills_no_batch_is_not_dropped_as_a_whole(dataset: DatasetIndex) -> None:
    with pytest.raises(InvalidInput, match=rf"{ROWS} samples fill no batch of {ROWS + 1}.*tail='short' or 'pad'"):
        Loader(dataset, ROWS + 1)
    tails: list[tuple[Any, int]] = [("short", ROWS), ("pad", ROWS + 1)]
    for tail, size in tails:
        with Loader(dataset, ROWS + 1, tail=tail) as batches:
            assert [len(batch) for batch in ids(batches)] == [size]


def test_a_closed_loader_says_so_and_another_goes_on(dataset: DatasetIndex) -> None:
    with loader(dataset) as plain, loader(dataset) as again:
        with loader(dataset) as batches:
            seen = taken(batches, 3)
        batches.close()
        for _ in range(2):
            with pytest.raises(InvalidInput, match="the loader is closed"):
                next(iter(batches))
        again.load_state_dict(batches.state_dict())
        assert ids([*seen, *again]) == ids(plain)


def test_a_loader_that_was_never_iterated_is_closed_too(dataset: DatasetIndex) -> None:
    with loader(dataset) as batches:
        pass
    with pytest.raises(InvalidInput, match="the loader is closed"):
        next(iter(batches))


def test_closed_while_it_is_iterated_it_gives_what_is_ready_and_says_so(dataset: DatasetIndex) -> None:
    with loader(dataset, memory_bytes=1) as plain, loader(dataset, memory_bytes=1) as batches:
        iterator = iter(batches)
        seen = [next(iterator)]
        batches.close()
        with pytest.raises(InvalidInput, match="the loader is closed"):
            seen.extend(iterator)
        assert (len(seen), ids(seen)) == (batches.batch, ids(plain)[: len(seen)])


@pytest.mark.parametrize(("rank", "world"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_that_cannot_be_is_refused(dataset: DatasetIndex, rank: int, world: int) -> None:
    with pytest.raises(InvalidInput):
        loader(dataset, rank=rank, world_size=world)


@pytest.mark.parametrize(
    ("told", "warned"), [({}, True), ({"world_size": 1}, False), ({"rank": 1, "world_size": 2}, False)]
)
def test_under_a_launcher_of_several_one_that_is_told_of_none_says_so(
    dataset: DatasetIndex,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    told: dict[str, Any],
    warned: bool,
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with Loader(dataset, 10, **told) as loader:
        assert loader.share == (told.get("rank", 0), told.get("world_size", 1))
    assert ("rank 1 of 2" in caplog.text) == warned
