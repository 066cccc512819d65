"""A strip says of each stretch of a line how much of it is meant, and is as long as it may be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cli.data_strips import SHADES, cell_edges, strip, strip_of


def test_a_short_line_has_a_sign_for_each_place() -> None:
    assert strip_of(np.array([0, 3]), 5, 40) == "█··█·"
    assert strip_of(np.array([4]), 5, 40) == "····█"
    assert strip_of(np.zeros(0, np.int64), 1, 40) == "·"


def test_shades_are_by_thirds_and_full_only_if_all_is_meant() -> None:
    counts = np.array([0, 1, 3, 4, 6, 7, 8, 9])
    assert strip(counts, np.arange(9) * 9) == "·░░▒▒▓▓█"


@given(st.integers(1, 300), st.integers(1, 60), st.data())
def test_nothing_and_all_are_never_mistaken(length: int, width: int, data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.integers(0, length - 1)))
    drawn = strip_of(np.array(sorted(chosen), np.int64), length, width)
    edges = cell_edges(length, width).tolist()
    assert len(drawn) == min(length, width) == len(edges) - 1
    assert (edges[0], edges[-1]) == (0, length)
    for sign, start, end in zip(drawn, edges[:-1], edges[1:], strict=True):
        inside = len(chosen & set(range(start, end)))
        assert (sign == SHADES[0]) == (inside == 0)
        assert (sign == SHADES[-1]) == (inside == end - start)


@pytest.mark.parametrize("length", [10**7, 2**62 - 1])
def test_a_long_line_is_cut_without_going_over(length: int) -> None:
    edges = cell_edges(length, 70)
    assert (len(edges), int(edges[0]), int(edges[-1])) == (71, 0, length)
    assert (np.diff(edges) > 0).all()
    assert strip(np.diff(edges), edges) == "█" * 70
