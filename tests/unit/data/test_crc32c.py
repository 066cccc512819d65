"""The sums are those of the standard, for any stretches of any buffer, with the package for it and without."""

import builtins
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.data.formats import crc32c as module
from strata.data.formats.crc32c import crc32c, crc32c_in_numpy, crc32c_of_few, crc32c_of_lengths

WAYS = [crc32c, crc32c_in_numpy]


def test_known_sums() -> None:
    """From RFC 3720, appendix B.4."""
    known = {
        b"123456789": 0xE3069283,
        bytes(32): 0x8A9136AA,
        b"\xff" * 32: 0x62A8AB43,
        bytes(range(32)): 0x46DD794E,
        bytes(range(31, -1, -1)): 0x113FDB5C,
    }
    for data, expected in known.items():
        assert crc32c_of_few(data) == expected
        for way in WAYS:
            assert way(data, np.array([0]), np.array([len(data)])).tolist() == [expected]


@given(data=st.binary(max_size=400), cuts=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), max_size=8))
def test_many_stretches_at_once(data: bytes, cuts: list[tuple[int, int]]) -> None:
    bounds = [sorted((min(one, len(data)), min(two, len(data)))) for one, two in cuts]
    starts = np.array([start for start, _ in bounds], np.int64)
    ends = np.array([end for _, end in bounds], np.int64)
    expected = [crc32c_of_few(data[start:end]) for start, end in bounds]
    for way in WAYS:
        assert way(data, starts, ends - starts).tolist() == expected


@pytest.mark.parametrize("way", WAYS)
def test_a_long_stretch(way: Callable[..., Any]) -> None:
    data = np.random.default_rng(3).bytes(200_003)
    assert way(data, np.array([5]), np.array([199_990])).tolist() == [crc32c_of_few(data[5:199_995])]


@given(st.lists(st.integers(0, 2**32 - 1), max_size=20))
def test_the_sums_of_lengths(lengths: list[int]) -> None:
    found = crc32c_of_lengths(np.array(lengths, np.int64)).tolist()
    assert found == [crc32c_of_few(length.to_bytes(8, "little")) for length in lengths]


@pytest.fixture
def anew() -> Iterator[None]:
    module.compiled.cache_clear()
    yield
    module.compiled.cache_clear()


@pytest.mark.usefixtures("anew")
def test_the_package_is_used_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    package = pytest.importorskip("google_crc32c")
    assert module.compiled() is package.value
    module.compiled.cache_clear()
    monkeypatch.setattr(package, "implementation", "python")
    assert module.compiled() is None


@pytest.mark.usefixtures("anew")
def test_without_the_package_the_sums_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.startswith("google_crc32c"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    assert crc32c(b"123456789", np.array([0]), np.array([9])).tolist() == [0xE3069283]
    assert module.compiled() is None
