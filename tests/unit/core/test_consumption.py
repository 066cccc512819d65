"""Any stretch of places is counted as a set would."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strata.core.consumption import Consumption
from strata.core.ranges import RangeSet


@given(st.sets(st.integers(0, 59)), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1))
def test_any_stretch_is_counted(consumed: set[int], stretches: list[tuple[int, int]]) -> None:
    ranges = RangeSet()
    for place in consumed:
        ranges.add(place, place + 1)
    starts, ends = np.array([sorted(each) for each in stretches], np.int64).T
    expected = [len(consumed & set(range(*sorted(each)))) for each in stretches]
    assert Consumption(ranges).within(starts, ends).tolist() == expected


def test_by_example() -> None:
    consumed = Consumption(RangeSet.from_flat([10, 20, 30, 40]))
    assert consumed.below(np.array([0, 10, 13, 20, 25, 30, 35, 50])).tolist() == [0, 0, 3, 10, 10, 10, 15, 20]
