"""ShardManager and EpochCoordinator: what users of sharding alone hold us to."""

import threading
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import Conflict, InvalidInput, NotFound, Refused
from strata.sharding import EpochCoordinator, ShardAssignment, ShardManager, Strategy

STRATEGIES: tuple[Strategy, ...] = ("slots", "ring")


def manager_of(workers: int, strategy: Strategy = "slots", *, samples: int = 1000, size: int = 10) -> ShardManager:
    manager = ShardManager(strategy)
    for index in range(workers):
        manager.register_worker(f"worker-{index}")
    manager.register_dataset_params("data", samples, size, shuffle=True, seed=7)
    return manager


def owner_of(manager: ShardManager) -> dict[int, str]:
    return {each.shard_id: worker for worker, mine in manager.rebalance_shards().items() for each in mine}


# -- assignments -----------------------------------------------------------------------------------------------------


def test_an_assignment_has_the_promised_fields() -> None:
    manager = ShardManager()
    manager.register_worker("w")
    manager.register_dataset_params("data", 25, 10)
    assert manager.get_shard_for_worker("data", "w", 3) == [
        ShardAssignment("data", 0, 0, 10, [], 3),
        ShardAssignment("data", 1, 10, 20, [], 3),
        ShardAssignment("data", 2, 20, 25, [], 3),
    ]
    fields = ("dataset_id", "shard_id", "start_index", "end_index", "file_paths", "epoch")
    assert ShardAssignment.__struct_fields__ == fields


def test_each_assignment_has_a_list_of_files_of_its_own() -> None:
    one, other = manager_of(1, samples=20).get_shard_for_worker("data", "worker-0", 0)
    one.file_paths.append("a")
    assert other.file_paths == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_sample_is_somebodys_once(strategy: Strategy) -> None:
    manager = manager_of(7, strategy, samples=1003)
    shares = manager.rebalance_shards()
    assert list(shares) == [f"worker-{index}" for index in range(7)]
    ranges = sorted((each.start_index, each.end_index) for mine in shares.values() for each in mine)
    assert (ranges[0][0], ranges[-1][1]) == (0, 1003)
    assert all(left[1] == right[0] for left, right in pairwise(ranges))
    for worker, mine in shares.items():
        assert manager.get_shard_for_worker("data", worker) == mine


def test_loads_differ_by_at_most_one() -> None:
    loads = [len(mine) for mine in manager_of(7).rebalance_shards().values()]
    assert (sum(loads), max(loads) - min(loads)) == (100, 1)


def test_golden_assignment() -> None:
    shares = manager_of(4, samples=115).rebalance_shards()
    assert {worker: [each.shard_id for each in mine] for worker, mine in shares.items()} == {
        "worker-0": [8, 11, 0],
        "worker-1": [5, 9, 4],
        "worker-2": [3, 1, 6],
        "worker-3": [10, 7, 2],
    }


def test_shards_come_in_the_order_of_the_epoch() -> None:
    manager = manager_of(3)
    order = manager.epochs.order("data", 5)
    places = {int(shard): place for place, shard in enumerate(order.shards_at(np.arange(100)))}
    mine = [places[each.shard_id] for each in manager.get_shard_for_worker("data", "worker-1", 5)]
    assert mine == sorted(mine)
    assert [each.shard_id for each in manager.get_shard_for_worker("data", "worker-1", 5)] != sorted(mine)


def test_ownership_stays_while_epochs_and_orders_change() -> None:
    manager = manager_of(3)
    first, later = (
        [each.shard_id for each in manager.get_shard_for_worker("data", "worker-1", epoch)] for epoch in (0, 10**9)
    )
    assert first != later
    assert sorted(first) == sorted(later)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_natural_order_without_shuffle(strategy: Strategy) -> None:
    manager = ShardManager(strategy)
    for worker in "ab":
        manager.register_worker(worker)
    manager.register_dataset_params("plain", 1000, 10)
    for mine in manager.rebalance_shards().values():
        assert [each.shard_id for each in mine] == sorted(each.shard_id for each in mine)


def test_rebalance_covers_all_datasets_at_their_current_epochs() -> None:
    manager = manager_of(2, samples=40)
    manager.register_dataset_params("also", 20, 10)
    manager.advance_epoch("data")
    found = {(each.dataset_id, each.epoch) for mine in manager.rebalance_shards().values() for each in mine}
    assert found == {("data", 1), ("also", 0)}


def test_worlds_and_datasets_of_nothing() -> None:
    assert ShardManager().rebalance_shards() == {}
    empty = ShardManager()
    empty.register_dataset_params("none", 0, 10)
    assert empty.rebalance_shards() == {}
    empty.register_worker("w")
    assert empty.rebalance_shards() == {"w": []}
    assert empty.get_shard_for_worker("none", "w", 0) == []
    many = manager_of(5, samples=20)
    assert [len(mine) for mine in many.rebalance_shards().values()] == [1, 1, 0, 0, 0]


