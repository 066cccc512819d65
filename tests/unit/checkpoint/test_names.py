"""What tensors are called: one by one or many at once, a key has the same name."""

import sys

import pytest

from strata.checkpoint.names import Names, below


@pytest.mark.slow
def test_no_character_is_escaped_in_one_way_and_not_in_the_other() -> None:
    for code in range(sys.maxunicode + 1):
        key = f"a{chr(code)}b"
        together = Names().give_all("model", {key: None})
        assert (together is None) == (below("", key) != key)
        assert together in (None, [below("model", key)])


def test_keys_that_are_no_names_by_themselves_go_one_by_one() -> None:
    for key in ("", "__metadata__"):
        assert Names().give_all("", {"a": 1, key: 2}) is None
