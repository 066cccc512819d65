"""The `strata` command: one file per command, imported when it is used."""

from strata.cli.app import main

__all__ = ["main"]
