"""Bytes from address to address: by the system at once, or one by one, with the same outcome."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.checkpoint import moves


@pytest.mark.parametrize("call", [moves.system_call, None, lambda *_: -1], ids=["system", "none", "forbidden"])
@given(st.lists(st.integers(0, 5000), max_size=30), st.randoms(use_true_random=False))
def test_every_piece_arrives_and_nothing_else_is_touched(call: object, sizes: list[int], random: object) -> None:
    source = np.random.default_rng(0).integers(0, 256, sum(sizes) + 1, np.uint8)
    starts = np.cumsum([0, *sizes])[:-1]
    order = np.array(sorted(range(len(sizes)), key=lambda _: random.random()), np.int64)  # type: ignore[attr-defined]
    lengths = np.array(sizes, np.int64)
    gap = 3
    target = np.zeros(sum(sizes) + gap * (len(sizes) + 1), np.uint8)
    expected = target.copy()
    places = np.zeros(len(sizes), np.int64)
    at = gap
    for number in order:
        places[number] = at
        expected[at : at + sizes[number]] = source[starts[number] : starts[number] + sizes[number]]
        at += sizes[number] + gap
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moves, "system_call", call)
        moves.move_many(places + target.ctypes.data, starts.astype(np.int64) + source.ctypes.data, lengths)
    assert np.array_equal(target, expected)


def test_more_pieces_than_the_system_takes_at_once() -> None:
    source = np.arange(5000, dtype=np.int64)
    target = np.zeros_like(source)
    places = np.arange(0, source.nbytes, 8)
    moves.move_many(places[::-1] + target.ctypes.data, places + source.ctypes.data, np.full(len(places), 8, np.int64))
    assert np.array_equal(target, source[::-1])
