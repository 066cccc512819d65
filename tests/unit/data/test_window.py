"""Headers of a file are read in few requests, and no more of it than is near them."""

from pathlib import Path

import pytest

from strata.data.damage import Damage
from strata.data.files import File
from strata.data.finding import find_files
from strata.data.formats.window import AHEAD_BYTES, MOST_AHEAD_BYTES, Window

pytest.importorskip("pyarrow")

SIZE = 40 << 20


@pytest.fixture
def file(tmp_path: Path) -> File:
    with (tmp_path / "a").open("wb") as made:
        made.truncate(SIZE)
        made.seek(1_000_000)
        made.write(b"here")
    return find_files(tmp_path / "a")[0]


def readings(file: File, step: int, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    real = File.read

    def read(self: File, start: int, length: int) -> object:
        found.append((start, length))
        return real(self, start, length)

    monkeypatch.setattr(File, "read", read)
    window = Window(file)
    for place in range(0, SIZE - 16, step):
        assert len(window.at(place, 12)) == 12
    return found


def test_what_is_read_from_one_end_to_the_other_takes_few_readings(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    found = readings(file, 50_000, monkeypatch)
    assert len(found) < 12
    assert found[0] == (0, AHEAD_BYTES)
    assert max(length for _, length in found) == MOST_AHEAD_BYTES


def test_what_is_far_apart_is_read_in_small_pieces(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    found = readings(file, 2_000_000, monkeypatch)
    assert {length for _, length in found} == {AHEAD_BYTES}


def test_any_place_in_any_order(file: File) -> None:
    window = Window(file)
    for place in (0, 999_998, 30_000_000, 999_998, SIZE - 6):
        expected = b"\0\0here" if place == 999_998 else bytes(6)
        assert bytes(window.at(place, 6)) == expected
    for start, length in ((SIZE - 5, 6), (-1, 2), (0, -1)):
        with pytest.raises(Damage, match="should be"):
            window.at(start, length)
