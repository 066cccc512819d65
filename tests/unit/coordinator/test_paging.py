"""Pages: every item once, also when the list changes between two of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.coordinator.paging import page
from strata.errors import NotFound


def number(item: int) -> tuple[int]:
    return (item,)


@given(st.sets(st.integers(0, 1000)), st.integers(1, 20))
def test_every_item_comes_once(items: set[int], limit: int) -> None:
    found: list[int] = []
    cursor: str | None = ""
    while cursor is not None:
        some, cursor = page(sorted(items), number, cursor, limit)
        assert len(some) <= limit
        found.extend(some)
    assert found == sorted(items)


@given(st.sets(st.integers(0, 100), min_size=2), st.sets(st.integers(0, 100)), st.integers(1, 10))
def test_what_was_there_all_the_time_is_neither_lost_nor_doubled(before: set[int], after: set[int], limit: int) -> None:
    first, cursor = page(sorted(before), number, "", limit)
    rest: list[int] = []
    while cursor is not None:
        some, cursor = page(sorted(after), number, cursor, limit)
        rest.extend(some)
    seen = first + rest
    assert len(seen) == len(set(seen))
    if rest:
        assert before & after <= set(seen)


@pytest.mark.parametrize("cursor", ["x", "AAAA", "bm8=", "WyJhIl0=", "W251bGxd", "é"])
def test_what_is_no_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(NotFound, match="cursor"):
        page([1, 2], number, cursor, 10)
