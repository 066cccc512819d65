"""Range sets, against Python's sets of integers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.core.ranges import RangeSet
from strata.errors import InvalidInput

RANGES = st.tuples(st.integers(-5, 40), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def made_of(*ranges: tuple[int, int]) -> RangeSet:
    found = RangeSet()
    for start, end in ranges:
        found.add(start, end)
    return found


def members(found: RangeSet) -> set[int]:
    return {number for start, end in found for number in range(start, end)}


@given(st.lists(RANGES, max_size=25), RANGES)
def test_it_behaves_like_a_set_of_integers(ranges: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    found, model = RangeSet(), set[int]()
    for start, end in ranges:
        assert found.add(start, end) == len(set(range(start, end)) - model)
        model |= set(range(start, end))
    inside = set(range(*asked))
    assert members(found) == model
    assert found.count == len(model)
    assert found.overlap(*asked) == len(model & inside)
    assert found.covers(*asked) == (inside <= model)
    missing = found.missing(*asked)
    assert {number for start, end in missing for number in range(start, end)} == inside - model
    assert missing == list(made_of(*missing))


@given(st.lists(RANGES, max_size=25))
def test_it_is_compact_and_its_list_comes_back(ranges: list[tuple[int, int]]) -> None:
    found = made_of(*ranges)
    flat = found.to_flat()
    assert flat == sorted(set(flat))
    twin = RangeSet.from_flat(flat)
    assert (twin, twin.count, len(twin)) == (found, found.count, len(flat) // 2)


@given(st.lists(RANGES, max_size=12), st.lists(RANGES, max_size=12))
def test_a_union_has_what_is_in_either(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    left, right = made_of(*one), made_of(*other)
    union = left.union(right)
    assert union == right.union(left) == made_of(*one, *other)
    assert union.count == len(members(left) | members(right))
    assert (left, right) == (made_of(*one), made_of(*other))


def test_ranges_that_touch_are_one() -> None:
    assert made_of((0, 3), (5, 7), (3, 5)).to_flat() == [0, 7]


def test_an_empty_range_is_nothing_wherever_it_is() -> None:
    found = made_of((2, 4))
    for place in range(7):
        assert found.add(place, place) == 0
        assert found.covers(place, place)
        assert found.missing(place, place) == []
    assert found.to_flat() == [2, 4]


@pytest.mark.parametrize(
    ("place", "most", "found"),
    [
        (0, 9, [2, 4, 6, 9, 12, 13]),
        (0, 2, [2, 4, 6, 9]),
        (2, 1, [2, 4]),
        (3, 1, [2, 4]),
        (4, 1, [6, 9]),
        (5, 1, [6, 9]),
        (12, 9, [12, 13]),
        (13, 9, []),
    ],
)
def test_ranges_come_in_pages(place: int, most: int, found: list[int]) -> None:
    assert made_of((2, 4), (6, 9), (12, 13)).onward(place, most) == found


def test_a_copy_is_of_its_own() -> None:
    found = made_of((2, 4))
    twin = found.copy()
    twin.add(4, 9)
    assert (found.to_flat(), twin.to_flat()) == ([2, 4], [2, 9])


def test_it_is_no_key_and_shows_what_it_holds() -> None:
    with pytest.raises(TypeError):
        hash(RangeSet())
    assert repr(made_of((2, 4), (6, 9))) == "RangeSet([2, 4), [6, 9))"
    assert RangeSet() != []


@pytest.mark.parametrize(
    ("flat", "why"),
    [
        ([1], "a start and an end"),
        ([1, 1], "strictly increasing"),
        ([3, 4, 4, 5], "strictly increasing, but 4 comes before 4"),
        ([5, 3], "strictly increasing"),
        ([0, 1.0], "integers only"),
        ([False, True], "integers only"),
        (["a", "b"], "integers only"),
    ],
)
def test_a_list_that_no_set_writes_is_refused(flat: list[int], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        RangeSet.from_flat(flat)


def test_a_range_does_not_end_before_it_starts() -> None:
    found = made_of((0, 9))
    for ask in (found.add, found.overlap, found.covers, found.missing):
        with pytest.raises(InvalidInput, match=r"\[5, 3\) ends before it starts"):
            ask(5, 3)
    assert found.to_flat() == [0, 9]
