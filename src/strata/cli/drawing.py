"""How commands draw: tables that keep the width they need, and bars that nobody sees but a person."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from strata.texts import readable_bytes

WIDE = 200
GAP = 2
"""Between the columns of a table."""


def open_console() -> Console:
    """Written to a file or a pipe, a table has the width that it needs."""
    made = Console(highlight=False)
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
    shown = Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(binary_units=True), _Speed(), TimeRemainingColumn())
    note = TextColumn("{task.fields[objects]}", style="dim", markup=False)
    with Progress(*columns, note, console=shown, transient=True, disable=not shown.is_terminal) as progress:
        yield progress


@contextmanager
def counting_bar() -> Iterator[Progress]:
    """The same for things that are counted. A task has a field `note`."""
    shown = Console(stderr=True)
    columns = (BarColumn(), TimeRemainingColumn())
    note = TextColumn("{task.fields[note]}", style="dim", markup=False)
    with Progress(*columns, note, console=shown, transient=True, disable=not shown.is_terminal) as progress:
        yield progress


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