def test_a_seed_may_be_any_integer() -> None:
    manager = manager_of(2)
    for name, seed in (("negative", -5), ("huge", 2**200)):
        manager.register_dataset_params(name, 100, 10, True, seed)
        assert len(manager.get_shard_for_worker(name, "worker-0", 0)) == 5


# -- who comes and goes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(st.permutations([f"worker-{index}" for index in range(12)]))
def test_the_order_of_registration_does_not_matter(strategy: Strategy, workers: list[str]) -> None:
    manager = ShardManager(strategy)
    manager.register_dataset_params("data", 1000, 10, True, 7)
    for worker in workers:
        manager.register_worker(worker)
    assert manager.rebalance_shards() == manager_of(12, strategy).rebalance_shards()


def test_the_founding_world_is_in_natural_order() -> None:
    manager = ShardManager()
    for worker in ("w10", "w2", "w01", "w1", "w", "v3-10", "v3-9"):
        manager.register_worker(worker)
    assert list(manager.rebalance_shards()) == ["v3-9", "v3-10", "w", "w01", "w1", "w2", "w10"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_when_one_leaves_only_its_shards_move(strategy: Strategy) -> None:
    manager = manager_of(8, strategy)
    before = owner_of(manager)
    manager.remove_worker("worker-3")
    after = owner_of(manager)
    moved = {shard for shard in before if before[shard] != after[shard]}
    assert moved == {shard for shard, worker in before.items() if worker == "worker-3"}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_when_one_joins_shards_move_only_to_it(strategy: Strategy) -> None:
    manager = manager_of(8, strategy)
    before = owner_of(manager)
    manager.register_worker("newcomer")
    after = owner_of(manager)
    assert {after[shard] for shard in before if before[shard] != after[shard]} == {"newcomer"}
    if strategy == "slots":
        assert sum(worker == "newcomer" for worker in after.values()) == 100 // 9


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=25))
def test_churn_moves_no_more_than_it_must(steps: list[tuple[int, bool]]) -> None:
    manager, present = manager_of(4), {f"worker-{index}" for index in range(4)}
    before = owner_of(manager)
    for index, asked in steps:
        worker = f"worker-{index}"
        (manager.remove_worker if worker in present else manager.register_worker)(worker)
        present ^= {worker}
        if asked and present:
            after = owner_of(manager)
            loads = [len(mine) for mine in manager.rebalance_shards().values()]
            assert max(loads) - min(loads) <= 1
            assert set(after.values()) <= present
            stayed = set(before.values()) & present
            came = present - set(before.values())
            for shard, owner in before.items():
                assert owner == after[shard] or owner not in stayed or after[shard] in came
            before = after


def test_one_who_takes_the_place_of_another_takes_its_shards() -> None:
    manager = manager_of(5)
    lost = manager.get_shard_for_worker("data", "worker-2", 0)
    manager.remove_worker("worker-2")
    manager.register_worker("spare")
    assert manager.get_shard_for_worker("data", "spare", 0) == lost


def test_a_world_that_nobody_is_left_of_is_founded_anew() -> None:
    manager = manager_of(3)
    manager.rebalance_shards()
    for index in range(3):
        manager.remove_worker(f"worker-{index}")
        manager.rebalance_shards()
    for index in (2, 0, 1):
        manager.register_worker(f"worker-{index}")
    assert manager.rebalance_shards() == manager_of(3).rebalance_shards()


def test_registering_twice_is_registering_once() -> None:
    manager = manager_of(3)
    before = manager.rebalance_shards()
    manager.register_worker("worker-1")
    manager.register_dataset_params("data", 1000, 10, True, 7)
    assert manager.rebalance_shards() == before


# -- epochs ----------------------------------------------------------------------------------------------------------


def test_epochs_advance_one_by_one() -> None:
    manager = manager_of(1)
    assert manager.epochs.current("data") == 0
    assert [manager.advance_epoch("data") for _ in range(3)] == [1, 2, 3]
    assert manager.get_shard_for_worker("data", "worker-0")[0].epoch == 3
    assert manager.get_shard_for_worker("data", "worker-0", 0)[0].epoch == 0


def test_an_epoch_is_left_once_however_many_ask() -> None:
    epochs = EpochCoordinator()
    epochs.register("data", 100, 10)
    assert [epochs.advance("data", 0) for _ in range(4)] == [1, 1, 1, 1]
    assert epochs.advance("data", 1) == 2
    assert epochs.advance("data", 0) == 2
    with pytest.raises(Refused, match="is in epoch 2: it cannot advance from epoch 3"):
        epochs.advance("data", 3)
    assert epochs.current("data") == 2


def test_the_order_of_an_epoch_is_a_function_of_seed_and_epoch() -> None:
    one, other = EpochCoordinator(), EpochCoordinator()
    one.register("a", 1000, 10, shuffle=True, seed=1)
    other.register("b", 1000, 10, shuffle=True, seed=1)
    assert one.order("a", 4).line(np.arange(1000)).tolist() == other.order("b", 4).line(np.arange(1000)).tolist()
    assert one.order("a").line(np.arange(1000)).tolist() == other.order("b", 0).line(np.arange(1000)).tolist()
    one.advance("a")
    assert one.order("a").epoch == 1


