"""Decoded blocks within a budget: each read once while it is wanted, and given up when it is not."""

import threading
from collections import Counter
from concurrent.futures import Future

import numpy as np
import pytest

from strata.data.columns import Fixed
from strata.data.held import Decoded, Held

BLOCK_BYTES = 80


class Source:
    def __init__(self) -> None:
        self.read: Counter[int] = Counter()
        self.fails: set[int] = set()
        self.go = threading.Event()
        self.go.set()

    def __call__(self, block: int) -> Decoded:
        self.go.wait()
        self.read[block] += 1
        if block in self.fails:
            raise OSError(f"block {block}")
        return {"x": Fixed(np.full(BLOCK_BYTES // 8, block))}


@pytest.fixture
def source() -> Source:
    return Source()


def number_in(block: Future[Decoded]) -> int:
    column = block.result()["x"]
    assert isinstance(column, Fixed)
    return int(column.values[0])


def use(held: Held, *blocks: int) -> list[int]:
    wanted = held.want(blocks)
    try:
        return [number_in(wanted[block]) for block in blocks]
    finally:
        held.done(wanted)


def test_a_block_is_read_once_while_there_is_room(source: Source) -> None:
    held = Held(source, 10 * BLOCK_BYTES, 2)
    assert use(held, 1, 2, 3) == [1, 2, 3]
    assert use(held, 3, 1) == [3, 1]
    assert source.read == {1: 1, 2: 1, 3: 1}
    assert held.held_bytes == 3 * BLOCK_BYTES
    held.close()


def test_the_least_recently_used_goes_first(source: Source) -> None:
    held = Held(source, 2 * BLOCK_BYTES, 1)
    use(held, 1)
    use(held, 2)
    use(held, 1)
    use(held, 3)
    assert held.held_bytes == 2 * BLOCK_BYTES
    use(held, 1)
    assert source.read == {1: 1, 2: 1, 3: 1}
    use(held, 2)
    assert source.read[2] == 2
    held.close()


def test_what_is_in_use_stays_though_it_is_too_much(source: Source) -> None:
    held = Held(source, BLOCK_BYTES, 2)
    wanted = held.want([1, 2, 3])
    assert [number_in(each) for each in wanted.values()] == [1, 2, 3]
    again = held.want([2])
    assert source.read == {1: 1, 2: 1, 3: 1}
    held.done(wanted)
    assert 2 in held.want([2])
    assert source.read[2] == 1
    held.done(again)
    held.done([2])
    assert held.held_bytes <= BLOCK_BYTES
    held.close()


def test_two_who_want_the_same_block_wait_for_one_reading(source: Source) -> None:
    source.go.clear()
    held = Held(source, 10 * BLOCK_BYTES, 4)
    first, second = held.want([7]), held.want([7])
    source.go.set()
    assert first[7].result() is second[7].result()
    assert source.read == {7: 1}
    held.done([7])
    held.done([7])
    held.close()


def test_one_that_failed_is_tried_again(source: Source) -> None:
    source.fails = {5}
    held = Held(source, 10 * BLOCK_BYTES, 1)
    with pytest.raises(OSError, match="block 5"):
        use(held, 5)
    source.fails = set()
    assert use(held, 5) == [5]
    held.close()


def test_all_who_want_one_that_fails_are_told_why_and_keep_nothing_else(source: Source) -> None:
    source.fails = {5}
    source.go.clear()
    held = Held(source, 2 * BLOCK_BYTES, 2)
    runs = [held.want([5, 1, 2]), held.want([5, 3, 4])]
    source.go.set()
    for wanted in runs:
        assert isinstance(wanted[5].exception(), OSError)
        assert [number_in(wanted[block]) for block in [*wanted][1:]] == [*wanted][1:]
    for wanted in runs:
        held.done(wanted)
    for block in range(10, 20):
        use(held, block)
    assert held.held_bytes <= 2 * BLOCK_BYTES
    source.fails = set()
    assert use(held, 5) == [5]
    held.close()


def test_who_is_done_after_it_was_closed_is_not_told_of_something_else(source: Source) -> None:
    held = Held(source, 10 * BLOCK_BYTES, 1)
    wanted = held.want([1, 2])
    held.close()
    held.done(wanted)


def test_one_that_failed_when_nobody_wanted_it_any_more_is_no_error_later(source: Source) -> None:
    source.fails = {5}
    source.go.clear()
    held = Held(source, 10 * BLOCK_BYTES, 1)
    wanted = held.want([5])
    held.done(wanted)
    source.go.set()
    assert isinstance(wanted[5].exception(), OSError)
    source.fails = set()
    assert use(held, 5) == [5]
    assert source.read == {5: 2}
    held.close()
