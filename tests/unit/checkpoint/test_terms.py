"""What a local disk and the storage behind it know of the runs of a job, and which of them is ahead."""

import pytest

from strata.checkpoint.lineage import Lineage, Term
from strata.checkpoint.terms import Known, unsettled


def term(name: str) -> Term:
    """`3b` is the third term, of the writer b."""
    return Term(int(name[:-1]), 0, f"host:1:{name[-1]}", 0.0)


def terms(names: str) -> Lineage:
    return Lineage(terms=[term(name) for name in names.split()])


@pytest.mark.parametrize(
    ("near", "settled", "far", "ahead"),
    [
        ("", "", "", ""),
        ("", "", "1a 2b", ""),
        ("1a", "1a", "1a", ""),
        ("1a 2a", "2a", "1a 2a", ""),
        ("1a 2a", "1a", "1a 2a", ""),  # settled, and nobody noted it
        ("1a", "1a", "1a 2b", ""),  # the job went on elsewhere
        ("1a", "1a", "5b 6c", ""),  # so far that this run is forgotten
        ("1a 2a", "1a", "1a", "2a"),  # began while the storage was away
        ("1a 2a 3c", "1a", "1a", "2a 3c"),
        ("1a 2a 3c", "1a", "1a 2a", "3c"),  # the first was told, and its answer lost
        ("2a 3a", "1a", "1a", "2a 3a"),  # the one before is forgotten here
        ("1a 2a", "1a", "1a 2b", ""),  # another was first, with the same number
        ("1a 2a 3a", "1a", "1a 2b", ""),
        ("1a 2a", "1a", "1a 2b 3b", ""),
        ("1a", "", "", "1a"),  # the very first run, before a storage that was never reached
        ("1a", "", "1b", ""),
    ],
)
def test_which_terms_are_ahead(near: str, settled: str, far: str, ahead: str) -> None:
    known = Known(terms(near), term(settled) if settled else None)
    assert unsettled(known, terms(far)) == terms(ahead).terms


@pytest.mark.parametrize(
    ("near", "settled", "far"), [("1a 2a", "2a", ""), ("5a 6a", "6a", "1a 2b"), ("5a 6a 7a", "6a", "5b")]
)
def test_a_storage_that_forgot_is_noticed(near: str, settled: str, far: str) -> None:
    assert unsettled(Known(terms(near), term(settled)), terms(far)) is None
