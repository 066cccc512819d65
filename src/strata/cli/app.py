"""The command line's entry: which commands there are, and how errors reach a person."""

import io
import os
import signal
import sys
from typing import Annotated

import typer

from strata import __version__
from strata.cli import ckpt, coordinator, data, demo, job, show, simulate, state, storage
from strata.errors import StrataError

INTERRUPTED = 130

app = typer.Typer(
    name="strata",
    help="A distributed runtime for machine-learning training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("coordinator")(coordinator.coordinator)
app.command("status")(show.status)
app.command("workers")(show.workers)
app.command("barriers")(show.barriers)
app.command("events")(show.events)
app.add_typer(job.app, name="job")
app.command("config")(show.config)
app.add_typer(state.app, name="state")
app.add_typer(storage.app, name="storage")
app.add_typer(ckpt.app, name="ckpt")
app.add_typer(data.app, name="data")
app.command("demo")(demo.demo)
app.add_typer(simulate.app, name="simulate")


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
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="replace")  # a terminal without the sign for "done" still shows the rest
    if sys.stdout is None:
        sys.exit("error: standard output is closed, and there is nowhere to write to")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as tidily as Ctrl-C
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        app()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:  # typer catches the interrupt itself, and says nothing
            typer.echo("interrupted", err=True)
        raise
    except StrataError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except OSError as error:
        _discard_output()
        typer.echo(f"error: cannot write the output: {error.strerror or error}", err=True)
        sys.exit(2)


def _discard_output() -> None:
    """Nobody takes it: what is still buffered must not be tried again while Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
