"""The command line's entry: which commands there are, and how errors reach a person."""

import sys
from typing import Annotated

import typer

from strata import __version__
from strata.cli import demo, simulate, storage
from strata.errors import StrataError

app = typer.Typer(
    name="strata",
    help="A distributed runtime for machine-learning training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("simulate")(simulate.simulate)
app.command("demo")(demo.demo)
app.add_typer(storage.app, name="storage")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"strata {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; errors that Strata raises on purpose are told in one line."""
    try:
        app()
    except StrataError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
