"""Parts of a whole and long paths, as tables show them."""

import pytest

from strata.cli.drawing import fitted, meter, percent


@pytest.mark.parametrize(
    ("part", "whole", "told"),
    [
        (0, 10, "0 %"),
        (10, 10, "100 %"),
        (1, 3, "33.3 %"),
        (1, 10**9, "0.1 %"),
        (10**9 - 1, 10**9, "99.9 %"),
    ],
)
def test_all_and_nothing_are_told_only_where_they_are(part: int, whole: int, told: str) -> None:
    assert percent(part, whole) == told


@pytest.mark.parametrize(("part", "line"), [(0.0, "────"), (0.5, "━━──"), (0.999, "━━━─"), (1.0, "━━━━")])
def test_a_meter_is_full_only_if_all_is_there(part: float, line: str) -> None:
    assert meter(part, 4).plain == line


def test_of_a_path_the_end_stays() -> None:
    assert fitted("/data/train", 11) == "/data/train"
    assert fitted("/data/train", 6) == "…train"
