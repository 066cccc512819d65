"""A registration is checked before anybody is asked, and the size of shards follows from the samples alone."""

from typing import Any

import pytest

from strata.data.registered import Cut, default_shard_size
from strata.errors import InvalidInput


@pytest.mark.parametrize(
    ("total", "size"), [(1, 1), (999, 1), (1000, 1), (1001, 2), (1_281_167, 1282), (10**7, 10_000), (10**10, 10_000)]
)
def test_small_datasets_have_small_shards(total: int, size: int) -> None:
    assert default_shard_size(total) == size


def test_what_is_registered_is_what_was_said() -> None:
    event = Cut(None, True, 7, "ring", "affinity").event("job", "d", "/data", "parquet", 5000)
    assert (event.job, event.dataset, event.total_samples, event.shard_size) == ("job", "d", 5000, 5)
    assert (event.shuffle, event.seed, event.path, event.format) == (True, 7, "/data", "parquet")
    assert (event.strategy, event.order) == ("ring-v1", "affinity")


@pytest.mark.parametrize(
    ("wrong", "about"),
    [
        ({"shard_size": 0}, "shard_size"),
        ({"shard_size": 2.5}, "shard_size"),
        ({"shuffle": 1}, "shuffle"),
        ({"seed": "7"}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"strategy": "slots-v1"}, "strategy"),
        ({"order": "random"}, "order"),
        ({"total_samples": 0}, "total_samples"),
        ({"total_samples": 1e6}, "total_samples"),
        ({"total_samples": 10**9, "shard_size": 1}, "larger shard_size"),
        ({"dataset_id": "a/b"}, "dataset_id"),
    ],
)
def test_what_is_wrong_in_itself_is_told_here(wrong: dict[str, Any], about: str) -> None:
    said: dict[str, Any] = {"shard_size": 10, "shuffle": False, "seed": 0, "strategy": "slots", "order": "elastic"}
    said |= wrong
    cut = Cut(*(said[name] for name in Cut.__struct_fields__))
    with pytest.raises(InvalidInput, match=about):
        cut.event("job", said.get("dataset_id", "d"), "/data", "parquet", said.get("total_samples", 100))
