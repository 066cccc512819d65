"""Numbers as characters: what is drawn says what the numbers say."""

import pytest

from strata.demo.drawing import bars, curve, is_steep


def test_bars_go_from_the_smallest_to_the_largest() -> None:
    assert bars([1, 2, 3, 4, 5, 6, 7, 8], 8) == "▁▂▃▄▅▆▇█"
    assert bars([8, 1], 10) == "█▁"


def test_many_values_are_drawn_as_means() -> None:
    assert bars([2, 4, 6, 8], 2) == "▁█"
    assert len(bars(list(range(1000)), 72)) == 72


def test_equal_values_and_none_are_drawn_too() -> None:
    assert bars([3, 3, 3], 9) == "▁▁▁"
    assert bars([], 9) == ""
    assert curve([], 10, 4) == ["nothing to draw"]


def test_a_curve_has_its_scale_and_its_first_and_last_step() -> None:
    lines = curve([(5, 2.0), (6, 1.5), (7, 1.0)], 10, 2)
    assert [line.split("│")[0].strip() for line in lines[:2]] == ["2", "1"]
    assert lines[0].endswith("│█▁") or lines[0].endswith("│█"), "the largest reaches the top"
    assert lines[1].split("│")[1][0] == "█"
    assert lines[1].split("│")[1][-1] == "▁", "and the smallest does not"
    assert lines[-1].split() == ["step", "5", "7"]


@pytest.mark.parametrize(
    ("values", "steep"), [([1.0, 10.0], True), ([1.0, 9.0], False), ([0.0, 10.0], False), ([], False)]
)
def test_what_falls_far_is_drawn_by_its_logarithm(values: list[float], steep: bool) -> None:
    assert is_steep(values) is steep


def test_by_logarithms_equal_factors_are_equal_heights() -> None:
    assert bars([100.0, 10.0, 1.0], 3)[1] == "▄" or bars([100.0, 10.0, 1.0], 3)[1] == "▅"