def test_datasets_are_listed_by_id() -> None:
    epochs = EpochCoordinator()
    for name in "ba":
        epochs.register(name, 10, 10)
    assert list(epochs.datasets()) == ["a", "b"]
    epochs.unregister("a")
    assert list(epochs.datasets()) == ["b"]


def test_many_threads_at_once() -> None:
    manager, failures = manager_of(4), []

    def use(index: int) -> None:
        try:
            for turn in range(20):
                manager.register_worker(f"extra-{index}-{turn}")
                manager.get_shard_for_worker("data", "worker-0")
                manager.advance_epoch("data", turn)
                assert len(owner_of(manager)) == 100
                manager.remove_worker(f"extra-{index}-{turn}")
        except Exception as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=use, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert manager.epochs.current("data") == 20
    assert list(manager.rebalance_shards()) == [f"worker-{index}" for index in range(4)]


# -- wrong input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_dataset_that_changed_is_never_reshuffled_silently(strategy: Strategy) -> None:
    manager = manager_of(2, strategy)
    before = manager.rebalance_shards()
    with pytest.raises(Conflict, match=r"differs in total_samples=2000 \(registered with 1000\).*unregister"):
        manager.register_dataset_params("data", 2000, 10, True, 7)
    with pytest.raises(Conflict, match=r"shuffle=False \(registered with True\), seed=8 \(registered with 7\)"):
        manager.register_dataset_params("data", 1000, 10, False, 8)
    assert manager.rebalance_shards() == before
    manager.unregister_dataset("data")
    manager.register_dataset_params("data", 2000, 10, True, 7)
    assert len(owner_of(manager)) == 200
    manager.epochs.unregister("data")
    manager.epochs.register("data", 50, 10)
    assert sorted(owner_of(manager)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("no spaces", 10, 1, True, 0), "dataset_id 'no spaces' is not a valid id"),
        (("d", -1, 1, True, 0), "total_samples must be between 0"),
        (("d", 10, 0, True, 0), "shard_size must be between 1"),
        (("d", 10, 1.0, True, 0), "shard_size must be an integer, not float"),
        (("d", 10, 1, "yes", 0), "shuffle must be True or False, not str"),
        (("d", 10, 1, True, 1.0), "seed must be an integer, not float"),
        (("d", 10, 1, True, "1"), "seed must be an integer, not str"),
        (("d", 10, 1, True, True), "seed must be an integer, not bool"),
        (("d", 2**40, 1, True, 0), "the number of shards must be between 0"),
    ],
)
def test_a_wrong_dataset_changes_nothing(arguments: tuple[str, int, int, bool, int], why: str) -> None:
    manager = manager_of(1)
    with pytest.raises(InvalidInput, match=why):
        manager.register_dataset_params(*arguments)
    assert list(manager.epochs.datasets()) == ["data"]


def test_unknown_names_are_named_with_those_that_are_known() -> None:
    manager = manager_of(7)
    known = "known are worker-0, worker-1, worker-2, worker-3, worker-4 and 2 more"
    with pytest.raises(NotFound, match=f"worker 'worker-9' is not registered; {known}"):
        manager.get_shard_for_worker("data", "worker-9", 0)
    with pytest.raises(NotFound, match="dataset 'other' is not registered; known are data"):
        manager.get_shard_for_worker("other", "worker-1", 0)
    with pytest.raises(NotFound, match="dataset 'other' is not registered"):
        manager.advance_epoch("other")
    with pytest.raises(NotFound, match="dataset 'other' is not registered"):
        manager.unregister_dataset("other")
    with pytest.raises(NotFound, match="worker 'gone' is not registered"):
        manager.remove_worker("gone")
    with pytest.raises(NotFound, match="worker 'gone' is not registered; none is"):
        ShardManager().remove_worker("gone")


def test_other_wrong_input() -> None:
    manager = manager_of(1)
    with pytest.raises(InvalidInput, match="epoch must be at least 0"):
        manager.get_shard_for_worker("data", "worker-0", -1)
    with pytest.raises(InvalidInput, match="worker_id must be a string, not int"):
        manager.register_worker(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="from_epoch must be an integer"):
        manager.advance_epoch("data", 0.0)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match='strategy must be "slots" or "ring", not \'star\''):
        ShardManager("star")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="virtual_nodes must be between 1"):
        ShardManager("ring", virtual_nodes=0)
    assert list(manager.rebalance_shards()) == ["worker-0"]
    assert manager.epochs.current("data") == 0


def test_an_assignment_cannot_be_changed_and_travels_as_json() -> None:
    (only,) = manager_of(1, samples=10).get_shard_for_worker("data", "worker-0", 0)
    with pytest.raises(AttributeError):
        only.epoch = 1  # type: ignore[misc]
    assert msgspec.json.decode(msgspec.json.encode(only), type=ShardAssignment) == only
