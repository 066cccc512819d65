"""Keys and prefixes: what is refused, and that whatever is accepted stays inside the root."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import InvalidInput
from strata.storage.keys import check_key, check_prefix, join
from strata.testing.storage import BAD_KEYS


@pytest.mark.parametrize("key", [*BAD_KEYS, None, 7, b"bytes"], ids=lambda key: repr(key)[:20])
def test_bad_keys_are_refused(key: object) -> None:
    with pytest.raises(InvalidInput, match="key"):
        check_key(key)


@pytest.mark.parametrize(
    "key", ["a", "a/b", "..a", "a..", "...", ".hidden", "a b", "é", ".strata-tmpx", "a/.strata-tmp"]
)
def test_good_keys_are_kept_as_they_are(key: str) -> None:
    assert check_key(key) == key
    assert check_prefix(f"{key}/") == check_prefix(key) == key


def test_the_whole_storage_is_a_prefix() -> None:
    assert check_prefix("") == ""
    with pytest.raises(InvalidInput):
        check_prefix("/")


def test_a_long_key_is_shown_shortened() -> None:
    with pytest.raises(InvalidInput) as raised:
        check_key("x" * 100_000)
    assert len(str(raised.value)) < 500


@given(st.text(max_size=40) | st.lists(st.sampled_from(["..", ".", "", "a", "/", "\\", "\0"])).map("/".join))
def test_an_accepted_key_is_below_the_root(key: str) -> None:
    try:
        check_key(key)
    except InvalidInput:
        return
    assert os.path.normpath(f"/root/{key}") == f"/root/{key}"
    assert join("prefix", key) == f"prefix/{key}"
    assert join("", key) == key
