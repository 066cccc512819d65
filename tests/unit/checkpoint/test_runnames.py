"""The name of one start of all ranks: whence it comes, and where it is not to be had."""

import threading
from collections.abc import Iterator
from typing import NoReturn

import pytest
import torch.distributed as dist

from strata.checkpoint import runnames
from strata.checkpoint.runnames import common_run
from strata.errors import InvalidInput, RankFailed


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_a_process_group_of_another_size_is_not_asked() -> None:
    """Processes of it that are no ranks would never answer; those that are would wait, and disturb its other calls."""
    with pytest.raises(InvalidInput, match="one process for each of the 2 ranks"):
        common_run(None, 0, 2, 1.0)
    assert common_run("mine", 0, 2, 1.0) == "mine"
    assert common_run(None, 0, 1, 1.0) == "alone"


@pytest.fixture
def group_of_two(group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As each of its ranks sees it, though there is one process."""
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)


@pytest.mark.usefixtures("group_of_two")
def test_rank_0_tells_the_others_through_the_store_a_new_name_for_each_manager() -> None:
    first = common_run(None, 0, 2, 0.0)
    second = common_run(None, 0, 2, 0.0)  # it need not wait until the first is heard
    assert first != second
    assert [common_run(None, 1, 2, 0.0) for _ in range(2)] == [first, second]


@pytest.mark.usefixtures("group_of_two")
def test_a_rank_0_that_does_not_come_is_named_and_may_come_yet() -> None:
    with pytest.raises(RankFailed, match="rank 0 has not made its CheckpointManager after 0 s, and rank 1 waits"):
        common_run(None, 1, 2, 0.0)
    dist.barrier()  # the group is as it was
    found = common_run(None, 0, 2, 0.0)
    assert common_run(None, 1, 2, 0.0) == found


def test_a_rank_that_waits_hears_it_when_it_is_told() -> None:
    store = dist.PrefixStore("default_pg", dist.HashStore())
    heard: list[str] = []
    waiting = threading.Thread(target=lambda: heard.append(runnames.through_store(store, 1, 60.0)))
    waiting.start()
    told = runnames.through_store(store, 0, 60.0)
    waiting.join()
    assert heard == [told]


@pytest.mark.usefixtures("group_of_two")
def test_a_store_that_is_gone_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> NoReturn:
        raise dist.DistNetworkError("the connection is closed")

    monkeypatch.setattr(runnames, "through_store", gone)
    with pytest.raises(RankFailed, match=r"rank 1 could not hear the name .* the connection is closed"):
        common_run(None, 1, 2, 1.0)
