"""Answers that are kept have an end."""

from strata.coordinator.kept import ENTRY_BYTES, KeptAnswers


def test_what_is_kept_is_found_by_what_it_follows_from() -> None:
    kept = KeptAnswers(1 << 20)
    kept.keep(("job", 1), b"one")
    kept.keep(("job", 2), b"two")
    assert (kept.get(("job", 1)), kept.get(("job", 2)), kept.get(("job", 3))) == (b"one", b"two", None)


def test_when_there_are_too_many_bytes_all_but_the_latest_are_dropped() -> None:
    kept = KeptAnswers(2 * (100 + ENTRY_BYTES))
    for number in range(2):
        kept.keep(number, bytes(100))
    assert all(kept.get(number) for number in range(2))
    kept.keep(2, bytes(100))
    assert [kept.get(number) is not None for number in range(3)] == [False, False, True]
    kept.keep(3, bytes(100))
    assert kept.get(2) is not None, "what is dropped is counted no more"


def test_a_crowd_of_empty_answers_has_an_end_too() -> None:
    kept = KeptAnswers(100 * ENTRY_BYTES)
    for number in range(1000):
        kept.keep(number, b"")
    assert sum(kept.get(number) is not None for number in range(1000)) <= 100
