"""Shards and files: compared with counting sample by sample, and whole files only to whom all their samples belong."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.core.orders import ShardLayout
from strata.data.shardfiles import FileRows, ShardFiles, check_total
from strata.errors import DataChanged, Refused

SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=12).filter(any)


def files_of(sizes: list[int]) -> ShardFiles:
    return ShardFiles(FileRows(f"f{number}", rows) for number, rows in enumerate(sizes))


def owners(sizes: list[int]) -> list[str]:
    """The file of each sample."""
    return [f"f{number}" for number, rows in enumerate(sizes) for _ in range(rows)]


def samples(shard: int, layout: ShardLayout) -> range:
    return range(*layout.bounds(shard))


@given(SIZES, st.integers(1, 15), st.randoms(use_true_random=False))
def test_each_shard_has_the_files_that_its_samples_are_in(sizes: list[int], shard_size: int, random: object) -> None:
    layout = ShardLayout(sum(sizes), shard_size)
    shards = list(range(layout.shard_count))
    random.shuffle(shards)  # type: ignore[attr-defined]
    expected = [list(dict.fromkeys(owners(sizes)[sample] for sample in samples(each, layout))) for each in shards]
    assert files_of(sizes).of_each(np.array(shards, np.int64), layout) == expected


@given(SIZES, st.integers(1, 15), st.integers(1, 4), st.randoms(use_true_random=False))
def test_whole_files_or_a_refusal(sizes: list[int], shard_size: int, ranks: int, random: object) -> None:
    layout, files = ShardLayout(sum(sizes), shard_size), files_of(sizes)
    rank_of = [random.randrange(ranks) for _ in range(layout.shard_count)]  # type: ignore[attr-defined]
    readers: dict[str, set[int]] = {}
    for sample, file in enumerate(owners(sizes)):
        readers.setdefault(file, set()).add(rank_of[sample // shard_size])
    for rank in range(ranks):
        mine = [shard for shard in range(layout.shard_count) if rank_of[shard] == rank]
        random.shuffle(mine)  # type: ignore[attr-defined]
        expected = dict.fromkeys(owners(sizes)[sample] for shard in mine for sample in samples(shard, layout))
        if any(len(readers[file]) > 1 for file in expected):
            with pytest.raises(Refused, match=r"would belong to two workers.*strata\.data\.Loader"):
                files.whole(np.array(mine, np.int64), layout, f"rank {rank}'s")
        else:
            assert files.whole(np.array(mine, np.int64), layout, f"rank {rank}'s") == list(expected)


def test_the_refusal_says_which_file_and_what_would_do() -> None:
    layout = ShardLayout(25, 5)
    with pytest.raises(Refused) as refused:
        files_of([10, 10, 5]).whole(np.array([0, 3], np.int64), layout, "rank 2's")
    assert (
        "f0 would belong to two workers: it has samples 0 to 9, of which shard 0 is rank 2's and shard 1 is not"
        in str(refused.value)
    )
    assert "shard_size=10" in str(refused.value)
    with pytest.raises(Refused) as refused:
        files_of([10, 9, 6]).whole(np.array([0], np.int64), layout, "rank 2's")
    assert "shard_size" not in str(refused.value)


@given(st.integers(1, 9), st.integers(1, 8), st.integers(0, 8))
def test_the_shard_size_that_a_refusal_names_does(rows: int, count: int, last: int) -> None:
    sizes = [rows] * count + [min(last, rows)]
    layout, files = ShardLayout(sum(sizes), rows), files_of(sizes)
    shards = [[shard] for shard in range(layout.shard_count)]
    assert [files.whole(np.array(each, np.int64), layout, "mine") for each in shards] == [
        [f"f{number}"] for number in range(layout.shard_count)
    ]


def test_nobody_has_nothing() -> None:
    assert files_of([3, 0, 4]).whole(np.array([], np.int64), ShardLayout(7, 3), "mine") == []
    assert files_of([0]).total_samples == 0


def test_files_that_hold_something_else_have_changed() -> None:
    check_total("d", 7, files_of([3, 4]).total_samples, "/data/d")
    with pytest.raises(
        DataChanged, match="'d' is registered with 8 samples, and the files in /data/d hold 7 now"
    ) as told:
        check_total("d", 8, files_of([3, 4]).total_samples, "/data/d")
    assert told.value.file == "/data/d"
