"""How long `strata --version` and `--help` take, beside the least that any command line of typer can take."""

import statistics
import subprocess
import sys
import time

from benchmarks import About, Row, Table

ABOUT = About("20 seconds")

TIMES_TYPER = 3.0
RUNS = 15

COMMANDS = {
    "python -c 'import typer'": ("-c", "import typer"),
    "strata --version": ("-m", "strata", "--version"),
    "strata --help": ("-m", "strata", "--help"),
    "strata ckpt ls --help": ("-m", "strata", "ckpt", "ls", "--help"),
}
LEAST, *HELD_TO_IT = list(COMMANDS)[:3]


def run() -> list[Table]:
    """The commands take turns, so that a busy machine slows all of them down alike."""
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(RUNS):
        for name, arguments in COMMANDS.items():
            taken[name].append(_milliseconds(arguments))
    target = TIMES_TYPER * statistics.median(taken[LEAST])
    rows = [
        Row(name, statistics.median(each), min(each), "ms", target if name in HELD_TO_IT else None)
        for name, each in taken.items()
    ]
    return [Table("The command line, until it has said what it is", rows)]


def _milliseconds(arguments: tuple[str, ...]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return (time.perf_counter() - began) * 1000
