"""Lines down a pipe: whole ones, in order, without waiting."""

import os
from collections.abc import Iterator

import pytest

from strata.session.lines import Beat, Goodbye, Hello, Left, Line, Lines, Tick, encoded

ALL: list[Line] = [
    Hello("llama", "w0", 7, 60.0, {"coordinator_url": "a:1", "token": 'with "quotes"\n'}),
    Hello("llama", "w0", None, 60.0, {}),
    Beat(3, 5.0, 17.25, 4, 0, 2),
    Beat(3, 5.0, 17.25),
    Tick(18.5),
    Left(),
    Goodbye(),
]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue


def test_what_is_written_is_read(pipe: tuple[int, int]) -> None:
    lines = Lines(pipe[0])
    assert lines.read() == []
    os.write(pipe[1], b"".join(encoded(line) for line in ALL))
    assert lines.read() == ALL
    assert lines.read() == []
    assert not lines.ended


def test_half_a_line_is_read_when_it_is_whole(pipe: tuple[int, int]) -> None:
    lines, whole = Lines(pipe[0]), encoded(ALL[2])
    os.write(pipe[1], encoded(Left()) + whole[:10])
    assert lines.read() == [Left()]
    os.write(pipe[1], whole[10:])
    assert lines.read() == [ALL[2]]


def test_the_end_is_seen_after_all_that_was_written(pipe: tuple[int, int]) -> None:
    lines = Lines(pipe[0])
    os.write(pipe[1], encoded(Goodbye()))
    os.close(pipe[1])
    assert lines.read() == [Goodbye()]
    assert lines.ended
    assert lines.read() == []
