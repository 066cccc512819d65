"""The command line imports the module of the command that runs, and its help tells the truth about the others."""

import subprocess
import sys

import pytest
from typer.main import get_group

from strata.cli import app, ckpt, data
from strata.cli.lazy import Commands, load

TABLES = {"strata": app.COMMANDS, "strata ckpt": ckpt.COMMANDS, "strata data": data.COMMANDS}
EACH = [pytest.param(table, name, id=f"{group} {name}") for group, table in TABLES.items() for name in table]

COUNTING = """
import sys
from strata.cli import main
try:
    main()
except SystemExit:
    print("modules:", *(name for name in sys.modules if name.split(".")[0] == "strata"))
"""


def _modules(*arguments: str) -> set[str]:
    """Those of Strata that a process has imported when this command line has ended."""
    told = subprocess.run([sys.executable, "-c", COUNTING, *arguments], capture_output=True, text=True, check=True)
    return set(told.stdout.rpartition("modules:")[2].split())


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], [], ["ckpt", "--help"], ["data", "--help"]], ids=" ".join
)
def test_version_and_help_import_next_to_nothing_of_strata(arguments: list[str]) -> None:
    assert len(_modules(*arguments)) < 20


def test_a_command_imports_its_own_module_and_no_other_command() -> None:
    imported = _modules("job", "--help")
    assert "strata.cli.job" in imported
    assert not imported & {"strata.cli.ckpt", "strata.cli.storage", "strata.checkpoint", "strata.coordinator"}


def test_a_group_inside_a_group_imports_only_the_command_that_is_named() -> None:
    imported = _modules("ckpt", "rollback", "--help")
    assert "strata.cli.ckpt_rollback" in imported
    assert not imported & {"strata.cli.ckpt_convert", "strata.cli.data"}


@pytest.mark.parametrize(("table", "name"), EACH)
def test_the_line_in_the_list_is_how_the_help_of_the_command_itself_begins(table: Commands, name: str) -> None:
    own = " ".join((load(table[name].place, name).help or "").split())
    assert own.startswith(table[name].summary)


def test_a_misspelt_command_is_refused_with_the_nearest_name() -> None:
    told = subprocess.run([sys.executable, "-m", "strata", "chpt"], capture_output=True, text=True, check=False)
    assert told.returncode == 2
    assert "ckpt" in told.stderr


@pytest.mark.parametrize("group", [app.app, ckpt.app, data.app])
def test_every_command_in_the_table_is_listed(group: object) -> None:
    listed = list(get_group(group).commands)  # type: ignore[arg-type]
    assert listed in [list(table) for table in TABLES.values()]
