"""Keys: the same on every machine, distinct where promised, and spread."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.core import mix
from strata.errors import InvalidInput

WORDS = st.integers(0, 2**64 - 1)


def test_golden_keys() -> None:
    assert [mix.finalise(word) for word in (0, 1, 2, 2**63, 2**64 - 1)] == [
        0x0,
        0x5692161D100B05E5,
        0xDBD238973A2B148A,
        0x25C26EA579CEA98A,
        0xB4D055FCF2CBBD7B,
    ]
    assert mix.subkey() == 0xB4B2797457A0A6E4
    assert mix.subkey(0) == 0xB75DAE305877D9E9
    assert mix.subkey(-1) == 0x2ABED2F73E3E2201
    assert mix.subkey(-(2**200)) == 0x8AB7639494BAC314
    assert mix.subkey(1, 2) == 0x456F8132FFEBCB3F
    assert mix.keys(0, 3).tolist() == [0x5174D2F8515ADB3B, 0x3576318E30D5593D, 0x67E0593F06CE5090]
    assert mix.keys(-7, 2).tolist() == [0xBF04084C0AF9BF05, 0x6D71277234E2327F]
    assert mix.name_key("worker-0") == 0x1294AEAB29544F19
    assert mix.name_key("é") == 0x2F19F3EF8BBF1ACB


def test_the_generator_is_splitmix64() -> None:
    """The published outputs of splitmix64 from state 1234567."""
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert mix.subkeys(1234567, np.arange(5)).tolist() == published


@given(st.lists(WORDS, max_size=20))
def test_arrays_and_integers_agree(words: list[int]) -> None:
    array = np.array(words, dtype=np.uint64)
    assert mix.finalise_in_place(array).tolist() == [mix.finalise(word) for word in words]


def test_a_single_key_agrees_with_an_array_of_them() -> None:
    indexes = np.arange(4)
    each = mix.subkeys(np.array([[7], [2**64 - 1]], dtype=np.uint64), indexes)
    assert each.tolist() == [mix.subkeys(7, indexes).tolist(), mix.subkeys(2**64 - 1, indexes).tolist()]


@given(st.integers(), st.integers(0, 500))
def test_keys_are_distinct_and_a_prefix_of_longer_ones(seed: int, count: int) -> None:
    keys = mix.keys(seed, count)
    assert len(np.unique(keys)) == count
    assert mix.keys(seed, count + 3)[:count].tolist() == keys.tolist()


@given(st.lists(st.lists(st.integers(), max_size=4), max_size=12))
def test_different_parts_give_different_keys(many: list[list[int]]) -> None:
    distinct = {tuple(parts) for parts in many}
    assert len({mix.subkey(*parts) for parts in distinct}) == len(distinct)


def test_parts_do_not_run_together() -> None:
    found = [
        mix.subkey(*parts) for parts in ((1, 2), (2, 1), (0x201,), (1, 2, 0), (0, 1, 2), (12,), (-1, -2), (255,), (-1,))
    ]
    assert len(set(found)) == len(found)


def test_keys_are_spread_evenly() -> None:
    top = np.bincount((mix.keys(3, 64_000) >> np.uint64(58)).astype(np.int64), minlength=64)
    assert top.min() > 850
    assert top.max() < 1150


@pytest.mark.parametrize("seed", [True, 1.0, "1", None])
def test_a_seed_is_an_integer(seed: object) -> None:
    with pytest.raises(InvalidInput, match="seed must be an integer"):
        mix.check_seed(seed)


@pytest.mark.parametrize("seed", [0, -1, 2**300, -(2**300)])
def test_any_integer_is_a_seed(seed: int) -> None:
    assert mix.check_seed(seed) == seed
    assert len(mix.keys(seed, 3)) == 3
