"""What a ledger proves of an epoch, and no more."""

import pytest

from strata.core.ranges import RangeSet
from strata.data.ledger import Finished, Ledger, judge
from strata.data.position import dropped
from strata.data.registered import RegisteredDataset
from strata.errors import InvalidInput, NotFound


def ledger(epoch: int, consumed: list[int], *finished: Finished) -> Ledger:
    ranges = RangeSet.from_flat(consumed)
    known = RegisteredDataset(
        "d", 1, epoch, 100, 10, True, 0, "/d", "csv", "slots-v1", "affinity", consumed_samples=ranges.count
    )
    return Ledger(known, 1, ranges, 7, list(finished), [])


def test_of_the_epoch_that_runs_the_missing_ranges_are_known() -> None:
    found = judge(ledger(0, [0, 30, 40, 95]))
    assert (found.epoch, found.state, found.whole, found.reissued) == (0, "running", False, 7)
    assert found.missing == [(30, 40), (95, 100)]
    assert judge(ledger(0, [0, 100])).whole
    assert judge(ledger(0, [])).missing == [(0, 100)]


def test_of_an_epoch_that_is_over_only_how_many_are_missing() -> None:
    whole, short = Finished(3, 100, 100, 0), Finished(4, 100, 99, 5)
    known = ledger(5, [0, 10], whole, short)
    assert judge(known, 3).whole
    assert judge(known, 3).missing == []
    found = judge(known)  # the last that is over
    assert (found.epoch, found.state, found.consumed, found.whole, found.missing) == (4, "over", 99, False, None)
    assert found.reissued == 5
    assert judge(known, 5).state == "running"


def test_a_tail_that_its_readers_drop_is_not_missing_and_told() -> None:
    known = ledger(5, [0, 64], Finished(3, 100, 96, 0, to_drop=4), Finished(4, 100, 90, 0, to_drop=4))
    found = judge(known, 3)
    assert (found.whole, found.dropped, found.missing_samples, found.missing) == (True, 4, 0, [])
    found = judge(known, 4)
    assert (found.whole, found.dropped, found.missing_samples, found.missing) == (False, 4, 6, None)
    assert known.unproven == [0, 1, 2, 4]
    running = known._replace(to_drop=4)
    assert (judge(running, 5).missing, judge(running, 5).dropped) == ([(64, 96)], 4)
    assert judge(running._replace(consumed=RangeSet.from_flat([0, 96])), 5).whole
    assert not judge(ledger(1, [], Finished(0, 100, 96, 0)), 0).whole, "nobody said that it drops any"


@pytest.mark.parametrize(
    ("reading", "count"),
    [
        ("global_batch_size=16, streams=1, window_shards=8, tail=drop, data=ab", 4),
        ("global_batch_size=16, streams=1, window_shards=8, tail=short, data=ab", 0),
        ("global_batch_size=10, tail=drop", 0),
        ("global_batch_size=0, tail=drop", 0),
        ("tail=drop", 0),
        ("whatever it likes", 0),
        ("", 0),
    ],
)
def test_how_much_is_dropped_is_seen_from_how_it_is_read(reading: str, count: int) -> None:
    assert dropped(reading, 100) == count


def test_what_the_ledger_does_not_know_is_told() -> None:
    known = ledger(5, [], Finished(3, 100, 100, 0), Finished(4, 100, 100, 0))
    with pytest.raises(NotFound, match=r"epoch 6 of dataset 'd' has not begun: it is in epoch 5"):
        judge(known, 6)
    with pytest.raises(NotFound, match=r"nothing of epoch 2 .* it has epochs 3 to 4, and 5"):
        judge(known, 2)
    with pytest.raises(NotFound, match=r"it has epoch 5"):
        judge(ledger(5, []), 2)
    with pytest.raises(InvalidInput, match="epoch"):
        judge(known, -1)


def test_epochs_that_are_over_and_not_proven_are_named() -> None:
    known = ledger(5, [], *(Finished(epoch, 100, 90 if epoch == 3 else 100, 0) for epoch in (0, 1, 3)))
    assert known.unheard == [2, 4]
    assert known.unproven == [2, 3, 4]
    with pytest.raises(NotFound, match=r"nothing of epoch 2 .* it has epochs 0 to 1, 3, and 5"):
        judge(known, 2)
    assert ledger(0, []).unproven == []
    assert ledger(2, []).unproven == [0, 1], "it begins behind them"


def test_of_epochs_that_are_not_kept_any_more_nothing_is_said() -> None:
    kept = [Finished(epoch, 100, 100, 0) for epoch in range(6, 70) if epoch != 8]
    assert ledger(70, [], *kept)._replace(kept_from=6).unproven == [8]
