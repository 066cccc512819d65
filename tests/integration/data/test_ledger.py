"""The ledger as a real coordinator tells it: in pages, after losses and epochs, and to anybody who asks."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from strata import background
from strata.config import Config
from strata.data.ledger import Holder, Ledger, judge, read_ledger
from strata.errors import InvalidInput, NotFound
from strata.wire.asking import Asker
from tests.servers.coordinator import Client, CoordinatorProcess


@pytest.fixture
def read(running: CoordinatorProcess, client: Client) -> Iterator[Callable[[str], Ledger]]:
    """Ask as somebody who is no worker of the job."""
    asker = Asker(Config({"coordinator_url": running.address}, os.environ), 20.0)
    yield lambda dataset: background.run(read_ledger(asker, dataset))
    background.run(asker.close())


def dataset(client: Client, total: int, shard_size: int, order: str = "affinity") -> None:
    said: Any = {"total_samples": total, "shard_size": shard_size, "path": "/data", "format": "csv", "order": order}
    client.call("RegisterDataset", dataset_id="d", **said)


def report(client: Client, who: Any, cursors: dict[int, int], epoch: int = 0) -> None:
    me = {"worker_id": who.worker_id, "incarnation": who.incarnation, "dataset_id": "d"}
    point = client.call("GetAssignments", **me).point
    client.call("ReportProgress", **me, version=1, epoch=epoch, point=point, cursors=cursors)


def granted(client: Client, who: Any) -> list[int]:
    me = {"worker_id": who.worker_id, "incarnation": who.incarnation, "dataset_id": "d"}
    return list(client.call("GetAssignments", **me).granted)


def test_what_is_consumed_is_told_as_ranges(client: Client, read: Any) -> None:
    first, second = client.crew(2)
    dataset(client, 95, 10)
    mine = granted(client, first)
    report(client, first, {mine[0]: 10, mine[1]: 3})
    found: Ledger = read("d")
    expected = sorted([(10 * mine[0], 10 * mine[0] + 10), (10 * mine[1], 10 * mine[1] + 3)])
    assert [place for each in found.consumed for place in range(*each)] == [
        place for each in expected for place in range(*each)
    ]
    assert found.dataset.consumed_samples == found.consumed.count == 13
    theirs = granted(client, second)
    assert found.holders == [Holder(0, "w0", len(mine), 0), Holder(1, "w1", len(theirs), 0)]
    assert not found.finished


def test_an_epoch_is_proven_when_it_is_over(client: Client, read: Any) -> None:
    (who,) = client.crew(1)
    dataset(client, 95, 10)
    report(client, who, dict.fromkeys(range(10), 5))
    assert judge(read("d")).missing == [(10 * shard + 5, 10 * shard + 10) for shard in range(9)]
    report(client, who, dict.fromkeys(range(9), 10))
    found = judge(read("d"))
    assert (found.epoch, found.state, found.whole) == (0, "over", True)
    report(client, who, {0: 1}, epoch=1)
    client.call("AdvanceEpoch", dataset_id="d", from_epoch=1)
    found = judge(read("d"))
    assert (found.epoch, found.consumed, found.whole, found.missing) == (1, 1, False, None)
    assert judge(read("d"), 2).missing == [(0, 95)]


def test_another_version_proves_nothing_of_this_one(client: Client, read: Any) -> None:
    (who,) = client.crew(1)
    dataset(client, 20, 10)
    report(client, who, {0: 10, 1: 10})
    assert judge(read("d"), 0).whole
    said: Any = {"total_samples": 30, "shard_size": 10, "path": "/data", "format": "csv", "order": "affinity"}
    client.call("RegisterDataset", dataset_id="d", **said, replaces_version=1)
    found = judge(read("d"), 0)
    assert (found.state, found.whole, found.total) == ("running", False, 30)


def test_a_lost_workers_samples_are_counted_as_given_out_again(client: Client, read: Any) -> None:
    first, second = client.crew(2)
    dataset(client, 100, 10)
    mine = granted(client, second)
    report(client, second, {mine[0]: 4})
    client.call("Deregister", worker_id="w1", incarnation=second.incarnation)
    found: Ledger = read("d")
    assert found.reissued == 10 * len(mine) - 4
    assert found.consumed.count == 4
    assert [each.worker for each in found.holders] == ["w0"]
    assert found.holders[0].shards == 10
    assert first.rank == 0


def test_shards_that_must_be_given_up_are_told(client: Client, read: Any) -> None:
    client.crew(1)
    dataset(client, 100, 10)
    client.register("w1")
    old, new = read("d").holders
    assert (old.shards + new.shards, old.giving_up, new.giving_up) == (10, new.shards, 0)


def test_a_ledger_of_many_ranges_comes_in_pages(client: Client, read: Any) -> None:
    (who,) = client.crew(1)
    dataset(client, 140_000, 2)
    for start in range(0, 60_000, 20_000):
        report(client, who, dict.fromkeys(range(start, start + 20000), 1))
    page = client.call("GetLedger", dataset_id="d")
    assert page.HasField("next_place")
    assert len(page.consumed.edges) < 120_000
    rest = client.call("GetLedger", dataset_id="d", from_place=page.next_place)
    assert not rest.HasField("next_place")
    assert not rest.holders
    assert list(read("d").consumed) == [(2 * shard, 2 * shard + 1) for shard in range(60_000)]


def test_ranks_that_nobody_has_come_to_are_named_without_a_worker(client: Client, read: Any) -> None:
    client.register("w0", rank=0, world_size=3)
    dataset(client, 100, 10, "elastic")
    found: Ledger = read("d")
    assert [(each.rank, each.worker) for each in found.holders] == [(0, "w0"), (1, ""), (2, "")]
    assert sum(each.shards for each in found.holders) == 10


def test_what_is_not_there_is_told(client: Client, read: Any) -> None:
    with pytest.raises(NotFound, match="no job"):
        read("d")
    client.register("w0")
    with pytest.raises(NotFound, match="no dataset"):
        read("d")
    dataset(client, 10, 5)
    with pytest.raises(InvalidInput, match="from_place"):
        client.call("GetLedger", dataset_id="d", from_place=-1)
