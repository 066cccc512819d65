"""How commands draw: tables that keep the width they need, and bars that nobody sees but a person.

What is drawn is text, whatever it holds: rich's markup is never interpreted, and no character reaches the terminal that
it would obey. No other module of the command line makes a `Console` or a `Text` of rich's.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text as RichText

from strata.texts import printable, readable_bytes

WIDE = 200
GAP = 2
"""Between the columns of a table."""


class Text(RichText):
    """Rich's text of one line. What it is made of is escaped first, so that its width is the one that is shown."""

    def __init__(self, text: str = "", style: str | Style = "", **options: Any) -> None:
        super().__init__(printable(text), style, **options)

    def append(self, text: str | RichText, style: str | Style | None = None) -> Self:
        super().append(printable(text) if isinstance(text, str) else text, style)
        return self

    def append_text(self, text: RichText) -> Self:
        super().append_text(text)
        return self


class Terminal(Console):
    """Rich's console for text alone: it interprets no markup, and escapes what a terminal would obey."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> RichText:
        """A string is one line of text, also where a widget of rich's asks for markup."""
        return super().render_str(printable(text), **(options | {"markup": False, "emoji": False}))

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The last look at what is shown, whoever made the text."""
        for each in super().render(renderable, options):
            yield each if each.control else Segment("\n".join(map(printable, each.text.split("\n"))), each.style)


def open_console() -> Terminal:
    """Written to a file or a pipe, a table has the width that it needs."""
    made = Terminal()
    if not made.is_terminal:
        made.width = WIDE
    return made


def new_table(*columns: str) -> Table:
    """A column whose name ends in `>` is flush right."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column.rstrip(">"), justify="right" if column.endswith(">") else "left", overflow="fold")
    return made


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """On standard error, gone when it is over; none at all where that is no terminal. A task has a field `objects`."""
    shown = Terminal(stderr=True)
    columns = (BarColumn(), DownloadColumn(binary_units=True), _Speed(), TimeRemainingColumn())
    note = TextColumn("{task.fields[objects]}", style="dim", markup=False)
    with Progress(*columns, note, console=shown, transient=True, disable=not shown.is_terminal) as progress:
        yield progress


@contextmanager
def counting_bar() -> Iterator[Progress]:
    """The same for things that are counted. A task has a field `note`."""
    shown = Terminal(stderr=True)
    columns = (BarColumn(), TimeRemainingColumn())
    note = TextColumn("{task.fields[note]}", style="dim", markup=False)
    with Progress(*columns, note, console=shown, transient=True, disable=not shown.is_terminal) as progress:
        yield progress


def simulation_progress(console: Terminal) -> Progress:
    """How far a simulation is. A task has a field `note`."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    note = TextColumn("{task.fields[note]}", markup=False)
    return Progress(*columns, TimeRemainingColumn(), note, console=console)


def tell_rows(console: Terminal, rows: dict[str, str]) -> None:
    """Names and what is said of each, below each other."""
    table = Table(show_header=False, box=None, padding=(0, 2))
    for name, value in rows.items():
        table.add_row(Text(name, "bold"), value)
    console.print(table)


def meter(part: float, width: int) -> Text:
    """How much of a whole there is, as a line: full only if all is."""
    filled = int(max(0.0, min(1.0, part)) * width)
    return Text("━" * filled, "green").append("─" * (width - filled), "dim")


def percent(part: int, whole: int) -> str:
    """`45 %`: 100 only if it is all, and 0 only if it is nothing."""
    if not 0 < part < whole:
        return "0 %" if part <= 0 else "100 %"
    return f"{min(99.9, max(0.1, 100 * part / whole)):.1f} %"


def fitted(text: str, width: int) -> str:
    """At most so long, by leaving out its beginning: of a path the end says more."""
    return text if len(text) <= width else "…" + text[len(text) - max(1, width) + 1 :]


class _Speed(TextColumn):
    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: Task) -> Text:
        return Text(f"{readable_bytes(task.finished_speed or task.speed or 0)}/s", "dim")
