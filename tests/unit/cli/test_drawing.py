"""Parts of a whole and long paths, as tables show them."""

import io

import pytest
from rich.panel import Panel
from rich.spinner import Spinner
from rich.text import Text as RichText

from strata.cli.drawing import Terminal, Text, fitted, meter, new_table, percent


@pytest.mark.parametrize(
    ("part", "whole", "told"),
    [
        (0, 10, "0 %"),
        (10, 10, "100 %"),
        (1, 3, "33.3 %"),
        (1, 10**9, "0.1 %"),
        (10**9 - 1, 10**9, "99.9 %"),
    ],
)
def test_all_and_nothing_are_told_only_where_they_are(part: int, whole: int, told: str) -> None:
    assert percent(part, whole) == told


@pytest.mark.parametrize(("part", "line"), [(0.0, "────"), (0.5, "━━──"), (0.999, "━━━─"), (1.0, "━━━━")])
def test_a_meter_is_full_only_if_all_is_there(part: float, line: str) -> None:
    assert meter(part, 4).plain == line


def test_of_a_path_the_end_stays() -> None:
    assert fitted("/data/train", 11) == "/data/train"
    assert fitted("/data/train", 6) == "…train"


HOSTILE = "[/x] [red]a[/red] :smile: \x1b[2J\u202eb\nforged"
ESCAPED = r"[/x] [red]a[/red] :smile: \x1b[2J\u202eb\nforged"


def test_what_is_drawn_is_text_whatever_it_holds() -> None:
    output = io.StringIO()
    terminal = Terminal(file=output, width=200)
    table = new_table(HOSTILE)
    table.title = HOSTILE
    table.add_row(HOSTILE)
    table.add_row(Text(HOSTILE).append(HOSTILE, "red"))
    for each in (HOSTILE, Text(HOSTILE, "red"), table, Panel("", title=Text(HOSTILE))):
        terminal.print(each, soft_wrap=True)
    assert output.getvalue().count(ESCAPED) == 8
    assert all(each.isprintable() or each == "\n" for each in output.getvalue())
    assert not any(line.startswith("forged") for line in output.getvalue().splitlines())


def test_text_that_others_made_cannot_speak_to_the_terminal() -> None:
    output = io.StringIO()
    terminal = Terminal(file=output, width=200, force_terminal=True, color_system=None)
    terminal.print(RichText("\x1b[2J\x07\u202ea\nb"))
    terminal.print(Spinner("dots", RichText("\x1b]0;title")))
    assert output.getvalue().startswith("\\x1b[2J\\u202ea\nb\n")  # rich itself leaves out the bell
    assert "\x1b" not in output.getvalue()


def test_styles_are_still_drawn() -> None:
    output = io.StringIO()
    Terminal(file=output, force_terminal=True, color_system="standard").print(Text("[a]", "red"))
    assert output.getvalue() == "\x1b[31m[a]\x1b[0m\n"
