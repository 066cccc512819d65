"""The sums are those of the standard, for any stretches of any buffer."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strata.data.formats.crc32c import crc32c, crc32c_of_few


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
        assert crc32c(data, np.array([0]), np.array([len(data)])).tolist() == [expected]


@given(data=st.binary(max_size=400), cuts=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), max_size=8))
def test_many_stretches_at_once(data: bytes, cuts: list[tuple[int, int]]) -> None:
    bounds = [sorted((min(one, len(data)), min(two, len(data)))) for one, two in cuts]
    starts = np.array([start for start, _ in bounds], np.int64)
    ends = np.array([end for _, end in bounds], np.int64)
    found = crc32c(data, starts, ends - starts).tolist()
    assert found == [crc32c_of_few(data[start:end]) for start, end in bounds]


def test_a_long_stretch() -> None:
    data = np.random.default_rng(3).bytes(200_003)
    assert crc32c(data, np.array([5]), np.array([199_990])).tolist() == [crc32c_of_few(data[5:199_995])]
