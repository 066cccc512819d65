"""How commands print lines and JSON, and ask questions. What others wrote is printed as text, whatever it holds.

Tables and colours are in `drawing`, with the same promise. No other module of the command line prints.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

import typer

from strata.texts import printable, printable_lines


def say(line: str, *, err: bool = False) -> None:
    """Print one line."""
    typer.echo(printable(line), err=err)


def say_error(message: object) -> None:
    """Print why a command failed; further lines of the message are indented."""
    typer.echo(f"error: {printable_lines(str(message))}", err=True)


def say_json(value: object, *, indent: int | None = 2, default: Callable[[Any], Any] | None = None) -> None:
    """Print a document for programs, in ASCII: other characters are escaped as JSON escapes them."""
    typer.echo(json.dumps(value, indent=indent, default=default))


def say_json_items(values: Iterable[object]) -> None:
    """Print a list for programs item by item: it may be larger than memory."""
    opening = "["
    for value in values:
        typer.echo(f"{opening}\n  {json.dumps(value)}", nl=False)
        opening = ","
    typer.echo("[]" if opening == "[" else "\n]")


def confirm(question: str) -> None:
    """Go on if a person says yes."""
    typer.confirm(printable(question), abort=True, err=True)
