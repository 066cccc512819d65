"""Numbers and lengths of protobuf at many places at once, as protobuf itself writes and reads them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.data.damage import Damage
from strata.data.formats import wirescan
from strata.data.formats.wirescan import delimited, varints
from tests.unit.data.exampleoracle import decoded, encoded


def payload(values: list[int]) -> bytes:
    """The numbers as protobuf packs them: they are the end of the message."""
    record = encoded({"": ("int64", values)})
    return record[len(record) - sum(max(1, -(-(value % 2**64).bit_length() // 7)) for value in values) :]


NUMBERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-300, 300), st.integers(0, 127))


@given(lists=st.lists(st.lists(NUMBERS, max_size=30), max_size=6), chunk=st.integers(11, 40))
def test_numbers_are_those_that_protobuf_wrote(lists: list[list[int]], chunk: int) -> None:
    packed = [payload(values) for values in lists]
    octets = np.frombuffer(b"".join(packed), np.uint8)
    ends = np.cumsum([len(each) for each in packed], dtype=np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wirescan, "CHUNK", chunk)
        values, before = varints(octets, ends)
    assert values.tolist() == [value for each in lists for value in each]
    assert np.diff(before, prepend=0).tolist() == [len(each) for each in lists]


@pytest.mark.parametrize("last", [0, 1, 2, 0x7F])
def test_numbers_with_bits_that_have_no_place_are_taken_as_protobuf_does(last: int) -> None:
    number = b"\xff" * 9 + bytes([last])
    record = b"\x0a\x15\x0a\x13\x0a\x01a\x12\x0e\x1a\x0c\x0a\x0a" + number
    assert varints(np.frombuffer(number, np.uint8), np.array([10]))[0].tolist() == decoded(record)["a"][1]
    assert varints(np.frombuffer(b"\x80\x80\x00\x81\x00", np.uint8), np.array([5]))[0].tolist() == [0, 1]


@pytest.mark.parametrize("octets", [b"\x80" * 10 + b"\x01", b"\x01" + b"\xff" * 20 + b"\x01", b"\x80" * 400_000])
def test_numbers_that_are_too_long_are_damage(octets: bytes) -> None:
    with pytest.raises(Damage, match="more than 10 bytes"):
        varints(np.frombuffer(octets, np.uint8), np.array([len(octets)]))


def test_more_numbers_than_are_read_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wirescan, "MAX_BLOCK_BYTES", 79)
    assert len(varints(np.ones(9, np.uint8), np.array([9]))[0]) == 9
    with pytest.raises(Damage, match="10 whole numbers"):
        varints(np.ones(10, np.uint8), np.array([10]))


@given(length=st.integers(0, 2**31), bound=st.integers(0, 2**31 + 10), cut=st.integers(0, 8), tag=st.booleans())
def test_a_length_is_believed_if_all_of_it_is_there(length: int, bound: int, cut: int, tag: bool) -> None:
    head, rest = b"", length
    while rest >= 0x80:
        head, rest = head + bytes([rest & 0x7F | 0x80]), rest >> 7
    octets = np.frombuffer((b"\x0a" if tag else b"\x0b") + head + bytes([rest]) + b"\0" * 3, np.uint8)
    size = 2 + len(head)
    bound = min(bound, cut) if cut < size else bound
    found = delimited(octets, np.array([0]), np.array([bound]), 0x0A)
    assert found.good.tolist() == [tag and bound >= size + length]
    if found.good[0]:
        assert (found.starts.tolist(), found.ends.tolist()) == ([size], [size + length])


def test_a_length_of_too_many_bytes_is_not_believed() -> None:
    octets = np.frombuffer(b"\x0a\x80\x80\x80\x80\x80\x00\x00", np.uint8)
    assert not delimited(octets, np.array([0]), np.array([8]), 0x0A).good[0]
    assert delimited(octets[1:2], np.array([5, 0]), np.array([5, 1]), None).good.tolist() == [False, False]
    assert delimited(octets[:0], np.array([0]), np.array([0]), None).good.tolist() == [False]
