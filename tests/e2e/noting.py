"""Runs an example as it is, and notes what it works on: `python -m tests.e2e.noting FOLDER SECONDS EXAMPLE ARGUMENTS…`.

Each process writes a line for each batch that its loader gives out, with where that is and how many share it, into a
file of its own; SECONDS is what a step takes longer by, so that there is time to kill it in the middle.
"""

import json
import os
import runpy
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import strata.data


def main(folder: Path, seconds: float, example: str) -> None:
    log = (folder / f"noted-{os.getpid()}").open("a", buffering=1)

    class Noting(strata.data.Loader):
        def __iter__(self) -> Iterator[Any]:
            for batch in super().__iter__():
                where = {"epoch": self.epoch, "batch": self.batch, "place": self.share[0], "places": self.share[1]}
                log.write(json.dumps({**where, "ids": batch["id"].tolist()}) + "\n")
                time.sleep(seconds)
                yield batch

    strata.data.Loader = Noting  # type: ignore[misc]  # for the example to take
    runpy.run_path(example, run_name="__main__")


if __name__ == "__main__":
    _, given_folder, given_seconds, *sys.argv = sys.argv
    main(Path(given_folder), float(given_seconds), sys.argv[0])
