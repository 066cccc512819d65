"""Runs benchmarks, all or those named, and prints them beside their targets."""

import argparse
import os
import pkgutil
import platform
import sys
from importlib import import_module
from pathlib import Path
from shutil import which

import msgspec
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

import benchmarks
from benchmarks import PROGRAMS, Row, Table


def main(arguments: list[str]) -> int:
    """Answers 0 even when a target is missed, since a busy machine is no failure, and 1 if a benchmark broke."""
    known = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name[0] != "_")
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(known)}; all by default")
    parser.add_argument("--list", action="store_true", help="say what each takes and needs, and measure nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    options = parser.parse_args(arguments)
    chosen = options.names or os.environ.get("BENCH", "").split() or known
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"no benchmark is named {', '.join(unknown)}; there are {', '.join(known)}")
    console = Console()
    if options.list:
        for name in chosen:
            console.print(_overview(name), markup=False, highlight=False, soft_wrap=True)
        return 0
    results, broken = _run(chosen, console)
    if options.json:
        report = {"machine": _machine(), "results": results}
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    return 1 if broken else 0


def _overview(name: str) -> str:
    module = import_module(f"benchmarks.{name}")
    about, what = module.ABOUT, " ".join((module.__doc__ or "").partition("\n\n")[0].split())
    needs = [each if which(each) else f"{each} (missing here: {PROGRAMS[each]})" for each in about.programs]
    needs += [about.besides] if about.besides else []
    return f"{name}: {about.takes}\n    {what}" + (f"\n    needs {', '.join(needs)}" if needs else "")


def _run(names: list[str], console: Console) -> tuple[dict[str, list[Table]], list[str]]:
    """What was measured, and the names of the benchmarks that ended in an error: the others run all the same."""
    results: dict[str, list[Table]] = {}
    broken: list[str] = []
    for name in names:
        results[name] = []
        try:
            with console.status(f"{name} …"):
                for table in import_module(f"benchmarks.{name}").run():
                    results[name].append(table)
                    console.print(_grid(table) if table.rows else Text(table.title, "yellow"))
        except Exception:  # noqa: BLE001  it is shown, and the others are measured
            broken.append(name)
            console.print_exception()
    tables = [(name, table) for name, found in results.items() for table in found]
    for name, table in tables:
        if not table.rows:
            console.print(f"{name}: {table.title}", style="yellow", markup=False)
    rows = [row for _, table in tables for row in table.rows if row.target is not None]
    console.print(f"{sum(row.met is True for row in rows)} of {len(rows)} targets met.")
    if broken:
        console.print(f"ended in an error: {', '.join(broken)}", style="red")
    return results, broken


def _grid(table: Table) -> Grid:
    grid = Grid(title=table.title, title_justify="left", title_style="bold")
    grid.add_column("")
    for heading in ("median", "best", "target"):
        grid.add_column(heading, justify="right")
    grid.add_column("met")
    for row in table.rows:
        grid.add_row(row.what, _number(row.median, row), _number(row.best, row), _target(row), _met(row))
    return grid


def _target(row: Row) -> str:
    return "" if row.target is None else f"{'≥' if row.at_least else '≤'} {_number(row.target, row)}"


def _number(value: float, row: Row) -> str:
    # Ratios near one need a digit more to be told apart.
    shown = f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if row.unit else f"{value:.4g}"
    return f"{shown} {row.unit}".rstrip()


def _met(row: Row) -> str:
    return "" if row.met is None else "[green]yes[/]" if row.met else "[red]no[/]"


def _machine() -> dict[str, str | int | None]:
    return {"python": platform.python_version(), "system": platform.system(), "cores": os.cpu_count()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
