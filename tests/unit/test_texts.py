import pytest

from strata.texts import counted, readable_bytes, spans


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1023.7, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (24 << 20, "24.0 MiB"),
        (3 << 40, "3.0 TiB"),
        (5000 << 50, "5,000.0 PiB"),
    ],
)
def test_sizes_in_words(size: float, said: str) -> None:
    assert readable_bytes(size) == said


def test_counts_in_words() -> None:
    assert [counted(count, "object") for count in (0, 1, 2000)] == ["0 objects", "1 object", "2,000 objects"]


def test_runs_of_numbers_in_words() -> None:
    assert spans([]) == []
    assert spans([0, 1, 3, 5, 6, 7]) == ["0 to 1", "3", "5 to 7"]
