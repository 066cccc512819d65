"""feistel-v1: a bijection, forwards and backwards, and a fair one even when it is small."""

from math import factorial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.core import mix, permutation
from strata.core.permutation import Permutation, at_keys
from strata.errors import InvalidInput

KEYS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(
    ("size", "key", "first"),
    [
        (5, 0, [3, 0, 2, 1, 4]),
        (10, 1, [0, 3, 7, 6, 2, 1]),
        (100, 2**64 - 1, [99, 39, 22, 54, 38, 70]),
        (2**40, 12345, [717893924364, 739812314569, 454969698450, 876201353639]),
        (2**62, 7, [2596959717707638948, 3406029399689536994, 1992117517792913857]),
    ],
)
def test_golden_permutations(size: int, key: int, first: list[int]) -> None:
    assert Permutation(size, key).at(np.arange(len(first))).tolist() == first


@given(st.integers(0, 300), KEYS)
def test_it_is_a_bijection_and_has_an_inverse(size: int, key: int) -> None:
    every = np.arange(size)
    values = Permutation(size, key).at(every)
    assert sorted(values.tolist()) == every.tolist()
    assert Permutation(size, key).position_of(values).tolist() == every.tolist()


@given(st.integers(1, 2**62), KEYS, st.data())
def test_any_position_of_any_size_comes_back(size: int, key: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=10)), dtype=np.int64)
    found = Permutation(size, key)
    values = found.at(positions)
    assert found.position_of(values).tolist() == positions.tolist()
    assert found.at(found.position_of(positions)).tolist() == positions.tolist()
    assert all(0 <= value < size for value in values.tolist())


@given(st.integers(1, 2**62), st.lists(KEYS, max_size=6), st.data())
def test_a_key_for_each_position_is_a_permutation_for_each(size: int, keys: list[int], data: st.DataObject) -> None:
    positions = [data.draw(st.integers(0, size - 1)) for _ in keys]
    found = at_keys(size, np.array(keys, dtype=np.uint64), np.array(positions, dtype=np.int64))
    alone = [Permutation(size, key).at(np.array([place])) for key, place in zip(keys, positions, strict=True)]
    assert found.tolist() == [int(value[0]) for value in alone]


def test_taking_it_in_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, places = mix.keys(0, 1000), np.arange(1000)
    whole, each = Permutation(1000, 3).at(places), at_keys(1000, keys, places)
    monkeypatch.setattr(permutation, "CHUNK", 7)
    assert Permutation(1000, 3).at(places).tolist() == whole.tolist()
    assert at_keys(1000, keys, places).tolist() == each.tolist()


def test_the_shape_is_kept() -> None:
    square = np.arange(12).reshape(3, 4)
    assert Permutation(12, 1).at(square).tolist() == Permutation(12, 1).at(square.ravel()).reshape(3, 4).tolist()


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_every_order_of_a_few_is_about_as_frequent(size: int) -> None:
    trials = 60_000
    keys = mix.keys(size, trials)
    code = np.zeros(trials, dtype=np.int64)
    for place in range(size):
        code = code * size + at_keys(size, keys, np.full(trials, place))
    counts = np.unique(code, return_counts=True)[1]
    assert len(counts) == factorial(size)
    # The sum of squares of n - 1 normal deviates: 5 standard deviations above its mean is one in a million.
    expected, free = trials / factorial(size), factorial(size) - 1
    assert ((counts - expected) ** 2 / expected).sum() < free + 5 * (2 * free) ** 0.5


@pytest.mark.parametrize("size", [7, 16, 21, 37, 64, 128])
def test_where_two_neighbours_go_is_about_as_frequent(size: int) -> None:
    trials = 100_000
    keys = mix.keys(size, trials)
    one, other = (at_keys(size, keys, np.full(trials, place)) for place in (0, 1))
    counts = np.bincount(one * size + other, minlength=size * size).reshape(size, size)
    assert np.diagonal(counts).sum() == 0
    expected, free = trials / (size * (size - 1)), size * (size - 1) - 1
    off = counts[~np.eye(size, dtype=bool)]
    assert ((off - expected) ** 2 / expected).sum() < free + 5 * (2 * free) ** 0.5


def test_a_large_one_looks_shuffled() -> None:
    values = Permutation(100_000, 5).at(np.arange(100_000))
    ascents = int((np.diff(values) > 0).sum())
    assert abs(ascents - 50_000) < 500
    assert int((values == np.arange(100_000)).sum()) < 10


def test_wrong_input() -> None:
    with pytest.raises(InvalidInput, match="permutation size must be between 0"):
        Permutation(2**62 + 1, 0)
    with pytest.raises(InvalidInput, match="permutation size must be between 0"):
        Permutation(-1, 0)
    with pytest.raises(InvalidInput, match="at least 0 and below 5, not 0 to 5"):
        Permutation(5, 0).at(np.arange(6))
    with pytest.raises(InvalidInput, match="at least 0 and below 5, not -1 to -1"):
        Permutation(5, 0).position_of(np.array([-1]))
    with pytest.raises(InvalidInput, match="one key for each position"):
        at_keys(5, mix.keys(0, 2), np.arange(3))
