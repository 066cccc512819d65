"""Several datasets by weight: deterministic, right in their shares, the same at every world size, resumed exactly."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.data.index import DatasetIndex
from strata.data.indexing import index_dataset
from strata.data.loader import Loader
from strata.data.mixing import Mix
from strata.errors import InvalidInput

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SIZE = 4
ROWS = (40, 17, 9)
WEIGHTS = (0.5, 0.3, 0.2)


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> list[DatasetIndex]:
    """Three datasets, whose samples have numbers from 0, 1000 and 2000 on."""
    found = []
    for number, rows in enumerate(ROWS):
        path = tmp_path_factory.mktemp("data") / "a.parquet"
        pq.write_table(pa.table({"id": np.arange(rows) + 1000 * number}), path, row_group_size=5)
        found.append(index_dataset(path, "parquet"))
    return found


@contextmanager
def mixed(
    indexes: list[DatasetIndex], *, weights: tuple[float, ...] = WEIGHTS, seed: int = 3, **given: Any
) -> Iterator[Mix]:
    with ExitStack() as stack:
        loaders = [stack.enter_context(Loader(index, SIZE, **{"shard_size": 3, **given})) for index in indexes]
        yield Mix(dict(zip(loaders, weights, strict=True)), SIZE, seed)


def ids(mix: Mix, count: int) -> list[list[int]]:
    return [batch["id"].tolist() for batch in islice(mix, count)]


def test_shares_are_right_at_every_point_and_every_dataset_goes_through_its_epochs(
    indexes: list[DatasetIndex],
) -> None:
    with mixed(indexes) as mix:
        batches = ids(mix, 100)
        assert sum(mix.given) == 100
    sources = [batch[0] // 1000 for batch in batches]
    for steps in range(1, 101):
        for number, weight in enumerate(WEIGHTS):
            assert abs(sources[:steps].count(number) - steps * weight) <= 1 + len(WEIGHTS) * weight
    for number, index in enumerate(indexes):
        with Loader(index, SIZE, shard_size=3) as alone:
            own = [batch for batch in batches if batch[0] // 1000 == number]
            expected: list[list[int]] = []
            while len(expected) < len(own):
                expected += [batch["id"].tolist() for batch in alone]
            assert own == expected[: len(own)]
            assert len(own) > len(alone)


def test_the_seed_decides_the_order(indexes: list[DatasetIndex]) -> None:
    orders = []
    for seed in (3, 3, 4):
        with mixed(indexes, seed=seed) as mix:
            orders.append([batch[0] // 1000 for batch in ids(mix, 60)])
    assert orders[0] == orders[1] != orders[2]
    assert len({tuple(orders[0][start : start + 10]) for start in range(0, 60, 10)}) > 1


@pytest.mark.slow
@settings(max_examples=15)
@given(data=st.data())
def test_a_mix_that_is_stopped_goes_on_at_any_world_size(indexes: list[DatasetIndex], data: st.DataObject) -> None:
    with mixed(indexes) as mix:
        expected = ids(mix, 40)
    state: Any = None
    seen: list[list[int]] = []
    while len(seen) < len(expected):
        world = data.draw(st.sampled_from([1, 2, 3]))
        count = min(data.draw(st.integers(1, 15)), len(expected) - len(seen))
        parts, states = [], []
        for rank in range(world):
            with mixed(indexes, rank=rank, world_size=world) as mix:
                if state is not None:
                    mix.load_state_dict(state)
                parts.append(ids(mix, count))
                states.append(mix.state_dict())
        assert all(each == states[0] for each in states)
        state = states[0]
        seen += [list(chain(*shares)) for shares in zip(*parts, strict=True)]
    assert seen == expected


def test_it_goes_on_where_it_was_left_and_stops_if_it_is_sent_elsewhere(indexes: list[DatasetIndex]) -> None:
    with mixed(indexes) as mix:
        start = mix.state_dict()
        expected = ids(mix, 5) + ids(mix, 5)
        seen = []
        mix.load_state_dict(start)
        for batch in mix:
            seen.append(batch["id"].tolist())
            if len(seen) == 7:
                mix.load_state_dict(start)
        assert seen == expected[:7]
        assert ids(mix, 10) == expected


def test_an_iterator_that_was_left_gives_nothing_beside_a_newer_one(indexes: list[DatasetIndex]) -> None:
    with mixed(indexes) as mix, mixed(indexes) as plain:
        left = iter(mix)
        seen = [next(left)]
        newer = iter(mix)
        seen += [next(newer), *left, next(newer)]
        assert [batch["id"].tolist() for batch in seen] == ids(plain, 3)
        assert sum(mix.given) == 3


def test_an_error_comes_with_its_batch_and_loses_none(indexes: list[DatasetIndex]) -> None:
    broken = [True]

    def fails_once(batch: Any) -> Any:
        if broken[0] and 1003 in batch["id"]:
            raise ValueError("not this one")
        return batch

    with mixed(indexes) as plain, mixed(indexes, map=fails_once) as mix:
        seen: list[Any] = []
        with pytest.raises(ValueError, match="not this one"):
            seen.extend(mix)
        broken[0] = False
        found = [batch["id"].tolist() for batch in seen]
        assert sum(mix.given) == len(found)
        assert found + ids(mix, 10) == ids(plain, len(found) + 10)


def workers(mix: Mix, count: int, start: str = "fork", **given: Any) -> Any:
    data = pytest.importorskip("torch.utils.data")
    context = start if count else None
    return data.DataLoader(mix.dataset(), batch_size=None, num_workers=count, multiprocessing_context=context, **given)


def from_workers(mix: Mix, batches: Any, count: int) -> list[list[int]]:
    return [batch["id"].tolist() for batch in islice(mix.over(batches), count)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize(("count", "stays"), [(0, False), (1, True), (3, False), (3, True)])
def test_workers_give_the_mix_and_go_on_where_it_stands(indexes: list[DatasetIndex], count: int, stays: bool) -> None:
    with mixed(indexes) as mix, mixed(indexes) as plain:
        expected = ids(plain, 60)
        batches = workers(mix, count, persistent_workers=stays)
        seen = from_workers(mix, batches, 30)
        assert sum(mix.given) == 30
        seen += ids(mix, 5) + from_workers(mix, batches, 5)
        state = mix.state_dict()
        assert state["given"] == [*mix.given]
        seen += from_workers(mix, batches, 20)
        assert seen == expected
        mix.load_state_dict(state)
        assert from_workers(mix, batches, 20) == expected[40:]
        assert mix.state_dict() == plain.state_dict()


@pytest.mark.slow
def test_spawned_workers_give_the_mix(indexes: list[DatasetIndex]) -> None:
    with mixed(indexes) as mix, mixed(indexes) as plain:
        assert from_workers(mix, workers(mix, 1, "spawn"), 20) == ids(plain, 20)


@pytest.mark.parametrize("count", [0, 2])
def test_who_iterates_the_dataloader_itself_has_no_state(indexes: list[DatasetIndex], count: int) -> None:
    with mixed(indexes) as mix:
        state = mix.state_dict()
        next(iter(workers(mix, count)))
        with pytest.raises(InvalidInput, match=r"mix\.over\(data_loader\)"):
            mix.state_dict()
        mix.load_state_dict(state)
        assert mix.state_dict() == state


def test_a_dataloader_of_something_else_is_noticed(indexes: list[DatasetIndex]) -> None:
    with mixed(indexes) as mix, pytest.raises(InvalidInput, match="has no end"):
        list(mix.over([1, 2, 3]))


def test_an_error_in_a_worker_leaves_the_mix_where_its_batch_is(indexes: list[DatasetIndex]) -> None:
    def fails(batch: Any) -> Any:
        if 1003 in batch["id"]:
            raise ValueError("not this one")
        return batch

    with mixed(indexes) as plain, mixed(indexes, map=fails) as mix, mixed(indexes) as again:
        seen: list[Any] = []
        with pytest.raises(ValueError, match="not this one"):
            seen.extend(mix.over(workers(mix, 1)))
        again.load_state_dict(mix.state_dict())
        found = [batch["id"].tolist() for batch in seen]
        assert found + ids(again, 10) == ids(plain, len(found) + 10)


def test_what_does_not_fit_is_refused_and_changes_nothing(indexes: list[DatasetIndex]) -> None:
    with mixed(indexes) as mix, mixed(indexes, seed=4) as seed, mixed(indexes, weights=(1, 1, 1)) as weights:
        ids(mix, 10)
        state = mix.state_dict()
        for other, told in ((seed, "other seed"), (weights, "other weights")):
            with pytest.raises(InvalidInput, match=told):
                other.load_state_dict(state)
        for wrong in ({}, {**state, "given": [1]}, {**state, "given": [-1, 0, 0]}, {**state, "format": "x"}):
            with pytest.raises(InvalidInput, match=r"state of (a|the) mix"):
                mix.load_state_dict(wrong)
        with pytest.raises(InvalidInput, match="the data is not what it was"):
            mix.load_state_dict({**state, "loaders": [*state["loaders"][:2], state["loaders"][0]]})
        assert mix.state_dict() == state


def test_loaders_that_cannot_be_mixed_are_refused(indexes: list[DatasetIndex], tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    with (
        Loader(indexes[0], SIZE) as one,
        Loader(indexes[1], SIZE + 1) as larger,
        Loader(indexes[1], SIZE, rank=1, world_size=2) as elsewhere,
        Loader(tmp_path, SIZE, format="parquet") as empty,
    ):
        for loaders, told in (
            ({}, "at least one"),
            ({one: 1.0, larger: 1.0}, "batches of 5"),
            ({one: 1.0, elsewhere: 1.0}, "rank 1 of 2"),
            ({one: 1.0, empty: 1.0}, "no batches"),
            ({one: 0.0}, "above 0"),
            ({one: float("nan")}, "above 0"),
            ({one: True}, "above 0"),
        ):
            with pytest.raises(InvalidInput, match=told):
                Mix(loaders, SIZE)
