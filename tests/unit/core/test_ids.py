"""The checks that every edge shares: what is wrong is named, and what is sound is let through."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata.core.ids import check_callable, check_choice, check_finite, check_mapping, check_path, check_seconds
from strata.errors import InvalidInput

SECONDS = [0, -1, 0.0, math.nan, True, "1", None, [1], np.float64(0), 1j]
PATHS = ["", "a\0b", b"a", None, 5, Path]
CHOICES: Any = ["c", "", None, 5, [], {}, True]


@pytest.mark.parametrize("value", SECONDS, ids=repr)
def test_what_is_no_span_of_time_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="patience must be a number of seconds above 0, not"):
        check_seconds(value, "patience")


@pytest.mark.parametrize("value", [1, 0.5, math.inf, np.float32(0.5), np.int64(3), 10**400])
def test_any_number_of_seconds_is_one(value: Any) -> None:
    check_seconds(value, "patience")
    with pytest.raises(InvalidInput, match="patience"):
        check_seconds(value, "patience", most=0.25)


@pytest.mark.parametrize("value", PATHS, ids=repr)
def test_what_is_no_path_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="root must be a path, not"):
        check_path(value, "root")


def test_a_path_is_text() -> None:
    assert [check_path(each, "root") for each in ("a/b", Path("a/b"))] == ["a/b", "a/b"]


@pytest.mark.parametrize("value", CHOICES, ids=repr)
def test_another_word_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match='mode must be "a" or "b", not'):
        check_choice(value, "mode", ("a", "b"))
    check_choice("b", "mode", ("a", "b"))


@pytest.mark.parametrize(
    ("check", "wrong", "sound"), [(check_callable, 5, print), (check_mapping, [1], {}), (check_finite, math.inf, 1.0)]
)
def test_the_argument_is_named(check: Callable[[Any, str], Any], wrong: Any, sound: Any) -> None:
    with pytest.raises(InvalidInput, match="thing must be"):
        check(wrong, "thing")
    check(sound, "thing")
