"""Runs benchmarks, all or those named, and prints them beside their targets."""

import argparse
import os
import pkgutil
import platform
import sys
from importlib import import_module
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table as Grid

import benchmarks
from benchmarks import Row, Table


def main(arguments: list[str]) -> int:
    """Answers 0 even when a target is missed: a busy machine is no failure. The report says which."""
    known = sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name[0] != "_")
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(known)}; all by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    options = parser.parse_args(arguments)
    chosen = options.names or os.environ.get("BENCH", "").split() or known
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"no benchmark is named {', '.join(unknown)}; there are {', '.join(known)}")
    results = _run(chosen, Console())
    if options.json:
        report = {"machine": _machine(), "results": results}
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    return 0


def _run(names: list[str], console: Console) -> dict[str, list[Table]]:
    results: dict[str, list[Table]] = {}
    for name in names:
        results[name] = []
        with console.status(f"{name} …"):
            for table in import_module(f"benchmarks.{name}").run():
                results[name].append(table)
                console.print(_grid(table))
    rows = [row for tables in results.values() for table in tables for row in table.rows if row.target is not None]
    console.print(f"{sum(row.met is True for row in rows)} of {len(rows)} targets met.")
    return results


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
