"""The checker itself: it takes what can be explained, refuses what cannot, and agrees with trying every order."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.testing.linearizability import Operation, check

Register = Operation[tuple[str, int], int]


def register(state: int, question: tuple[str, int], answer: int | None, known: bool) -> int | None:
    """A number that can be read and written."""
    kind, value = question
    if kind == "write":
        return value
    return state if not known or answer == state else None


def write(client: int, value: int, began: float, ended: float | None) -> Register:
    return Operation(client, ("write", value), 0 if ended is not None else None, began, ended)


def read(client: int, value: int, began: float, ended: float) -> Register:
    return Operation(client, ("read", 0), value, began, ended)


def test_one_after_the_other() -> None:
    assert check([write(0, 1, 0, 1), read(0, 1, 2, 3), write(1, 2, 4, 5), read(0, 2, 6, 7)], 0, register).holds


def test_a_stale_read_is_refused_and_told() -> None:
    verdict = check([write(0, 1, 0, 1), read(1, 0, 2, 3)], 0, register)
    assert not verdict.holds
    assert verdict.stuck


def test_what_overlaps_may_be_seen_either_way_but_not_both_ways() -> None:
    overlapping = write(0, 1, 0, 10)
    assert check([overlapping, read(1, 0, 1, 2), read(1, 1, 3, 4)], 0, register).holds
    assert not check([overlapping, read(1, 1, 1, 2), read(1, 0, 3, 4)], 0, register).holds


def test_a_call_without_an_answer_may_have_happened_late_or_never() -> None:
    lost = write(0, 1, 0, None)
    assert check([lost, read(1, 0, 1, 2)], 0, register).holds
    assert check([lost, read(1, 0, 1, 2), read(1, 1, 50, 51)], 0, register).holds
    assert not check([lost, read(1, 1, 1, 2), read(1, 0, 50, 51)], 0, register).holds
    assert not check([read(1, 1, 1, 2), write(0, 1, 3, None)], 0, register).holds


def test_an_empty_history_holds() -> None:
    assert check([], 0, register).holds


def brute_force(history: list[Register]) -> bool:
    """Every order of every choice of the calls without an answer."""
    known = [one for one in history if one.ended is not None]
    lost = [one for one in history if one.ended is None]
    for choice in range(1 << len(lost)):
        chosen = known + [one for number, one in enumerate(lost) if choice >> number & 1]
        for order in permutations(chosen):
            if _in_time(order) and _explains(order):
                return True
    return False


def _in_time(order: tuple[Register, ...]) -> bool:
    return not any(
        later.ended is not None and later.ended < earlier.began
        for number, earlier in enumerate(order)
        for later in order[number + 1 :]
    )


def _explains(order: tuple[Register, ...]) -> bool:
    state = 0
    for one in order:
        after = register(state, one.question, one.answer, one.ended is not None)
        if after is None:
            return False
        state = after
    return True


@st.composite
def histories(draw: st.DrawFn) -> list[Register]:
    count = draw(st.integers(1, 5))
    made = []
    for number in range(count):
        began = draw(st.integers(0, 10))
        ended = began + draw(st.integers(1, 8))
        value = draw(st.integers(0, 2))
        if draw(st.booleans()):
            made.append(write(number, value, began, None if draw(st.booleans()) else ended))
        else:
            made.append(read(number, value, began, ended))
    return made


@settings(max_examples=400)
@given(histories())
def test_it_agrees_with_trying_every_order(history: list[Register]) -> None:
    assert check(history, 0, register).holds == brute_force(history)


@pytest.mark.parametrize("clients", [8])
def test_long_histories_are_checked_in_a_moment(clients: int) -> None:
    history = [
        write(client, step * clients + client, step * 10, step * 10 + 9)
        for step in range(300)
        for client in range(clients)
    ]
    history += [read(99, step * clients + 3, step * 10 + 9.2, step * 10 + 9.5) for step in range(300)]
    assert check(history, 0, register).holds
