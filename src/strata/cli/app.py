"""The command line's entry: which commands there are, and how errors reach a person."""

import io
import os
import signal
import sys
from typing import Annotated

import typer

from strata import __version__
from strata.cli.lazy import Command, lazy_app
from strata.cli.output import say, say_error
from strata.errors import StrataError

INTERRUPTED = 130

COMMANDS = {
    "coordinator": Command("coordinator:coordinator", "Run a coordinator: it keeps the state of training jobs"),
    "status": Command("show:status", "What each job is doing, or what holds it back, and why"),
    "workers": Command("show:workers", "The workers of a job: what each is doing, and when it was last heard from"),
    "barriers": Command("show:barriers", "Barriers that workers wait at, who is missing, and how the latest ended"),
    "events": Command("show:events", "What happened: the newest last"),
    "job": Command("job:app", "Tell a running job to save, to stop, or to do without a worker"),
    "config": Command("show:config", "Which settings are in force, and where each came from"),
    "state": Command("state:app", "Look at a coordinator's state on disk, save it and put it back"),
    "storage": Command("storage:app", "Look at storages, copy between them, and check one"),
    "ckpt": Command(
        "ckpt:app", "Look at checkpoints, verify and compare them, copy them, and take them to other formats and back"
    ),
    "data": Command(
        "data:app",
        "The datasets of a job: register them, see who owns what, and prove that an epoch had every sample once",
    ),
    "demo": Command("demo:demo", "Train for real on this machine: kill a worker, add one, kill the coordinator"),
    "simulate": Command(
        "simulate:app", "Run a simulated cluster: crashes, hangs, partitions, lost and doubled messages"
    ),
}


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"strata {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


app = lazy_app(
    COMMANDS,
    _root,
    name="strata",
    help="A distributed runtime for machine-learning training.",
    pretty_exceptions_enable=False,
)


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
            say("interrupted", err=True)
        raise
    except StrataError as error:
        say_error(error)
        sys.exit(2)
    except KeyboardInterrupt:
        say("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except OSError as error:
        _discard_output()
        say_error(f"cannot write the output: {error.strerror or error}")
        sys.exit(2)


def _discard_output() -> None:
    """Nobody takes it: what is still buffered must not be tried again while Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
