"""As whom a process reads: the name that its checkpoint manager has, where ranks are given; else one of its own."""

import os

import pytest

from strata.config import Config
from strata.errors import InvalidInput
from strata.session import Who, who_joins


@pytest.mark.parametrize(
    ("said", "environment", "expected"),
    [
        ({"rank": 3, "world_size": 8}, {}, Who("j", "rank-3", 3, 8)),
        ({}, {"RANK": "3", "WORLD_SIZE": "8"}, Who("j", "rank-3", 3, 8)),
        ({"rank": 3, "world_size": 8}, {"WORKER_ID": "node"}, Who("j", "node-3", 3, 8)),
        ({"world_size": 1}, {"WORKER_ID": "node"}, Who("j", "node", 0, 1)),
        ({"worker_id": "reader"}, {}, Who("j", "reader", None, None)),
        ({"worker_id": "reader", "world_size": 4}, {}, Who("j", "reader", None, 4)),
        ({}, {"JOB_COMPLETION_INDEX": "3"}, Who("j", "rank-3", 3, None)),
        ({}, {"JOB_COMPLETION_INDEX": "3", "WORKER_ID": "node"}, Who("j", "node-3", 3, None)),
    ],
)
def test_a_name_that_is_said(said: dict[str, object], environment: dict[str, str], expected: Who) -> None:
    assert who_joins(Config(said, environment), "j") == expected


def test_without_a_name_each_process_has_its_own() -> None:
    found = who_joins(Config({}, {}), "j")
    assert found.worker.endswith(f"-{os.getpid()}")
    assert (found.rank, found.world_size) == (None, None)
    assert who_joins(Config({"world_size": 4}, {}), "j") == found._replace(world_size=4)


def test_a_rank_beyond_the_world_is_refused() -> None:
    with pytest.raises(InvalidInput, match="rank 2 does not exist in a world of 2"):
        who_joins(Config({"rank": 2, "world_size": 2}, {}), "j")
    with pytest.raises(InvalidInput, match="worker_id"):
        who_joins(Config({"worker_id": "no spaces"}, {}), "j")
    with pytest.raises(InvalidInput, match="rank must be at least 0"):
        who_joins(Config({"rank": -1}, {}), "j")
