"""Groups of commands, each imported when it runs: to list them takes a line about each and no module."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group


class Command(NamedTuple):
    """`place` is `module:name` below `strata.cli`: a function, or the Typer of a group."""

    place: str
    summary: str


# Help is text: `[strata.toml]` would be taken for a style, and left out.
PLAIN: dict[str, Any] = {"add_completion": False, "rich_markup_mode": None}

Commands = Mapping[str, Command]


def lazy_app(commands: Commands, callback: Callable[..., None] | None = None, **settings: Any) -> typer.Typer:
    """A group of these commands. In its list they are stand-ins that have a name and a line."""

    class Group(TyperGroup):
        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name, stand_in, rest = super().resolve_command(ctx, args)
            return name, stand_in and load(commands[str(name)].place, str(name)), rest

    app = typer.Typer(cls=Group, callback=callback, no_args_is_help=True, **PLAIN, **settings)
    for name, command in commands.items():
        app.command(name, help=command.summary)(_stand_in)
    return app


def load(place: str, name: str) -> Any:
    """The command itself, as it is to be run under this name."""
    module, _, attribute = place.partition(":")
    found = getattr(import_module(f"strata.cli.{module}"), attribute)
    if isinstance(found, typer.Typer):
        found.rich_markup_mode = None
        return get_group(found)
    alone = typer.Typer(**PLAIN)
    alone.command(name)(found)
    return get_command(alone)


def _stand_in() -> None:
    raise AssertionError("only the command that was loaded in its place is ever run")
