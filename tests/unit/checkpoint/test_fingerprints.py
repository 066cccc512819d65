"""Fingerprints of arrays where they lie: any change tells, and nothing else does."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint.frameworks import fingerprints as module
from strata.checkpoint.frameworks.fingerprints import bytes_in_order, fingerprints


def of(data: bytes, shift: int = 0) -> str:
    block = torch.frombuffer(bytearray(bytes(shift) + data), dtype=torch.uint8)[shift:] if data or shift else _EMPTY
    return fingerprints([block])[0]


_EMPTY = torch.empty(0, dtype=torch.uint8)


@given(st.binary(max_size=200), st.integers(0, 7))
def test_the_same_bytes_have_the_same_wherever_they_begin(data: bytes, shift: int) -> None:
    assert of(data) == of(data, shift)


@given(st.binary(min_size=1, max_size=200), st.data())
def test_a_bit_that_differs_tells(data: bytes, draw: st.DataObject) -> None:
    place = draw.draw(st.integers(0, len(data) * 8 - 1))
    other = bytearray(data)
    other[place // 8] ^= 1 << place % 8
    assert of(bytes(other)) != of(data)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=50, unique=True))
def test_two_elements_that_change_places_tell(words: list[int]) -> None:
    there = b"".join(word.to_bytes(4, "little") for word in words)
    swapped = [words[1], words[0], *words[2:]]
    assert of(there) != of(b"".join(word.to_bytes(4, "little") for word in swapped))


@given(st.binary(max_size=60), st.integers(0, 20))
def test_zeros_at_the_end_tell(data: bytes, more: int) -> None:
    assert (of(data) == of(data + bytes(more))) == (more == 0)


def test_it_does_not_matter_how_much_is_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [torch.arange(size, dtype=torch.int64).view(torch.uint8) for size in (0, 1, 7, 100, 1000)]
    before = fingerprints(blocks)
    monkeypatch.setattr(module, "WORDS", 8)
    assert fingerprints(blocks) == before
    assert len(set(before)) == len(before)


def test_elements_have_the_same_in_whichever_order_they_lie() -> None:
    value = torch.arange(12.0).reshape(3, 4) * (1 + 2j)
    same = [
        value,
        value.t().contiguous().t(),
        value.conj().resolve_conj().conj(),
        value.repeat_interleave(2, 1)[:, ::2],
    ]
    other = [value.conj(), value.t()]
    found = fingerprints(map(bytes_in_order, same + other))
    assert len(set(found[:4])) == 1
    assert len(set(found)) == 3
