"""Who may begin a term, where others have a say in it; and which terms count."""

from typing import Any

import pytest

from strata import background
from strata.checkpoint.lineage import Lineage, Term, begin_term, check_term, read_lineage, rebuilt
from strata.checkpoint.manifest import Metadata
from strata.checkpoint.store import Store
from strata.errors import Superseded
from strata.storage import MemoryStorage


def writers(store: Store) -> list[str]:
    return [term.writer for term in background.run(read_lineage(store)).terms]


def test_whoever_must_agree_is_asked_again_if_another_began_meanwhile() -> None:
    store, asked = Store(MemoryStorage(), "job"), []

    async def agree() -> None:
        asked.append(1)
        if len(asked) == 1:
            await begin_term(store, -1, "another:1:abcd")

    term = background.run(begin_term(store, -1, "host:1:abcd", agree=agree))
    assert (len(asked), term.term) == (2, 2)
    assert writers(store) == ["another:1:abcd", "host:1:abcd"]


def test_one_that_slept_after_it_was_agreed_to_does_not_take_over() -> None:
    """It is refused when it asks again: another took its place, and has begun."""
    store = Store(MemoryStorage(), "job")
    has_slept = False

    async def agree() -> None:
        nonlocal has_slept
        if has_slept:
            raise Superseded("another process took its name")
        has_slept = True
        await begin_term(store, -1, "another:1:abcd")

    with pytest.raises(Superseded, match="took its name"):
        background.run(begin_term(store, -1, "host:1:abcd", agree=agree))
    assert writers(store) == ["another:1:abcd"]


def begun(store: Store, base: int, writer: str, **given: Any) -> Term:
    return background.run(begin_term(store, base, f"{writer}:1:{writer * 4}", **given))


def test_two_runs_of_one_number_are_not_one() -> None:
    """Of two that did not see each other, since a storage forgot what it was asked to keep."""
    store = Store(MemoryStorage(), "job")
    first = begun(store, -1, "a")
    background.run(store.storage.delete(store.key("lineage.json")))
    second = begun(store, -1, "b")
    assert first.term == second.term
    background.run(check_term(store, second))
    with pytest.raises(Superseded):
        background.run(check_term(store, first))


def test_terms_that_no_checkpoint_is_of_are_forgotten_and_no_others() -> None:
    store = Store(MemoryStorage(), "job")
    for number, writer in enumerate("abc"):
        begun(store, number, writer)
    begun(store, 3, "d", oldest=2)
    assert [term.term for term in background.run(read_lineage(store)).terms] == [2, 3, 4]


def test_what_a_later_run_went_back_behind_is_off_the_line() -> None:
    lineage = Lineage(terms=[Term(1, -1, "a", 0.0), Term(2, 5, "b", 0.0)])
    assert [step for step in range(4, 9) if lineage.holds(step, 1)] == [4, 5]
    assert lineage.holds(9, 2)
    there = [("first", saved(5, 1)), ("left behind", saved(6, 1)), ("later", saved(5, 2)), ("last", saved(7, 2))]
    assert lineage.line(there) == lineage.line(reversed(there)) == {5: "later", 7: "last"}


def test_where_it_is_gone_each_run_is_taken_to_have_gone_on_from_before_its_first_step() -> None:
    """One that was copied from elsewhere is of no run."""
    there = [(step, saved(step, term)) for step, term in ((1, 0), (5, 1), (6, 1), (7, 1), (6, 2))]
    lineage = rebuilt(metadata for _, metadata in there)
    assert [(term.term, term.base) for term in lineage.terms] == [(1, 4), (2, 5)]
    assert list(lineage.line(there)) == [1, 5, 6]


def saved(step: int, term: int) -> Metadata:
    return Metadata(1, "job", step, 0, term, f"{term}-ab", 0.0, 1, {}, [], [], "0")
