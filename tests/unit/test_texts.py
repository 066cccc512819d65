import json

import msgspec
import pytest

from strata.texts import counted, encodable, printable, printable_json, printable_lines, readable_bytes, spans


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


def test_what_a_terminal_obeys_is_escaped() -> None:
    assert printable("loss ✓ 損失 [red]") == "loss ✓ 損失 [red]"
    obeyed = "\x1b[2J\x9b1m\x00\r\n\t\x7f\u202e\u2066\u200f\u2028\ud800"
    assert printable(obeyed) == r"\x1b[2J\x9b1m\x00\r\n\t\x7f\u202e\u2066\u200f\u2028\ud800"


def test_no_line_passes_for_one_of_stratas_own() -> None:
    assert printable_lines("a\nerror: b\r\n\x1b") == "a\n  error: b\\r\n  \\x1b"


def test_a_document_says_the_same_without_what_a_terminal_obeys() -> None:
    said = {"a\u202e": "✓ \x1b[2J\x7f\x9b\u2066\U000e0001\n"}
    shown = printable_json(msgspec.json.encode(said))
    assert shown.decode().isprintable()
    assert "✓" in shown.decode()
    assert json.loads(shown) == said
    assert printable_json(b'{"a":1}') == b'{"a":1}'


def test_halves_of_characters_are_escaped() -> None:
    assert encodable("caf\udce9 ✓") == r"caf\udce9 ✓"
