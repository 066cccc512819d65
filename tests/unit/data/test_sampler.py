"""Any map-style dataset, with torch's own DataLoader: every sample once, whatever is interrupted and resumed."""

from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.core.orders import Tail
from strata.data.sampler import ResumableSampler
from strata.errors import InvalidInput


def batches_of(sampler: ResumableSampler, count: int | None = None) -> list[list[int]]:
    """So many, through `over`, or the rest of the epoch."""
    found = []
    for batch in sampler.over(sampler):
        found.append(batch)
        if count is not None and len(found) == count:
            break
    return found


@given(st.integers(0, 200), st.integers(1, 20), st.data())
def test_an_epoch_that_is_stopped_and_resumed_at_any_world_size_has_every_sample_once(
    total: int, size: int, data: st.DataObject
) -> None:
    tail: Tail = "short"
    state: dict[str, Any] | None = None
    seen: list[int] = []
    expected = list(ResumableSampler(total, size, seed=3, tail=tail, shard_size=7, window_shards=2))
    while state is None or state["epoch"] == 0:
        world = data.draw(st.sampled_from([1, 2, 3, 4, 8]))
        count = data.draw(st.integers(1, 5))
        samplers = [
            ResumableSampler(total, size, rank=rank, world_size=world, seed=3, tail=tail, shard_size=7, window_shards=2)
            for rank in range(world)
        ]
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
        parts = [batches_of(sampler, count) for sampler in samplers]
        for shares in zip(*parts, strict=True):
            seen += [sample for share in shares for sample in share]
        states = [sampler.state_dict() for sampler in samplers]
        assert all(each == states[0] for each in states)
        state = states[0]
        if state["batch"] == len(expected) and state["epoch"] == 0:
            assert [batches_of(sampler) for sampler in samplers] == [[] for _ in samplers]
            state = samplers[0].state_dict()
    assert seen == [sample for batch in expected for sample in batch]
    assert sorted(seen) == list(range(total))


def test_epochs_follow_each_other_in_orders_of_their_own() -> None:
    sampler = ResumableSampler(100, 10)
    first, second = batches_of(sampler), batches_of(sampler)
    assert sampler.epoch == 2
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(100))
    assert first != second
    sampler.set_epoch(0)
    assert batches_of(sampler) == first


def test_what_is_consumed_is_only_known_of_what_went_through_over() -> None:
    sampler = ResumableSampler(100, 10)
    next(iter(sampler))
    with pytest.raises(InvalidInput, match=r"iterate over sampler\.over\(data_loader\)"):
        sampler.state_dict()
    sampler.set_epoch(0)
    assert sampler.state_dict()["batch"] == 0


def test_an_epoch_does_not_go_on_in_another_order() -> None:
    sampler = ResumableSampler(100, 10)
    batches_of(sampler, 3)
    state = sampler.state_dict()
    for wrong, told in [
        (ResumableSampler(100, 20), "global_batch_size 10 then, 20 now"),
        (ResumableSampler(100, 10, seed=1), "seed 0 then, 1 now"),
        (ResumableSampler(101, 10), "the data is not what it was"),
    ]:
        with pytest.raises(InvalidInput, match=told):
            wrong.load_state_dict(state)
    sampler.set_epoch(4)
    other = ResumableSampler(100, 20)
    other.load_state_dict(sampler.state_dict())
    assert (other.epoch, len(other)) == (4, 5)


def test_an_epoch_of_which_nothing_is_left_is_followed_by_one_in_another_order() -> None:
    sampler = ResumableSampler(100, 10)
    batches_of(sampler, 10)
    state = sampler.state_dict()
    assert (state["epoch"], state["batch"]) == (0, 10)
    other = ResumableSampler(100, 20, seed=1)
    other.load_state_dict(state)
    assert (other.epoch, other.batch) == (1, 0)


@pytest.mark.parametrize("wrong", [{"batch": -1}, {"epoch": -1}, {"seed": "0"}])
def test_a_state_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    sampler = ResumableSampler(100, 10)
    with pytest.raises(InvalidInput, match="no state of a loader"):
        sampler.load_state_dict({**sampler.state_dict(), **wrong})


@pytest.mark.parametrize("state", [{}, {"epoch": 0}, {"format": "strata-data-1", "batch": "3"}])
def test_what_is_no_state_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="no state of a loader"):
        ResumableSampler(100, 10).load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_a_dataloader_has_asked_for_ahead_are_not_lost(workers: int) -> None:
    torch = pytest.importorskip("torch")
    data = list(range(100))
    sampler = ResumableSampler(len(data), 10)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler, num_workers=workers)
    seen: list[int] = []
    for number, batch in enumerate(sampler.over(loader)):
        seen += batch.tolist()
        if number == 2:
            break
    again = ResumableSampler(len(data), 10)
    again.load_state_dict(sampler.state_dict())
    loader = torch.utils.data.DataLoader(data, batch_sampler=again, num_workers=workers)
    for batch in again.over(loader):
        seen += batch.tolist()
    assert sorted(seen) == data
    assert again.epoch == 1


def test_a_loader_that_is_not_of_this_sampler_is_noticed() -> None:
    sampler = ResumableSampler(100, 10)
    with pytest.raises(InvalidInput, match="batches from this sampler"):
        list(sampler.over([1, 2, 3]))
