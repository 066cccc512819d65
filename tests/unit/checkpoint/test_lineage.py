"""Who may begin a term, where others have a say in it."""

import pytest

from strata import background
from strata.checkpoint.lineage import begin_term, read_lineage
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
